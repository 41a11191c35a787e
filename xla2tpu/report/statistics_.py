"""How often each rule was met, most frequent first."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from xla2tpu.report.summary import kind
from xla2tpu.runner import Run


class RuleCount(NamedTuple):
    """How often one rule was met, by what became of the places."""

    code: str
    name: str
    places: int
    applied: int
    safe: int
    unsafe: int
    manual: int
    suppressed: int


_HEAD = ("places", "applied", "safe", "unsafe", "manual", "suppressed", "rule")


def render(run: Run) -> str:
    """A table with a row for each rule; empty without findings."""
    rows = [
        (
            *map(str, (r.places, r.applied, r.safe, r.unsafe, r.manual, r.suppressed)),
            f"{r.code} {r.name}",
        )
        for r in by_rule(run)
    ]
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(_HEAD, *rows, strict=True)]
    return "".join(
        "  ".join([*(c.rjust(w) for c, w in zip(row[:-1], widths, strict=False)), row[-1]]) + "\n"
        for row in (_HEAD, *rows)
    )


def by_rule(run: Run) -> list[RuleCount]:
    """Counts for each rule that was met, most places first."""
    names: dict[str, str] = {}
    states: dict[str, Counter[str]] = {}
    for result in run.results:
        for finding in result.findings:
            names[finding.rule] = finding.name
            states.setdefault(finding.rule, Counter())[kind(finding)] += 1
    rows = [
        RuleCount(
            code,
            names[code],
            counts.total(),
            counts["applied"],
            counts["safe"],
            counts["unsafe"],
            counts["manual"],
            counts["suppressed"],
        )
        for code, counts in states.items()
    ]
    return sorted(rows, key=lambda row: (-row.places, row.code))
