"""Which binding of a name a use sees, where the order of the statements makes that certain."""

from __future__ import annotations

import libcst as cst

from xla2tpu.scopes import Binding, Scope
from xla2tpu.tree import Tree

_LOOPS = (cst.For, cst.While)
_BLOCKS = (cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)


def reaching(tree: Tree, load: cst.Name, scope: Scope) -> Binding | None:
    """The one binding that a use of a name sees for certain, else None.

    It stands before the use, in a suite around it, and no other comes between on any way.
    """
    owner = scope.owner(load.value)
    if owner is None or owner is not scope:
        return None
    start = tree.span(load)[0]
    before = [b for b in owner.bindings[load.value] if position(tree, b) <= start]
    last = max(before, key=lambda b: position(tree, b), default=None)
    if last is None or last.kind in ("delete", "declared", "none"):
        return None
    region = _region(tree, last)
    if region is None or not tree.is_within(load, region):
        return None
    for other in owner.bindings[load.value]:
        if other in before:
            continue
        for loop in tree.ancestors(load):
            both = isinstance(loop, _LOOPS) and tree.is_within(other.node, loop)
            if both and not tree.is_within(last.node, loop):
                return None  # it comes before the use as well, in the next turn of the loop
    return last


def position(tree: Tree, binding: Binding) -> int:
    """From where on a binding holds: the end of an assignment, which uses its value first."""
    if isinstance(binding.statement, cst.BaseSmallStatement):
        return tree.span(binding.statement)[1]
    return tree.span(binding.node)[0]


def _region(tree: Tree, binding: Binding) -> cst.CSTNode | None:
    """Where a binding has been made whenever the program is there; None where none is known."""
    node = binding.node
    if binding.kind == "param":
        return binding.scope.node
    statement = binding.statement
    if statement is None:
        statement = tree.statement(node)
        if isinstance(statement, cst.For) and tree.is_within(node, statement.target):
            return statement.body
        return None
    parent = tree.parent(statement)
    if isinstance(parent, cst.SimpleStatementLine):
        parent = tree.parent(parent)
    while parent is not None and isinstance(block := tree.parent(parent), cst.With):
        parent = tree.parent(block)  # what stands in it has been done behind it
    return parent if isinstance(parent, _BLOCKS) else None


def stays(tree: Tree, expression: cst.CSTNode, scope: Scope, since: int) -> bool:
    """Whether a name, or an attribute of one, means the same from a place on in a function.

    ``since`` is the place, in characters; ``scope`` the function's, or that of the module.
    """
    root = expression
    while isinstance(root, cst.Attribute):
        stored = [n for n in tree.attributes.get(root.attr.value, []) if id(n) in tree.stored]
        if any(tree.scope(n) is scope and tree.span(n)[0] > since for n in stored):
            return False
        root = root.value
    if not isinstance(root, cst.Name):
        return False
    owner = scope.owner(root.value)
    if owner is None:
        return True
    bindings = owner.bindings[root.value]
    if owner is scope:
        return all(position(tree, b) <= since for b in bindings)
    return len(bindings) == 1
