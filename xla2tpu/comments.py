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
_IGNORE_FILE = re.compile(r"#\s*xla2tpu:\s*ignore-file(?:\[([^\]]*)\]|(?![\w\[-]))")
# What a marker begins with.
MARK = "# TODO(xla2tpu):"
_TO_US = re.compile(r"#\s*xla2tpu\s*:.*", re.I)
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
    ``below`` are suppressions that hold for the line under them.
    """

    suppressions: list[Suppression] = field(default_factory=list)
    whole_file: Suppression | None = None
    markers: dict[int, str] = field(default_factory=dict)
    misspelt: list[tuple[int, int, str]] = field(default_factory=list)
    below: dict[int, Suppression] = field(default_factory=dict)

    def suppress(self, code: str, lines: range) -> bool:
        """Whether a finding on these lines is suppressed; notes the comment as used."""
        whole = self.whole_file
        if whole is not None and any(code.startswith(c) for c in whole.codes):
            whole.used.update(c for c in whole.codes if code.startswith(c))
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
    if "xla2tpu" not in text.lower() and not _NOQA_OURS.search(text):
        return found
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text, newline="").readline))
    except (tokenize.TokenError, SyntaxError):
        return found
    for token in tokens:
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        whole = _IGNORE_FILE.match(token.string)
        if whole:
            given = _codes(whole[1]) if whole[1] is not None else FAMILIES
            already = found.whole_file.codes if found.whole_file is not None else ()
            if given:
                found.whole_file = Suppression(line, column, (*already, *given))
        matches = (p.search(token.string) for p in (_IGNORE, _NOQA))
        ours = tuple(c for match in matches if match for c in _codes(match[1]))
        if ours:
            found.suppressions.append(Suppression(line, column, ours))
        said = _TO_US.search(token.string)
        if said and not ours and not (whole and given):
            found.misspelt.append((line, column + said.start(), said[0].rstrip()))
        marker = _MARKER.match(token.line) if token.line.lstrip().startswith("#") else None
        if marker:
            found.markers[line] = marker[1]
    return found


def _codes(text: str) -> tuple[str, ...]:
    """Our codes in a list of codes."""
    codes = (c.upper() for c in re.split(r"[,\s]+", text))
    return tuple(c for c in codes if c.startswith(FAMILIES))


def read_lines(text: str) -> Comments:
    """Find the comments of a file around the code, in which ``#`` begins one.

    A suppression on a line of its own holds for the line below too, since some of these formats
    have no comments behind other text.
    """
    found = Comments()
    if "xla2tpu" not in text and not _NOQA_OURS.search(text):
        return found
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        if "#" not in line:
            continue
        matches = [m for p in (_IGNORE, _NOQA) if (m := p.search(line))]
        column = min((m.start() for m in matches), default=len(line))
        ours = tuple(c for match in matches for c in _codes(match[1]))
        whole = _IGNORE_FILE.search(line)
        if whole:
            given = _codes(whole[1]) if whole[1] is not None else FAMILIES
            found.whole_file = Suppression(number, whole.start(), given)
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
    return f"{indent}{MARK} {code} {advice}"
