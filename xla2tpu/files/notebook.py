"""Notebooks: their code cells are one program, in which magics are masked and kept.

Positions are characters of the cells' texts set one behind another. Edits go back into the JSON
text of the cells that change, line by line; all else keeps its bytes.
"""

from __future__ import annotations

import ast
import bisect
import json
import keyword
import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from xla2tpu import prefilter
from xla2tpu.files.commands import MENTION, Commands
from xla2tpu.files.places import Document, Place, Program, masked
from xla2tpu.files.pythons import Strings, magic
from xla2tpu.model import Edit, FileResult, Settings

Runner = Callable[[bytes, str, Settings], FileResult]

_SPACE = re.compile(r"[ \t\r\n]*")
_LITERAL = re.compile(r"[^\s,\]}]+")
_CELL_MAGIC = re.compile(r"\s*%%(\w+)[ \t]*([^\n]*)\n?")
_PYTHON_CELLS = frozenset(("time", "timeit", "capture", "prun", "memit", "python", "python3"))
_PYTHON_LINES = frozenset(("time", "timeit", "prun", "memit", "lprun", "mprun"))
_OTHER_CELLS = frozenset(
    (
        *("bash", "bigquery", "cmd", "css", "file", "html", "javascript", "js", "latex"),
        *("markdown", "perl", "R", "ruby", "script", "sh", "shell", "sql", "svg", "sx"),
        *("system", "writefile"),
    )
)
_SHELL_CELLS = frozenset(("bash", "sh", "shell", "system", "sx"))
_MAGIC = re.compile(r"([ \t]*)((?:[\w.\[\]\"', ]+=[ \t]*)?)(!!?|%|\?)([^\n]*)")
_HELP = re.compile(r"[ \t]*[\w.]+\?{1,2}[ \t]*$")
_AUTOMAGIC = re.compile(r"([ \t]*)()((?:pip)[ \t]+(?:install|uninstall)\b[^\n]*)")
_OPTIONS = re.compile(r"(?:-[a-zA-Z]+(?:[ \t]*\d+)?[ \t]+)*")
_BRACES = re.compile(r"\{([^{}\n]+)\}|\$(\w+)")
_MARKER = "# TODO(xla2tpu)"


class NotNotebook(ValueError):
    """The file is not the JSON of a notebook; the message says why."""


@dataclass(slots=True)
class Node:
    """A value of the JSON text, and where it stands."""

    start: int
    end: int
    value: Any = None
    items: list[Node] = field(default_factory=list)
    members: dict[str, Node] = field(default_factory=dict)


@dataclass(slots=True)
class Cell:
    """One code cell: its number among all cells, its text, where that stands, and in the JSON."""

    number: int
    text: str
    start: int
    source: Node
    masked: bool = False

    @property
    def end(self) -> int:
        """Behind its last line, whose newline may be one that only the program has."""
        return self.start + len(self.text) + (not self.text.endswith("\n"))


def _json(text: str, at: int) -> Node:
    at = _skip(text, at)
    first = text[at : at + 1]
    if first == '"':
        value, end = scanstring(text, at + 1)
        return Node(at, end, value)
    if first in ("[", "{"):
        return _container(text, at, first)
    match = _LITERAL.match(text, at)
    if match is None:
        raise NotNotebook(f"not valid JSON at character {at}")
    return Node(at, match.end(), match[0])


def _container(text: str, at: int, first: str) -> Node:
    node = Node(at, at)
    at += 1
    while True:
        at = _skip(text, at)
        if text[at : at + 1] in ("]", "}"):
            node.end = at + 1
            return node
        if text[at : at + 1] == ",":
            at += 1
            continue
        item = _json(text, at)
        at = item.end
        if first == "{":
            at = _skip(text, at)
            value = _json(text, at + 1)
            node.members[str(item.value)] = value
            at = value.end
        else:
            node.items.append(item)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


