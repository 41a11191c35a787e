"""The lines of a source text under a finding, and what its fix makes of them."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Sequence

from xla2tpu.model import Edit, Finding

_TAB = "    "
_WIDTH = 120
_MOST_LINES = 8


class Snippets:
    """Answers for one file. Without its bytes there is nothing to show."""

    def __init__(self, source: bytes | None) -> None:
        self._source = source or b""
        try:
            self._encoding = tokenize.detect_encoding(io.BytesIO(self._source).readline)[0]
        except (SyntaxError, UnicodeDecodeError, LookupError):
            self._encoding = "utf-8"
        # As Python counts lines: form feeds and the like do not end one.
        text = self._source.decode(self._encoding, errors="replace")
        self._lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    def line(self, finding: Finding) -> tuple[str, int, int] | None:
        """The first line of a place, cut to a terminal's width, and where its caret line has
        its first and how many carets; None where the file has no such line.
        """
        lines = self._lines if finding.cell is None else self._cell(finding.cell)
        if not self._source or finding.line > len(lines):
            return None
        text = lines[finding.line - 1]
        first = min(finding.column - 1, len(text))
        last = len(text) if finding.end_line > finding.line else finding.end_column - 1
        last = max(first + 1, min(last, len(text)))
        cut = max(0, first - _WIDTH // 2) if len(text) > _WIDTH else 0
        shown = text[cut : cut + _WIDTH]
        before = shown[: first - cut].replace("\t", _TAB)
        under = shown[first - cut : last - cut].replace("\t", _TAB)
        return shown.replace("\t", _TAB), len(before), max(1, len(under))

    def _cell(self, number: int) -> list[str]:
        """The lines of a notebook's cell; none where the source is no such notebook."""
        import json

        try:
            root = json.loads(self._source)
            sheets = root.get("worksheets", [root])
            cell = [c for sheet in sheets for c in sheet["cells"]][number - 1]
            source = cell.get("source", cell.get("input", ""))
        except (ValueError, KeyError, IndexError, AttributeError, TypeError):
            return []
        return (source if isinstance(source, str) else "".join(source)).split("\n")

    def fixed(self, finding: Finding) -> list[str] | None:
        """The lines of a place after its fix, without those of its imports and helpers; empty
        where the lines vanish, None where the fix does nothing there.
        """
        if finding.fix is None or not self._source or finding.cell is not None:
            return None
        start = self._source.rfind(b"\n", 0, finding.start) + 1
        end = self._source.find(b"\n", finding.end)
        end = len(self._source) if end < 0 else end
        # An edit that takes whole lines begins before and ends behind the text of the place.
        edits = [e for e in finding.fix.edits if e.start < end and e.end > start]
        if not edits:
            return None
        start = min(start, *(e.start for e in edits)) if edits else start
        end = max(end, *(e.end for e in edits))
        text = _apply(self._source, edits, start, end).decode(self._encoding, errors="replace")
        lines = [line.rstrip().replace("\t", _TAB)[:_WIDTH] for line in text.splitlines()]
        lines = [line for line in lines if line]
        return lines[:_MOST_LINES]


def _apply(source: bytes, edits: Sequence[Edit], start: int, end: int) -> bytes:
    parts: list[bytes] = []
    for edit in sorted(edits):
        parts += (source[start : edit.start], edit.content.encode("utf-8", errors="replace"))
        start = edit.end
    return b"".join((*parts, source[start:end]))
