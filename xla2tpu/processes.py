"""Whether a program is known to run in a single process, or to average its gradients itself."""

from __future__ import annotations

import re
import sys

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
    r"\b((LOCAL_|GROUP_)?RANK|WORLD_SIZE|local[-_]rank|world[-_]size|torchrun|xla_dist"
    r"|multiprocessing|notebook_launcher|torch\.distributed|init_process_group|lightning"
    r"|accelerate|ignite|catalyst|_mp_fn)\b"
)
# Modules that start no processes by themselves, beside the standard library.
_QUIET = frozenset(
    {"PIL", "albumentations", "builtins", "cv2", "datasets", "einops", "evaluate", "matplotlib",
     "numpy", "omegaconf", "pandas", "scipy", "seaborn", "sklearn", "tensorboardX", "timm",
     "tokenizers", "torch", "torch_xla", "torchaudio", "torchmetrics", "torchtext", "torchvision",
     "tqdm", "transformers", "wandb", "yaml"}
)  # fmt: skip
_KNOWN = _QUIET | sys.stdlib_module_names
_MODULE = frozenset({"__file__", "__name__", "__doc__"})
_DATA_OR_MODEL = re.compile(
    r"data|loader|batch|sampler|transform|token|vocab|model|net\Z|net_|loss|metric|criterion"
    r"|optimizer|schedule|args|config|seed|logg", re.IGNORECASE,
)  # fmt: skip
_STARTS = re.compile(
    r"dist|parallel|ddp|fsdp|rank|launch|spawn|start|process|worker|train|run|init|setup|set_up"
    r"|engine|fabric|accelerat|strategy|xla|tpu", re.IGNORECASE,
)  # fmt: skip
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
    if _LAUNCHERS.search(tree.text) is not None or _hands_on_functions(builder):
        return False
    return not _relies_on_others(builder)


def _relies_on_others(builder: Builder) -> bool:
    """Whether code that is not in sight may start several processes around what the file does.

    That may be the base of a class, a decorator, or a function that is called; those that make
    data and models by their names are taken for what they say.
    """
    tree = builder.tree
    for node in descendants(tree.module):
        asked: list[cst.BaseExpression] = []
        if isinstance(node, cst.ClassDef):
            asked = [base.value for base in node.bases] + [d.decorator for d in node.decorators]
        elif isinstance(node, cst.FunctionDef):
            asked = [d.decorator for d in node.decorators]
        elif isinstance(node, cst.Call) and not _names_data(node, builder):
            asked = [node.func]
        if any(_is_foreign(e, tree.scope(node), builder) for e in asked):
            return True
    return False


def _names_data(call: cst.Call, builder: Builder) -> bool:
    """Whether the name of what is called says that it makes data, a model or the like."""
    word = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    name = word.value if isinstance(word, cst.Name) else ""
    path = builder.callee(call, builder.tree.scope(call)) or name
    last = path.rpartition(".")[2]
    makes = _DATA_OR_MODEL.search(last) or last[:1].isupper()
    return bool(makes) and not any(_STARTS.search(n) for n in (name, last))


def _is_foreign(node: cst.BaseExpression, scope: Scope, builder: Builder) -> bool:
    """Whether an expression means a thing of another module that may start processes."""
    while isinstance(node, cst.Call):
        node = node.func
    root: cst.BaseExpression = node
    while isinstance(root, (cst.Attribute, cst.Call, cst.Subscript)):
        root = root.func if isinstance(root, cst.Call) else root.value
    if not isinstance(root, cst.Name):
        return False
    owner = scope.owner(root.value)
    if owner is None:  # a builtin, or out of a star import
        return builder.names.name(root.value, scope).path is None and root.value not in _MODULE
    paths = [b.path for b in owner.bindings[root.value] if b.path is not None]
    return any(path.partition(".")[0] not in _KNOWN for path in paths)


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