@dataclass(slots=True)
class Notebook(Document):
    """A notebook as a document; its text is that of its code cells."""

    raw: str = ""
    cells: list[Cell] = field(default_factory=list)
    # Characters and bytes of the file before the source of each cell.
    known: list[tuple[int, int]] = field(default_factory=list)

    def cell_at(self, at: int) -> Cell:
        """The cell of a position; at the very end the last one."""
        index = bisect.bisect_right(self.cells, at, key=lambda c: c.start) - 1
        return self.cells[max(index, 0)]

    def locate(self, start: int, end: int) -> tuple[int, int, int, int, int | None]:
        cell = self.cell_at(start)
        end = min(max(end, start), cell.end)
        first = self.text.count("\n", cell.start, start)
        last = self.text.count("\n", cell.start, end)
        column = start - (self.text.rfind("\n", cell.start, start) + 1 or cell.start)
        end_column = end - (self.text.rfind("\n", cell.start, end) + 1 or cell.start)
        return first + 1, column + 1, last + 1, end_column + 1, cell.number

    def offset(self, at: int) -> int:
        cell = self.cell_at(at)
        inside = min(at - cell.start, len(cell.text))
        return self._byte(self._raw_at(cell, inside))

    def _byte(self, at: int) -> int:
        if self.raw.isascii():
            return self.lead + at
        if not self.known:
            # Notebooks are large by their outputs: what stands between cells is measured once.
            chars = size = 0
            for cell in self.cells:
                size += len(self.raw[chars : cell.source.start].encode())
                chars = cell.source.start
                self.known.append((chars, size))
        index = bisect.bisect_right(self.known, (at, self.lead + len(self.data))) - 1
        chars, size = self.known[index] if index >= 0 else (0, 0)
        return self.lead + size + len(self.raw[chars:at].encode())

    def _raw_at(self, cell: Cell, inside: int) -> int:
        """Where a character of a cell stands in the JSON text."""
        strings = cell.source.items if cell.source.value is None else [cell.source]
        for string in strings:
            length = len(string.value)
            if inside < length or string is strings[-1]:
                return _inside(self.raw, string, min(inside, length))
            inside -= length
        return cell.source.start + 1

    # -- edits ---------------------------------------------------------------------------------

    def file_edits(self, edits: Iterable[Edit]) -> tuple[Edit, ...]:
        by_cell: dict[int, list[Edit]] = {}
        for edit in edits:
            for index, part in self._parts(edit):
                by_cell.setdefault(index, []).append(part)
        made: list[Edit] = []
        for index, parts in sorted(by_cell.items()):
            made += self._cell_edits(self.cells[index], parts)
        return tuple(Edit(self._byte(e.start), self._byte(e.end), e.content) for e in made)

    def _parts(self, edit: Edit) -> Iterable[tuple[int, Edit]]:
        """An edit cell by cell, in characters of each."""
        if edit.start == edit.end:
            yield from self._insertion(edit)
            return
        content = edit.content
        first = max(bisect.bisect_right(self.cells, edit.start, key=lambda c: c.start) - 1, 0)
        for index, cell in enumerate(self.cells[first:], first):
            if cell.start >= edit.end:
                return
            start, end = max(edit.start, cell.start), min(edit.end, cell.end)
            if start < end:
                yield index, Edit(start - cell.start, end - cell.start, content)
                content = ""

    def _insertion(self, edit: Edit) -> Iterable[tuple[int, Edit]]:
        """Between two cells, markers go to the one below, whole lines to a program above."""
        here = max(bisect.bisect_right(self.cells, edit.start, key=lambda c: c.start) - 1, 0)
        cell = self.cells[here]
        at = edit.start - cell.start
        # Nothing may stand above the first line of such a cell.
        magic = at == 0 and cell.text.lstrip().startswith("%%")
        marker = edit.content.lstrip().startswith(_MARKER)
        if at == 0 and not marker and edit.content.endswith("\n"):
            python = [i for i, c in enumerate(self.cells) if not c.masked and c.text.strip()]
            above = [i for i in python if i < here]
            if above:
                end = self.cells[above[-1]].end - self.cells[above[-1]].start
                yield above[-1], Edit(end, end, edit.content)
                return
            below = [i for i in python if i >= here and self.cells[i].text.lstrip()[:2] != "%%"]
            here = below[0] if magic and below else here
            magic = magic and not below
        if not magic:
            yield here, Edit(at, at, edit.content)

    def _cell_edits(self, cell: Cell, edits: list[Edit]) -> list[Edit]:
        """What changes in the JSON text for the edits of one cell."""
        whole = cell.text + ("" if cell.text.endswith("\n") else "\n")
        parts, at = [], 0
        for edit in sorted(edits, key=lambda e: (e.start, e.end)):
            parts += [whole[at : edit.start], edit.content]
            at = edit.end
        new = "".join([*parts, whole[at:]])
        if not cell.text.endswith("\n"):
            new = new.rstrip("\n") if new.endswith("\n") else new
        if cell.source.value is not None:
            return [Edit(cell.source.start, cell.source.end, self._dump(new))]
        return self._line_edits(cell, new)

    def _line_edits(self, cell: Cell, new: str) -> list[Edit]:
        old = [item.value for item in cell.source.items]
        lines = new.splitlines(keepends=True) if "\r" not in new else new.split("\n")
        if "\r" in new:
            lines = [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
        same = 0
        while same < min(len(old), len(lines)) and old[same] == lines[same]:
            same += 1
        tail = 0
        while tail < min(len(old), len(lines)) - same and old[-1 - tail] == lines[-1 - tail]:
            tail += 1
        middle = [self._dump(line) for line in lines[same : len(lines) - tail]]
        items = cell.source.items
        replaced = items[same : len(items) - tail]
        if not middle and not replaced:
            return []
        if not items:
            return [Edit(cell.source.start, cell.source.end, f"[{', '.join(middle)}]")]
        between = self._between(cell.source)
        if replaced and middle:
            return [Edit(replaced[0].start, replaced[-1].end, between.join(middle))]
        if middle and same:
            text = "".join(between + line for line in middle)
            return [Edit(items[same - 1].end, items[same - 1].end, text)]
        if middle:
            return [Edit(items[0].start, items[0].start, "".join(m + between for m in middle))]
        if same:
            return [Edit(items[same - 1].end, replaced[-1].end, "")]
        if tail:
            return [Edit(replaced[0].start, items[len(items) - tail].start, "")]
        return [Edit(cell.source.start, cell.source.end, "[]")]

    def _between(self, source: Node) -> str:
        """What stands between two lines of the list."""
        items = source.items
        if len(items) > 1:
            return self.raw[items[0].end : items[1].start]
        return "," + (self.raw[source.start + 1 : items[0].start] or " ")

    def _dump(self, line: str) -> str:
        escaped = self.raw.isascii() and "\\u" in self.raw
        return json.dumps(line, ensure_ascii=escaped)


def _inside(raw: str, string: Node, characters: int) -> int:
    """Where the n-th character of a JSON string stands."""
    at = string.start + 1
    while characters > 0:
        step = 1
        if raw[at] == "\\":
            step = 6 if raw[at + 1] == "u" else 2
            high = step == 6 and raw[at + 2 : at + 4].lower() in ("d8", "d9", "da", "db")
            if high and raw[at + 6 : at + 8] == "\\u":
                step = 12
        at += step
        characters -= 1
    return at


# -- the program of the cells ----------------------------------------------------------------------


@dataclass(slots=True)
class _Segment:
    """A part of the program, and of the cells; ``same`` where both read alike."""

    start: int
    end: int
    first: int
    last: int
    same: bool


class _Builder:
    """Sets the cells together to a program, with the magics masked."""

    def __init__(self, document: Notebook) -> None:
        self.doc = document
        self.parts: list[str] = []
        self.size = 0
        self.segments: list[_Segment] = []
        self.commands = Commands(document.text)
        self.files: list[tuple[str, int, int]] = []
        self.broken: list[Place] = []
        self.indent = ""
        self.indented: list[tuple[int, int, str]] = []

    def same(self, first: int, last: int) -> None:
        """Take a part of the cells as it is."""
        self._put(self.doc.text[first:last], first, last, True)

    def mask(self, stand_in: str, first: int, last: int) -> None:
        """Take something else in its place."""
        self._put(stand_in, first, last, False)

    def _put(self, text: str, first: int, last: int, same: bool) -> None:
        end = self.size + len(text)
        self.segments.append(_Segment(self.size, end, first, last, same))
        self.parts.append(text)
        self.size = end

    def cell(self, cell: Cell) -> None:
        """Take one cell."""
        said = _CELL_MAGIC.match(cell.text)
        if said is None:
            self._python(cell, cell.start)
            return
        name, rest = said[1], said[2].strip()
        body = cell.start + said.end()
        if name == "script" and rest.split()[:1] and rest.split()[0] in _SHELL_CELLS:
            name = rest.split()[0]
        if name in _PYTHON_CELLS:
            newline = body > cell.start and self.doc.text[body - 1] == "\n"
            line_end = body - newline
            self.mask("get_ipython()", cell.start, line_end)
            self.same(line_end, body)
            self._python(cell, body)
            return
        cell.masked = True
        if name in _SHELL_CELLS:
            self.commands.add(body, cell.end, "kernel")
        elif name in ("writefile", "file"):
            names = [word for word in rest.split() if not word.startswith("-")]
            if names:
                self.files.append((names[0].strip("\"'"), body, cell.end))
        used = _names(self.doc.text[body : cell.end]) if name not in _OTHER_CELLS else []
        self._opaque(cell.start, cell.end, used)

    def _opaque(self, start: int, end: int, names: list[str]) -> None:
        """Take a call that uses these names in place of what cannot be read."""
        while self.doc.text.startswith(_MARKER, start):
            line = self.doc.text.index("\n", start) + 1
            self.same(start, line)
            start = line
        self.mask(f"get_ipython({', '.join(names)})", start, end - 1)
        self.same(end - 1, end)

    def _python(self, cell: Cell, start: int) -> None:
        text = self.doc.text[start : cell.end]
        if _parses(text):
            self.same(start, cell.end)
            return
        # IPython takes the indentation of the first line from all lines.
        indented = re.match(r"(?:[ \t]*\n)*([ \t]+)(?=\S)", text)
        self.indent = indented[1] if indented else ""
        mark = len(self.parts), self.size, len(self.segments)
        shells = len(self.commands.found), len(self.commands.installs)
        for first, last, found in _statements(text):
            if found is None:
                self._line(start + first, start + last)
            else:
                self._magic(start + first, start + last, found)
        if _parses("".join(self.parts[mark[0] :])):
            if self.indent:
                self.indented.append((mark[1], self.size, self.indent))
            return
        del self.parts[mark[0] :], self.segments[mark[2] :]
        self.size = mark[1]
        # What such a cell hands to a shell is left with the rest of it.
        handed = len(self.commands.found), len(self.commands.installs)
        del self.commands.found[shells[0] :], self.commands.installs[shells[1] :]
        if MENTION.search(text) or handed != shells:
            self.broken.append(
                Place("invalid-syntax", start, cell.end - 1, "").refuse("does-not-parse")
            )
        cell.masked = True
        self._opaque(start, cell.end, _names(text))

    def _line(self, first: int, last: int) -> None:
        """Take a line as it is, without the indentation of the cell."""
        width = len(self.indent)
        if width and self.doc.text.startswith(self.indent, first, last):
            self.mask("", first, first + width)
            first += width
        self.same(first, last)

    def _magic(self, first: int, last: int, found: re.Match[str]) -> None:
        """A line that is no Python: ``!command``, ``%magic``, ``name = !command``, ``name?``."""
        text = self.doc.text
        stop = last - (text[last - 1 : last] == "\n")
        # Its whole line may go where no block would be empty.
        whole = (first, last) if found[1] in ("", self.indent) and not found[2] else None
        at = first + found.end(2)
        self._line(first, at)
        sign = found[3] if found[3] in ("!", "!!", "%", "?") else ""
        inner = at + len(sign)
        rest = text[inner:stop]
        if sign == "%":
            name = re.match(r"\w*", rest)
            word = name[0] if name else ""
            begin = inner + len(word)
            begin += len(text[begin:stop]) - len(text[begin:stop].lstrip(" \t"))
            options = _OPTIONS.match(text, begin, stop)
            begin = options.end() if options and word in ("time", "timeit") else begin
            said = text[begin:stop]
            if word in _PYTHON_LINES and not said.startswith("-") and _parses(said) and said:
                self.mask("", at, begin)
                self.same(begin, last)
                return
            magic(self.commands, text, word, (begin, stop), first, whole)
            names = _names(said) if word in _PYTHON_LINES else _expanded(rest)
        else:
            if sign != "?":
                self.commands.add(inner, stop, "kernel", anchor=first, whole=whole, keep=True)
            names = _expanded(rest)
        self.mask(f"get_ipython({', '.join(names)})", at, stop)
        self.same(stop, last)

    # -- positions -----------------------------------------------------------------------------

    @property
    def program(self) -> str:
        """The text of the program."""
        return "".join(self.parts)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """A span of the program in the cells."""
        return self._first(start), max(self._first(start), self._last(end))

    def _first(self, at: int) -> int:
        for segment in self.segments:
            if segment.start <= at < segment.end:
                return segment.first + (at - segment.start) * segment.same
        return self.segments[-1].last if self.segments else 0

    def _last(self, at: int) -> int:
        for segment in self.segments:
            if segment.start < at <= segment.end:
                return segment.first + at - segment.start if segment.same else segment.last
        return self._first(at)

    def moved(self, edits: Iterable[Edit]) -> list[Edit] | None:
        """Edits of the program in the cells; None if one changes what is masked."""
        made = []
        for edit in edits:
            if any(not s.same and s.start < p < s.end
                   for s in self.segments for p in (edit.start, edit.end)):  # fmt: skip
                return None
            indent = self._indent_at(edit.start)
            if edit.start == edit.end:
                at, content = self._inserted(edit, indent)
                made.append(Edit(at, at, content))
                continue
            start = self._edge(edit.start, behind=bool(edit.content))
            end = self._edge(edit.end, behind=False)
            inner, last = edit.content[:-1], edit.content[-1:]
            # IPython takes the indentation of a cell from all of its lines.
            made.append(Edit(start, end, inner.replace("\n", f"\n{indent}") + last))
        return made

    def _inserted(self, edit: Edit, indent: str) -> tuple[int, str]:
        """Where an insertion goes, and its text with the indentation of the cell."""
        at = self._edge(edit.start, behind=False)
        prefix = any(
            s.start == s.end == edit.start and not self.doc.text[s.first : s.last].strip()
            for s in self.segments
        )
        if not indent:
            return at, edit.content
        if prefix or not edit.content.endswith("\n"):
            at += len(indent) * prefix
            return at, edit.content.replace("\n", f"\n{indent}")
        return at, re.sub(r"(?m)^(?=.)", indent, edit.content)

    def _indent_at(self, at: int) -> str:
        """The indentation of the cell around a position, which IPython takes away."""
        return next((i for a, b, i in self.indented if a <= at < b), "")

    def _edge(self, at: int, behind: bool) -> int:
        """Where an edge of an edit stands; where a prefix is masked, before or behind it."""
        edges = [s.first + at - s.start if s.same else s.first
                 for s in self.segments if s.start <= at <= s.end
                 and (s.same or at == s.start)]  # fmt: skip
        edges += [s.last for s in self.segments if not s.same and at == s.end]
        if not edges:
            return len(self.doc.text)
        return max(edges) if behind else min(edges)


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _names(text: str) -> list[str]:
    """The names that a text may use which cannot be read as Python."""
    found = dict.fromkeys(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))
    return [name for name in found if not keyword.iskeyword(name)]


