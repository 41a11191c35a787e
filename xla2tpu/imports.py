"""Imports as groups: all bindings of one name in one scope, with all loads that they serve."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from xla2tpu.inhouse import is_torch_xla
from xla2tpu.names import Names
from xla2tpu.scopes import Binding, Scope
from xla2tpu.sites import Site
from xla2tpu.tree import Tree


@dataclass(slots=True, eq=False)
class Group:
    """The imports of one name in one scope.

    ``site`` is the finding of an import that nothing uses, ``guards`` are findings of guards
    that must be mended for the import to go. ``top`` tells that it is bound at the top of the
    file, ``fixed`` that it stays whatever happens.
    """

    name: str
    scope: Scope
    bindings: list[Binding]
    torch_xla: bool
    path: str | None
    loads: list[cst.CSTNode] = field(default_factory=list)
    guards: list[Site] = field(default_factory=list)
    site: Site | None = None
    fixed: bool = False

    @property
    def top(self) -> bool:
        """Whether other files could import the name."""
        return self.scope.parent is None


def groups_of(tree: Tree, names: Names) -> list[Group]:
    """The groups of a file whose names mean one thing, so that they may go with their last use."""
    found: dict[tuple[int, str], Group] = {}
    for binding in tree.bindings:
        if binding.kind not in ("import", "from", "assign"):
            continue
        scope = binding.scope
        home = scope.owner(binding.name) or scope
        key = (id(home), binding.name)
        if key in found:
            continue
        bindings = home.bindings.get(binding.name, [])
        if not any(b.path is not None for b in bindings) and not _is_module_alias(bindings, names):
            continue
        meaning = names.name(binding.name, home)
        of_xla = is_torch_xla(meaning.path)
        if binding.kind == "assign" and not of_xla:
            continue
        others = [b for b in bindings if b.kind not in ("import", "from", "none", "declared")]
        if any(not (b.kind == "assign" and of_xla) for b in others) or meaning.ambiguous:
            if not of_xla:
                continue
            # Bound to other things too: it is never removed, but it keeps the file from done.
            found[key] = Group(binding.name, home, bindings, True, meaning.path)
            found[key].loads = [n for n, s in tree.loads.get(binding.name, [])]
            continue
        found[key] = Group(binding.name, home, bindings, of_xla, meaning.path)
        found[key].loads = [n for n, _ in tree.loads_of(binding.name, home)]
    declared = {n for s in tree.scopes for n, w in s.outer_names.items() if w == "nonlocal"}
    for group in found.values():
        group.fixed = group.name in declared
        if group.scope.kind == "class":
            # Seen from outside as an attribute of the class.
            if group.torch_xla:
                group.loads += attributes_named(tree, group.name)
            else:
                group.fixed = True
    return list(found.values())


def attributes_named(tree: Tree, name: str) -> list[cst.CSTNode]:
    """All ``x.name`` of a file."""
    return tree.attributes.get(name, [])


def _is_module_alias(bindings: list[Binding], names: Names) -> bool:
    """Whether a name is assigned a torch_xla module, such as ``xm = torch_xla.core.xla_model``."""
    values = [b for b in bindings if b.kind == "assign" and b.value is not None]
    if not values:
        return False
    for binding in values:
        path = names.expression(binding.value, binding.scope).path
        if not is_torch_xla(path) or not names.is_module(path or ""):
            return False
    return True
