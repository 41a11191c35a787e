"""Walking over the fields of libcst nodes, which costs a tenth of parsing them."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import re
from collections.abc import Iterator

import libcst as cst

_SKIPPED_FIELDS = re.compile(
    r"whitespace|^(l|r)(par|bracket|brace)s?$|^leading_lines$|^lines_after|^header$|^footer$"
    r"|^semicolon$|^comma$|^colon$|^equal$|^dot$|^newline$|^indent$|^default_indent$"
    r"|^(from_|as|in_|if_|else_|async_|await_|star|async)$|^operator$|^asynchronous$"
)

# What else the fields of nodes hold. CSTNode is an abstract class: asking whether a value is an
# instance of it takes ten times as long as a look at its type.
PLAIN = frozenset({type(None), str, bool, cst.MaybeSentinel})

_fields: dict[type, tuple[str, ...]] = {}


def child_fields(kind: type) -> tuple[str, ...]:
    """The fields of a node class that hold code, without white space and punctuation."""
    found = _fields.get(kind)
    if found is None:
        found = tuple(
            f.name for f in dataclasses.fields(kind) if not _SKIPPED_FIELDS.search(f.name)
        )
        _fields[kind] = found
    return found


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes directly below, in the order of the source for all that matters here."""
    for name in child_fields(type(node)):
        value = getattr(node, name)
        kind = type(value)
        if kind is tuple or kind is list:
            yield from value
        elif kind not in PLAIN:
            yield value


def descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all nodes of code below it."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(children(top))


# Most of the nodes of a file. What libcst checks of them when they are made (the text of white
# space, as many parentheses on the left as on the right) is right where its parser makes them.
_PLAIN_NODES = (
    cst.SimpleWhitespace, cst.TrailingWhitespace, cst.Newline, cst.EmptyLine, cst.Comma, cst.Dot,
    cst.AssignEqual, cst.LeftParen, cst.RightParen, cst.Name, cst.Attribute,
)  # fmt: skip


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Leave out the checks of plain nodes while parsing: they take a twentieth of its time."""
    for kind in _PLAIN_NODES:
        kind.__post_init__ = _nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind in _PLAIN_NODES:
            if "__post_init__" in vars(kind):
                del kind.__post_init__


def _nothing(self: cst.CSTNode) -> None:
    pass


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Parsing makes only long-lived objects; collecting meanwhile costs a third of its time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def dotted(node: cst.CSTNode | None) -> str | None:
    """``a.b.c`` for a chain of plain names, else None."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    parts.append(node.value)
    return ".".join(reversed(parts))
