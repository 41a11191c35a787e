"""The context of `torch_xla.compile()` where it is a value: chosen, kept in a name, or called."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.model import Applicability
from xla2tpu.sites import Change, Site
from xla2tpu.template import Slice


def compile_context(site: Site, builder: Builder) -> Change | str:
    """Put a context that does nothing where it is entered; take the function where it wraps one.

    A context that does nothing wraps no functions, so that all uses of it have to be seen.
    """
    tree = builder.tree
    outer = tree.parent(site.expression)
    if isinstance(outer, cst.Call) and outer.func is site.expression:
        if len(outer.args) != 1 or outer.args[0].star or outer.args[0].keyword:
            return "unsupported-form"
        piece = Slice(outer.args[0].value)
        site.applicability = Applicability.SAFE
        site.fix_title = "Use the function as it is"
        return builder.replace(site, "{function}", node=outer, extra={"function": piece})
    if not _is_entered(site.expression, site, builder):
        return "value-escapes"
    return builder.replace(site, "contextlib.nullcontext()", ["import contextlib"])


def _is_entered(node: cst.CSTNode, site: Site, builder: Builder) -> bool:
    """Whether the value is entered and no more, through choices and one name."""
    above = _chosen(node, builder)
    if _enters(above, builder):
        return True
    assign = builder.tree.parent(above)
    match assign:
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]):
            owner = site.scope.owner(name)
            if assign.value is not above or owner is None:
                return False
            loads = [_chosen(load, builder) for load, _ in builder.tree.loads_of(name, owner)]
            return bool(loads) and all(_enters(load, builder) for load in loads)
    return False


def _enters(node: cst.CSTNode, builder: Builder) -> bool:
    """Whether a value stands in `with`, or goes into `stack.enter_context`."""
    parent = builder.tree.parent(node)
    if not isinstance(parent, cst.Arg):
        return isinstance(parent, cst.WithItem)
    call = builder.tree.parent(parent)
    name = call.func if isinstance(call, cst.Call) else None
    return isinstance(name, cst.Attribute) and name.attr.value == "enter_context"


def _chosen(node: cst.CSTNode, builder: Builder) -> cst.CSTNode:
    parent = builder.tree.parent(node)
    while isinstance(parent, cst.IfExp) and parent.test is not node:
        node, parent = parent, builder.tree.parent(parent)
    return node
