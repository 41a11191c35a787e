"""From the sites that are to be mended to text edits: imports, helpers and emptied suites included.

`Plan.assemble` is a pure function of the chosen sites, so that a single fix in an editor and a
whole file on the command line come from the same place.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import libcst as cst

from xla2tpu import placing
from xla2tpu.changes import INDENT, Builder
from xla2tpu.deletions import Deletions
from xla2tpu.edits import resolved
from xla2tpu.helpertexts import HelperTexts
from xla2tpu.imports import Group, groups_of
from xla2tpu.layout import Layout
from xla2tpu.lines import Lines
from xla2tpu.nodes import descendants
from xla2tpu.scopes import Binding
from xla2tpu.sites import OPERATORS, Insert, Site, Text
from xla2tpu.suites import Settled, Suites
from xla2tpu.template import Piece, Slice
from xla2tpu.tree import Tree
from xla2tpu.vanished import Vanished

# The modules in which torch_xla registers most of its operators.
_REGISTERING = "torch_xla.experimental"


@dataclass(slots=True)
class Assembly:
    """The edits for a choice of sites, which sites they mend, and what is left of torch_xla."""

    edits: list[Text] = field(default_factory=list)
    applied: set[Site] = field(default_factory=set)
    imports_left: bool = False
    helpers: tuple[str, ...] = ()


class Plan:
    """Assembles edits for one file. ``pinned`` are torch_xla's names at the top that
    others import, ``taken`` any other names there."""

    def __init__(
        self,
        tree: Tree,
        builder: Builder,
        sites: list[Site],
        pinned: Callable[[str], bool],
        taken: Callable[[str], bool],
        keeps_imports: bool,
    ) -> None:
        self.tree, self.builder, self.sites = tree, builder, sites
        self.lines = Lines(tree.text)
        self.groups = groups_of(tree, builder.names)
        self.pinned, self.taken = pinned, taken
        self.keeps_imports = keeps_imports
        # The uses of operators, which exist as long as torch_xla is imported.
        self.operators = [s for s in sites if s.path.startswith(OPERATORS)]
        self.newline = builder.newline
        self.layout = Layout(tree, self.lines, builder.unit)
        self.deletions = Deletions(tree, self.lines, self.layout, self.newline)
        self.helpers = HelperTexts(tree, builder)
        # Names in quoted annotations are uses as well, though they are not loaded.
        self.quoted = {
            (id(scope.owner(name)), name)
            for node, scope in tree.strings
            if id(node) in tree.annotations and isinstance(node, cst.SimpleString)
            for name in re.findall(r"[A-Za-z_]\w*", node.value)
        }

    @property
    def registering(self) -> list[Group]:
        """The imports that have to stay for operators; of those that register some alike, one."""
        if not self.operators:
            return []
        ours = [g for g in self.groups if g.torch_xla]
        below = [g for g in ours if (g.path or "").startswith(f"{_REGISTERING}.")]
        left = {id(s.root) for s in self.sites if not s.fixable}
        staying = [g for g in ours if any(id(load) in left for load in g.loads)]
        return below or (staying or ours)[:1]

    def is_quoted(self, group: Group) -> bool:
        """Whether an annotation in quotes uses an imported name."""
        return (id(group.scope), group.name) in self.quoted

    # -- which sites, which statements -----------------------------------------------------

    @functools.cached_property
    def _by_node(self) -> dict[int, list[Site]]:
        """The sites by the nodes that they stand at."""
        found: dict[int, list[Site]] = {}
        for site in self.sites:
            found.setdefault(id(site.expression), []).append(site)
        return found

    def _holds_others(self, test: cst.CSTNode, active: set[Site]) -> bool:
        """Whether a test has a reference in it that is not mended, and would get lost."""
        for node in descendants(test):
            sites = self._by_node.get(id(node), [])
            if any(s in active for s in sites):
                continue
            if any(s.counts and s.reason != "version-gate" for s in sites):
                return True
        return False

    def close(self, chosen: Iterable[Site]) -> set[Site]:
        """The chosen sites without those that depend on one that is not chosen."""
        active = {s for s in chosen if s.change is not None}
        while True:
            broken = {s for s in active if any(f not in active for f in s.follows)}
            if not broken:
                return active
            active -= broken

    def assemble(self, chosen: Iterable[Site]) -> Assembly:
        """The edits that mend the chosen sites; raises `Conflict`."""
        chosen = set(chosen)
        active = self.close(chosen)
        deleted: dict[int, cst.CSTNode] = {}
        replaced: dict[int, Site] = {}
        nodes: dict[int, cst.CSTNode] = {}
        kept: set[int] = set()
        unwrapped: dict[int, list[cst.WithItem]] = {}
        decorators: dict[int, cst.Decorator] = {}
        uses: set[str] = set()
        swaps: dict[int, cst.CSTNode] = {}
        for site in active:
            assert site.change is not None
            deleted.update((id(n), n) for n in site.change.deletes)
            replaced.update((id(n), site) for n in site.change.replaced)
            nodes.update((id(n), n) for n in (*site.change.replaced, *site.change.deletes))
            kept.update(id(n) for n in site.change.kept)
            uses |= site.change.uses
            swaps.update((id(n), n) for n in site.change.swaps)
            for with_, item in site.change.unwraps:
                unwrapped.setdefault(id(with_), []).append(item)
            decorators.update((id(d), d) for d in site.change.decorators)
        uses |= self.helpers.uses(active)
        whole: set[int] = set()
        for key, items in unwrapped.items():
            block = self.tree.parent(items[0])
            if isinstance(block, cst.With) and len(items) == len(block.items):
                whole.add(key)
        suites = Suites(self.tree, lambda test: not self._holds_others(test, active))
        partial: dict[int, tuple[cst.CSTNode, list[cst.CSTNode]]] = {}
        removed: set[Group] = set()
        while True:
            settled = suites.settle(deleted.values(), whole)
            vanished = Vanished(self.tree, settled, replaced, kept, decorators, nodes)
            news = [
                g for g in self.groups
                if g not in removed and self._is_removable(g, vanished, active, uses)
            ]  # fmt: skip
            if not news:
                break
            for group in news:
                removed.add(group)
                for binding in group.bindings:
                    self._remove(binding, deleted, partial, swaps)
        settled = suites.settle(deleted.values(), whole)
        vanished = Vanished(self.tree, settled, replaced, kept, decorators, nodes)
        idle = {s for g in self.groups if g not in removed for s in g.guards}
        gone = {id(b.node) for g in removed for b in g.bindings}
        idle |= {
            s
            for s in active
            if s.change is not None and s.change.with_import and not self._frees(s, gone)
        }
        if idle & active:
            # They are right only if an import goes, which stays: the same without them.
            return self.assemble(chosen - idle)
        swaps = {k: n for s in active if s.change for n in s.change.swaps for k in (id(n),)}
        applied = active | {s for i in vanished.below for s in self._by_node.get(i, ())}
        applied = {s for s in applied if s in active or not s.follows or set(s.follows) <= applied}
        edits = self._edits(active, settled, partial, unwrapped, whole, decorators, swaps, vanished)
        assembly = Assembly(applied=applied)
        assembly.imports_left = self._imports_left(removed, vanished, swaps)
        assembly.edits = resolved(edits)
        standing = {s for s in active if not vanished.swallows(s)}
        assembly.helpers = tuple(self.helpers.needed(standing))
        return assembly

    def _frees(self, site: Site, gone: set[int]) -> bool:
        """Whether the import that a site uses goes, with all others in the same guard."""
        bindings = [b for b in site.meaning.bindings if b.path] if site.meaning else []
        if not bindings or not all(id(b.node) in gone for b in bindings):
            return False
        guards = {id(a) for b in bindings for a in self.tree.ancestors(b.node) if _is_try(a)}
        beside = [b for g in self.groups if g.torch_xla for b in g.bindings if b.path]
        return all(
            id(b.node) in gone or not any(id(a) in guards for a in self.tree.ancestors(b.node))
            for b in beside
        )

    def _imports_left(
        self, removed: set[Group], vanished: Vanished, swaps: dict[int, cst.CSTNode]
    ) -> bool:
        """Whether an import of torch_xla would still stand."""
        for star, _ in self.tree.stars:
            if star.module is not None and _is_package(star.module):
                return True
        for group in self.groups:
            if not group.torch_xla or group in removed:
                continue
            imports = [b for b in group.bindings if b.path]
            if not all(vanished.has(b.node) or id(b.statement) in swaps for b in imports):
                return True
        return False

    def _is_removable(
        self,
        group: Group,
        vanished: Vanished,
        active: set[Site],
        uses: set[str],
    ) -> bool:
        if group.name in uses and not group.torch_xla:
            return False
        if group.fixed or self.is_quoted(group):
            return False
        if not (group.loads or group.torch_xla):
            return False
        if not all(vanished.has(load) for load in group.loads):
            return False
        if group.top and (group.name in self.tree.exported or self.pinned(group.name)):
            return False
        if group in self.registering and not all(vanished.has(s.node) for s in self.operators):
            return False
        if group.torch_xla:
            if not all(
                self._may_swap(g, vanished, active) or self._is_held(g, group, vanished)
                for g in group.guards
            ):
                return False
            if group.site is not None:
                return group.site in active
            return bool(group.loads)
        touched = any(vanished.has(b.node) for b in group.bindings)
        if not group.loads or touched or (group.top and self.keeps_imports):
            return False
        return not (group.top and self.taken(group.name))

    def _may_swap(self, guard: Site, vanished: Vanished, active: set[Site]) -> bool:
        """Whether a guard's imports may make way for torch_tpu: nothing uses their names now."""
        if guard not in active:
            return False
        groups = [g for g in self.groups if guard in g.guards]
        return all(vanished.has(load) for g in groups for load in g.loads) and not any(
            g.top and (g.name in self.tree.exported or self.pinned(g.name)) for g in groups
        )

    def _is_held(self, guard: Site, group: Group, vanished: Vanished) -> bool:
        """Whether another import stays in the guard, so that this one is not what it tests."""
        return any(
            g is not group and guard in g.guards and not all(vanished.has(n) for n in g.loads)
            for g in self.groups
        )

    def _remove(
        self,
        binding: Binding,
        deleted: dict[int, cst.CSTNode],
        partial: dict[int, tuple[cst.CSTNode, list[cst.CSTNode]]],
        swaps: dict[int, cst.CSTNode],
    ) -> None:
        statement = binding.statement
        if statement is None or id(statement) in swaps:
            return
        if isinstance(statement, (cst.Import, cst.ImportFrom)) and not isinstance(
            statement.names, cst.ImportStar
        ):
            entry = partial.setdefault(id(statement), (statement, []))
            if all(n is not binding.node for n in entry[1]):
                entry[1].append(binding.node)
            if len(entry[1]) == len(statement.names):
                del partial[id(statement)]
                deleted[id(statement)] = statement
        elif isinstance(statement, cst.Assign):
            names = [t.target for t in statement.targets]
            if len(names) == 1 and isinstance(names[0], cst.Name):
                deleted[id(statement)] = statement
            else:
                entry = partial.setdefault(id(statement), (statement, []))
                entry[1].append(binding.node)
                if len(entry[1]) == _count_names(statement):
                    del partial[id(statement)]
                    deleted[id(statement)] = statement
        elif isinstance(statement, cst.AnnAssign):
            deleted[id(statement)] = statement

    # -- edits -----------------------------------------------------------------------------

    def _edits(
        self,
        active: set[Site],
        settled: Settled,
        partial: dict[int, tuple[cst.CSTNode, list[cst.CSTNode]]],
        unwrapped: dict[int, list[cst.WithItem]],
        whole: set[int],
        decorators: dict[int, cst.Decorator],
        swaps: dict[int, cst.CSTNode],
        vanished: Vanished,
    ) -> list[Text]:
        edits: list[Text] = []
        self._cuts = sorted(
            (c for s in active if s.change is not None for c in s.change.cuts),
            key=lambda c: (c.start, -c.end),
        )
        self._whole = whole
        for site in sorted(active, key=lambda s: self.tree.span(s.node)):
            assert site.change is not None
            for cut in site.change.cuts:
                place = cut.anchor or site.expression
                if not vanished.has_statement(place):
                    text = self._filled(cut.pieces, self.tree.statement(place))
                    edits.append(Text(cut.start, cut.end, text))
        edits.extend(self.layout.realigned(active, edits, vanished))
        added = placing.additions(self, active, settled, partial, vanished)
        added += [
            self._inserted(i)
            for s in sorted(active, key=lambda s: self.tree.span(s.node))
            for i in (s.change.inserts if s.change is not None else ())
            if not vanished.has_statement(i.anchor)
        ]
        self.deletions.added_at = {e.start for e in added}
        edits.extend(self.deletions.statements(settled))
        for statement, nodes in partial.values():
            if not vanished.has_statement(statement):
                edits.extend(self._without(statement, nodes))
        for block_items in unwrapped.values():
            edits.extend(self._unwrapped(block_items, whole, vanished))
        for decorator in decorators.values():
            owner = self.tree.parent(decorator)
            if owner is None or not vanished.has_statement(owner):
                start, end = self.tree.span(decorator)
                edits.append(Text(self.lines.start(start), self.lines.end(end), ""))
        for node in swaps.values():
            start, end = self.tree.span(node)
            rest = self.layout.comment_end(end)
            alone = not self.tree.text[rest : self.lines.end(rest)].strip()
            text = "import torch_tpu  # noqa: F401" if alone else "import torch_tpu"
            edits.append(Text(start, rest if alone else end, text))
        edits.extend(added)
        return [e for e in edits if e.start != e.end or e.content]

    def _filled(self, pieces: Iterable[Piece], statement: cst.CSTNode) -> str:
        text = "".join(p if isinstance(p, str) else self._current(p) for p in pieces)
        if INDENT in text:
            text = text.replace(INDENT, self.indent_at(self.tree.span(statement)[0], statement))
        return text

    def _inserted(self, insert: Insert) -> Text:
        """A new line before a statement, or as the first of a loop's body."""
        anchor, text = insert.anchor, self._filled(insert.pieces, insert.anchor)
        if not isinstance(anchor, cst.For):
            start = self.tree.span(anchor)[0]
            at = self.lines.start(start)
            return Text(at, at, f"{self.indent_at(start, anchor)}{text}{self.newline}", 3)
        first = self.tree.span(anchor.body.body[0])[0]
        if isinstance(anchor.body, cst.SimpleStatementSuite):
            outer = self.indent_at(self.tree.span(anchor)[0], anchor)
            line = f"{self.newline}{outer}{self.builder.unit}"
            return Text(self.tree.full_span(anchor.body)[0], first, f"{line}{text}{line}", 3)
        at = self.lines.end(self.tree.full_span(anchor.body)[0])
        indent = self.indent_at(first, anchor.body.body[0])
        return Text(at, at, f"{indent}{text}{self.newline}", 3)

    def _current(self, piece: Slice) -> str:
        """The source of a node with the cuts inside it made."""
        start, end = self.tree.span(piece.node)
        out, at = [], start
        first = bisect.bisect_left(self._cuts, start, key=lambda c: c.start)
        for cut in itertools.islice(self._cuts, first, None):
            if cut.start >= end:
                break
            if cut.start < at or cut.end > end:
                continue
            out.append(self.tree.text[at : cut.start])
            out.append("".join(p if isinstance(p, str) else self._current(p) for p in cut.pieces))
            at = cut.end
        out.append(self.tree.text[at:end])
        return "".join(out)

    def indent_at(self, at: int, node: cst.CSTNode) -> str:
        """The indentation of a line after the ``with`` blocks around it are unwrapped."""
        indent = self.lines.indent(at)
        for above in self.tree.ancestors(node):
            if id(above) in self._whole and isinstance(above, cst.With):
                outer = self.lines.indent(self.tree.span(above)[0])
                body = above.body
                if isinstance(body, cst.IndentedBlock) and body.body:
                    inner = self.lines.indent(self.tree.span(body.body[0])[0])
                    indent = outer + indent[len(inner) :] if indent.startswith(inner) else indent
        return indent

    # -- parts of statements -----------------------------------------------------------------

    def _without(self, statement: cst.CSTNode, nodes: list[cst.CSTNode]) -> list[Text]:
        """Take names out of an import or an assignment to several names."""
        if isinstance(statement, (cst.Import, cst.ImportFrom)):
            assert not isinstance(statement.names, cst.ImportStar)
            return self.deletions.items_out(list(statement.names), nodes)
        if isinstance(statement, cst.Assign):
            gone = {id(n) for n in nodes}
            targets = [t for t in statement.targets if id(t.target) in gone]
            return [Text(self.tree.full_span(t)[0], self.tree.full_span(t)[1], "") for t in targets]
        return []

    def _unwrapped(
        self, items: list[cst.WithItem], whole: set[int], vanished: Vanished
    ) -> list[Text]:
        block = self.tree.parent(items[0])
        assert isinstance(block, cst.With)
        if vanished.has_statement(block) and any(
            id(a) in vanished.ids for a in (block, *self.tree.ancestors(block))
        ):
            return []
        if id(block) not in whole:
            return self.deletions.items_out(list(block.items), list(items))
        start = self.tree.span(block)[0]
        body = block.body
        if isinstance(body, cst.SimpleStatementSuite):
            return [Text(start, self.tree.span(body.body[0])[0], "")]
        head = self.lines.end(self.tree.full_span(body)[0])
        edits = [Text(self.lines.start(start), head, "")]
        outer = self.lines.indent(start)
        inner = self.lines.indent(self.tree.span(body.body[0])[0])
        strings = self.layout.protected(body)
        final = self.tree.full_span(body)[1]
        for index in range(self.lines.index(head), self.lines.index(max(head, final - 1)) + 1):
            at = self.lines.starts[index]
            line = self.lines.content(index)
            if line.startswith(inner) and line.strip() and not any(a < at <= b for a, b in strings):
                edits.append(Text(at + len(outer), at + len(inner), "", 8))
        return edits


def _is_try(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Try)


def _count_names(statement: cst.Assign) -> int:
    return sum(isinstance(n, cst.Name) for t in statement.targets for n in descendants(t.target))


def _is_package(module: cst.CSTNode) -> bool:
    while isinstance(module, cst.Attribute):
        module = module.value
    return isinstance(module, cst.Name) and module.value in ("torch_xla", "torch_xla_py")
