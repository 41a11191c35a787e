"""Parsing a file, with the errors and limits of CPython."""

from __future__ import annotations

import ast
import re

import libcst as cst

from xla2tpu.tree import Tree

_DEEP = 180
_LONG_LINE = 5_000
_MANY_LINES = 100_000
_NOT_BRACKETS = bytes(c for c in range(256) if c not in b"()[]{}")


class BadSyntax(Exception):
    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(message)
        self.line, self.column, self.message = line, column, message


def parse(text: str) -> Tree:
    """Parse with libcst; sources too deep for it are refused as CPython refuses them."""
    lines = text.split("\n")
    long = len(lines) > _MANY_LINES or max(map(len, lines)) > _LONG_LINE
    if long or _deepest_bracket(text) > _DEEP:
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise BadSyntax(error.lineno or 1, error.offset or 1, error.msg) from error
        except (RecursionError, MemoryError, ValueError) as error:
            raise BadSyntax(1, 1, "too deeply nested to be parsed") from error
    try:
        tree = Tree(text, _parsable(text))
    except cst.ParserSyntaxError as error:
        message = re.sub(r"^parser error: error at \d+:\d+: ", "", error.message)
        raise BadSyntax(error.raw_line, error.raw_column + 1, message) from error
    except (ValueError, RecursionError) as error:
        raise BadSyntax(1, 1, str(error)) from error
    return tree


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
    # A form feed at the start of a line resets the indentation: put it at the end of the last.
    text = re.sub(r"(\r?\n)\f", lambda m: " " * len(m[1]) + "\n", text)
    return text.replace("\f", " ")
