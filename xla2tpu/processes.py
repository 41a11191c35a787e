"""Whether a program is known to run in a single process, or to average its gradients itself."""

from __future__ import annotations

import re

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.nodes import descendants
from xla2tpu.scopes import Scope
from xla2tpu.sites import Site

WRAPPERS = {
    "torch.nn.parallel.DistributedDataParallel": "DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel": "DistributedDataParallel",
    "torch.distributed.fsdp.FullyShardedDataParallel": "FullyShardedDataParallel",
    "torch_xla.distributed.fsdp.XlaFullyShardedDataParallel": "XlaFullyShardedDataParallel",
}
# Launch, collectives and process groups, and questions for ranks and counts.
_OF_SEVERAL = re.compile(r"XLA(50[6-9]|51\d|52\d|113|3\d\d|811|816|819)\Z")
_LAUNCHERS = re.compile(
    r"\b((LOCAL_|GROUP_)?RANK|WORLD_SIZE|torchrun|xla_dist|multiprocessing|notebook_launcher"
    r"|torch\.distributed|init_process_group|lightning|accelerate|ignite|catalyst|_mp_fn)\b"
)
_INDEX = frozenset({"index", "rank", "local_rank", "ordinal"})


def single_process(builder: Builder) -> str | None:
    """Why the program of the file runs in one process for certain, None where it may not."""
    if builder.settings.processes == "single":
        return "the configuration says that there is a single process"
    if is_script(builder):
        return "the script runs in a single process, since it starts no worker function"
    return None


def is_script(builder: Builder) -> bool:
    """Whether the file is run as ``__main__`` and has nothing that is run in several processes."""
    tree = builder.tree
    if not any(_is_main_guard(node) for node in tree.module.body):
        return False
    if any(_OF_SEVERAL.match(site.rule.code) for site in builder.sites.values()):
        return False
    return _LAUNCHERS.search(tree.text) is None and not _hands_on_functions(builder)


def _is_main_guard(node: cst.CSTNode) -> bool:
    test = node.test if isinstance(node, cst.If) else None
    return isinstance(test, cst.Comparison) and any(
        isinstance(below, cst.Name) and below.value == "__name__" for below in descendants(test)
    )


def _hands_on_functions(builder: Builder) -> bool:
    """Whether a function of the file may be what another program calls in each process.

    It is an argument somewhere, or takes the index of a process.
    """
    tree = builder.tree
    for binding in tree.root.bindings.values():
        for bound in binding:
            if not isinstance(bound.node, cst.FunctionDef):
                continue
            first = next((p.name.value for p in bound.node.params.params), "")
            loads = tree.loads_of(bound.name, tree.root)
            if first in _INDEX or any(isinstance(tree.parent(n), cst.Arg) for n, _ in loads):
                return True
    return False


def wrapped(site: Site, optimizer: cst.BaseExpression, builder: Builder) -> str | None:
    """What wraps the one model of an optimizer in the scope of the site, for certain.

    The wrapped model and the optimizer are both bound before the site on every way to it.
    """
    if not isinstance(optimizer, cst.Name) or site.scope.kind == "class":
        return None
    made = _value_before(optimizer, site, site.scope, builder)
    if not isinstance(made, cst.Call):
        return None
    models = {
        call.func.value.value
        for call in descendants(made)
        if isinstance(call, cst.Call)
        and isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "parameters"
        and isinstance(call.func.value, cst.Name)
    }
    if len(models) != 1:
        return None
    model = models.pop()
    bindings = site.scope.bindings.get(model, [])
    last = max(bindings, key=lambda b: builder.tree.span(b.node)) if bindings else None
    if last is None or not isinstance(last.value, cst.Call):
        return None
    name = WRAPPERS.get(builder.callee(last.value, site.scope) or "")
    # Under `no_sync` the wrapper leaves the gradients as they are.
    if name is None or "no_sync" in builder.tree.text or not _dominates(last.node, site, builder):
        return None
    return f"`{model}` is wrapped in {name}"


def _value_before(
    name: cst.Name, site: Site, scope: Scope, builder: Builder
) -> cst.BaseExpression | None:
    bindings = scope.bindings.get(name.value, [])
    if len(bindings) != 1 or not _dominates(bindings[0].node, site, builder):
        return None
    return bindings[0].value


def _dominates(node: cst.CSTNode, site: Site, builder: Builder) -> bool:
    """Whether the statement of a node has run whenever the site is reached."""
    tree = builder.tree
    line = tree.parent(tree.statement(node))
    suite = tree.parent(line) if isinstance(line, cst.SimpleStatementLine) else None
    if suite is None or tree.span(node) >= tree.span(site.node):
        return False
    return tree.is_within(site.node, suite)
