"""Lists of requirements that a list includes by ``-r`` or ``-c``: one environment with it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from xla2tpu.files import requirements
from xla2tpu.files.places import Place, decode

_INCLUDE = re.compile(r"(-r|--requirement|-c|--constraint)(?:\s+|=)?([^\s=][^#]*?)\s*(?:\s#.*)?\Z")


@dataclass(frozen=True, slots=True)
class Asked:
    """One requirement of a list that is included, and the list, as seen from the one including.

    ``limits``: it is a constraint, which installs nothing.
    """

    text: str
    file: str
    limits: bool


@dataclass(slots=True)
class Included:
    """What one line includes: requirements of the file and of those that it includes itself."""

    requirements: list[Asked]

    def asks(self) -> bool:
        """Whether it brings in torch_xla, or torch_tpu where that has been done."""
        return any(requirements.asks(r.text) for r in self.requirements if not r.limits)


def included(line: str, path: str) -> Included | None:
    """What a line of the list at ``path`` includes; None where it does not, or cannot be read."""
    reader = _Reader(os.path.abspath(path))
    found = reader.included(line, reader.start, False)
    return None if found is None else Included(list(found))


def pin(found: Included, start: int, end: int) -> Place | None:
    """The place of an include whose pins do not go with the torch_tpu of the list itself."""
    if found.asks():
        return None  # it is mended there, with its pins
    for asked in found.requirements:
        verdict = requirements.verdict(asked.text)
        if verdict is not None and verdict.detector == "pin":
            advice = (
                f"Raise `{asked.text}` in {asked.file} to a release that torch_tpu takes, for all "
                "users of that file."
            )
            place = Place("pin", start, end, verdict.api, group="declared", anchor=start)
            return place.refuse("shared-dependency", advice)
    return None


class _Reader:
    """Reads lists from one on, each once: they may include one another in circles."""

    def __init__(self, start: str) -> None:
        self.start = start
        self._seen = {(os.path.realpath(start), False), (os.path.realpath(start), True)}

    def included(self, line: str, path: str, limits: bool) -> Iterator[Asked] | None:
        """What a line of a list includes; None for other lines and what cannot be read.

        ``limits``: the list itself is one of constraints, and so is all in it.
        """
        match = _INCLUDE.match(line.strip())
        if match is None or "://" in match[2] or "$" in match[2]:
            return None
        file = os.path.join(os.path.dirname(path), match[2])
        limits = limits or match[1] in ("-c", "--constraint")
        key = os.path.realpath(file), limits
        if key in self._seen:
            return iter(())
        text = _read(file)
        if text is None:
            return None
        self._seen.add(key)
        return self._asked(text, file, limits)

    def _asked(self, text: str, path: str, limits: bool) -> Iterator[Asked]:
        shown = os.path.relpath(path, os.path.dirname(self.start)).replace(os.sep, "/")
        for raw in re.split(r"\r\n|\r|\n", text):
            line = re.sub(r"(^|\s)#.*", "", raw).strip().rstrip("\\").strip()
            inner = self.included(line, path, limits)
            if inner is not None:
                yield from inner
            elif line and not line.startswith("-"):
                yield Asked(re.split(r"\s--", line)[0], shown, limits)


def _read(path: str) -> str | None:
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as handle:
            return decode(handle.read())[0]
    except OSError:
        return None
