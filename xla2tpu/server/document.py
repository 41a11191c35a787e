"""The text of an open file, as its client has it."""

from __future__ import annotations

import functools
import io
import os
import tokenize
from dataclasses import dataclass

from pygls.uris import from_fs_path, to_fs_path

from xla2tpu.server.positions import Positions, Unit

_SUFFIXES = (".py", ".pyi")


@dataclass(frozen=True)
class Document:
    """One state of an open file; a change of it is another document.

    ``path`` is absolute, None where the text has not been saved anywhere yet; ``version`` is None
    for a file on the disk.
    """

    uri: str
    version: int | None
    text: str
    unit: Unit
    path: str | None

    @functools.cached_property
    def encoding(self) -> str:
        """The encoding that the text itself declares."""
        start = self.text[:1000].encode("utf-8", "replace")
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(start).readline)
        except SyntaxError:
            return "utf-8"  # the engine will say what is wrong with it
        return "utf-8" if encoding == "utf-8-sig" else encoding

    @functools.cached_property
    def data(self) -> bytes | None:
        """The bytes of the file as it would be saved, None where its encoding has no such text."""
        try:
            return self.text.encode(self.encoding)
        except UnicodeError:
            return None

    @functools.cached_property
    def positions(self) -> Positions:
        """The places of the text; it must have bytes."""
        assert self.data is not None
        return Positions(self.text, self.data, self.encoding, self.unit)


def is_python(uri: str, language: str) -> bool:
    """Whether a file that a client opens is one to look at."""
    if uri.partition(":")[0] not in ("file", "untitled"):
        return False
    return language == "python" or uri.endswith(_SUFFIXES)


def path_of(uri: str) -> str | None:
    """The absolute path of a file, None for what is not on the disk."""
    path = to_fs_path(uri)
    return None if path is None else os.path.abspath(path)


def uri_of(path: str) -> str:
    """The address of a file by its absolute path."""
    return str(from_fs_path(path))