def _expanded(text: str) -> list[str]:
    """The names in braces and behind dollars, which IPython puts into commands."""
    found: list[str] = []
    for match in _BRACES.finditer(text):
        try:
            tree = ast.parse(match[1] or match[2] or "", mode="eval")
        except (SyntaxError, ValueError):
            continue
        found += [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
    return list(dict.fromkeys(found))


def _statements(text: str) -> Iterable[tuple[int, int, re.Match[str] | None]]:
    """The lines of a cell; those that are magics with their match, which no string holds."""
    at, depth, quote = 0, 0, ""
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end + 1
        line = text[at:end]
        found = None
        if not quote and not depth:
            found = _MAGIC.match(line) or _AUTOMAGIC.match(line)
            if found is None and _HELP.match(line):
                found = re.match(r"([ \t]*)()(\S+)", line)
        if found is not None:
            while text[at:end].rstrip("\n").endswith("\\") and end < len(text):
                following = text.find("\n", end)
                end = len(text) if following < 0 else following + 1
            yield at, end, found
            at = end
            continue
        depth, quote = _state(line, depth, quote)
        yield at, end, None
        at = end


def _state(line: str, depth: int, quote: str) -> tuple[int, str]:
    """How deep in brackets, and in which quotes, a line of Python ends."""
    at = 0
    while at < len(line):
        char = line[at]
        if quote:
            if char == "\\":
                at += 2
                continue
            if line.startswith(quote, at):
                at += len(quote)
                quote = ""
                continue
        elif char == "#":
            break
        elif char in "'\"":
            quote = char * 3 if line.startswith(char * 3, at) else char
            at += len(quote)
            continue
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth = max(depth - 1, 0)
        at += 1
    if len(quote) == 1 and not line.rstrip("\n").endswith("\\"):
        quote = ""
    return depth, quote


# -- the whole -------------------------------------------------------------------------------------


def read(data: bytes, path: str, run: Runner) -> Notebook:
    """The document of a notebook. Raises `NotNotebook`.

    ``run`` runs the engine over a program, or what is right for a file that a cell writes.
    """
    lead = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    try:
        raw = data[lead:].decode()
        root = _json(raw, 0)
        json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise NotNotebook(f"not a notebook: {error}") from error
    document = Notebook(data, "", "utf-8", lead, plain=False, raw=raw)
    if _language(root) not in ("python", "python3", ""):
        return document
    texts = []
    size = 0
    sheets = root.members.get("worksheets")
    holders = sheets.items if sheets is not None else [root]
    cells = [c for h in holders if "cells" in h.members for c in h.members["cells"].items]
    for number, node in enumerate(cells, 1):
        source = node.members.get("source") or node.members.get("input")
        kind = node.members.get("cell_type")
        if kind is None or kind.value != "code" or source is None:
            continue
        if source.value is None and any(not isinstance(i.value, str) for i in source.items):
            continue
        text = source.value if source.value is not None else "".join(i.value for i in source.items)
        cell = Cell(number, text, size, source)
        document.cells.append(cell)
        texts.append(text if text.endswith("\n") else f"{text}\n")
        size += len(texts[-1])
    document.text = "".join(texts)
    _fill(document, path, run)
    return document


def _language(root: Node) -> str:
    metadata = root.members.get("metadata")
    spec = metadata.members.get("kernelspec") if metadata is not None else None
    language = spec.members.get("language") if spec is not None else None
    return str(language.value).lower() if language is not None else ""


def _fill(document: Notebook, path: str, run: Runner) -> None:
    """The places and the programs of the cells."""
    builder = _Builder(document)
    for cell in document.cells:
        builder.cell(cell)
    program = builder.program
    document.places += builder.broken
    hidden: list[tuple[int, int]] = []
    if "get_ipython" in document.text:
        for place in Strings(program).shells():
            hidden.append((place.start, place.end))
            edits = builder.moved(place.edits)
            place.start, place.end = builder.span(place.start, place.end)
            place.anchor = (
                None if place.anchor is None else builder.span(place.anchor, place.anchor)[0]
            )
            if edits is None:
                place.refuse("unsupported-form")
            else:
                place.edits = tuple(edits)
            document.places.append(place)
    document.places += builder.commands.places()
    text = masked(program, hidden)
    if prefilter.interesting(program.encode()):
        document.programs.append(_program(text, path, run, builder.span, builder.moved))
    document.foreign += [(start, end) for _, start, end in builder.files]
    for name, start, end in builder.files:
        body = document.text[start:end]
        written = os.path.join(os.path.dirname(path), name)
        document.programs.append(_written(body, start, written, run))


def _program(
    text: str, path: str, run: Runner,
    span: Callable[[int, int], tuple[int, int]],
    moved: Callable[[Iterable[Edit]], list[Edit] | None],
) -> Program:  # fmt: skip
    data = text.encode()
    at = characters(text)
    return Program(
        lambda settings: run(data, path, settings),
        lambda start, end: span(at(start), at(end)),
        lambda edits: moved(Edit(at(e.start), at(e.end), e.content) for e in edits),
    )


def _written(body: str, start: int, path: str, run: Runner) -> Program:
    """A file that a cell writes: its text stands in the cell as it is."""
    return _program(
        body, path, run,
        lambda first, last: (start + first, start + last),
        lambda edits: [Edit(start + e.start, start + e.end, e.content) for e in edits],
    )  # fmt: skip


def characters(text: str) -> Callable[[int], int]:
    """From the bytes of a text to its characters."""
    if text.isascii():
        return lambda at: at
    table = [0]
    for char in text:
        table.append(table[-1] + len(char.encode()))
    return lambda at: bisect.bisect_left(table, at)
