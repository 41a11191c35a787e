"""Where a finding stands in its file, for programs that know lines and nothing of cells."""

from __future__ import annotations

from xla2tpu.lines import Lines
from xla2tpu.model import FileResult, Finding


class Places:
    """Answers for one file; in a notebook lines are those of its JSON text."""

    def __init__(self, result: FileResult) -> None:
        self._source = result.source or b""
        self._lines: Lines | None = None

    def of(self, finding: Finding) -> tuple[int, int, int, int]:
        """Line and column of begin and end, from 1, columns in characters."""
        if finding.cell is None:
            return finding.line, finding.column, finding.end_line, finding.end_column
        return *self._at(finding.start), *self._at(finding.end)

    def _at(self, offset: int) -> tuple[int, int]:
        if self._lines is None:
            self._lines = Lines(self._source.decode("utf-8", errors="replace"))
        at = len(self._source[:offset].decode("utf-8", errors="replace"))
        line = self._lines.index(at)
        return line + 1, at - self._lines.starts[line] + 1
