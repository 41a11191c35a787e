"""What is no longer there after a choice of fixes."""

from __future__ import annotations

import libcst as cst

from xla2tpu.nodes import children
from xla2tpu.sites import Site
from xla2tpu.suites import Settled
from xla2tpu.tree import Tree


class Vanished:
    """Answers whether a node is no longer there after the deletions and replacements."""

    def __init__(
        self,
        tree: Tree,
        settled: Settled,
        replaced: dict[int, Site],
        kept: set[int],
        decorators: dict[int, cst.Decorator],
        nodes: dict[int, cst.CSTNode],
    ) -> None:
        self.tree = tree
        self.ids = set(settled.smalls) | set(settled.gone) | set(settled.clauses) | set(decorators)
        # Walking down from what goes is cheaper than up from each name of the file.
        self.below: set[int] = set()
        self._replaced, self._kept = replaced, kept
        roots: list[cst.CSTNode] = list(settled.smalls.values())
        roots += [*settled.gone.values(), *settled.clauses.values(), *decorators.values()]
        for root in roots:
            self._mark(root, set())
        for key in replaced:
            if key in nodes:
                self._mark(nodes[key], kept)

    def _mark(self, root: cst.CSTNode, kept: set[int]) -> None:
        # What is marked is marked with all below it: long chains of `elif` are walked once.
        if id(root) in self.below:
            return
        # The root goes even where another fix keeps its place: it is replaced there.
        self.below.add(id(root))
        stack = list(children(root))
        while stack:
            node = stack.pop()
            if id(node) not in kept and id(node) not in self.below:
                self.below.add(id(node))
                stack.extend(children(node))

    def has(self, node: cst.CSTNode) -> bool:
        """Whether the node's text goes, by a deletion or by a replacement around it."""
        return id(node) in self.below

    def swallows(self, site: Site) -> bool:
        """Whether a statement around a site goes, or what another site replaces around it."""
        here: cst.CSTNode | None = site.expression
        stays = False
        while here is not None:
            if id(here) in self.ids:
                return True
            stays |= id(here) in self._kept
            here = self.tree.parent(here)
            holder = self._replaced.get(id(here))
            if holder is not None and holder is not site and not stays:
                return True
        return False

    def has_statement(self, node: cst.CSTNode) -> bool:
        """Whether a statement around the node goes as a whole."""
        here: cst.CSTNode | None = node
        while here is not None:
            if id(here) in self.ids:
                return True
            here = self.tree.parent(here)
        return False
