"""Lists of requirements that a list includes by ``-r`` or ``-c``: one environment with it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from xla2tpu.files import requirements
from xla2tpu.files.places import Place, decode

_INCLUDE = re.compile(r"(-r|--requirement|-c|--constraint)(?:\s+|=)?([^\s=][^#]*?)\s*(?:\s#.*)?\Z")
# Lists seldom include lists that include others.
_DEEPEST = 8


@dataclass(slots=True)
class Included:
    """What one line includes: requirements of the file and of those that it includes itself.

    ``limits``: they are constraints, which install nothing.
    """

    name: str
    limits: bool
    texts: list[str]

    def asks(self) -> bool:
        """Whether it brings in torch_xla, or torch_tpu where that has been done."""
        return not self.limits and any(map(requirements.asks, self.texts))


def included(line: str, path: str) -> Included | None:
    """What a line of the list at ``path`` includes; None where it does not, or cannot be read."""
    match = _INCLUDE.match(line.strip())
    if match is None or "://" in match[2] or "$" in match[2]:
        return None
    file = os.path.join(os.path.dirname(os.path.abspath(path)), match[2])
    text = _read(file)
    if text is None:
        return None
    return Included(match[2], match[1] in ("-c", "--constraint"), list(_texts(text, file, 0)))


def pin(found: Included, start: int, end: int) -> Place | None:
    """The place of an include whose pins do not go with the torch_tpu of the list itself."""
    if found.asks():
        return None  # it is mended there, with its pins
    for text in found.texts:
        verdict = requirements.verdict(text)
        if verdict is not None and verdict.detector == "pin":
            advice = (
                f"Raise `{text}` in {found.name} to a release that torch_tpu takes, for all users "
                "of that file."
            )
            place = Place("pin", start, end, verdict.api, group="declared", anchor=start)
            return place.refuse("shared-dependency", advice)
    return None


def _texts(text: str, path: str, depth: int) -> Iterator[str]:
    for raw in re.split(r"\r\n|\r|\n", text):
        line = re.sub(r"(^|\s)#.*", "", raw).strip().rstrip("\\").strip()
        match = _INCLUDE.match(line)
        if match is not None and depth < _DEEPEST:
            file = os.path.join(os.path.dirname(path), match[2])
            inner = None if "://" in match[2] else _read(file)
            if inner is not None:
                yield from _texts(inner, file, depth + 1)
        elif line and not line.startswith("-"):
            yield re.split(r"\s--", line)[0]


def _read(path: str) -> str | None:
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as handle:
            return decode(handle.read())[0]
    except OSError:
        return None
