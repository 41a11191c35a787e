"""All-reduce, which torch_xla did in place for lists only."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.model import Applicability
from xla2tpu.scopes import Scope
from xla2tpu.sites import Change, Site

_TEMPLATE = "all_reduce({reduce_type}, {inputs}, scale={scale})"
_DROPPED = (
    "Say what is meant: a dropped result of a single tensor changed nothing; dist.all_reduce would"
    " change the tensor."
)
_NONE = "`{api}` had no effect here: a single tensor stays as it was, and the result is dropped"
_NO_EFFECT = (
    "`{api}` had no effect here if it was given a single tensor: the tensor stays as it was, and"
    " the result is dropped"
)
_INTEGERS = "`{api}` of bits takes integer tensors only: cast a bool tensor before it"
_PARTS = frozenset({"clone", "detach", "float", "mean", "sum", "to", "tensor", "double", "long"})
_SEQUENCES = frozenset({"builtins.list", "builtins.sorted"})


def all_reduce(site: Site, builder: Builder) -> Change | str:
    """Call the helper; a dropped result is kept only where it is that of a list."""
    assert site.bound is not None
    args = site.bound.args
    kind = args["reduce_type"].value
    path = builder.meaning(kind, site.scope) or ""
    word = kind.evaluated_value if isinstance(kind, cst.SimpleString) else path
    if str(word).rpartition("_")[2].lower() in ("and", "or"):
        site.applicability, site.message = Applicability.UNSAFE, _INTEGERS
    if site.context != "value":
        what = _kind(args["inputs"].value, site.scope, builder)
        if what == "tensor":
            site.message, site.advice = _NONE, _DROPPED
            return "no-effect"
        if what is None:
            site.applicability, site.advice = Applicability.UNSAFE, _DROPPED
            site.message = _NO_EFFECT
    return builder.replace(site, _TEMPLATE, helpers=["all_reduce"])


def _kind(node: cst.BaseExpression | None, scope: Scope, builder: Builder) -> str | None:
    """``list`` or ``tensor`` where an expression is seen to be one, else None."""
    match node:
        case cst.List() | cst.ListComp():
            return "list"
        case cst.Call():
            return _kind_of_call(node, scope, builder)
        case cst.Name():
            owner = scope.owner(node.value)
            bindings = owner.bindings[node.value] if owner is not None else []
            kinds = {
                None
                if b.kind != "assign" or isinstance(b.value, cst.Name)
                else _kind(b.value, b.scope, builder)
                for b in bindings
            }
            return kinds.pop() if len(kinds) == 1 else None
    return None


def _kind_of_call(call: cst.Call, scope: Scope, builder: Builder) -> str | None:
    callee = builder.callee(call, scope) or ""
    if callee in _SEQUENCES or callee.endswith("._fetch_gradients"):
        return "list"
    if callee.startswith("torch."):
        return "tensor"
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in _PARTS:
        return "tensor"
    return None
