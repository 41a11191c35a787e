"""The report of a migration as a page: the verdict, the files, and what is left for people."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from xla2tpu.model import Applicability, Effort, FileResult, Finding, Status, Step, state_of
from xla2tpu.reasons import REASONS
from xla2tpu.report import plans, remarks
from xla2tpu.report.statistics_ import by_rule
from xla2tpu.report.summary import places_by_hand, verdict
from xla2tpu.runner import Run

_EFFORTS = {
    Effort.TRIVIAL: "Trivial",
    Effort.SMALL: "Small",
    Effort.REDESIGN: "Needs a new design",
}


def render(run: Run) -> str:
    """The page, in GitHub's Markdown."""
    lines = "".join(f"- {line}\n" for line in verdict(run))
    if run.changed:
        lines += "\nLine numbers are those of the files before the run.\n"
    sections = [
        f"# From torch_xla to TorchTPU\n\n{lines}",
        _errors(run),
        _files(run),
        _by_hand(run),
        _to_review(run),
        *_plans(run),
        *_remarks(run),
        _rules(run),
    ]
    return "\n".join(section for section in sections if section)


def _errors(run: Run) -> str:
    lines = [f"- {_code(_path(r))}: {_text(r.error or '')}\n" for r in run.errors]
    return _section("Errors", "".join(lines))


def _files(run: Run) -> str:
    rows = [
        (
            _code(_path(r)),
            str(r.status),
            r.references,
            r.count("applied"),
            r.count("fixable"),
            r.count("manual"),
            r.count("suppressed"),
            places_by_hand(r),
        )
        for r in run.results
        if r.status is not Status.CLEAN and r.error is None
    ]
    head = ("File", "Status", "References", "Applied", "Fixable", "Manual", "Suppressed", "By hand")
    note = "*By hand* counts the places that are no references too, such as imports and strings.\n"
    return _section("Files", _table(head, rows) + ("\n" + note if rows else ""))


def _by_hand(run: Run) -> str:
    parts: list[str] = []
    for effort, title in _EFFORTS.items():
        lines = [
            f"- {_place(result, f)} {_text(f.message)}. **{_text(f.advice)}**{_why(f)}\n"
            for result in run.results
            for f in result.findings
            if state_of(f) == "manual" and f.effort is effort
        ]
        if lines:
            parts.append(f"### {title} ({len(lines)})\n\n" + "".join(lines))
    return _section("Left to a person", "\n".join(parts))


def _why(finding: Finding) -> str:
    if finding.reason is None:
        return ""
    return f" ({_text(REASONS.get(finding.reason, ''))}: {_code(finding.reason)})"


def _to_review(run: Run) -> str:
    lines = [
        f"- {_place(result, f)} {_text(f.message)}\n"
        for result in run.results
        for f in result.findings
        if state_of(f) in ("applied", "fixable") and f.applicability is Applicability.UNSAFE
    ]
    return _section("To review", "".join(lines))


def _remarks(run: Run) -> Iterator[str]:
    for kind, notes in remarks.by_kind(run):
        lines = [
            f"- {_code(remarks.place(n))} {_text(n.message)}. **{_text(n.advice)}** "
            f"({_text(n.source)})\n"
            for n in notes
        ]
        yield _section(remarks.TITLES[kind], f"{remarks.INTRODUCTIONS[kind]}\n\n" + "".join(lines))


def _plans(run: Run) -> Iterator[str]:
    for plan in run.plans:
        parts = [f"{plans.INTRODUCTION}\n\n" + "".join(f"- {_text(n)}\n" for n in plan.notes)]
        if plan.imports:
            parts.append("The code below needs\n\n" + _fenced("\n".join(plan.imports), ""))
        for number, (heading, groups) in enumerate(plans.stages(plan), 1):
            parts.append(f"### {number}. {heading}\n")
            parts += map(_step, groups)
        yield _section(plans.title(plan), "\n".join(parts))


def _step(steps: list[Step]) -> str:
    first = steps[0]
    lines = f"- {_code(plans.place(steps))} {_text(first.what)}\n"
    if first.target:
        lines += "\n" + _fenced(first.target, "  ")
    return lines + (f"\n  {_text(first.note)}.\n" if first.note else "")


def _fenced(code: str, indent: str) -> str:
    """Code as a block; its language differs, a shell's for launch lines."""
    fence = "```"
    while fence in code:
        fence += "`"
    lines = (fence, *code.splitlines(), fence)
    return "".join(f"{indent}{line}".rstrip() + "\n" for line in lines)


def _rules(run: Run) -> str:
    head = ("Rule", "Places", "Applied", "Safe fixes", "Unsafe fixes", "Manual", "Suppressed")
    rows = [
        (f"{r.code} {r.name}", r.places, r.applied, r.safe, r.unsafe, r.manual, r.suppressed)
        for r in by_rule(run)
    ]
    return _section("Rules", _table(head, rows))


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    rule = ["---"] + ["---" if isinstance(cell, str) else "---:" for cell in rows[0][1:]]
    return "".join(_row(cells) for cells in (head, rule, *rows))


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"


def _place(result: FileResult, finding: Finding) -> str:
    return f"{_code(f'{_path(result)}:{finding.where}')} {finding.rule}"


def _path(result: FileResult) -> str:
    return result.path.replace(os.sep, "/")


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{_text(text)}{fence}"


def _text(text: str) -> str:
    return " ".join(text.split())
