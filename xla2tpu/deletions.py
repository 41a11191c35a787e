"""How statements, clauses and list items vanish from the text, with the lines around them."""

from __future__ import annotations

import itertools
import re

import libcst as cst

from xla2tpu.layout import Layout
from xla2tpu.lines import Lines
from xla2tpu.sites import Text
from xla2tpu.suites import Settled
from xla2tpu.tree import Tree


class Deletions:
    """Makes the edits by which statements and items vanish; ``newline`` is that of the file."""

    def __init__(self, tree: Tree, lines: Lines, layout: Layout, newline: str) -> None:
        self.tree, self.lines, self.layout, self.newline = tree, lines, layout, newline
        # Where something is put in: blank lines around such a place stay.
        self.added_at: set[int] = set()

    def statements(self, settled: Settled) -> list[Text]:
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
                edits.append(Text(first[0], self.layout.comment_end(last[1]), "pass"))
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
        added = {at for at in self.added_at if first <= at <= last}
        if added - {first} or (added and len(run) == 1):
            return edits
        edits = [Text(first, last, "")]
        above = self.lines.index(first)
        before = 0
        while not added and self.lines.is_blank(above - 1 - before):
            before += 1
        below = self.lines.index(last)
        after = 0
        while self.lines.is_blank(below + after):
            after += 1
        inner = max((self._blank_lines(a[1], b[0]) for a, b in itertools.pairwise(run)), default=0)
        at_end = below + after >= len(self.lines.starts) - 1 and not self.lines.content(
            below + after
        )
        # What is put in above the run is what stands there.
        header = not added and (above - before == 0 or self._opens_suite(above - before - 1))
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
        last = self.tree.text[max(0, end - 2) : end]
        return last if last == "\r\n" else last[-1:] if last[-1:] in ("\r", "\n") else ""

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
        strings = self.layout.protected(node)
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

    def items_out(self, items: list[cst.CSTNode], gone: list[cst.CSTNode]) -> list[Text]:
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
