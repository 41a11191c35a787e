"""Unified diffs in bytes, so that a patch fits files of any encoding and line ending."""

from __future__ import annotations

import os

from xla2tpu.runner import Run


def render(run: Run) -> bytes:
    """The changes of all files, as `git apply` and `patch -p1` take them."""
    return b"".join(
        file_diff(r.path, r.source or b"", r.output) for r in run.changed if r.output is not None
    )


def file_diff(path: str, before: bytes, after: bytes) -> bytes:
    """The change of one file; empty where there is none."""
    import difflib

    name = os.fsencode(path.replace(os.sep, "/").lstrip("/"))
    old = b"a/" + name if before else b"/dev/null"
    lines = difflib.diff_bytes(
        difflib.unified_diff, _lines(before), _lines(after), old, b"b/" + name
    )
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in lines
    )


def coloured(diff: bytes) -> bytes:
    """The same for a terminal."""
    return b"\n".join(_colour(line) for line in diff.split(b"\n"))


def _colour(line: bytes) -> bytes:
    if line.startswith((b"+++ ", b"--- ")):
        return b"\x1b[1m" + line + b"\x1b[0m"
    code = {b"+": b"32", b"-": b"31", b"@": b"36"}.get(line[:1])
    return line if code is None else b"\x1b[" + code + b"m" + line + b"\x1b[0m"


def _lines(data: bytes) -> list[bytes]:
    # Not `splitlines`: a lone carriage return does not end a line of a patch.
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]
