"""The numbers of a run, counted once for every form of report."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from xla2tpu.model import Applicability, FileResult, Finding, Mode, Status, state_of
from xla2tpu.runner import Run, is_left


class Summary(NamedTuple):
    """Counts over all files. A reference is one use of a torch_xla name outside imports;
    ``references`` is ``applied`` + ``fixable`` + ``manual`` + ``suppressed``.
    """

    files_scanned: int
    files_with_torch_xla: int
    files_done: int
    files_needing_work: int
    references: int
    applied: int
    fixable: int
    manual: int
    suppressed: int
    errors: int


def summarize(run: Run) -> Summary:
    """The counts of a run; a file needs work where a person must act."""
    results = run.results
    return Summary(
        files_scanned=len(results),
        files_with_torch_xla=sum(r.mentions_torch_xla for r in results),
        files_done=sum(r.status is Status.DONE for r in results),
        files_needing_work=sum(r.status is Status.NEEDS_WORK for r in results),
        references=sum(r.references for r in results),
        applied=sum(r.count("applied") for r in results),
        fixable=sum(r.count("fixable") for r in results),
        manual=sum(r.count("manual") for r in results),
        suppressed=sum(r.count("suppressed") for r in results),
        errors=len(run.errors),
    )


def kind(finding: Finding) -> str:
    """The state of a finding, or for a fixable one how far its fix may be trusted."""
    state = state_of(finding)
    return str(finding.applicability) if state == "fixable" else state


def places_by_hand(result: FileResult) -> int:
    """Places of a file, references or not, that a person must mend."""
    return sum(state_of(f) == "manual" for f in result.findings)


def verdict(run: Run) -> list[str]:
    """The last lines of a report: what is done, what is left, and for whom."""
    summary = summarize(run)
    lines = [_files_line(run, summary)]
    if summary.references:
        lines.append(_references_line(run, summary))
    others = Counter(kind(f) for r in run.results for f in r.findings if not f.counts)
    if others:
        words = {"safe": "fixable safely", "unsafe": "fixable unsafely", "manual": "by hand"}
        parts = ", ".join(f"{others[k]} {words.get(k, k)}" for k in sorted(others))
        lines.append(f"{_count(others.total(), 'other place')} (imports, strings, ...): {parts}.")
    known = sum(f.in_baseline for r in run.results for f in r.findings)
    if known:
        lines.append(f"{_count(known, 'known place')} in the baseline.")
    left = [f for r in run.results for f in r.findings if is_left(f)]
    safe = sum(f.applicability is Applicability.SAFE for f in left)
    unsafe = sum(f.applicability is Applicability.UNSAFE for f in left)
    if run.mode is Mode.CHECK and safe:
        lines.append(f"{_count(safe, 'safe fix', 'safe fixes')}: check --fix, or migrate.")
    if unsafe:
        held = "" if run.mode is Mode.CHECK else " held back"
        flag = "migrate without --no-unsafe-fixes" if run.mode is Mode.MIGRATE else "--unsafe-fixes"
        lines.append(f"{_count(unsafe, 'unsafe fix', 'unsafe fixes')}{held}: {flag}.")
    if summary.errors:
        lines.append(f"{_count(summary.errors, 'file')} could not be handled: see the errors.")
    return lines


def _files_line(run: Run, summary: Summary) -> str:
    scanned = _count(summary.files_scanned, "file")
    met = [r for r in run.results if r.status is not Status.CLEAN and r.error is None]
    if not met and summary.errors:
        return f"{scanned} scanned, but not all could be searched for torch_xla."
    if not met:
        return f"{scanned} scanned, nothing of torch_xla found."
    left = [r for r in met if r.status is Status.NEEDS_WORK]
    persons = [r for r in left if places_by_hand(r)]
    ready = sum(r.status is Status.READY for r in met)
    parts = [f"{summary.files_done} done"]
    if ready:
        parts.append(f"{ready} fixable without a person")
    if persons:
        verb = "needs" if len(persons) == 1 else "need"
        places = _count(sum(map(places_by_hand, persons)), "place")
        parts.append(f"{len(persons)} {verb} a person ({places})")
    if len(left) > len(persons):
        parts.append(f"{len(left) - len(persons)} with places that are suppressed or not selected")
    verb = "has" if len(met) == 1 else "have"
    return f"{scanned} scanned, {len(met)} {verb} to do with torch_xla: {', '.join(parts)}."


def _references_line(run: Run, summary: Summary) -> str:
    counted = [f for r in run.results for f in r.findings if f.counts]
    applied = Counter(str(f.applicability) for f in counted if state_of(f) == "applied")
    left = Counter(kind(f) for f in counted if state_of(f) == "fixable")
    if run.mode is Mode.CHECK:
        parts = [f"{left['safe']} rewritable", f"{left['unsafe']} rewritable but to review"]
    else:
        # A place whose rule is manual may go along with another fix, and is worth a look.
        review = applied.total() - applied["safe"]
        word = "to rewrite" if run.diff else "rewritten"
        parts = [f"{applied['safe']} {word}", f"{review} {word} and to review"]
        if left:
            parts.append(f"{left.total()} left fixable")
    parts.append(f"{summary.manual} by hand")
    if summary.suppressed:
        parts.append(f"{summary.suppressed} suppressed")
    return f"{_count(summary.references, 'reference')}: {', '.join(parts)}."


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
