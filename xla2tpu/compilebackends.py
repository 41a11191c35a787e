"""Where the name of a backend of `torch.compile` goes: into its call, or into a name on the way."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.scopes import Scope

NAMES = frozenset({"openxla", "openxla_eval", "torchxla_trace_once", "aot_torchxla_trace_once"})
_COMPILE = "torch.compile"
_OPTIMIZE = "torch._dynamo.optimize"
_PARTIAL = "functools.partial"
# What torchxla's backends ignored and TorchTPU's compiler reads or refuses.
_READ_NOW = {"mode": ("None", '"default"', "'default'"), "options": ("None",)}
_DYNAMIC = {"dynamic": ("None", "False")}


def refusal(node: cst.CSTNode, scope: Scope, builder: Builder) -> str | None:
    """Why a backend's name cannot become TorchTPU's here, None where it can.

    It can where nothing else reads it: as the argument of a call that compiles, as one of the
    values of a choice there, or as the value or default of a name that only such calls use.
    """
    reasons = _reasons(_chosen(node, builder), scope, builder)
    if reasons is None:
        return "user-option"
    return next((r for r in reasons if r is not None), None)


def _reasons(node: cst.CSTNode, scope: Scope, builder: Builder) -> list[str | None] | None:
    """A reason, or None, for each call that gets the value; None where it goes elsewhere."""
    parent = builder.tree.parent(node)
    if isinstance(parent, cst.Arg):
        call = builder.tree.parent(parent)
        if isinstance(call, cst.Call) and _takes_backend(call, parent, scope, builder):
            return [_unserved(call, builder)]
        return None
    name, owner = _bound(node, scope, builder)
    if owner is None:
        return None
    loads = builder.tree.loads_of(name, owner)
    found: list[str | None] = []
    for load, at in loads:
        target = _chosen(load, builder)
        if not isinstance(builder.tree.parent(target), cst.Arg):
            return None
        reasons = _reasons(target, at, builder)
        if reasons is None:
            return None
        found += reasons
    return found or None


def _chosen(node: cst.CSTNode, builder: Builder) -> cst.CSTNode:
    """The outermost ``a if test else b`` or ``a or b`` of which a node is one of the values."""
    while True:
        parent = builder.tree.parent(node)
        match parent:
            case cst.IfExp() if parent.test is not node:
                node = parent
            case cst.BooleanOperation() if isinstance(parent.operator, cst.Or):
                node = parent
            case _:
                return node


def _bound(node: cst.CSTNode, scope: Scope, builder: Builder) -> tuple[str, Scope | None]:
    """The name that is assigned this value, or the parameter whose default it is, and its scope."""
    parent = builder.tree.parent(node)
    match parent:
        case (
            cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value)
            | cst.AnnAssign(target=cst.Name(value=name), value=value)
        ) if value is node:
            return name, scope.owner(name)
        case cst.Param(name=cst.Name(value=name)) if parent.default is node:
            made = (b.scope for b in builder.tree.bindings if b.node is parent.name)
            return name, next(made, None)
    return "", None


def _takes_backend(call: cst.Call, arg: cst.Arg, scope: Scope, builder: Builder) -> bool:
    """Whether an argument is the backend of a call that compiles."""
    callee = builder.callee(call, scope)
    if callee == _PARTIAL and call.args and call.args[0] is not arg:
        callee = builder.meaning(call.args[0].value, scope)
        if arg.keyword is None:
            return False
    if arg.keyword is None:
        return callee == _OPTIMIZE and call.args[0] is arg and not arg.star
    if arg.keyword.value != "backend":
        return False
    # `model.compile(backend=...)` is the method of a module.
    method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "compile"
    return callee in (_COMPILE, _OPTIMIZE) or (callee is None and method)


def _unserved(call: cst.Call, builder: Builder) -> str | None:
    """Why the call would mean something else with TorchTPU's backend, or raise."""
    for arg in call.args:
        allowed = {**_READ_NOW, **_DYNAMIC}.get(arg.keyword.value if arg.keyword else "")
        if allowed is not None and builder.tree.source(arg.value) not in allowed:
            return "argument-not-supported"
    return None
