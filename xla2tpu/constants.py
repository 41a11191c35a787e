"""Values that the text of a file says: numbers, strings, None and tuples, through names."""

from __future__ import annotations

import libcst as cst

from xla2tpu.flow import reaching
from xla2tpu.scopes import Binding, Scope
from xla2tpu.tree import Tree

_DEEPEST = 20


class Unread:
    """The value of what is no constant; the only object of it is `UNREAD`."""

    def __repr__(self) -> str:
        return "?"


UNREAD = Unread()
Value = object


def values(tree: Tree, node: cst.CSTNode, scope: Scope) -> list[tuple[cst.BaseExpression, Scope]]:
    """What a name or an attribute of self is assigned: one expression where the order of the
    statements makes that certain, else all; empty where something else binds it too.
    """
    bindings: list[Binding] = []
    if isinstance(node, cst.Name):
        owner = scope.owner(node.value)
        if owner is None:
            return []
        only = reaching(tree, node, scope)
        bindings = [only] if only is not None else owner.bindings[node.value]
    elif isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
        around = scope.enclosing_class()
        if around is None or around[1] != node.value.value:
            return []
        name = node.attr.value
        stored = [n for n in tree.attributes.get(name, []) if id(n) in tree.stored]
        ours = {id(b.node) for b in tree.held if b.name == name}
        if any(id(n) not in ours for n in stored):
            return []  # set from outside as well
        scoped = around[0]
        bindings = [*scoped.attributes.get(name, []), *scoped.bindings.get(name, [])]
    if any(b.kind not in ("assign", "none") or b.value is None for b in bindings):
        return []
    return [(b.value, b.scope) for b in bindings if b.value is not None]


def constant(tree: Tree, node: cst.CSTNode, scope: Scope, depth: int = 0) -> Value:
    """The value of an expression: int, str, None, or a tuple or list of those.

    What is not known is `UNREAD`, also within a tuple, whose length is known all the same.
    """
    if depth > _DEEPEST:
        return UNREAD
    match node:
        case cst.Integer():
            return node.evaluated_value
        case cst.SimpleString() | cst.ConcatenatedString():
            text = node.evaluated_value
            return text if isinstance(text, str) else UNREAD
        case cst.UnaryOperation(operator=cst.Minus()):
            value = constant(tree, node.expression, scope, depth + 1)
            return -value if isinstance(value, int) else UNREAD
        case cst.Name(value="None"):
            return None
        case cst.Tuple() | cst.List():
            if any(isinstance(e, cst.StarredElement) for e in node.elements):
                return UNREAD
            items = [constant(tree, e.value, scope, depth + 1) for e in node.elements]
            return tuple(items) if isinstance(node, cst.Tuple) else items
        case cst.BinaryOperation():
            return _combined(tree, node, scope, depth)
        case cst.Name() | cst.Attribute():
            found = [
                constant(tree, value, inner, depth + 1)
                for value, inner in values(tree, node, scope)
            ]
            same = found and all(_same(value, found[0]) for value in found)
            # A list may have been changed since.
            return found[0] if same and not isinstance(found[0], list) else UNREAD
    return UNREAD


def _combined(tree: Tree, node: cst.BinaryOperation, scope: Scope, depth: int) -> Value:
    """Tuples that are added or repeated."""
    left = constant(tree, node.left, scope, depth + 1)
    right = constant(tree, node.right, scope, depth + 1)
    if isinstance(node.operator, cst.Add) and isinstance(left, tuple) and isinstance(right, tuple):
        return left + right
    repeats = isinstance(node.operator, cst.Multiply) and isinstance(left, tuple)
    if repeats and isinstance(right, int) and 0 <= right <= _DEEPEST:
        assert isinstance(left, tuple)
        return left * right
    return UNREAD


def _same(one: Value, other: Value) -> bool:
    return type(one) is type(other) and one == other and one is not UNREAD
