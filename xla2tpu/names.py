"""What a name means: dotted paths through imports, aliases, attributes of self and values.

Paths of values that a call returns end in ``()``: after ``t = xm.RateTracker()``, the name
``t`` means ``torch_xla.core.xla_model.RateTracker()``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from xla2tpu.inhouse import NOTHING, InHouse, handed_on, is_torch_xla
from xla2tpu.nodes import dotted
from xla2tpu.scopes import Binding, Scope
from xla2tpu.tree import Tree

_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an expression refers to.

    ``path`` is None where it is not known. ``ambiguous``: different things on different paths,
    one of them ours (``path`` is then one of these). ``optional``: it may be None.
    ``bindings`` are those of the name at the root.
    """

    path: str | None = None
    ambiguous: bool = False
    optional: bool = False
    bindings: tuple[Binding, ...] = ()
    star: bool = False


UNKNOWN = Meaning()


class Names:
    """Resolves the names of one file.

    ``external`` maps an import path of the project to the torch_xla path that it leads to, or
    None; ``known`` tells whether a dotted path is a torch_xla name that some rule covers,
    ``local`` whether an import path is a module of the project, ``is_module`` whether a
    torch_xla path is a module. The names ``in_house`` are followed as torch_xla's are.
    ``doubtful`` tells whether a path of the project leads to other things as well.
    """

    def __init__(
        self,
        tree: Tree,
        external: Callable[[str], str | None],
        known: Callable[[str], bool],
        local: Callable[[str], bool],
        is_module: Callable[[str], bool],
        in_house: InHouse = NOTHING,
        doubtful: Callable[[str], bool] = lambda path: False,
    ) -> None:
        self.tree = tree
        self.in_house = in_house
        self.is_doubtful = doubtful
        self._external = external
        self._known = known
        self.is_local = local
        self.is_module = is_module
        self._cache: dict[tuple[int, str], Meaning] = {}
        self._busy: set[tuple[int, str]] = set()
        self._canonical: dict[str, str | None] = {}

    def is_ours(self, path: str | None) -> bool:
        """Whether a path lies in torch_xla, or a rule of the user's own covers it."""
        return is_torch_xla(path) or (path is not None and self.in_house.covers(path))

    def name(self, name: str, scope: Scope) -> Meaning:
        """What a load of ``name`` in ``scope`` means."""
        owner = scope.owner(name)
        if owner is None:
            return self._free(name)
        return self._of_bindings(id(owner), name, owner.bindings[name])

    def expression(self, node: cst.CSTNode | None, scope: Scope) -> Meaning:
        """What an expression means: a name, attributes of one, or a call of a torch_xla name."""
        if isinstance(node, cst.Name):
            return self.name(node.value, scope)
        if isinstance(node, cst.Attribute):
            held = self._held(node, scope)
            if held is not None:
                return held
            return self._joined(self.expression(node.value, scope), node.attr.value)
        if isinstance(node, cst.Call):
            looked_up = self.looked_up(node, scope)
            if looked_up is not None:
                return looked_up
            called = self.expression(node.func, scope)
            if self.is_ours(called.path):
                return Meaning(f"{called.path}()", called.ambiguous, False, called.bindings)
        if isinstance(node, cst.IfExp):
            return self._merged(
                [self.expression(node.body, scope), self.expression(node.orelse, scope)]
            )
        return UNKNOWN

    def looked_up(self, node: cst.Call, scope: Scope) -> Meaning | None:
        """The meaning of ``getattr(module, "name")`` with a literal name and no default."""
        if not (isinstance(node.func, cst.Name) and node.func.value == "getattr"):
            return None
        if len(node.args) != 2 or any(a.star or a.keyword for a in node.args):
            return None
        literal = node.args[1].value
        if scope.owner("getattr") is not None or not isinstance(literal, cst.SimpleString):
            return None
        base = self.expression(node.args[0].value, scope)
        known = base.path is not None and (
            self.is_ours(base.path) or self.in_house.leads(base.path) or self.is_local(base.path)
        )
        if not known or not isinstance(literal.evaluated_value, str):
            return None
        return self._joined(base, literal.evaluated_value)

    def _held(self, node: cst.Attribute, scope: Scope) -> Meaning | None:
        """The meaning of ``self.x`` inside a class whose methods set it."""
        if not isinstance(node.value, cst.Name):
            return None
        owner = scope.enclosing_class()
        if owner is None or owner[1] != node.value.value:
            return None
        bindings = owner[0].attributes.get(node.attr.value)
        if bindings is None:
            bindings = owner[0].bindings.get(node.attr.value)
        if bindings is None:
            return UNKNOWN
        return self._of_bindings(id(owner[0]), f"self.{node.attr.value}", bindings)

    def _joined(self, base: Meaning, attribute: str) -> Meaning:
        if base.path is None:
            return UNKNOWN
        path = f"{base.path}.{attribute}"
        doubtful = base.ambiguous or self.is_doubtful(path)
        return Meaning(self.canonical(path) or path, doubtful, False, base.bindings, base.star)

    def canonical(self, path: str) -> str | None:
        """The torch_xla path that a path through project files leads to, None for none."""
        if self.is_ours(path):
            return handed_on(path)
        if path not in self._canonical:
            self._canonical[path] = self._external(path)
        return self._canonical[path]

    def _free(self, name: str) -> Meaning:
        for star, _ in self.tree.stars:
            module = "." * len(star.relative) + ((dotted(star.module) or "") if star.module else "")
            path = f"{module}{name}" if module.endswith(".") else f"{module}.{name}"
            found = self.canonical(path)
            if found is None:
                continue
            if not self.is_ours(path):
                return Meaning(found, self.is_doubtful(path))
            if self._known(found) and name not in _BUILTINS:
                return Meaning(found, star=True)
        return Meaning(f"builtins.{name}") if name in _BUILTINS else UNKNOWN

    def _of_bindings(self, owner: int, name: str, bindings: list[Binding]) -> Meaning:
        key = (owner, name)
        found = self._cache.get(key)
        if found is not None:
            return found
        if key in self._busy:
            return UNKNOWN
        self._busy.add(key)
        try:
            parts = [
                self._of_binding(b)
                for b in bindings
                if b.kind not in ("none", "delete", "declared")
            ]
            merged = self._merged(parts)
            result = Meaning(
                merged.path,
                merged.ambiguous,
                any(b.kind == "none" for b in bindings),
                tuple(bindings),
                merged.star,
            )
        finally:
            self._busy.discard(key)
        self._cache[key] = result
        return result

    def _of_binding(self, binding: Binding) -> Meaning:
        if binding.path is not None:
            doubtful = self.is_doubtful(binding.path)
            return Meaning(self.canonical(binding.path) or binding.path, doubtful)
        if binding.kind == "assign" and binding.value is not None:
            return self.expression(binding.value, binding.scope)
        return UNKNOWN

    def _merged(self, parts: list[Meaning]) -> Meaning:
        paths = {p.path for p in parts}
        if len(paths) == 1:
            only = parts[0]
            return Meaning(only.path, any(p.ambiguous for p in parts), False, (), only.star)
        ours = sorted(p for p in paths if p is not None and self.is_ours(p))
        if ours:
            return Meaning(ours[0], ambiguous=True)
        return UNKNOWN
