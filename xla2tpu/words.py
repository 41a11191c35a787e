"""Names as the bytes of a file have them, before anything is parsed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

_WORD = re.compile(rb"\w")


def stem_of(file: str) -> str:
    """The name by which other files import a file: its own, or its folder's for a package."""
    stem = os.path.splitext(os.path.basename(file))[0]
    return os.path.basename(os.path.dirname(file)) if stem == "__init__" else stem


def chains(name: str, data: bytes) -> set[bytes]:
    """What follows a name with its dots, wherever it is used in a text: ``b".a.b"``."""
    # A pattern that begins with literal text is found many times as fast as one with `\b`.
    pattern = re.compile(re.escape(name.encode()) + rb"((?:\.\w+)+)")
    return {
        m[1] for m in pattern.finditer(data) if not (m.start() and _WORD.match(data, m.start() - 1))
    }


def has_word(data: bytes, name: str) -> bool:
    """Whether a text has a name as a whole word."""
    word = name.encode()
    return word in data and re.search(rb"\b" + word + rb"\b", data) is not None


def words_pattern(names: Iterable[str]) -> re.Pattern[bytes]:
    """What finds any of the names as a whole word; nothing where there are none."""
    escaped = b"|".join(re.escape(n.encode()) for n in sorted(names))
    return re.compile(rb"\b(?:" + escaped + rb")\b" if escaped else rb"(?!)")
