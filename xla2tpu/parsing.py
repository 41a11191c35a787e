"""Parsing a file, with the errors and limits of CPython."""

from __future__ import annotations

import ast
import re
import sys
import warnings

import libcst as cst

from xla2tpu.tree import Tree

_OLD_EXCEPT = re.compile(r"^[ \t]*except[ \t]+[^(:\n]+,[ \t]*\w+[ \t]*:", re.M)
_USUAL_LIMIT = 1000
_DEEP = 180
_LONG_LINE = 5_000
_MANY_LINES = 100_000
_CHAINED = re.compile(r"\n[ \t]*[-+*/%@|&^<>=.]")
_LONG_CHAIN = 500
_NOT_BRACKETS = bytes(c for c in range(256) if c not in b"()[]{}")


class BadSyntax(Exception):
    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(message)
        self.line, self.column, self.message = line, column, message


def parse(text: str) -> Tree:
    """Parse with libcst; sources too deep for it are refused as CPython refuses them."""
    lines = text.split("\n")
    long = len(lines) > _MANY_LINES or max(map(len, lines)) > _LONG_LINE
    # Operators and calls nest as well, a level for each in a chain over many lines.
    chained = sum(1 for _ in _CHAINED.finditer(text)) > _LONG_CHAIN
    if long or chained or _deepest_bracket(text) > _DEEP:
        _refuse(text)
    try:
        tree = Tree(text, _parsable(text))
    except cst.ParserSyntaxError as error:
        _refuse(text)
        message = re.sub(r"^parser error: error at \d+:\d+: ", "", error.message)
        raise BadSyntax(error.raw_line, error.raw_column + 1, message) from error
    except cst.CSTValidationError as error:
        # What libcst parses and then finds wrong, such as a bare except before another.
        _refuse(text)
        raise BadSyntax(1, 1, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise BadSyntax(1, 1, str(error)) from error
    if _OLD_EXCEPT.search(text):
        # Python 2's ``except E, name`` is read by libcst as Python 3.14's tuple of classes.
        _refuse(text)
    return tree


def _refuse(text: str) -> None:
    """Raise CPython's own error, which knows the line; nothing where it has none."""
    # What is too deep must not depend on the files before, for which the limit was raised.
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(_USUAL_LIMIT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        raise BadSyntax(error.lineno or _nul_line(text), error.offset or 1, error.msg) from error
    except (RecursionError, MemoryError) as error:
        raise BadSyntax(1, 1, "too deeply nested to be parsed") from error
    except ValueError as error:
        raise BadSyntax(_nul_line(text), 1, str(error)) from error
    finally:
        sys.setrecursionlimit(limit)


def _nul_line(text: str) -> int:
    """The line of the first NUL byte, the one fault for which CPython names no line; else 1."""
    return text.count("\n", 0, max(text.find("\0"), 0)) + 1


def _deepest_bracket(text: str) -> int:
    """How deep brackets nest at the most, those in strings and comments counted too."""
    depth = deepest = 0
    for bracket in text.encode("utf-8", "replace").translate(None, _NOT_BRACKETS):
        if bracket in b"([{":
            depth += 1
            if depth > deepest:
                deepest = depth
        else:
            depth -= 1
    return deepest


def _parsable(text: str) -> str:
    """The text for the parser, character by character: it wants line feeds and no form feeds."""
    text = re.sub(r"\r(?!\n)", "\n", text)
    # A form feed at the start of a line resets the indentation, as a line of its own does.
    text = re.sub(r"(?m)^[ \t\f]*\f", lambda m: " " * (len(m[0]) - 1) + "\n", text)
    return text.replace("\f", " ")
