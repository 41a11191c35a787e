"""A torch_xla module used as a flag: ``xm is not None`` asks whether torch_xla is installed."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.match import is_truth_test
from xla2tpu.sites import Change, Site

_SPEC = 'importlib.util.find_spec("torch_tpu")'
_LOOK_UPS = frozenset({"hasattr", "getattr", "setattr", "vars", "dir"})
_IMPORTS = ["import importlib.util"]


def module_flag(site: Site, builder: Builder) -> Change | str:
    """Ask for torch_tpu instead, in comparisons with None and in truth tests."""
    made = _asked(site, builder)
    if isinstance(made, Change):
        made.with_import = True
    return made


def _asked(site: Site, builder: Builder) -> Change | str:
    tree, node = builder.tree, site.expression
    parent = tree.parent(node)
    if isinstance(parent, cst.Arg):
        call = tree.parent(parent)
        called = call.func if isinstance(call, cst.Call) else None
        if isinstance(called, cst.Name) and called.value in _LOOK_UPS:
            return "dynamic-access"
    if not _fails_without_torch_xla(site, builder):
        return "value-escapes"
    if isinstance(parent, cst.Comparison) and len(parent.comparisons) == 1:
        target = parent.comparisons[0]
        if isinstance(target.comparator, cst.Name) and target.comparator.value == "None":
            if isinstance(target.operator, (cst.Is, cst.Equal)):
                return builder.replace(site, f"{_SPEC} is None", _IMPORTS, node=parent)
            return builder.replace(site, f"{_SPEC} is not None", _IMPORTS, node=parent)
    if is_truth_test(tree, node):
        return builder.replace(site, f"{_SPEC} is not None", _IMPORTS)
    return "value-escapes"


def _fails_without_torch_xla(site: Site, builder: Builder) -> bool:
    """Whether the name is None just where the import fails, and not by another condition."""
    imports = [b for b in site.meaning.bindings if b.path] if site.meaning is not None else []
    for binding in imports:
        above = list(builder.tree.ancestors(binding.node))
        if any(isinstance(a, (cst.If, cst.For, cst.While)) for a in above):
            return False
        if not any(isinstance(a, cst.Try) for a in above):
            return False
    return bool(imports)
