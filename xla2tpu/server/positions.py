"""Places in a text, as the engine and as clients count them."""

from __future__ import annotations

import bisect
import functools
import re
from typing import Literal

from xla2tpu.lines import Lines

Unit = Literal["utf-8", "utf-16", "utf-32"]

_BREAK = re.compile(rb"\r\n|\r|\n")
# Bytes of one unit in the codec of its name, without a byte order mark.
_CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}


class Positions:
    """The places of one text: characters, bytes of the file, and line and column of a client.

    Lines and columns count from 0, columns in units of the encoding that was agreed on. Lines end
    at line feeds and carriage returns only, as the protocol has it.
    """

    def __init__(self, text: str, data: bytes, encoding: str, unit: Unit) -> None:
        """``data`` is ``text`` in ``encoding``."""
        self.lines = Lines(text)
        self._data, self._encoding, self._unit = data, encoding, unit
        self._ascii = text.isascii()

    @functools.cached_property
    def _bytes(self) -> list[int]:
        """Where lines begin in the bytes: source encodings have the newlines of ASCII."""
        return [0, *(m.end() for m in _BREAK.finditer(self._data))]

    def char_at(self, byte: int) -> int:
        """The character at a byte of the file."""
        if self._ascii:
            return byte
        line = bisect.bisect_right(self._bytes, byte) - 1
        before = self._data[self._bytes[line] : byte].decode(self._encoding, "replace")
        return self.lines.starts[line] + len(before)

    def place(self, char: int) -> tuple[int, int]:
        """Line and column of a character."""
        line = self.lines.index(char)
        return line, self._units(self.lines.text[self.lines.starts[line] : char])

    def place_at(self, byte: int) -> tuple[int, int]:
        """Line and column of a byte of the file."""
        return self.place(self.char_at(byte))

    def char(self, line: int, column: int) -> int:
        """The character at a line and column; one beyond the end of a line or text is its end."""
        if line >= len(self.lines.starts):
            return len(self.lines.text)
        content = self.lines.content(line)
        start = self.lines.starts[line]
        if self._ascii or self._unit == "utf-32":
            return start + min(column, len(content))
        codec, size = _CODECS[self._unit]
        units = content.encode(codec, "surrogatepass")[: column * size]
        # A column inside a character is that of its start.
        return start + len(units.decode(codec, "ignore"))

    def _units(self, text: str) -> int:
        if self._ascii or self._unit == "utf-32":
            return len(text)
        codec, size = _CODECS[self._unit]
        return len(text.encode(codec, "surrogatepass")) // size
