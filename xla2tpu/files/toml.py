"""`pyproject.toml`: requirements of PEP 621, dependency groups, poetry, uv; and `Pipfile`.

`tomllib` says whether the file is TOML at all, before and after; the places of its texts are
told by a reader of its tokens, since no parser gives them.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

from xla2tpu.files import requirements
from xla2tpu.files.declared import Declarations, Item, line_at, mentions, without_item
from xla2tpu.files.places import Place
from xla2tpu.model import Applicability, Edit

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_KEY = re.compile(r"[A-Za-z0-9_-]+|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.S
)
_OTHER = re.compile(r"[^\s,\]}#]+")
_TABLE = re.compile(r"^[ \t]*\[.*$", re.M)
_LISTS = re.compile(
    r"project\.dependencies|project\.optional-dependencies\.[^.]+|dependency-groups\.[^.]+"
    r"|build-system\.requires|tool\.uv\.(?:dev|constraint|override|build-constraint)-dependencies"
    r"|tool\.pdm\.dev-dependencies\.[^.]+|tool\.hatch\.envs\.[^.]+\.(?:extra-)?dependencies"
)
_POETRY = re.compile(
    r"tool\.poetry\.(?:dependencies|dev-dependencies|group\.[^.]+\.dependencies)|packages|dev-packages"
)
_EXTRAS = re.compile(
    r",[ \t]*extras[ \t]*=[ \t]*\[[^\]]*\]|extras[ \t]*=[ \t]*\[[^\]]*\][ \t]*,[ \t]*"
)
_OLD_PYTHON = re.compile(r"3\.(?:[0-9]|10)(?:\.\d+)?")
# Extras of torch_xla that torch_tpu needs no equal for.
_TPU_EXTRAS = frozenset(("tpu", "tpuvm"))


@dataclass(slots=True)
class Leaf:
    """A text of the file: its keys, where it stands inside its quotes, and its last key.

    ``listed``: it is an element of an array.
    """

    path: tuple[str, ...]
    start: int
    end: int
    value: str
    key: tuple[int, int]
    listed: bool


class _Reader:
    """Finds the texts; the file is known to be TOML."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.leaves: list[Leaf] = []
        self.keys: list[tuple[tuple[str, ...], int, int]] = []

    def read(self) -> list[Leaf]:
        table: tuple[str, ...] = ()
        while True:
            self._space()
            if self.at >= len(self.text):
                return self.leaves
            if self.text[self.at] == "[":
                brackets = 2 if self.text.startswith("[[", self.at) else 1
                self.at += brackets
                table, _ = self._keys()
                self.at = self.text.index("]", self.at) + brackets
            else:
                self._pair(table)

    def _space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _keys(self) -> tuple[tuple[str, ...], tuple[int, int]]:
        keys = []
        while True:
            self._blank()
            match = _KEY.match(self.text, self.at)
            if match is None:
                raise ValueError(f"no key at {self.at}")
            keys.append(match[0].strip("\"'"))
            last = match.span()
            self.at = match.end()
            self._blank()
            if self.text[self.at] != ".":
                return tuple(keys), last
            self.at += 1

    def _blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _pair(self, table: tuple[str, ...]) -> None:
        keys, last = self._keys()
        self.at = self.text.index("=", self.at) + 1
        self._blank()
        path = (*table, *keys)
        self.keys.append((path, *last))
        self._value(path, last, False)

    def _value(self, path: tuple[str, ...], key: tuple[int, int], listed: bool) -> None:
        text = self.text
        match = _STRING.match(text, self.at)
        if match:
            self.at = match.end()
            width = 3 if match[0][:3] in ('"""', "'''") else 1
            value = match[0][width:-width]
            span = (match.start() + width, match.end() - width)
            self.leaves.append(Leaf(path, *span, value, key, listed))
        elif text[self.at] == "[":
            self.at += 1
            while True:
                self._space()
                if text[self.at] == "]":
                    break
                if text[self.at] == ",":
                    self.at += 1
                    continue
                self._value(path, key, True)
            self.at += 1
        elif text[self.at] == "{":
            self.at += 1
            while True:
                self._space()
                if text[self.at] == "}":
                    break
                if text[self.at] == ",":
                    self.at += 1
                    continue
                self._pair(path)
            self.at += 1
        else:
            other = _OTHER.match(text, self.at)
            self.at = other.end() if other else self.at + 1


