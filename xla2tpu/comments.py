"""Comments that speak to the tool: suppressions, and the markers that migrate leaves."""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass, field

from xla2tpu.model import CODE, FAMILIES

_NOQA = re.compile(r"#\s*noqa\s*:\s*([A-Za-z]+\d+(?:[,\s]+[A-Za-z]+\d+)*)", re.I)
_NOQA_OURS = re.compile(rf"noqa\s*:[^\n]*(?:{'|'.join(FAMILIES)})\d", re.I)
_IGNORE = re.compile(r"#\s*xla2tpu:\s*ignore\[([^\]]*)\]")
_IGNORE_FILE = re.compile(r"#\s*xla2tpu:\s*ignore-file\b")
_TO_US = re.compile(r"#\s*xla2tpu:.*")
_MARKER = re.compile(r"[ \t\f]*# TODO\(xla2tpu\): (" + CODE + r")\b")


@dataclass(slots=True)
class Suppression:
    """One suppressing comment: its line from 1, the codes, and those that suppressed something."""

    line: int
    column: int
    codes: tuple[str, ...]
    used: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Comments:
    """The comments of a file that speak to the tool. Lines count from 1.

    ``misspelt`` are those that suppress nothing because they name no code: line, column, text.
    """

    suppressions: list[Suppression] = field(default_factory=list)
    whole_file: Suppression | None = None
    markers: dict[int, str] = field(default_factory=dict)
    misspelt: list[tuple[int, int, str]] = field(default_factory=list)

    def suppress(self, code: str, lines: range) -> bool:
        """Whether a finding on these lines is suppressed; notes the comment as used."""
        if self.whole_file is not None:
            self.whole_file.used.add(code)
            return True
        for suppression in self.suppressions:
            if suppression.line in lines and any(code.startswith(c) for c in suppression.codes):
                suppression.used.update(c for c in suppression.codes if code.startswith(c))
                return True
        return False


def read(text: str) -> Comments:
    """Find the comments; the text is known to be valid Python."""
    found = Comments()
    if "xla2tpu" not in text and not _NOQA_OURS.search(text):
        return found
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text, newline="").readline))
    except (tokenize.TokenError, SyntaxError):
        return found
    for token in tokens:
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        if _IGNORE_FILE.match(token.string):
            found.whole_file = Suppression(line, column, ("XLA",))
        codes: list[str] = []
        for pattern in (_IGNORE, _NOQA):
            match = pattern.search(token.string)
            if match:
                codes.extend(c.upper() for c in re.split(r"[,\s]+", match[1]) if c)
        ours = tuple(c for c in codes if c.startswith(FAMILIES))
        if ours:
            found.suppressions.append(Suppression(line, column, ours))
        said = _TO_US.search(token.string)
        if said and not ours and not _IGNORE_FILE.match(token.string):
            found.misspelt.append((line, column + said.start(), said[0].rstrip()))
        marker = _MARKER.match(token.line) if token.line.lstrip().startswith("#") else None
        if marker:
            found.markers[line] = marker[1]
    return found


def marker(indent: str, code: str, advice: str) -> str:
    """The comment line that marks a place left to a person."""
    return f"{indent}# TODO(xla2tpu): {code} {advice}"
