"""The comments that migrate leaves above what a person has to do."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from xla2tpu import comments as comments_
from xla2tpu.analysis import Analysis
from xla2tpu.model import Mode
from xla2tpu.plan import Assembly
from xla2tpu.sites import Text


class Markers:
    """The markers of one file: where they should stand, and the edits to that end."""

    def __init__(self, analysis: Analysis) -> None:
        self.it = analysis

    def desired(self, assembly: Assembly | None) -> dict[int, list[tuple[str, str]]]:
        """The line (from 1) that each marker stands above, with code and advice."""
        desired: dict[int, list[tuple[str, str]]] = {}
        if self.it.hardware is not None and not self.it.settings.any_hardware:
            return desired
        applied = assembly.applied if assembly is not None else set()
        left = [
            s for s in self.it.reported
            if s not in applied and s not in self.it.suppressed and not s.fixable and s.blocks
            # Said of files that only test a device; there is nothing of torch_xla to mark.
            and s.reason != "device-test"
            # What it goes with is marked.
            and not (s.context == "import" and s.reason == "goes-together")
        ]  # fmt: skip
        for site in sorted(left, key=lambda s: self.it.tree.span(s.node)):
            line = self.marked_line(site.node)
            entry = (site.rule.code, site.advice or site.rule.advice)
            if entry[0] not in [c for c, _ in desired.setdefault(line, [])]:
                desired[line].append(entry)
        return desired

    def marked_line(self, node: cst.CSTNode) -> int:
        lines = self.it.plan.lines
        here: cst.CSTNode | None = node
        while here is not None:
            alone = isinstance(here, (cst.SimpleStatementLine, cst.Decorator, cst.ExceptHandler))
            if alone or isinstance(here, cst.BaseCompoundStatement):
                break
            here = self.it.tree.parent(here)
        return lines.index(self.it.tree.span(here if here is not None else node)[0]) + 1

    def edits(self, assembly: Assembly) -> list[Text]:
        """Edits that bring the markers in line with what is left after the fixes."""
        lines = self.it.plan.lines
        migrate = self.it.settings.mode is Mode.MIGRATE
        desired = self.desired(assembly)
        present: dict[int, list[tuple[int, str]]] = {}
        for line, code in self.it.comments.markers.items():
            below = line + 1
            while below in self.it.comments.markers:
                below += 1
            present.setdefault(below, []).append((line, code))
        edits: list[Text] = []
        for below, markers in present.items():
            wanted = [c for c, _ in desired.get(below, [])]
            for line, code in markers:
                if code in wanted:
                    wanted.remove(code)
                    continue
                if not self.it.is_selected(code):
                    continue  # its place was not looked for
                start = lines.starts[line - 1]
                edits.append(Text(start, lines.end(start), ""))
        if not (migrate and self.it.settings.todo):
            return edits if not migrate else []
        for line, entries in desired.items():
            have = [c for _, c in present.get(line, [])]
            start = lines.starts[line - 1]
            indent = self.it.plan.indent_at(start, self._statement_on(line))
            block = self._block_at(start, self._first_left(line, assembly), assembly)
            if block is not None:
                index, opening = block
                head, newline, rest = opening.content.rpartition(self.it.source.newline)
                inner = rest[: len(rest) - len(rest.lstrip(" \t"))]
                lines_ = "".join(
                    comments_.marker(inner, code, _short(advice)) + self.it.source.newline
                    for code, advice in entries
                    if code not in have
                )
                content = f"{head}{newline}{lines_}{rest}"
                assembly.edits[index] = replace(opening, content=content)
                continue
            for code, advice in entries:
                if code not in have:
                    text = comments_.marker(indent, code, _short(advice)) + self.it.source.newline
                    edits.append(Text(start, start, text, 3))
        return edits

    def _first_left(self, line: int, assembly: Assembly) -> int:
        """Where the first place stands that is left by hand in the statement of a line."""
        left = [s for s in self.it.reported if s not in assembly.applied and not s.fixable]
        spans = [self.it.tree.span(s.node)[0] for s in left if self.marked_line(s.node) == line]
        return min(spans, default=0)

    def _block_at(self, line_start: int, place: int, assembly: Assembly) -> tuple[int, Text] | None:
        """The edit that puts a block around a place: markers go inside it."""
        for index, edit in enumerate(assembly.edits):
            if not line_start <= edit.start <= edit.end <= place:
                continue
            head, _, rest = edit.content.rpartition(self.it.source.newline)
            if head.endswith(":") and rest.strip():
                return index, edit
        return None

    def _statement_on(self, line: int) -> cst.CSTNode:
        for site in self.it.reported:
            if self.marked_line(site.node) == line:
                return site.node
        return self.it.tree.module


def _short(advice: str) -> str:
    """The advice on one line."""
    return " ".join(advice.split())