def valid(text: str) -> bool:
    """Whether a text is TOML."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def pyproject(text: str) -> list[Place]:
    """The places of a pyproject.toml; those of a file that is not TOML are told by their words."""
    if not valid(text):
        found = mentions(text, [(0, len(text))], [])
        for place in found:
            place.refuse("does-not-parse", "Mend the file, then run again.").blocks = True
        return found
    reader = _Reader(text.replace("\r\n", " \n"))
    leaves = reader.read()
    declared = Declarations()
    for leaf in leaves:
        _declare(declared, text, leaf)
    places = declared.places()
    poetry = _poetry(text, leaves, declared)
    if poetry:
        places = [*places, *poetry]
    if places:
        places += _sources(text, leaves, reader)
    spans = [(leaf.start, leaf.end) for leaf in leaves]
    spans += [(start, end) for _, start, end in reader.keys]
    return [*places, *mentions(text, spans, places)]


def _declare(declared: Declarations, text: str, leaf: Leaf) -> None:
    path = ".".join(leaf.path)
    anchor = line_at(text, leaf.start)[0]
    item = Item(leaf.value, leaf.start, leaf.end, _scope(leaf.path), anchor=anchor)
    if leaf.listed:
        item.gone = without_item(text, leaf.start - 1, leaf.end + 1)
        item.separator = _separator(text, leaf)
    if leaf.listed and _LISTS.fullmatch(path):
        declared.items.append(item)
    elif path == "project.requires-python":
        declared.floors.append((item, requirements.python_floor(leaf.value)))
    elif leaf.listed and path in ("tool.uv.find-links", "tool.uv.pip.find-links"):
        declared.indices.append(item)


def _separator(text: str, leaf: Leaf) -> str:
    """What stands between two elements of the list, quotes included."""
    quote = text[leaf.end]
    line = line_at(text, leaf.start)[0]
    indent = text[line : leaf.start - 1]
    newline = "\r\n" if "\r\n" in text else "\n"
    between = f"{newline}{indent}" if not indent.strip() else " "
    return f"{quote},{between}{quote}"


def _scope(path: tuple[str, ...]) -> str:
    if path == ("project", "dependencies"):
        return "main"
    return " ".join(path)


# -- poetry --------------------------------------------------------------------------------------


def _poetry(text: str, leaves: list[Leaf], declared: Declarations) -> list[Place]:
    """The places of poetry's tables, whose keys are the names."""
    entries = [(leaf, _entry(leaf)) for leaf in leaves]
    asking = [(leaf, e) for leaf, e in entries if e and requirements.asks(e[1])]
    if not asking:
        return []
    places: list[Place] = []
    main = any(e[0] in ("tool.poetry.dependencies", "packages") for _, e in asking)
    seen: set[int] = set()
    for leaf, entry in entries:
        if entry is None:
            continue
        table, name, rest = entry
        canonical = requirements.canonical(name)
        key = _key_of(text, leaf, rest)
        anchor = line_at(text, key[0] if key else leaf.start)[0]
        if canonical == "torch-xla":
            if anchor in seen:
                continue
            seen.add(anchor)
            others = [o for o, e in entries if e and e[:2] == (table, name) and e[2] != rest]
            place = Place("requirement", key[0] if key else leaf.start, leaf.end, "torch-xla",
                          group="declared", anchor=anchor)  # fmt: skip
            extras = _extras(text, others, leaf.end)
            if (
                key is None
                or rest not in ((), ("version",))
                or "|" in leaf.value
                or (others and extras is None)
            ):
                place.refuse("unsupported-form")
            else:
                new = text[slice(*key)].replace("xla", "tpu")
                version = "*" if leaf.value == "*" else ">=0.2.0"
                place.edits = (Edit(*key, new), Edit(leaf.start, leaf.end, version))
                place.edits += (extras,) if extras is not None else ()
            places.append(place)
        elif (canonical in requirements.COMPANIONS or canonical == "python") and rest in (
            (), ("version",)
        ):  # fmt: skip
            if canonical == "python" and not main:
                continue
            raised = requirements.poetry(canonical, leaf.value)
            if raised is None:
                continue
            detector = "python-floor" if canonical == "python" else "pin"
            place = Place(detector, leaf.start, leaf.end, canonical, anchor=anchor,
                          group="declared", applicability=Applicability.UNSAFE)  # fmt: skip
            place.edits = (Edit(leaf.start, leaf.end, raised),)
            places.append(place)
        elif canonical in ("libtpu", "libtpu-nightly", "cloud-tpu-client") and key and not rest:
            place = Place("runtime-package", key[0], leaf.end, canonical, anchor=anchor,
                          group="declared")  # fmt: skip
            place.edits = (Edit(*line_at(text, key[0]), ""),)
            places.append(place)
    for leaf in leaves if main else ():
        if leaf.path[0] == "requires" and _OLD_PYTHON.fullmatch(leaf.value):
            place = Place("python-floor", leaf.start, leaf.end, "python", group="declared",
                          applicability=Applicability.UNSAFE,
                          anchor=line_at(text, leaf.start)[0])  # fmt: skip
            if leaf.path[-1] == "python_version":
                place.edits = (Edit(leaf.start, leaf.end, "3.11"),)
            else:
                place.refuse("python-floor")
            places.append(place)
    for leaf in leaves:
        if leaf.path[:3] == ("tool", "poetry", "extras") and requirements.is_torch_xla(leaf.value):
            place = Place("requirement", leaf.start, leaf.end, "torch-xla", group="declared",
                          anchor=line_at(text, leaf.start)[0])  # fmt: skip
            place.edits = (Edit(leaf.start, leaf.end, leaf.value.replace("xla", "tpu")),)
            places.append(place)
    return places


