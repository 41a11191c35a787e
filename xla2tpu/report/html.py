"""The report as one page to look at: no other file, no network, readable without scripts."""

from __future__ import annotations

import difflib
import importlib.resources
import io
import os
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from xla2tpu.baseline import marks
from xla2tpu.model import Effort, FileResult, Finding, Status, Step, state_of
from xla2tpu.reasons import REASONS
from xla2tpu.report import plans, remarks
from xla2tpu.report.snippet import Snippets
from xla2tpu.report.summary import kind, summarize, verdict
from xla2tpu.rulemodel import RuleSet
from xla2tpu.runner import Run

_CONTEXT = 3
_KINDS = {
    "applied": "rewritten",
    "safe": "safe fix",
    "unsafe": "unsafe fix",
    "manual": "by hand",
    "suppressed": "suppressed",
}
_EFFORTS = {Effort.TRIVIAL: "Trivial", Effort.SMALL: "Small", Effort.REDESIGN: "A new design"}


def render(run: Run, rules: RuleSet) -> str:
    """The page. Line numbers are those of the files before the run."""
    shown = [r for r in run.results if r.error is not None or r.status is not Status.CLEAN]
    every = [f for r in shown for f in r.findings]
    parts = [
        _head(run),
        _filters(every),
        _progress(shown),
        _checklist(shown),
        *_plans(run),
        *_remarks(run),
        _files(shown),
        _rules(every, rules),
    ]
    folder = importlib.resources.files("xla2tpu.report")
    style = (folder / "page.css").read_text("utf-8")
    script = (folder / "page.js").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>From torch_xla to TorchTPU</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + f"\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


# -- the top of the page -------------------------------------------------------------------------


def _head(run: Run) -> str:
    summary = summarize(run)
    lines = "".join(f"<li>{escape(line)}</li>" for line in verdict(run))
    states = {
        "applied": summary.applied,
        "safe": summary.fixable,
        "manual": summary.manual,
        "suppressed": summary.suppressed,
    }
    bar = _bar(Counter(states), "All references") if summary.references else ""
    return (
        "<header>\n<h1>From torch_xla to TorchTPU</h1>\n"
        f'<ul class="verdict">{lines}</ul>\n{bar}\n'
        '<nav aria-label="Sections"><a href="#progress">Progress</a> '
        '<a href="#by-hand">By hand</a> '
        + "".join(f'<a href="#plan-{i}">Plan</a> ' for i in range(1, len(run.plans) + 1))
        + "".join(f'<a href="#{k}">{remarks.TITLES[k]}</a> ' for k, _ in remarks.by_kind(run))
        + '<a href="#files">Files</a> <a href="#rules">Rules</a></nav>'
        "\n</header>\n<main>"
    )


def _filters(every: list[Finding]) -> str:
    codes = Counter(f.rule for f in every)
    names = {f.rule: f.name for f in every}
    options = "".join(
        f'<option value="{code}">{code} {escape(names[code])} ({count})</option>'
        for code, count in sorted(codes.items())
    )
    kinds = Counter(map(kind, every))
    boxes = "".join(
        f'<label><input type="checkbox" name="kind" value="{k}" checked> '
        f'<span class="tag {k}">{label}</span> {kinds[k]}</label>'
        for k, label in _KINDS.items()
        if kinds[k]
    )
    return (
        '<form id="filter" class="filter" aria-label="Filter the findings" hidden>\n'
        f'<label>Rule <select name="rule"><option value="">all</option>{options}</select></label>\n'
        '<label>Path <input type="search" name="path" placeholder="part of a path"></label>\n'
        f"<fieldset><legend>State</legend>{boxes}</fieldset>\n"
        '<button type="button" id="open">Open all files</button>\n'
        '<output id="shown" aria-live="polite"></output>\n</form>'
    )


def _bar(states: Counter[str], label: str, share: float = 1) -> str:
    """The states as a bar; ``share`` is its length as a part of the longest."""
    total = states.total()
    words = ", ".join(f"{states[k]} {_KINDS[k]}" for k in _KINDS if states[k])
    pieces = "".join(
        f'<span class="{k}" style="flex-grow:{states[k]}"></span>' for k in _KINDS if states[k]
    )
    title = escape(f"{label}: {words or 'nothing'}", quote=True)
    empty = "" if total else '<span style="flex-grow:1"></span>'
    width = f"width:{max(share, 0.02):.1%}"
    return (
        f'<div class="bar" role="img" aria-label="{title}" title="{title}" style="{width}">'
        f"{pieces}{empty}</div>"
    )


