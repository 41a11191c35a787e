"""The layout of lines: trailing comments, strings over lines, aligned arguments."""

from __future__ import annotations

import re

import libcst as cst

from xla2tpu.lines import Lines
from xla2tpu.nodes import descendants
from xla2tpu.sites import Site, Text
from xla2tpu.tree import Tree
from xla2tpu.vanished import Vanished


class Layout:
    """How the lines of one file are laid out; ``unit`` is one level of indentation."""

    def __init__(self, tree: Tree, lines: Lines, unit: str) -> None:
        self.tree, self.lines, self.unit = tree, lines, unit

    def comment_end(self, end: int) -> int:
        """The end of the trailing comment after a statement, else ``end``."""
        match = re.compile(r"[ \t]*#[^\r\n]*").match(self.tree.text, end)
        return match.end() if match else end

    def protected(self, node: cst.CSTNode) -> list[tuple[int, int]]:
        """The spans of strings over several lines, whose content is not to be indented."""
        found = []
        for below in descendants(node):
            if isinstance(below, (cst.SimpleString, cst.FormattedString)):
                start, end = self.tree.span(below)
                if self.lines.index(start) != self.lines.index(end):
                    found.append((start, end))
        return found

    def realigned(self, active: set[Site], edits: list[Text], vanished: Vanished) -> list[Text]:
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
            for statement in site.change.deeper:
                for index in self._further_lines(statement):
                    moves.setdefault(index, len(self.unit))
        found = []
        for index, move in moves.items():
            at = self.lines.starts[index]
            if move > 0:
                white = self.unit if move == len(self.unit) else " " * move
                found.append(Text(at, at, white, 9))
            elif move < 0:
                found.append(Text(at, at - move, "", 8))
        return found

    def _further_lines(self, node: cst.CSTNode | None) -> list[int]:
        """The lines after the first that a node stands on, but for those inside strings."""
        assert node is not None
        start, end = self.tree.span(node)
        strings = self.protected(node)
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
