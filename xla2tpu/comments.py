"""Comments that speak to the tool: suppressions, and the markers that migrate leaves."""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass, field

_NOQA = re.compile(r"#\s*noqa\s*:\s*([A-Za-z]+\d+(?:[,\s]+[A-Za-z]+\d+)*)", re.I)
_IGNORE = re.compile(r"#\s*xla2tpu:\s*ignore\[([^\]]*)\]")
_IGNORE_FILE = re.compile(r"#\s*xla2tpu:\s*ignore-file\b")
_TO_US = re.compile(r"#\s*xla2tpu:.*")
_MARKER = re.compile(r"[ \t\f]*# TODO\(xla2tpu\): (XLA\d{3})\b")


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
    ``below`` are suppressions that hold for the line under them.
    """

    suppressions: list[Suppression] = field(default_factory=list)
    whole_file: Suppression | None = None
    markers: dict[int, str] = field(default_factory=dict)
    misspelt: list[tuple[int, int, str]] = field(default_factory=list)
    below: dict[int, Suppression] = field(default_factory=dict)

    def suppress(self, code: str, lines: range) -> bool:
        """Whether a finding on these lines is suppressed; notes the comment as used."""
        if self.whole_file is not None:
            self.whole_file.used.add(code)
            return True
        for suppression in self.suppressions:
            if suppression.line in lines and any(code.startswith(c) for c in suppression.codes):
                suppression.used.update(c for c in suppression.codes if code.startswith(c))
                return True
        for line in lines if self.below else ():
            above = self.below.get(line)
            if above is not None and any(code.startswith(c) for c in above.codes):
                above.used.update(c for c in above.codes if code.startswith(c))
                return True
        return False


def read(text: str) -> Comments:
    """Find the comments; the text is known to be valid Python."""
    found = Comments()
    if "xla2tpu" not in text and "XLA" not in text.upper():
        return found
    has_noqa = re.search(r"noqa\s*:[^\n]*XLA\d", text, re.I) is not None
    if "xla2tpu" not in text and not has_noqa:
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
        ours = tuple(c for c in codes if c.startswith("XLA"))
        if ours:
            found.suppressions.append(Suppression(line, column, ours))
        said = _TO_US.search(token.string)
        if said and not ours and not _IGNORE_FILE.match(token.string):
            found.misspelt.append((line, column + said.start(), said[0].rstrip()))
        marker = _MARKER.match(token.line) if token.line.lstrip().startswith("#") else None
        if marker:
            found.markers[line] = marker[1]
    return found


def read_lines(text: str) -> Comments:
    """Find the comments of a file around the code, in which ``#`` begins one.

    A suppression on a line of its own holds for the line below too, since some of these formats
    have no comments behind other text.
    """
    found = Comments()
    if "xla2tpu" not in text and not re.search(r"noqa\s*:[^\n]*XLA\d", text, re.I):
        return found
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        if "#" not in line:
            continue
        codes: list[str] = []
        column = len(line)
        for pattern in (_IGNORE, _NOQA):
            match = pattern.search(line)
            if match:
                column = min(column, match.start())
                codes.extend(c.upper() for c in re.split(r"[,\s]+", match[1]) if c)
        ours = tuple(c for c in codes if c.startswith("XLA"))
        whole = _IGNORE_FILE.search(line)
        if whole:
            found.whole_file = Suppression(number, whole.start(), ("XLA",))
        if ours:
            said = Suppression(number, column, ours)
            found.suppressions.append(said)
            if not line[:column].strip():
                found.below[number + 1] = said
        marked = _MARKER.match(line)
        if marked:
            found.markers[number] = marked[1]
    return found


def marker(indent: str, code: str, advice: str) -> str:
    """The comment line that marks a place left to a person."""
    return f"{indent}# TODO(xla2tpu): {code} {advice}"