def _progress(results: list[FileResult]) -> str:
    by_folder: dict[str, Counter[str]] = {}
    by_rule: dict[str, Counter[str]] = {}
    for result in results:
        folder = os.path.dirname(result.path).replace(os.sep, "/") or "."
        for finding in result.findings:
            by_folder.setdefault(folder, Counter())[kind(finding)] += 1
            name = f"{finding.rule} {finding.name}"
            by_rule.setdefault(name, Counter())[kind(finding)] += 1
    if not by_folder:
        return ""
    rules = sorted(by_rule.items(), key=lambda item: (-item[1].total(), item[0]))
    legend = " ".join(f'<span class="tag {k}">{label}</span>' for k, label in _KINDS.items())
    return (
        f'<section id="progress"><h2>Progress</h2>\n<p class="legend">{legend}</p>\n'
        f"{_bars('Folder', sorted(by_folder.items()))}\n{_bars('Rule', rules)}\n</section>"
    )


def _bars(head: str, rows: Sequence[tuple[str, Counter[str]]]) -> str:
    most = max(states.total() for _, states in rows)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="number">{states.total()}</td>'
        f"<td>{_bar(states, name, states.total() / most)}</td></tr>\n"
        for name, states in rows
    )
    return (
        f'<table class="bars"><thead><tr><th scope="col">{head}</th>'
        '<th scope="col" class="number">Places</th><th scope="col">State</th></tr></thead>\n'
        f"<tbody>{body}</tbody></table>"
    )


# -- what is left to people ----------------------------------------------------------------------


def _checklist(results: list[FileResult]) -> str:
    groups: dict[Effort, list[str]] = {}
    for result in results:
        for finding, mark in zip(result.findings, marks(result), strict=True):
            if state_of(finding) == "manual":
                groups.setdefault(finding.effort, []).append(_task(result, finding, mark))
    if not groups:
        return '<section id="by-hand"><h2>By hand</h2><p>Nothing is left to a person.</p></section>'
    body = "".join(
        f"<h3>{title} ({len(groups[effort])})</h3>\n"
        f'<ul class="tasks">{"".join(groups[effort])}</ul>\n'
        for effort, title in _EFFORTS.items()
        if effort in groups
    )
    return f'<section id="by-hand"><h2>By hand</h2>\n{body}</section>'


def _task(result: FileResult, finding: Finding, mark: str) -> str:
    path = result.path.replace(os.sep, "/")
    key = escape(f"{path}:{mark}", quote=True)
    place = f"{path}:{finding.where}"
    return (
        f'<li class="finding" {_data(result, finding)}><label><input type="checkbox" '
        f'data-task="{key}"> <span><a href="#{_anchor(path)}"><code>{escape(place)}</code></a> '
        f"{_rule_link(finding)} {_ticked(finding.advice)}</span></label></li>\n"
    )


def _data(result: FileResult, finding: Finding) -> str:
    path = escape(result.path.replace(os.sep, "/"), quote=True)
    return f'data-rule="{finding.rule}" data-kind="{kind(finding)}" data-path="{path}"'


def _anchor(path: str) -> str:
    return "file-" + "".join(c if c.isalnum() else f"-{ord(c):x}-" for c in path)


def _rule_link(finding: Finding) -> str:
    return f'<a href="#rule-{finding.rule}">{finding.rule}</a>'


def _remarks(run: Run) -> Iterator[str]:
    for sort, notes in remarks.by_kind(run):
        items = "".join(
            f"<li><p><code>{escape(remarks.place(n))}</code> {_ticked(n.message)}. "
            f"<b>{_ticked(n.advice)}</b> <small>{escape(n.source)}</small></p></li>\n"
            for n in notes
        )
        yield (
            f'<section id="{sort}"><h2>{remarks.TITLES[sort]}</h2>\n'
            f"<p>{remarks.INTRODUCTIONS[sort]}</p>\n<ul>{items}</ul></section>"
        )


def _plans(run: Run) -> Iterator[str]:
    for index, plan in enumerate(run.plans, 1):
        notes = "".join(f"<li>{escape(note)}</li>" for note in plan.notes)
        code = f"<pre>{escape(chr(10).join(plan.imports))}</pre>\n" if plan.imports else ""
        body = "".join(
            f"<h3>{number}. {escape(heading)}</h3>\n<ul>{''.join(map(_step, groups))}</ul>\n"
            for number, (heading, groups) in enumerate(plans.stages(plan), 1)
        )
        yield (
            f'<section id="plan-{index}"><h2>{escape(plans.title(plan))}</h2>\n'
            f"<p>{plans.INTRODUCTION}</p>\n<ul>{notes}</ul>\n{code}{body}</section>"
        )


def _step(steps: list[Step]) -> str:
    first = steps[0]
    code = f"<pre>{escape(first.target)}</pre>" if first.target else ""
    note = f"<p>{escape(first.note)}.</p>" if first.note else ""
    place = f"<code>{escape(plans.place(steps))}</code>"
    return f"<li><p>{place} {_ticked(first.what)}</p>{code}{note}</li>\n"


# -- files ---------------------------------------------------------------------------------------