def _extras(text: str, others: list[Leaf], at: int) -> Edit | None:
    """The edit that takes the extras out of an inline table; None where there is more in it."""
    values = {leaf.value for leaf in others}
    if not values or not values <= _TPU_EXTRAS or any(o.path[-1] != "extras" for o in others):
        return None
    start, end = line_at(text, at)
    match = _EXTRAS.search(text, start, end)
    inside = match is not None and all(match.start() < o.start < match.end() for o in others)
    return Edit(match.start(), match.end(), "") if match is not None and inside else None


def _entry(leaf: Leaf) -> tuple[str, str, tuple[str, ...]] | None:
    """The table, the name and the further keys of a text of poetry's dependencies."""
    for length in (1, 3, 5):
        if _POETRY.fullmatch(".".join(leaf.path[:length])) and len(leaf.path) > length:
            return ".".join(leaf.path[:length]), leaf.path[length], leaf.path[length + 1 :]
    return None


def _key_of(text: str, leaf: Leaf, rest: tuple[str, ...]) -> tuple[int, int] | None:
    """Where the name stands at the start of the line; None where it stands in a header."""
    if not rest:
        return leaf.key
    start, _ = line_at(text, leaf.start)
    match = re.compile(r"[ \t]*([\w-]+)[ \t]*=[ \t]*\{").match(text, start)
    return match.span(1) if match else None


# -- uv and indices ------------------------------------------------------------------------------


def _sources(text: str, leaves: list[Leaf], reader: _Reader) -> list[Place]:
    """Sources of torch_xla, and indices of wheels that only it needed."""
    places = []
    done: set[int] = set()
    for path, start, end in reader.keys:
        named = path[:3] == ("tool", "uv", "sources") and len(path) == 4
        if named and requirements.canonical(path[3]) == "torch-xla":
            first, last = line_at(text, start)
            place = Place("wheel-index", start, end, path[3], anchor=first, group="declared")
            one_line = text[first:start].strip() == "" and text[start:last].count("{") == text[
                start:last
            ].count("}")
            if one_line and text[start:last].count("[") == text[start:last].count("]"):
                place.edits = (Edit(first, last, ""),)
            else:
                place.refuse("unsupported-form")
            places.append(place)
    for leaf in leaves:
        if leaf.path[-1] != "url" or not requirements.is_libtpu_index(leaf.value):
            continue
        if leaf.path[:-1] not in (("tool", "uv", "index"), ("tool", "poetry", "source"),
                                  ("tool", "pdm", "source"), ("source",)):  # fmt: skip
            continue
        headers = [m.start() for m in _TABLE.finditer(text)]
        before = [h for h in headers if h <= leaf.start]
        if not before or before[-1] in done:
            continue
        done.add(before[-1])
        place = Place("wheel-index", leaf.start, leaf.end, leaf.value, group="declared",
                      anchor=line_at(text, leaf.start)[0])  # fmt: skip
        if text.startswith("[[", before[-1]):
            after = next((h for h in headers if h > leaf.start), len(text))
            end = _before_comments(text, after)
            if not text[: before[-1]].endswith(("\n\n", "\r\n\r\n")):
                end -= len(text[before[-1] : end]) - len(text[before[-1] : end].rstrip())
                end = line_at(text, end)[1]
            place.edits = (Edit(before[-1], end, ""),)
        else:
            place.refuse("unsupported-form")
        places.append(place)
    return places


def _before_comments(text: str, at: int) -> int:
    """Where the comments begin that stand right above a header, which are the header's own."""
    while at:
        start, _ = line_at(text, at - 1)
        if not text[start:at].lstrip().startswith("#"):
            return at
        at = start
    return at
