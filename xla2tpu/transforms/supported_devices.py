"""The list of supported devices, where only its length or its truth is asked for."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.match import is_truth_test
from xla2tpu.sites import Change, Site


def supported_devices(site: Site, builder: Builder) -> Change | str:
    """Rewrite ``len(f())`` and ``if f():``; any other use needs the names themselves."""
    tree, node = builder.tree, site.expression
    bound = site.bound
    if bound is not None and "max_devices" in bound.args:
        return "several-devices"
    whole: cst.CSTNode = node
    parent = tree.parent(node)
    # ``f() or []``: older releases returned None.
    if isinstance(parent, cst.BooleanOperation) and isinstance(parent.operator, cst.Or):
        fallback = parent.right
        if parent.left is node and isinstance(fallback, cst.List) and not fallback.elements:
            whole, parent = parent, tree.parent(parent)
    if isinstance(parent, cst.Arg):
        call = tree.parent(parent)
        if isinstance(call, cst.Call) and builder.callee(call, site.scope) == "builtins.len":
            text = "torch.accelerator.device_count()"
            return builder.replace(site, text, ["import torch"], node=call)
    if whole is node and is_truth_test(tree, node):
        return builder.replace(site, "torch.accelerator.is_available()", ["import torch"])
    return "several-devices"
