"""The reports for people: text, concise, statistics, Markdown, and the lines under a place."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engine import finding

from xla2tpu.model import (
    Applicability,
    Edit,
    Effort,
    FileResult,
    Finding,
    Fix,
    Mode,
    Status,
)
from xla2tpu.report import concise, diff, markdown, statistics_, text
from xla2tpu.report.snippet import Snippets
from xla2tpu.report.summary import summarize, verdict
from xla2tpu.runner import Run

SOURCE = b"import torch_xla\nif x:\n\txm.mark_step()\ny = xm.all_gather(z)\n"


def safe(**changes: Any) -> Finding:
    edit = Edit(24, 38, "pass")
    values = {
        "line": 3,
        "column": 2,
        "end_line": 3,
        "end_column": 16,
        "start": 24,
        "end": 38,
        "fix": Fix("Remove the step marker", Applicability.SAFE, (edit,)),
    }
    return finding(**(values | changes))


def manual(**changes: Any) -> Finding:
    values = {
        "rule": "XLA512",
        "name": "all-gather",
        "line": 4,
        "column": 5,
        "end_line": 4,
        "end_column": 18,
        "applicability": Applicability.MANUAL,
        "effort": Effort.REDESIGN,
        "reason": "whole-program",
        "message": "`all_gather` is a collective",
        "advice": "Use torch.distributed",
    }
    return finding(**(values | changes))


def checked(*findings: Finding, **changes: Any) -> Run:
    values: dict[str, Any] = {"mentions_torch_xla": True, "source": SOURCE}
    result = FileResult("t.py", Status.NEEDS_WORK, list(findings), **(values | changes))
    clean = FileResult("c.py", Status.CLEAN)
    return Run(Mode.CHECK, [clean, result])


def test_text_of_a_check() -> None:
    assert text.render(checked(safe(), manual())) == (
        "t.py\n"
        "  3:2 XLA101 mark-step, safe: `mark_step` cuts the lazy graph\n"
        "    3 |     xm.mark_step()\n"
        "      |     ^^^^^^^^^^^^^^\n"
        "    fix: Remove the step marker\n"
        "      +     pass\n"
        "  4:5 XLA512 all-gather, by hand: `all_gather` is a collective\n"
        "    4 | y = xm.all_gather(z)\n"
        "      |     ^^^^^^^^^^^^^\n"
        "    why: loaders, launch, gradients and collectives have to change together "
        "(whole-program)\n"
        "    do: Use torch.distributed (redesign)\n"
    )


def test_text_of_a_migration() -> None:
    run = checked(
        safe(applied=True),
        safe(applied=True, applicability=Applicability.UNSAFE, line=9),
        manual(),
        output=b"new",
    )
    run.mode = Mode.MIGRATE
    lines = text.render(run).splitlines()
    assert lines[1] == (
        "  9:2 XLA101 mark-step, rewritten, to review: `mark_step` cuts the lazy graph"
    )
    assert lines[2].startswith("  4:5 XLA512 all-gather, by hand")
    assert lines[-1] == "  changed: 2 places; now needs-work"


def test_text_without_anything_to_say() -> None:
    assert text.render(checked(safe(suppressed=True))) == ""
    assert "suppressed" in text.render(checked(safe(suppressed=True)), verbose=True)
    assert "c.py\n  clean\n" in text.render(checked(), verbose=True)


def test_text_of_errors_and_held_back_files() -> None:
    run = checked(safe(), held_back="1 unsafe fix held back: --unsafe-fixes")
    run.results.append(FileResult("e.py", Status.ERROR, error="cannot be read"))
    report = text.render(run)
    assert "  left as it is: 1 unsafe fix held back: --unsafe-fixes\n" in report
    assert report.endswith("\ne.py\n  error: cannot be read\n")


def test_colours_only_where_asked() -> None:
    assert "\x1b" not in text.render(checked(safe(), manual()))
    assert "\x1b[31m^" in text.render(checked(safe(), manual()), colour=True)


def test_verdict_of_a_check() -> None:
    assert verdict(checked(safe(), safe(applicability=Applicability.UNSAFE), manual())) == [
        "2 files scanned, 1 has to do with torch_xla: 0 done, 1 needs a person (1 place).",
        "3 references: 1 rewritable, 1 rewritable but to review, 1 by hand.",
        "1 safe fix: check --fix, or migrate.",
        "1 unsafe fix: --unsafe-fixes.",
    ]


def test_verdict_of_a_migration() -> None:
    unsafe = safe(applicability=Applicability.UNSAFE)
    run = checked(
        safe(applied=True),
        safe(applied=True, applicability=Applicability.UNSAFE),
        unsafe,
        manual(),
        manual(counts=False),
        safe(suppressed=True),
    )
    run.mode = Mode.FIX
    assert verdict(run) == [
        "2 files scanned, 1 has to do with torch_xla: 0 done, 1 needs a person (2 places).",
        "5 references: 1 rewritten, 1 rewritten and to review, 1 left fixable, 1 by hand, "
        "1 suppressed.",
        "1 other place (imports, strings, ...): 1 by hand.",
        "1 unsafe fix held back: --unsafe-fixes.",
    ]


def test_verdict_without_torch_xla() -> None:
    assert verdict(Run(Mode.CHECK, [FileResult("c.py", Status.CLEAN)])) == [
        "1 file scanned, nothing of torch_xla found."
    ]


def test_references_add_up() -> None:
    run = checked(safe(), safe(applied=True), manual(), safe(suppressed=True), safe(counts=False))
    numbers = summarize(run)
    assert numbers.references == 4
    assert numbers.references == (
        numbers.applied + numbers.fixable + numbers.manual + numbers.suppressed
    )


def test_concise() -> None:
    run = checked(safe(), manual(), safe(applied=True), safe(suppressed=True))
    run.results.append(FileResult("e.py", Status.ERROR, error="cannot be read"))
    assert concise.render(run) == (
        "t.py:3:2: XLA101 `mark_step` cuts the lazy graph [safe fix]\n"
        "t.py:4:5: XLA512 `all_gather` is a collective [manual: whole-program]\n"
        "e.py: error: cannot be read\n"
    )


def test_statistics() -> None:
    run = checked(manual(), safe(), safe(applied=True), safe(suppressed=True))
    assert statistics_.render(run) == (
        "places  applied  safe  unsafe  manual  suppressed  rule\n"
        "     3        1     1       0       0           1  XLA101 mark-step\n"
        "     1        0     0       0       1           0  XLA512 all-gather\n"
    )
    assert statistics_.render(checked()) == ""


def test_markdown() -> None:
    run = checked(safe(), safe(applicability=Applicability.UNSAFE), manual())
    run.results.append(FileResult("e|`.py", Status.ERROR, error="cannot\nbe read"))
    page = markdown.render(run)
    assert page.startswith("# From torch_xla to TorchTPU\n\n- 3 files scanned, ")
    assert "## Errors\n\n- ``e|`.py``: cannot be read\n" in page
    assert "| `t.py` | needs-work | 3 | 0 | 2 | 1 | 0 | 1 |\n" in page
    assert "### Needs a new design (1)\n\n- `t.py:4:5` XLA512 `all_gather` is" in page
    assert "**Use torch.distributed** (loaders, " in page
    assert "## To review\n\n- `t.py:3:2` XLA101" in page
    assert "| XLA101 mark-step | 2 | 0 | 1 | 1 | 0 | 0 |\n" in page


def test_markdown_of_nothing_has_no_empty_sections() -> None:
    assert markdown.render(checked(source=None)).count("##") == 1  # the file has a status


@pytest.mark.parametrize(
    ("source", "column", "end_column", "expected"),
    [
        (b"\ta.b", 2, 5, ("    a.b", 4, 3)),
        ("# -*- coding: latin-1 -*-\nä = xm".encode("latin-1"), 5, 7, ("ä = xm", 4, 2)),
        (b"x" * 300 + b" = xm", 304, 306, ("x" * 57 + " = xm", 60, 2)),
        (b"a = b", 99, 100, ("a = b", 5, 1)),
        (b"\x00\xfe = 1", 1, 2, ("\x00\ufffd = 1", 0, 1)),
    ],
)
def test_line_under_a_place(
    source: bytes, column: int, end_column: int, expected: tuple[str, int, int]
) -> None:
    line = source.count(b"\n") + 1
    place = finding(line=line, end_line=line, column=column, end_column=end_column)
    assert Snippets(source).line(place) == expected


def test_place_of_several_lines() -> None:
    place = finding(column=5, end_line=3, end_column=2)
    assert Snippets(b"a = f(\n1\n)\n").line(place) == ("a = f(", 4, 2)


def test_no_source_no_lines() -> None:
    assert Snippets(None).line(finding()) is None
    assert Snippets(b"a").line(finding(line=7)) is None
    assert Snippets(None).fixed(safe()) is None


def test_fixed_lines() -> None:
    gone = Fix("Remove", Applicability.SAFE, (Edit(0, 17, ""), Edit(23, 39, "")))
    assert Snippets(SOURCE).fixed(safe(fix=gone)) == []
    elsewhere = Fix("Remove", Applicability.SAFE, (Edit(0, 17, ""),))
    assert Snippets(SOURCE).fixed(safe(fix=elsewhere)) is None


def test_diff() -> None:
    before = b"a\r\nb \xe4\nc"
    after = b"a\r\nb\nc"
    results = [FileResult("p/t.py", Status.DONE, source=before, output=after)]
    results.append(FileResult("new.py", Status.DONE, source=b"", output=b"h\n"))
    results.append(FileResult("same.py", Status.CLEAN))
    patch = diff.render(Run(Mode.FIX, results, diff=True))
    assert patch == (
        b"--- a/p/t.py\n+++ b/p/t.py\n@@ -1,3 +1,3 @@\n a\r\n-b \xe4\n+b\n c\n"
        b"\\ No newline at end of file\n"
        b"--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+h\n"
    )
    assert b"\x1b[31m-b \xe4\x1b[0m\n" in diff.coloured(patch)
