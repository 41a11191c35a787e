"""The two helpers with which a rewrite is tested, and the flag that renews expected files."""

from __future__ import annotations

import ast
import io
import re
import signal
import tempfile
import tokenize
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from xla2tpu import engine
from xla2tpu.model import FileResult, Mode, Settings

MARKER = "# TODO(xla2tpu)"
BOM = b"\xef\xbb\xbf"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-fixtures",
        action="store_true",
        help="write what the tool makes of fixtures/ as the expected files, then read the diff",
    )


def pytest_configure() -> None:
    # A shell starts what it puts in the background with the signal ignored; children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def check_noop(source: str | bytes, **settings: Any) -> FileResult:
    """Assert that a migration leaves ``source`` as it is, byte for byte."""
    data = source.encode() if isinstance(source, str) else source
    result = _migrate(data, settings)
    assert result.error is None
    assert result.output in (None, data)
    return result


def check_transformed(before: str | bytes, after: str | bytes, **settings: Any) -> FileResult:
    """Assert that a migration makes ``after`` of ``before`` and does no other harm."""
    old = before.encode() if isinstance(before, str) else before
    expected = after.encode() if isinstance(after, str) else after
    result = _migrate(old, settings)
    assert result.error is None
    new = old if result.output is None else result.output
    assert new.decode("latin-1") == expected.decode("latin-1")
    check_harmless(old, new, result)
    check_noop(new, **settings)
    return result


def _migrate(data: bytes, settings: dict[str, Any]) -> FileResult:
    # A project of its own: the files around the tests must not lend it any names.
    with tempfile.TemporaryDirectory() as root:
        migration = Settings(mode=Mode.MIGRATE, unsafe=True, root=root)
        return engine.run_source(data, f"{root}/example.py", replace(migration, **settings))


def check_harmless(old: bytes, new: bytes, result: FileResult) -> None:
    """What holds for every rewrite: it compiles, comments and the way of writing stay."""
    if _compiles(old):
        assert _compiles(new), "the result does not compile"
        _check_comments(old, new, result)
    assert new.startswith(BOM) == old.startswith(BOM)
    assert _newlines(new) <= (_newlines(old) or {b"\n"})
    counts = [result.count(s) for s in ("applied", "fixable", "manual", "suppressed")]
    assert result.references == sum(counts)


def _compiles(data: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(data, "example.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return True


def _newlines(data: bytes) -> set[bytes]:
    return set(re.findall(rb"\r\n|\r|\n", data))


def _check_comments(old: bytes, new: bytes, result: FileResult) -> None:
    """No comment is lost or made up, but for those of statements that went, and markers."""
    before, after = _comments(old), _comments(new)
    kept = Counter(text for _, text, _ in before)
    found = Counter(text for _, text, _ in after if not text.startswith(MARKER))
    made_up = found - kept - Counter({"# noqa: F401": found["# noqa: F401"]})
    assert not made_up, f"new comments: {made_up}"
    may_go = _lines_of_rewritten_statements(old, result)
    lost = kept - found
    for line, text, alone in before:
        if lost[text] and line in may_go[alone]:
            lost[text] -= 1
    lost = Counter({text: n for text, n in lost.items() if n and not text.startswith(MARKER)})
    assert not lost, f"lost comments: {lost}"


def _comments(data: bytes) -> list[tuple[int, str, bool]]:
    """Line, text, and whether it stands alone on its line."""
    # CPython's tokenizer reads a lone carriage return as part of the line.
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return [
        (t.start[0], t.string.rstrip(), not t.line[: t.start[1]].strip())
        for t in tokenize.tokenize(io.BytesIO(data).readline)
        if t.type == tokenize.COMMENT
    ]


def _lines_of_rewritten_statements(data: bytes, result: FileResult) -> dict[bool, set[int]]:
    """Lines whose comments may go, by whether the comment stands alone on its line.

    A comment after code may go with the innermost statement around it; one on a line of its
    own only from inside the brackets of a simple statement.
    """
    touched = [(f.line, f.end_line) for f in result.findings]
    innermost: dict[int, ast.stmt] = {}
    for node in ast.walk(ast.parse(data)):
        if isinstance(node, ast.stmt):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                touched.append((node.lineno, node.end_lineno or node.lineno))
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                known = innermost.get(line)
                if known is None or (node.lineno, -(node.end_lineno or 0)) > (
                    known.lineno,
                    -(known.end_lineno or 0),
                ):
                    innermost[line] = node
    allowed: dict[bool, set[int]] = {True: set(), False: set()}
    for line, node in innermost.items():
        end = node.end_lineno or node.lineno
        if any(first <= end and last >= node.lineno for first, last in touched):
            allowed[False].add(line)
            if not hasattr(node, "body"):
                allowed[True].add(line)
    return allowed
