"""Lines of a text with any newline: where they begin and end, blank lines, strings over lines."""

from __future__ import annotations

import bisect
import re

_BREAK = re.compile(r"\r\n|\r|\n")


class Lines:
    """The lines of a text. Positions are in characters; a line ends after its newline."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(m.end() for m in _BREAK.finditer(text))]

    def index(self, at: int) -> int:
        """The number of the line that a position stands on, from 0."""
        return bisect.bisect_right(self.starts, at) - 1

    def start(self, at: int) -> int:
        """Where the line of a position begins."""
        return self.starts[self.index(at)]

    def end(self, at: int) -> int:
        """Where the line of a position ends, after its newline."""
        index = self.index(at)
        return self.starts[index + 1] if index + 1 < len(self.starts) else len(self.text)

    def content(self, index: int) -> str:
        """The line without its newline; empty outside the text."""
        if not 0 <= index < len(self.starts):
            return ""
        end = self.starts[index + 1] if index + 1 < len(self.starts) else len(self.text)
        return self.text[self.starts[index] : end].rstrip("\r\n")

    def is_blank(self, index: int) -> bool:
        """Whether there is such a line and nothing but white space in it."""
        if not 0 <= index < len(self.starts) or self.starts[index] >= len(self.text):
            return False
        return not self.content(index).strip()

    def indent(self, at: int) -> str:
        """The white space at the start of the line of a position."""
        line = self.content(self.index(at))
        return line[: len(line) - len(line.lstrip(" \t\f"))]
