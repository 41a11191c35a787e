"""Bytes to text and back: byte order mark, encoding declaration, newline."""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from dataclasses import dataclass


class UndecodableError(ValueError):
    """A file's bytes are not text in the encoding that it declares."""


@dataclass(frozen=True, slots=True)
class Source:
    """A decoded file; ``lead`` is the number of bytes of its byte order mark."""

    text: str
    encoding: str
    lead: int
    newline: str


def decode(data: bytes) -> Source:
    """Decode a Python file as Python does; raises `UndecodableError` with the line."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        raise UndecodableError(f"line 1: {error.msg or error}") from error
    lead = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    if encoding == "utf-8-sig":
        encoding = "utf-8"
    try:
        text = data[lead:].decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, lead + error.start) + 1
        raise UndecodableError(
            f"line {line}: cannot be decoded as {encoding}: {error.reason}"
        ) from error
    except (LookupError, UnicodeError) as error:
        raise UndecodableError(f"line 1: {error}") from error
    newline = re.search(r"\r\n|\r|\n", text)
    return Source(text, encoding, lead, newline[0] if newline else "\n")
