"""From the sites that are to be mended to text edits: imports, helpers and emptied suites included.

`Plan.assemble` is a pure function of the chosen sites, so that a single fix in an editor and a
whole file on the command line come from the same place.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import libcst as cst

from xla2tpu import placing
from xla2tpu.changes import INDENT, Builder
from xla2tpu.imports import Group, groups_of
from xla2tpu.lines import Lines
from xla2tpu.model import Edit
from xla2tpu.naming import Import
from xla2tpu.sites import Cut, Site, Text
from xla2tpu.suites import Settled, Suites
from xla2tpu.template import Slice, compile_template, render
from xla2tpu.tree import Binding, Tree, children, descendants


class Conflict(Exception):
    """Two fixes would change the same text; ``code`` is the rule of one of them."""

    def __init__(self, code: str) -> None:
        super().__init__(f"edits of {code} overlap others")
        self.code = code


@dataclass(slots=True)
class Assembly:
    """The edits for a choice of sites, which sites they mend, and what is left of torch_xla."""

    edits: list[Text] = field(default_factory=list)
    applied: set[Site] = field(default_factory=set)
    imports_left: bool = False
    helpers: tuple[str, ...] = ()


class Plan:
    """Assembles edits for one file. ``pinned`` are names at the top that others import."""

    def __init__(
        self,
        tree: Tree,
        builder: Builder,
        sites: list[Site],
        pinned: Callable[[str], bool],
        keeps_imports: bool,
    ) -> None:
        self.tree, self.builder, self.sites = tree, builder, sites
        self.lines = Lines(tree.text)
        self.groups = groups_of(tree, builder.names)
        self.pinned = pinned
        self.keeps_imports = keeps_imports
        self.newline = builder.newline
        # Names in quoted annotations are uses as well, though they are not loaded.
        self.quoted = {
            (id(scope.owner(name)), name)
            for node, scope in tree.strings
            if id(node) in tree.annotations and isinstance(node, cst.SimpleString)
            for name in re.findall(r"[A-Za-z_]\w*", node.value)
        }

    # -- which sites, which statements -----------------------------------------------------

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
        whole: set[int] = set()
        for key, items in unwrapped.items():
            block = self.tree.parent(items[0])
            if isinstance(block, cst.With) and len(items) == len(block.items):
                whole.add(key)
        fixed = {id(s.expression) for s in active}
        manual = [
            s for s in self.sites
            if s not in active and s.counts and id(s.expression) not in fixed
            and s.reason != "version-gate"
        ]  # fmt: skip
        suites = Suites(
            self.tree, lambda test: not any(self.tree.is_within(s.node, test) for s in manual)
        )
        partial: dict[int, tuple[cst.CSTNode, list[cst.CSTNode]]] = {}
        removed: set[Group] = set()
        while True:
            settled = suites.settle(deleted.values(), whole)
            vanished = _Vanished(self.tree, settled, replaced, kept, decorators, nodes)
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
        vanished = _Vanished(self.tree, settled, replaced, kept, decorators, nodes)
        idle = {s for g in self.groups if g not in removed for s in g.guards}
        gone = {id(b.node) for g in removed for b in g.bindings}
        idle |= {
            s
            for s in active
            if s.change is not None
            and s.change.with_import
            and s.meaning is not None
            and not any(id(b.node) in gone for b in s.meaning.bindings)
        }
        if idle & active:
            # They are right only if an import goes, which stays: the same without them.
            return self.assemble(chosen - idle)
        swaps = {k: n for s in active if s.change for n in s.change.swaps for k in (id(n),)}
        applied = active | {s for s in self.sites if vanished.has(s.expression)}
        applied |= self._covered(applied, replaced, kept)
        applied = {s for s in applied if s in active or not s.follows or set(s.follows) <= applied}
        edits = self._edits(active, settled, partial, unwrapped, whole, decorators, swaps, vanished)
        assembly = Assembly(applied=applied)
        assembly.imports_left = self._imports_left(removed, vanished, swaps)
        assembly.edits = self.resolved(edits)
        standing = {s for s in active if not vanished.has_statement(s.expression)}
        assembly.helpers = tuple(self._needed_helpers(standing))
        return assembly

    def _imports_left(
        self, removed: set[Group], vanished: _Vanished, swaps: dict[int, cst.CSTNode]
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

    def _covered(self, applied: set[Site], replaced: dict[int, Site], kept: set[int]) -> set[Site]:
        """Sites inside text that another site's fix drops, such as a device argument."""
        found: set[Site] = set()
        for site in self.sites:
            if site in applied:
                continue
            node: cst.CSTNode | None = site.expression
            while node is not None:
                if id(node) in kept:
                    break
                if id(node) in replaced and node is not site.expression:
                    found.add(site)
                    break
                node = self.tree.parent(node)
        return found

    def _is_removable(
        self,
        group: Group,
        vanished: _Vanished,
        active: set[Site],
        uses: set[str],
    ) -> bool:
        if group.name in uses and not group.torch_xla:
            return False
        if group.fixed or (id(group.scope), group.name) in self.quoted:
            return False
        if not (group.loads or group.torch_xla):
            return False
        if not all(vanished.has(load) for load in group.loads):
            return False
        if group.top and (group.name in self.tree.exported or self.pinned(group.name)):
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
        return bool(group.loads) and not touched and not (group.top and self.keeps_imports)

    def _may_swap(self, guard: Site, vanished: _Vanished, active: set[Site]) -> bool:
        """Whether a guard's imports may make way for torch_tpu: nothing uses their names now."""
        if guard not in active:
            return False
        groups = [g for g in self.groups if guard in g.guards]
        return all(vanished.has(load) for g in groups for load in g.loads) and not any(
            g.top and (g.name in self.tree.exported or self.pinned(g.name)) for g in groups
        )

    def _is_held(self, guard: Site, group: Group, vanished: _Vanished) -> bool:
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
        vanished: _Vanished,
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
                if not vanished.has_statement(site.expression):
                    edits.append(Text(cut.start, cut.end, self._filled(cut, site)))
        edits.extend(self._realigned(active, edits, vanished))
        added = placing.additions(self, active, settled, partial, vanished)
        self._added_at = {e.start for e in added}
        edits.extend(self._statements(settled))
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
            rest = self._comment_end(end)
            alone = not self.tree.text[rest : self.lines.end(rest)].strip()
            text = "import torch_tpu  # noqa: F401" if alone else "import torch_tpu"
            edits.append(Text(start, rest if alone else end, text))
        edits.extend(added)
        return [e for e in edits if e.start != e.end or e.content]

    def _comment_end(self, end: int) -> int:
        """The end of the trailing comment after a statement, else ``end``."""
        match = re.compile(r"[ \t]*#[^\r\n]*").match(self.tree.text, end)
        return match.end() if match else end

    def _filled(self, cut: Cut, site: Site) -> str:
        text = "".join(p if isinstance(p, str) else self._current(p) for p in cut.pieces)
        if INDENT in text:
            start = self.tree.span(self.tree.statement(site.expression))[0]
            text = text.replace(INDENT, self.indent_at(start, site.expression))
        return text

    def _current(self, piece: Slice) -> str:
        """The source of a node with the cuts inside it made."""
        start, end = self.tree.span(piece.node)
        out, at = [], start
        for cut in self._cuts:
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

    def _protected(self, node: cst.CSTNode) -> list[tuple[int, int]]:
        """The spans of strings over several lines, whose content is not to be indented."""
        found = []
        for below in descendants(node):
            if isinstance(below, (cst.SimpleString, cst.FormattedString)):
                start, end = self.tree.span(below)
                if self.lines.index(start) != self.lines.index(end):
                    found.append((start, end))
        return found

    def _realigned(self, active: set[Site], edits: list[Text], vanished: _Vanished) -> list[Text]:
        """Move the further lines of calls whose opening bracket has moved.

        Lines that were aligned with the bracket stay so; those of a statement that gets a block
        around it go one level in.
        """
        moves: dict[int, int] = {}
        for site in sorted(active, key=lambda s: self.tree.span(s.node)):
            assert site.change is not None
            if vanished.has_statement(site.expression):
                continue
            call = site.expression if isinstance(site.expression, cst.Call) else None
            aligned = self._alignment(call, edits) if call is not None else None
            if aligned is not None:
                for index in self._further_lines(call):
                    moves.setdefault(index, aligned)
            elif site.change.deeper is not None:
                for index in self._further_lines(site.change.deeper):
                    moves.setdefault(index, len(self.builder.unit))
        found = []
        for index, move in moves.items():
            at = self.lines.starts[index]
            if move > 0:
                white = self.builder.unit if move == len(self.builder.unit) else " " * move
                found.append(Text(at, at, white, 9))
            elif move < 0:
                found.append(Text(at, at - move, "", 8))
        return found

    def _further_lines(self, node: cst.CSTNode | None) -> list[int]:
        """The lines after the first that a node stands on, but for those inside strings."""
        assert node is not None
        start, end = self.tree.span(node)
        strings = self._protected(node)
        return [
            index
            for index in range(self.lines.index(start) + 1, self.lines.index(end) + 1)
            if not self.lines.is_blank(index)
            and not any(a < self.lines.starts[index] <= b for a, b in strings)
        ]

    def _alignment(self, call: cst.Call, edits: list[Text]) -> int | None:
        """How far the bracket of a call moves, where its further lines are aligned with it."""
        further = self._further_lines(call)
        if not further or not call.args:
            return None
        bracket = self.tree.text.index("(", self.tree.span(call.func)[1])
        first = self.tree.full_span(call.args[0])[0]
        line = self.lines.start(bracket)
        if self.lines.index(first) != self.lines.index(bracket):
            return None
        column = bracket + 1 - line
        indents = [len(self.lines.indent(self.lines.starts[i])) for i in further]
        if min(indents) < column or "\t" in self.tree.text[line:bracket]:
            return None
        moved = 0
        for edit in edits:
            if line <= edit.start and edit.end <= first:
                _, broken, last = edit.content.rpartition("\n")
                moved += len(last) - (edit.end - edit.start)
                if broken:
                    moved = len(last) - (edit.end - line)
        return moved

    # -- statements that vanish --------------------------------------------------------------

    def _statements(self, settled: Settled) -> list[Text]:
        edits: list[Text] = []
        outermost = [n for n in settled.gone.values() if not self._is_below_gone(n, settled)]
        passes = {id(s): s for s in settled.passes.values()}
        by_suite: dict[int, list[cst.CSTNode]] = {}
        for node in outermost:
            parent = self.tree.parent(node)
            assert parent is not None
            by_suite.setdefault(id(parent), []).append(node)
        for suite_id, nodes in by_suite.items():
            nodes.sort(key=lambda n: self.tree.span(n)[0])
            edits.extend(self._run(nodes, suite_id in passes))
        for suite in passes.values():
            if isinstance(suite, cst.SimpleStatementSuite):
                first, last = self.tree.span(suite.body[0]), self.tree.span(suite.body[-1])
                edits.append(Text(first[0], self._comment_end(last[1]), "pass"))
        for clause in settled.clauses.values():
            if any(
                id(a) in settled.gone or id(a) in settled.clauses
                for a in self.tree.ancestors(clause)
            ):
                continue
            start, end = self.tree.span(clause)
            a, b = self.lines.start(start), self.lines.end(max(start, end - 1))
            edits.append(Text(a, b, self._comments(a, b, self.lines.indent(start), clause)))
        edits.extend(self._shared_lines(settled))
        return edits

    def _is_below_gone(self, node: cst.CSTNode, settled: Settled) -> bool:
        """Whether something around the node vanishes and takes it along."""
        return any(
            id(above) in settled.gone or id(above) in settled.clauses
            for above in self.tree.ancestors(node)
        )

    def _run(self, nodes: list[cst.CSTNode], needs_pass: bool) -> list[Text]:
        """Deletions for vanished statements of one suite, with the blank lines around them."""
        edits: list[Text] = []
        spans: list[tuple[int, int, str]] = []
        for node in nodes:
            start, end = self._lines_of(node)
            text = ""
            if needs_pass:
                text = f"{self.lines.indent(start)}pass{self._ending(end)}"
                if id(node) != id(nodes[0]):
                    text = ""
            if isinstance(node, cst.BaseCompoundStatement):
                text += self._comments(start, end, self.lines.indent(start), node)
            spans.append((start, end, text))
        runs: list[list[tuple[int, int, str]]] = []
        for span in spans:
            if runs and self._only_blank(runs[-1][-1][1], span[0]):
                runs[-1].append(span)
            else:
                runs.append([span])
        for run in runs:
            edits.extend(self._collapsed(run))
        return edits

    def _only_blank(self, start: int, end: int) -> bool:
        return not self.tree.text[start:end].strip()

    def _collapsed(self, run: list[tuple[int, int, str]]) -> list[Text]:
        edits = [Text(a, b, t) for a, b, t in run]
        if any(t for _, _, t in run):
            return edits
        first, last = run[0][0], run[-1][1]
        if any(first <= at <= last for at in self._added_at):
            return edits
        edits = [Text(first, last, "")]
        above = self.lines.index(first)
        before = 0
        while self.lines.is_blank(above - 1 - before):
            before += 1
        below = self.lines.index(last)
        after = 0
        while self.lines.is_blank(below + after):
            after += 1
        inner = max((self._blank_lines(a[1], b[0]) for a, b in itertools.pairwise(run)), default=0)
        at_end = below + after >= len(self.lines.starts) - 1 and not self.lines.content(
            below + after
        )
        header = above - before == 0 or self._opens_suite(above - before - 1)
        closes = at_end or len(self.lines.indent(self._at(below + after))) < len(
            self.lines.indent(first)
        )
        if header:
            drop = (last, self._at(below + after))
        elif closes:
            keep = max(before, after) - after
            drop = (self._at(above - before + keep), first)
            if at_end:
                drop = (self._at(above - before), first)
        else:
            cut = min(before, after)
            drop = (self._at(above - cut), first)
            if inner > max(before, after):
                edits = [Text(first, last, self.newline * (inner - max(before, after)))]
        if drop[0] < drop[1]:
            edits.append(Text(drop[0], drop[1], ""))
        return edits

    def _blank_lines(self, start: int, end: int) -> int:
        return self.lines.index(end) - self.lines.index(start) if start < end else 0

    def _at(self, index: int) -> int:
        return self.lines.starts[index] if index < len(self.lines.starts) else len(self.tree.text)

    def _opens_suite(self, index: int) -> bool:
        line = self.lines.content(index).split("#")[0].rstrip()
        return line.endswith(":")

    def _ending(self, end: int) -> str:
        text = self.tree.text[:end]
        match = re.search(r"(\r\n|\r|\n)\Z", text)
        return match[0] if match else ""

    def _lines_of(self, node: cst.CSTNode) -> tuple[int, int]:
        start, end = self.tree.span(node)
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node.decorators:
            start = self.tree.span(node.decorators[0])[0]
        at = max(start, end - 1)
        if end < len(self.tree.text) and self.tree.text[end - 1 : end] not in "\r\n":
            at = end
        return self.lines.start(start), self.lines.end(at)

    def _comments(self, start: int, end: int, indent: str, node: cst.CSTNode) -> str:
        """The comment lines of a vanished compound statement, which stay at its place."""
        strings = self._protected(node)
        kept = []
        for index in range(self.lines.index(start), self.lines.index(max(start, end - 1)) + 1):
            at = self.lines.starts[index]
            line = self.lines.content(index).strip()
            if not line.startswith("#") or line.startswith("# TODO(xla2tpu):"):
                continue
            if not any(a < at <= b for a, b in strings):
                kept.append(f"{indent}{line}{self.newline}")
        return "".join(kept)

    def _shared_lines(self, settled: Settled) -> list[Text]:
        """Deletions of small statements that share their line with others that stay."""
        edits: list[Text] = []
        lines = {
            id(p): p for s in settled.smalls.values()
            if (p := self.tree.parent(s)) is not None and id(p) not in settled.gone
            and len(p.body) > 1  # type: ignore[attr-defined]
        }  # fmt: skip
        for line in lines.values():
            if isinstance(line, cst.SimpleStatementSuite) and id(line) in settled.passes:
                continue
            if self._is_below_gone(line, settled):
                continue
            body = line.body  # type: ignore[attr-defined]
            stay = [i for i, s in enumerate(body) if id(s) not in settled.smalls]
            if not stay or len(stay) == len(body):
                continue
            for i, small in enumerate(body):
                if id(small) in settled.smalls and i < stay[-1]:
                    edits.append(Text(self.tree.span(small)[0], self.tree.span(body[i + 1])[0], ""))
            if stay[-1] < len(body) - 1:
                end = self.tree.full_span(body[-1])[1]
                edits.append(Text(self.tree.span(body[stay[-1]])[1], end, ""))
        return edits

    # -- parts of statements -----------------------------------------------------------------

    def _without(self, statement: cst.CSTNode, nodes: list[cst.CSTNode]) -> list[Text]:
        """Take names out of an import or an assignment to several names."""
        if isinstance(statement, (cst.Import, cst.ImportFrom)):
            assert not isinstance(statement.names, cst.ImportStar)
            return self._items_out(list(statement.names), nodes)
        if isinstance(statement, cst.Assign):
            gone = {id(n) for n in nodes}
            targets = [t for t in statement.targets if id(t.target) in gone]
            return [Text(self.tree.full_span(t)[0], self.tree.full_span(t)[1], "") for t in targets]
        return []

    def _items_out(self, items: list[cst.CSTNode], gone: list[cst.CSTNode]) -> list[Text]:
        """Take items out of a list with commas, line by line where they stand so."""
        ids = {id(n) for n in gone}
        statement = self.tree.parent(items[0])
        brackets = isinstance(getattr(statement, "lpar", None), cst.LeftParen)
        stay = [i for i, n in enumerate(items) if id(n) not in ids]
        edits: list[Text] = []
        last = stay[-1]
        for i, item in enumerate(items):
            if id(item) not in ids:
                continue
            start = self.tree.full_span(item)[0]
            own = self.tree.span(self._core(item))
            line = self.lines.start(start)
            rest = self.tree.text[self._core_end(item) : self.lines.end(own[1])]
            alone = (
                brackets
                and not self.tree.text[line:start].strip()
                and re.fullmatch(r"\s*,?\s*(#.*)?\s*", rest)
            )
            if alone:
                edits.append(Text(line, self.lines.end(own[1]), ""))
            elif i < last:
                following = self.tree.full_span(items[i + 1])[0]
                edits.append(Text(start, following, ""))
            elif i > last:
                previous = self._core_end(items[i - 1] if i - 1 > last else items[last])
                edits.append(Text(previous, self._core_end(item), ""))
        return edits

    def _core(self, item: cst.CSTNode) -> cst.CSTNode:
        if isinstance(item, cst.ImportAlias):
            return item.asname if item.asname is not None else item.name
        if isinstance(item, cst.WithItem):
            return item.asname if item.asname is not None else item.item
        return item

    def _core_end(self, item: cst.CSTNode) -> int:
        return self.tree.full_span(self._core(item))[1]

    def _unwrapped(
        self, items: list[cst.WithItem], whole: set[int], vanished: _Vanished
    ) -> list[Text]:
        block = self.tree.parent(items[0])
        assert isinstance(block, cst.With)
        if vanished.has_statement(block) and any(
            id(a) in vanished.ids for a in (block, *self.tree.ancestors(block))
        ):
            return []
        if id(block) not in whole:
            return self._items_out(list(block.items), list(items))
        start = self.tree.span(block)[0]
        body = block.body
        if isinstance(body, cst.SimpleStatementSuite):
            return [Text(start, self.tree.span(body.body[0])[0], "")]
        head = self.lines.end(self.tree.full_span(body)[0])
        edits = [Text(self.lines.start(start), head, "")]
        outer = self.lines.indent(start)
        inner = self.lines.indent(self.tree.span(body.body[0])[0])
        strings = self._protected(body)
        final = self.tree.full_span(body)[1]
        for index in range(self.lines.index(head), self.lines.index(max(head, final - 1)) + 1):
            at = self.lines.starts[index]
            line = self.lines.content(index)
            if line.startswith(inner) and line.strip() and not any(a < at <= b for a, b in strings):
                edits.append(Text(at + len(outer), at + len(inner), "", 8))
        return edits

    # -- helpers -------------------------------------------------------------------------------

    def _needed_helpers(self, active: set[Site]) -> list[str]:
        found: list[str] = []
        for site in sorted(active, key=lambda s: self.tree.span(s.node)):
            assert site.change is not None
            for name in site.change.helpers:
                for needed in (*self.required(name), name):
                    if needed not in found:
                        found.append(needed)
        return found

    def required(self, name: str) -> list[str]:
        """The helpers that a helper calls itself."""
        helper = self.builder.rules.helpers[name]
        free = {n for n, _ in compile_template(_escaped(helper.code), True).free}
        return [n for n in self.builder.rules.helpers if n in free and n != name]

    def helper_code(self, name: str, needs: list[str]) -> str:
        """The source of a helper under the names of the file; adds to the imports needed."""
        helper = self.builder.rules.helpers[name]
        table = {Import.parse(text).name: text for text in helper.imports}
        naming = self.builder.naming

        def rename(free: str) -> str:
            if free in table:
                local, statement = naming.local(Import.parse(table[free]), self.tree.root)
                if statement is not None:
                    needs.append(statement)
                return local
            if free in self.builder.rules.helpers:
                return naming.helper(self.builder.rules.helpers[free])
            return free

        compiled = compile_template(_escaped(helper.code.strip("\n")), True)
        pieces = render(compiled, {}, (), (), rename, self.tree.source, '"')
        text = "".join(p for p in pieces if isinstance(p, str))
        new = naming.helper(helper)
        text = re.sub(rf"\A(def|class) {name}\b", rf"\1 {new}", text)
        if self.builder.unit != "    ":
            text = "\n".join(self._reindented(line) for line in text.split("\n"))
        return text.replace("\n", self.newline)

    def _reindented(self, line: str) -> str:
        body = line.lstrip(" ")
        return self.builder.unit * ((len(line) - len(body)) // 4) + body

    # -- one list of edits -----------------------------------------------------------------------

    def resolved(self, edits: list[Text]) -> list[Text]:
        """Sort the edits; one inside another gives way to it, insertions move to its end."""
        spans = sorted((e for e in edits if e.start != e.end), key=lambda e: (e.start, -e.end))
        merged: list[Text] = []
        for edit in spans:
            if merged and edit.start < merged[-1].end:
                last = merged[-1]
                if edit.end <= last.end:
                    continue
                if last.content == "" and edit.content == "":
                    merged[-1] = Text(last.start, edit.end, "")
                    continue
                raise Conflict("XLA000")
            merged.append(edit)
        inserted: dict[int, int] = {}
        points = sorted((e for e in edits if e.start == e.end), key=lambda e: (e.start, e.order))
        for point in points:
            around = next((m for m in merged if m.start < point.start < m.end), None)
            if around is None:
                merged.append(point)
            elif point.order >= 8:
                continue
            else:
                # In order: what was put in before, then this, then the replacement itself.
                at = inserted.get(around.start, 0)
                text = around.content[:at] + point.content + around.content[at:]
                inserted[around.start] = at + len(point.content)
                merged[merged.index(around)] = Text(around.start, around.end, text)
        return sorted(merged, key=lambda e: (e.start, e.end, e.order))


def _escaped(code: str) -> str:
    return code.replace("{", "{{").replace("}", "}}")


def _count_names(statement: cst.Assign) -> int:
    return sum(isinstance(n, cst.Name) for t in statement.targets for n in descendants(t.target))


def _is_package(module: cst.CSTNode) -> bool:
    while isinstance(module, cst.Attribute):
        module = module.value
    return isinstance(module, cst.Name) and module.value in ("torch_xla", "torch_xla_py")


class _Vanished:
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
        roots: list[cst.CSTNode] = list(settled.smalls.values())
        roots += [*settled.gone.values(), *settled.clauses.values(), *decorators.values()]
        for root in roots:
            self._mark(root, set())
        for key in replaced:
            if key in nodes:
                self._mark(nodes[key], kept)

    def _mark(self, root: cst.CSTNode, kept: set[int]) -> None:
        # The root goes even where another fix keeps its place: it is replaced there.
        self.below.add(id(root))
        stack = list(children(root))
        while stack:
            node = stack.pop()
            if id(node) not in kept:
                self.below.add(id(node))
                stack.extend(children(node))

    def has(self, node: cst.CSTNode) -> bool:
        """Whether the node's text goes, by a deletion or by a replacement around it."""
        return id(node) in self.below

    def has_statement(self, node: cst.CSTNode) -> bool:
        """Whether a statement around the node goes as a whole."""
        here: cst.CSTNode | None = node
        while here is not None:
            if id(here) in self.ids:
                return True
            here = self.tree.parent(here)
        return False


def to_bytes(edits: Iterable[Text], text: str, encoding: str, lead: int) -> list[Edit]:
    """The edits in bytes of the file; ``lead`` is the length of its byte order mark."""
    if text.isascii() and encoding.lower().replace("-", "") in (
        "utf8",
        "ascii",
        "latin1",
        "iso88591",
    ):
        return [Edit(e.start + lead, e.end + lead, e.content) for e in edits]
    table: dict[int, int] = {}
    at = size = 0
    for position in sorted({p for e in edits for p in (e.start, e.end)}):
        size += len(text[at:position].encode(encoding))
        at = position
        table[position] = size + lead
    return [Edit(table[e.start], table[e.end], e.content) for e in edits]
