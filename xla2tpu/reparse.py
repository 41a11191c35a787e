"""Parsing a text that was parsed before and has changed in one place: only that place is parsed.

For editors: libcst takes most of the time that a file takes, and a person types in one statement
of it. The statements before and after stay the nodes that they were, and where those stand is
known as well. What comes out is the tree that parsing the whole text gives; wherever that is not
certain the whole text is parsed.

Statements at the top of a file can be parsed apart: each begins on a line of its own, with no
bracket or string open. What may look across the border between two (a clause of the one above, a
comment that belongs to the block above or to the statement below) is caught by parsing one
unchanged statement on each side along with the changed ones: both must come out as they were.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from xla2tpu.nodes import paused_gc, unchecked
from xla2tpu.positions import Positions

Spans = dict[int, tuple[int, int]]


@dataclass
class Piece:
    """A statement at the top of a file, the length of its text, and where the nodes in it stand.

    ``full`` and ``inner`` are as of the text in which the statement began at ``base``.
    """

    node: cst.CSTNode
    length: int
    full: Spans
    inner: Spans
    base: int = 0

    def placed(self, at: int) -> tuple[Spans, Spans]:
        """The spans with the statement beginning at a place."""
        shift = at - self.base
        if shift:
            for spans in (self.full, self.inner):
                spans.update([(k, (a + shift, b + shift)) for k, (a, b) in spans.items()])
            self.base = at
        return self.full, self.inner


@dataclass
class _Parsed:
    """A text and its module; ``starts`` are the places at which the pieces begin and the last ends.

    The last piece counts the newline that a file may lack at its end.
    """

    text: str
    module: cst.Module
    pieces: list[Piece]
    starts: list[int]


class Memory:
    """The last text of one file that was valid, with its nodes."""

    def __init__(self) -> None:
        self._last: tuple[str, cst.Module] | None = None
        self._parsed: _Parsed | None = None
        self._at: dict[int, int] = {}

    def parse(self, text: str) -> cst.Module:
        """The module of a text. Raises what libcst raises."""
        before = self._known()
        parsed = None if before is None else _changed(before, text)
        if parsed is None:
            module = _module(text)
            self._last, self._parsed = (text, module), None
        else:
            module = parsed.module
            self._last, self._parsed = (text, module), parsed
        parsed = self._parsed
        self._at = {} if parsed is None else {id(p.node): i for i, p in enumerate(parsed.pieces)}
        return module

    def spans(self, statement: cst.CSTNode) -> tuple[Spans, Spans] | None:
        """Where the nodes of a statement at the top stand, full and inner; None if not known."""
        index = self._at.get(id(statement))
        if index is None or self._parsed is None:
            return None
        parsed = self._parsed
        full, inner = parsed.pieces[index].placed(parsed.starts[index])
        end = len(parsed.text)
        if parsed.starts[index + 1] <= end:
            return full, inner
        # The newline that the file lacks.
        return _clamped(full, end), _clamped(inner, end)

    def _known(self) -> _Parsed | None:
        """The last text with its pieces, which are made when it changes for the first time."""
        if self._parsed is None and self._last is not None:
            self._parsed = _split(*self._last)
        return self._parsed


_here = threading.local()


@contextlib.contextmanager
def remembering(memory: Memory) -> Iterator[None]:
    """Parse what is parsed meanwhile in this thread with the help of what was parsed before."""
    before, _here.memory = current(), memory
    try:
        yield
    finally:
        _here.memory = before


def current() -> Memory | None:
    """What is remembered of the file that is read now."""
    found: Memory | None = getattr(_here, "memory", None)
    return found


def _clamped(spans: Spans, end: int) -> Spans:
    return {k: (a, min(b, end)) for k, (a, b) in spans.items()}


def _module(text: str) -> cst.Module:
    with unchecked():
        return cst.parse_module(text)


# -- pieces ------------------------------------------------------------------------------------


def _split(text: str, module: cst.Module) -> _Parsed | None:
    """The pieces of a module; None where the parser does not give back the source unchanged."""
    codes = [_code(module, module.header)]
    pieces = []
    for node in module.body:
        piece, code = _piece(module, node)
        pieces.append(piece)
        codes.append(code)
    codes.append(_code(module, module.footer))
    whole = "".join(codes)
    if not pieces or (whole != text and (module.has_trailing_newline or whole[:-1] != text)):
        return None
    starts = [len(codes[0])]
    for piece in pieces:
        starts.append(starts[-1] + piece.length)
    return _Parsed(text, module, pieces, starts)


def _piece(module: cst.Module, node: cst.CSTNode) -> tuple[Piece, str]:
    state = Positions(module.default_indent, module.default_newline)
    with paused_gc():
        node._codegen(state)
    code = "".join(state.tokens)
    return Piece(node, len(code), state.full, state.inner), code


def _code(module: cst.Module, lines: Sequence[cst.EmptyLine]) -> str:
    state = Positions(module.default_indent, module.default_newline)
    for line in lines:
        line._codegen(state)
    return "".join(state.tokens)


# -- a change ----------------------------------------------------------------------------------


def _changed(before: _Parsed, text: str) -> _Parsed | None:
    """The new text by its changed statements; None where it is to be parsed as a whole."""
    old, count = before.text, len(before.pieces)
    if text == old:
        return before
    head = _common(old, text, min(len(old), len(text)))
    tail = _common(old[::-1], text[::-1], min(len(old), len(text)) - head)
    delta = len(text) - len(old)
    # The pieces before `first` and from `last` on stay; the one at each border is parsed along.
    # One that ends just where the change begins may have become longer.
    first = sum(end < head for end in before.starts[1:]) - 1
    last = sum(start < len(old) - tail for start in before.starts[:-1]) + 1
    above, below = first > 0, last < count
    if not above:
        first = 0
    if not below:
        last = count
    if not above and not below:
        return None
    start = before.starts[first] if above else 0
    end = before.starts[last] + delta if below else len(text)
    try:
        module = _module(text[start:end])
    except (cst.ParserSyntaxError, cst.CSTValidationError):
        return None
    part = _split(text[start:end], module)
    if part is None or not _fits(before, part, first, last):
        return None
    fresh = part.pieces
    if above:
        if not _same(before.pieces[first], fresh[0], part.starts[0]):
            return None
        fresh = [before.pieces[first], *fresh[1:]]
    if below:
        footer = len(_code(module, module.footer))
        if len(fresh) < 1 + above or not _same(before.pieces[last - 1], fresh[-1], footer):
            return None
        fresh = [*fresh[:-1], before.pieces[last - 1]]
    pieces = [*before.pieces[:first], *fresh, *before.pieces[last:]]
    whole = before.module.with_changes(
        body=tuple(p.node for p in pieces),
        header=before.module.header if above else module.header,
        footer=before.module.footer if below else module.footer,
        has_trailing_newline=(before.module if below else module).has_trailing_newline,
    )
    starts = [before.starts[0] if above else part.starts[0]]
    for piece in pieces:
        starts.append(starts[-1] + piece.length)
    return _Parsed(text, whole, pieces, starts)


def _common(one: str, other: str, most: int) -> int:
    """How many characters two texts begin with alike, ``most`` at the most."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if one.startswith(other[least:middle], least):
            least = middle
        else:
            most = middle - 1
    return least