def _files(results: list[FileResult]) -> str:
    body = "\n".join(map(_file, results)) or "<p>Nothing of torch_xla was found.</p>"
    return f'<section id="files"><h2>Files</h2>\n{body}\n</section>'


def _file(result: FileResult) -> str:
    path = result.path.replace(os.sep, "/")
    counts = Counter(map(kind, result.findings))
    told = ", ".join(f"{counts[k]} {label}" for k, label in _KINDS.items() if counts[k])
    lines = [
        f'<details class="file" id="{_anchor(path)}" data-path="{escape(path, quote=True)}">'
        f"<summary><code>{escape(path)}</code> "
        f'<span class="status {result.status}">{result.status}</span> '
        f'<span class="told">{told}</span></summary>'
    ]
    if result.error is not None:
        lines.append(f'<p class="error">{escape(result.error)}</p>')
    if result.held_back is not None:
        lines.append(f"<p>Left as it is: {escape(result.held_back)}</p>")
    snippets = Snippets(result.source)
    found = "".join(_finding(result, f, snippets) for f in result.findings)
    if found:
        lines.append(f'<ul class="findings">{found}</ul>')
    if result.output is not None:
        lines.append(_diff(result))
    return "\n".join([*lines, "</details>"])


def _finding(result: FileResult, finding: Finding, snippets: Snippets) -> str:
    state = kind(finding)
    parts = [
        f'<li class="finding" {_data(result, finding)}>'
        f'<p><span class="tag {state}">{_KINDS[state]}</span> '
        f"<b>{finding.where}</b> {_rule_link(finding)} "
        f"{_ticked(finding.message)}</p>"
    ]
    shown = snippets.line(finding)
    if shown is not None:
        text, before, width = shown
        marked = (
            f"{escape(text[:before])}<mark>{escape(text[before : before + width])}</mark>"
            f"{escape(text[before + width :])}"
        )
        parts.append(f"<pre>{marked}</pre>")
    if state == "manual":
        why = REASONS.get(finding.reason or "", "")
        parts.append(f"<p>{escape(why[:1].upper() + why[1:])}. " if why else "<p>")
        parts.append(f"<b>{_ticked(finding.advice)}</b></p>")
    elif finding.fix is not None:
        parts.append(f"<p>{escape(finding.fix.title)}</p>")
        fixed = "\n".join(snippets.fixed(finding) or ())
        if fixed and result.output is None:
            parts.append(f'<pre class="new">{escape(fixed)}</pre>')
    return "".join([*parts, "</li>\n"])


def _ticked(text: str) -> str:
    """The text with what stands in backticks as code."""
    pieces = text.split("`")
    return "".join(
        f"<code>{escape(piece)}</code>" if index % 2 else escape(piece)
        for index, piece in enumerate(pieces)
    )


def _diff(result: FileResult) -> str:
    """The changed lines before and after, side by side."""
    before, after = _lines(result.source or b""), _lines(result.output or b"")
    rows: list[str] = []
    for group in difflib.SequenceMatcher(None, before, after).get_grouped_opcodes(_CONTEXT):
        if rows:
            rows.append('<tr class="gap"><td colspan="4">…</td></tr>')
        for tag, a, b, c, d in group:
            rows += _side_by_side(tag, list(_numbered(before, a, b)), list(_numbered(after, c, d)))
    return (
        '<table class="diff"><caption>Changes</caption><thead><tr>'
        '<th scope="col" colspan="2">Before</th><th scope="col" colspan="2">After</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _numbered(lines: list[str], start: int, end: int) -> Iterator[tuple[int, str]]:
    return ((index + 1, lines[index]) for index in range(start, end))


def _side_by_side(
    tag: str, old: list[tuple[int, str]], new: list[tuple[int, str]]
) -> Iterator[str]:
    for index in range(max(len(old), len(new))):
        cells = ""
        for side, lines in (("old", old), ("new", new)):
            if index < len(lines):
                number, text = lines[index]
                style = side if tag != "equal" else ""
                cells += f'<td class="number">{number}</td><td class="{style}">{escape(text)}</td>'
            else:
                cells += '<td></td><td class="none"></td>'
        yield f"<tr>{cells}</tr>"


def _lines(data: bytes) -> list[str]:
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except (SyntaxError, UnicodeDecodeError, LookupError):
        encoding = "utf-8"
    text = data.decode(encoding, errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


# -- rules ---------------------------------------------------------------------------------------


def _rules(every: list[Finding], rules: RuleSet) -> str:
    body = ""
    for code in sorted({f.rule for f in every}):
        rule = rules.rules[code]
        body += (
            f'<dt id="rule-{code}">{code} {escape(rule.name)}: {_ticked(rule.title)}</dt>'
            f"<dd>{_ticked(' '.join(rule.why.split()))} <b>{_ticked(rule.advice)}</b></dd>\n"
        )
    return f'<section id="rules"><h2>Rules</h2>\n<dl>{body}</dl>\n</section>\n</main>'
