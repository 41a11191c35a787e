"""Scopes and the bindings in them."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst


@dataclass(slots=True, eq=False)
class Binding:
    """What binds a name in a scope.

    ``kind``: import, from, assign, none, param, def, class, delete or other. ``path`` is the dotted
    path that an import binds, with leading dots where it is relative. ``node`` is the node
    that holds the name, ``value`` the assigned expression.
    """

    name: str
    kind: str
    node: cst.CSTNode
    scope: Scope
    path: str | None = None
    value: cst.BaseExpression | None = None
    statement: cst.CSTNode | None = None


@dataclass(slots=True, eq=False)
class Scope:
    """A Python scope. ``attributes`` are those set on the first parameter of a class's methods."""

    kind: str
    node: cst.CSTNode
    parent: Scope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    outer_names: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, list[Binding]] = field(default_factory=dict)
    first_param: str | None = None

    def owner(self, name: str) -> Scope | None:
        """The scope in which a load of ``name`` from here finds it, None for builtins."""
        scope: Scope | None = self
        first = True
        while scope is not None:
            where = scope.outer_names.get(name)
            if where == "global":
                return scope.module() if name in scope.module().bindings else None
            if where is None and (first or scope.kind != "class") and name in scope.bindings:
                return scope
            # A comprehension or lambda directly in a class body does not see the class's names.
            first = False
            scope = scope.parent
        return None

    def module(self) -> Scope:
        """The scope of the file."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def enclosing_class(self) -> tuple[Scope, str] | None:
        """The class of the innermost method around, and the name of its first parameter."""
        scope: Scope | None = self
        while scope is not None and scope.parent is not None:
            if scope.kind == "function" and scope.parent.kind == "class" and scope.first_param:
                return scope.parent, scope.first_param
            scope = scope.parent
        return None