def _same(old: Piece, new: Piece, beside: int) -> bool:
    """Whether an unchanged statement came out as it was.

    ``beside`` is the length of the lines around it that went to the module where it is the first
    or the last one. The texts are the same where their lengths are.
    """
    return old.length == new.length + beside and type(old.node) is type(new.node)


def _fits(before: _Parsed, part: _Parsed, first: int, last: int) -> bool:
    """Whether the part was read with the newline and the indentation that the whole has.

    The nodes of a file leave out what is usual in it, which is what comes first in it.
    """
    whole = before.module
    if part.module.default_newline != whole.default_newline:
        return False
    parsed = [p.node for p in part.pieces]
    if _indented(parsed) and part.module.default_indent != whole.default_indent:
        return False
    kept = [p.node for p in before.pieces[:first]]
    if any(isinstance(n, cst.BaseCompoundStatement) and _block(n) for n in kept):
        return True
    if _indented(kept):
        return False
    gone = [p.node for p in before.pieces[first:last]]
    compound = [n for n in parsed if isinstance(n, cst.BaseCompoundStatement)]
    return _block(compound[0]) if compound else not _indented(gone)


def _indented(nodes: Sequence[cst.CSTNode]) -> bool:
    return any(isinstance(node, cst.BaseCompoundStatement) for node in nodes)


def _block(node: cst.BaseCompoundStatement) -> bool:
    return isinstance(getattr(node, "body", None), cst.IndentedBlock)
