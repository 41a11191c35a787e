"""Where a comment can stand that suppresses a finding."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from xla2tpu.lines import Lines
from xla2tpu.model import Finding

_IGNORE = re.compile(r"(#\s*xla2tpu:\s*ignore\[)([^\]]*)(\])")


def suppressing(text: str, finding: Finding) -> Iterator[str]:
    """Texts with the comment, the likeliest first: at the first line of the finding, else below.

    Whether the engine takes it there as meant is for it to say.
    """
    lines = Lines(text)
    ends = _ends(text)
    if not ends:
        return
    # The engine looks for comments in all lines of a simple statement.
    end = next((n for n, is_end in ends.items() if is_end and n >= finding.line), 0)
    last = max(finding.end_line, end)
    for number in range(finding.line, last + 1):
        if number in ends:
            start = lines.starts[number - 1]
            content = lines.content(number - 1)
            new = _with_code(content, finding.rule)
            yield text[:start] + new + text[start + len(content) :]


def _with_code(line: str, code: str) -> str:
    there = _IGNORE.search(line)
    if there is None:
        return f"{line.rstrip()}  # xla2tpu: ignore[{code}]"
    codes = ", ".join([*filter(None, map(str.strip, there[2].split(","))), code])
    return line[: there.start()] + there[1] + codes + there[3] + line[there.end() :]


def _ends(text: str) -> dict[int, bool]:
    """The lines, from 1, at whose end a comment can stand, and whether a statement ends there.

    Those that end inside a string or with a backslash are not among them.
    """
    found: dict[int, bool] = {}
    source = io.StringIO(text.removeprefix("\ufeff"), newline="")
    try:
        for token in tokenize.generate_tokens(source.readline):
            if token.type in (tokenize.NEWLINE, tokenize.NL):
                found[token.start[0]] = token.type == tokenize.NEWLINE
    except (tokenize.TokenError, SyntaxError):
        return {}
    return found
