"""Sites of import statements: unused ones, guards whose success is a flag, star imports."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from xla2tpu.imports import Group
from xla2tpu.inhouse import is_torch_xla
from xla2tpu.model import Applicability
from xla2tpu.nodes import dotted
from xla2tpu.rulemodel import RuleSet
from xla2tpu.sites import Change, Site
from xla2tpu.suites import Suites, smalls_of
from xla2tpu.tree import Tree

BARE, STAR, GUARD = "XLA001", "XLA002", "XLA003"


class ImportSites:
    """Finds the sites that belong to import statements of torch_xla."""

    def __init__(
        self,
        tree: Tree,
        rules: RuleSet,
        groups: list[Group],
        pinned: Callable[[str], bool],
        is_package: bool,
        quoted: Callable[[Group], bool],
    ) -> None:
        self.tree, self.rules, self.groups = tree, rules, groups
        self.pinned, self.is_package, self.quoted = pinned, is_package, quoted
        self.in_house = rules.in_house
        self.ours = {id(b.statement) for g in groups if g.torch_xla for b in g.bindings}
        self.none_names = {g.name for g in groups if g.torch_xla}

    def sites(self) -> list[Site]:
        """All of them; groups are told which of their sites decide on them."""
        found = self._guards()
        for group in self.groups:
            if not group.torch_xla:
                continue
            if group.top and (group.name in self.tree.exported or self.pinned(group.name)):
                found.extend(self._imports(group, "imported-elsewhere"))
            elif group.scope.kind == "class" and self._is_seen_outside(group):
                found.extend(self._imports(group, "dynamic-access"))
            elif group.fixed:
                found.extend(self._imports(group, "ambiguous-binding"))
            elif not group.loads and group.site is None:
                found.extend(self._unused(group))
        for star, scope in self.tree.stars:
            path = dotted(star.module) if star.module is not None and not star.relative else None
            if path and (is_torch_xla(path) or self.in_house.leads(path)):
                site = Site(self.rules.rules[STAR], path, star, star, scope, "import", counts=False)
                site.refuse("star-import")
                found.append(site)
        return found

    def _is_seen_outside(self, group: Group) -> bool:
        """Whether an import in a class may be used through another name than self."""
        return any(
            isinstance(load, cst.Attribute)
            and not (isinstance(load.value, cst.Name) and load.value.value in self.tree.firsts)
            for load in group.loads
        )

    def _imports(self, group: Group, reason: str) -> list[Site]:
        sites = []
        for binding in group.bindings:
            if binding.kind not in ("import", "from") or binding.statement is None:
                continue
            node = binding.statement
            site = Site(
                self.rules.rules[BARE], group.path or group.name, node, binding.node,
                group.scope, "import", counts=False,
            )  # fmt: skip
            site.refuse(reason)
            sites.append(site)
        return sites[:1]

    def _unused(self, group: Group) -> list[Site]:
        sites = self._imports(group, "imported-elsewhere")
        if not sites:
            return []
        site = sites[0]
        kinds = {b.kind for b in group.bindings}
        if self.is_package and group.top and "from" in kinds:
            return sites
        if not kinds <= {"import", "from", "none", "declared"}:
            site.refuse("ambiguous-binding")
            return sites
        if self.quoted(group):
            site.refuse("annotation")
            return sites
        site.reason, site.change = None, Change()
        site.applicability = Applicability.SAFE
        group.site = site
        return sites

    # -- guards ------------------------------------------------------------------------------

    def _guards(self) -> list[Site]:
        found: list[Site] = []
        seen: set[int] = set()
        for group in self.groups:
            if not group.torch_xla:
                continue
            for binding in group.bindings:
                if binding.kind not in ("import", "from") or binding.statement is None:
                    continue
                block = self._try_around(binding.statement)
                if block is None or not self._is_flagged(block):
                    continue
                if id(block) not in seen:
                    seen.add(id(block))
                    found.append(self._guard(block))
                site = next(s for s in found if s.expression is self._first_import(block))
                group.guards.append(site)
                if not group.loads:
                    group.site = site
        return found

    def _try_around(self, statement: cst.CSTNode) -> cst.Try | cst.With | None:
        line = self.tree.parent(statement)
        suite = self.tree.parent(line) if isinstance(line, cst.SimpleStatementLine) else line
        block = self.tree.parent(suite) if suite is not None else None
        if isinstance(block, cst.Try) and block.body is suite and block.handlers:
            return block
        if isinstance(block, cst.With) and any(_is_suppress(i.item) for i in block.items):
            return block
        return None

    def _first_import(self, block: cst.Try | cst.With) -> cst.CSTNode:
        return next(s for s in smalls_of(block.body) if id(s) in self.ours)

    def _is_flagged(self, block: cst.Try | cst.With) -> bool:
        """Whether something depends on the import's success, apart from the names it binds."""
        for small in smalls_of(block.body):
            if id(small) not in self.ours and not isinstance(small, (cst.Import, cst.ImportFrom)):
                return True
        if isinstance(block, cst.With):
            return False
        if block.orelse is not None:
            return True
        suites = Suites(self.tree, lambda test: True)
        for handler in block.handlers:
            for small in smalls_of(handler.body):
                if suites.is_inert(small, set()) or self._is_none_alias(small):
                    continue
                return True
        return False

    def _is_none_alias(self, small: cst.CSTNode) -> bool:
        if not isinstance(small, cst.Assign):
            return False
        if not (isinstance(small.value, cst.Name) and small.value.value == "None"):
            return False
        targets = [t.target for t in small.targets]
        return all(isinstance(t, cst.Name) and t.value in self.none_names for t in targets)

    def _guard(self, block: cst.Try | cst.With) -> Site:
        first = self._first_import(block)
        scope = self.tree.scope(first)
        site = Site(
            self.rules.rules[GUARD], "torch_xla", first, first, scope, "import", counts=False
        )
        site.change = Change(swaps=[first])
        site.applicability = Applicability.UNSAFE
        return site


def _is_suppress(node: cst.CSTNode) -> bool:
    """Whether a with-item is ``suppress(...)``: its block is a guard like a ``try``."""
    called = node.func if isinstance(node, cst.Call) else None
    last = called.attr if isinstance(called, cst.Attribute) else called
    return isinstance(last, cst.Name) and last.value == "suppress"
