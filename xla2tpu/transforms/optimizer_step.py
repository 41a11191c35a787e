"""``xm.optimizer_step``: average the gradients, then step; the step alone where that is certain."""

from __future__ import annotations

import libcst as cst

from xla2tpu import processes, syntax
from xla2tpu.changes import Builder
from xla2tpu.match import is_single_controller
from xla2tpu.nodes import descendants
from xla2tpu.sites import Change, Insert, Site
from xla2tpu.template import Piece, Slice

_AVERAGE, _BOTH = "average_gradients", "average_and_step"
# Under SPMD there was nothing to average, and sharded gradients are no copies of each other.
SHARDED = "Step alone: fully_shard, DTensors and DistributedDataParallel reduce the gradients."
_CLOSURE = "With several processes, average the gradients inside the closure, after backward()."


def optimizer_step(site: Site, builder: Builder) -> Change | str:
    """Turn ``xm.optimizer_step(opt)`` into ``average_gradients(opt)`` and ``opt.step()``.

    The message tells which form was chosen, and why.
    """
    if site.bound is None or "optimizer" not in site.bound.args:
        return "unsupported-form"
    optimizer = site.bound.args["optimizer"].value
    why = processes.single_process(builder) or processes.wrapped(site, optimizer, builder)
    given = _arguments(site, builder)
    if given is None:
        return "argument-not-supported"
    arguments, extra, may_be_closure = given
    if why is not None:
        site.fix_title = "Call optimizer.step()"
        site.message = f"`{{api}}` averages the gradients first, which is not needed: {why}"
        return builder.replace(site, f"{{optimizer}}.step({arguments})", extra=extra)
    if is_single_controller(list(builder.sites.values())):
        site.advice = SHARDED
        return "single-controller"
    if may_be_closure:
        # torch_xla averaged what was there before the closure ran its own backward().
        site.advice = _CLOSURE
        return "closure-order"
    site.message = (
        "`{api}` averages the gradients before it steps; the helper does so too, and nothing in a"
        " single process, since several cannot be ruled out here"
    )
    return _averaged(site, optimizer, arguments, extra, builder)


def _arguments(site: Site, builder: Builder) -> tuple[str, dict[str, Piece], bool] | None:
    """The arguments of ``step`` as a template with its pieces, and whether a closure is in them."""
    assert site.bound is not None
    given = site.bound.args.get("optimizer_args")
    if given is None:
        return "", {}, False
    mapping = given.value
    if not isinstance(mapping, cst.Dict):
        return "**{mapping}", {"mapping": Slice(mapping, syntax.precedence(mapping) < 7)}, True
    parts: list[str] = []
    extra: dict[str, Piece] = {}
    closure = False
    for index, element in enumerate(mapping.elements):
        name = f"item{index}"
        extra[name] = Slice(element.value)
        if not isinstance(element, cst.DictElement):
            parts.append(f"**{{{name}}}")
            closure = True
            continue
        key = element.key.evaluated_value if isinstance(element.key, cst.SimpleString) else None
        if not isinstance(key, str) or not key.isidentifier():
            return None
        parts.append(f"{key}={{{name}}}")
        closure |= key == "closure" and builder.tree.source(element.value) != "None"
    return ", ".join(parts), extra, closure


def _averaged(
    site: Site,
    optimizer: cst.BaseExpression,
    arguments: str,
    extra: dict[str, Piece],
    builder: Builder,
) -> Change | str:
    """Both calls, as statements where they fit, else in one helper, which keeps comments inside."""
    step = f"{{optimizer}}.step({arguments})"
    statement = builder.tree.statement(site.expression)
    lines = builder.tree.source(site.expression).splitlines()
    if _is_repeatable(optimizer) and not any("#" in line for line in lines[:-1]):
        if isinstance(statement, cst.Expr) and statement.value is site.expression:
            alone = syntax.small_statement_alone(builder.tree, statement)
            between = "\n" if alone else "; "
            block = f"{_AVERAGE}({{optimizer}}){between}{step}"
            return builder.statement(site, block, helpers=[_AVERAGE], extra=extra)
        if _is_value_of(statement, site.expression, builder):
            change = builder.replace(site, step, extra=extra)
            if isinstance(change, Change):
                helper = builder.use_helper(change, _AVERAGE)
                pieces = (f"{helper}(", Slice(optimizer), ")")
                change.inserts.append(Insert(statement, pieces))
            return change
    comma = ", " if arguments else ""
    call = f"{_BOTH}({{optimizer}}{comma}{arguments})"
    return builder.replace(site, call, helpers=[_BOTH], extra=extra)


def _is_repeatable(node: cst.BaseExpression) -> bool:
    """Whether an expression may be evaluated twice: names, attributes and subscripts alone."""
    calls = (cst.Call, cst.Await, cst.Lambda, cst.IfExp, cst.BooleanOperation)
    return syntax.is_pure(node) and not any(isinstance(n, calls) for n in descendants(node))


def _is_value_of(statement: cst.CSTNode, call: cst.CSTNode, builder: Builder) -> bool:
    """Whether a statement of one line assigns or returns the value of the call, and no more."""
    if not isinstance(statement, (cst.Assign, cst.AnnAssign, cst.Return)):
        return False
    line = builder.tree.parent(statement)
    alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
    return statement.value is call and alone
