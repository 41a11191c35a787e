"""The report for eyes: grouped by file, with the source line, the caret and what to do."""

from __future__ import annotations

from xla2tpu.model import Applicability, FileResult, Finding, Mode, state_of
from xla2tpu.reasons import REASONS
from xla2tpu.report.snippet import Snippets
from xla2tpu.runner import Run, is_left

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_STATE_COLOURS = {"safe": "green", "unsafe": "yellow", "by hand": "red"}


def render(run: Run, colour: bool = False, verbose: bool = False) -> str:
    """The places that are left, file by file; applied and suppressed ones too with ``verbose``.

    Rewritten places that ask for a review are named in one line each.
    """
    paint = _Paint(colour)
    blocks = (_file(result, run, paint, verbose) for result in run.results)
    return "\n".join("".join(line + "\n" for line in block) for block in blocks if block)


class _Paint:
    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, text: str, *styles: str) -> str:
        if not self._colour:
            return text
        return f"\x1b[{';'.join(_CODES[s] for s in styles)}m{text}\x1b[0m"


def _file(result: FileResult, run: Run, paint: _Paint, verbose: bool) -> list[str]:
    lines: list[str] = []
    if result.error is not None:
        lines.append(f"  {paint('error', 'red', 'bold')}: {result.error}")
    snippets: Snippets | None = None
    for finding in result.findings:
        if is_left(finding) or verbose:
            snippets = snippets or Snippets(result.source)
            lines += _place(finding, snippets, paint)
        elif _to_review(finding, run):
            lines.append(_head(finding, "rewritten, to review", paint) + f": {finding.message}")
    if result.held_back is not None:
        lines.append(f"  {paint('left as it is', 'yellow')}: {result.held_back}")
    if result.output is not None:
        applied = sum(f.applied for f in result.findings)
        word = "to change" if run.diff else "changed"
        places = f"{applied} {'place' if applied == 1 else 'places'}; now {result.status}"
        # The module of helpers has no places of its own.
        lines.append(f"  {paint(word, 'green')}" + (f": {places}" if result.findings else ""))
    if verbose and not lines:
        lines.append(f"  {result.status}")
    return [paint(result.path, "bold"), *lines] if lines else []


def _to_review(finding: Finding, run: Run) -> bool:
    safe = finding.applicability is Applicability.SAFE
    return run.mode is not Mode.CHECK and state_of(finding) == "applied" and not safe


def _head(finding: Finding, state: str, paint: _Paint) -> str:
    place = paint(finding.where, "cyan")
    colour = _STATE_COLOURS.get(state, "dim")
    return f"  {place} {paint(finding.rule, 'bold')} {finding.name}, {paint(state, colour)}"


def _place(finding: Finding, snippets: Snippets, paint: _Paint) -> list[str]:
    lines = [_head(finding, _state_word(finding), paint) + f": {finding.message}"]
    shown = snippets.line(finding)
    if shown is not None:
        text, before, width = shown
        number = str(finding.line)
        lines.append(f"    {paint(number + ' |', 'dim')} {text}".rstrip())
        margin = " " * len(number) + " |"
        lines.append(f"    {paint(margin, 'dim')} {' ' * before}{paint('^' * width, 'red')}")
    if finding.suppressed:
        return lines
    if finding.applicability is Applicability.MANUAL:
        if finding.reason is not None:
            meaning = REASONS.get(finding.reason, "")
            lines.append(f"    why: {meaning} ({finding.reason})")
        lines.append(f"    do: {finding.advice} ({finding.effort})")
    elif finding.fix is not None:
        lines.append(f"    fix: {finding.fix.title}")
        for line in snippets.fixed(finding) or ():
            lines.append(paint(f"    {'+':>{len(str(finding.line)) + 2}} {line}", "green"))
    return lines


def _state_word(finding: Finding) -> str:
    state = state_of(finding)
    if state == "fixable":
        return str(finding.applicability)
    return {"manual": "by hand", "applied": "rewritten"}.get(state, state)
