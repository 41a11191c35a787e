"""Averaging of gradients by hand: one helper for the pair of calls, or one for each."""

from __future__ import annotations

from itertools import pairwise

import libcst as cst

from xla2tpu import processes
from xla2tpu.changes import Builder
from xla2tpu.match import is_single_controller
from xla2tpu.sites import Change, Cut, Site, within
from xla2tpu.template import Slice
from xla2tpu.transforms.optimizer_step import SHARDED

_AVERAGE = "average_gradients"
_SUMS = ("'sum'", '"sum"')
_COUNTS = frozenset({"XLA301", "XLA305"})


def reduce_gradients(site: Site, builder: Builder) -> Change | str:
    """Average with a helper; ``_fetch_gradients`` and the sum that follows it are one average."""
    if site.context not in ("statement", "discarded", "value", "lambda-body"):
        return "unsupported-form"
    why = processes.single_process(builder)
    if why is None and is_single_controller(list(builder.sites.values())):
        site.advice = SHARDED
        return "single-controller"
    name = site.path.rpartition(".")[2]
    if name == "_fetch_gradients":
        return _pair(site, builder) or builder.replace(
            site, "gradients_of({optimizer})", helpers=["gradients_of"]
        )
    given = site.bound.args.values() if site.bound is not None else ()
    lossless = all(builder.droppable(arg.value, site.scope) for arg in given)
    if why is not None and site.context == "statement" and lossless:
        site.fix_title, site.message = "Remove the call", f"`{{api}}` has nothing to do: {why}"
        return builder.delete(site)
    if name == "all_reduce_bucketized_gradients":
        return builder.replace(
            site, "sum_gradients({gradients}, scale={scale})", helpers=["sum_gradients"]
        )
    return builder.replace(site, f"{_AVERAGE}({{optimizer}})", helpers=[_AVERAGE])


def _pair(site: Site, builder: Builder) -> Change | None:
    """``g = xm._fetch_gradients(opt)``, with ``xm.all_reduce("sum", g, 1 / world)`` after it."""
    tree = builder.tree
    fetch = tree.parent(site.expression)
    if not isinstance(fetch, cst.Assign) or len(fetch.targets) != 1:
        return None
    target, follower = fetch.targets[0].target, _next(fetch, builder)
    if not isinstance(target, cst.Name) or not isinstance(follower, cst.Expr):
        return None
    owner = site.scope.owner(target.value)
    loads = tree.loads_of(target.value, owner) if owner is not None else []
    reduce = builder.sites.get(id(follower.value))
    if reduce is None or {site, reduce} & builder.suppressed:
        return None
    if not _averages(reduce, [n for n, _ in loads], builder):
        return None
    assert site.bound is not None
    change = Change(deletes=[follower], replaced=[site.expression])
    helper = builder.use_helper(change, _AVERAGE)
    optimizer = site.bound.args["optimizer"].value
    change.cuts.append(Cut(*tree.span(fetch), (f"{helper}(", Slice(optimizer), ")")))
    change.kept.append(optimizer)
    site.take_along(reduce)
    return change


def _next(statement: cst.CSTNode, builder: Builder) -> cst.CSTNode | None:
    """The statement on the next line of the same suite, where both have their lines alone."""
    line = builder.tree.parent(statement)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    suite = builder.tree.parent(line)
    if not isinstance(suite, (cst.IndentedBlock, cst.Module)):
        return None
    after = next((b for a, b in pairwise(suite.body) if a is line), None)
    if not isinstance(after, cst.SimpleStatementLine) or len(after.body) != 1:
        return None
    return after.body[0]


def _averages(site: Site, loads: list[cst.Name], builder: Builder) -> bool:
    """Whether a call sums the gradients over all processes and divides by their number."""
    given = site.bound.args if site.bound is not None else {}
    if site.path != "torch_xla.core.xla_model.all_reduce" or "groups" in given:
        return False
    kind, inputs, scale = (given.get(n) for n in ("reduce_type", "inputs", "scale"))
    if kind is None or inputs is None or scale is None or len(loads) != 1:
        return False
    summed = builder.tree.source(kind.value) in _SUMS or any(
        s.path.endswith(".REDUCE_SUM") and s.expression is kind.value
        for s in within(builder.sites.values(), builder.tree, kind.value)
    )
    share = scale.value
    if not isinstance(share, cst.BinaryOperation) or not isinstance(share.operator, cst.Divide):
        return False
    counted = builder.sites.get(id(share.right))
    return (
        summed
        and inputs.value is loads[0]
        and builder.tree.source(share.left) in ("1", "1.", "1.0")
        and counted is not None
        and counted.rule.code in _COUNTS
    )
