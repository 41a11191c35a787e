"""Write docs/verified-rules.md: which rules are shown to keep what programs compute, and by which.

    python scripts/verified_rules.py [--check]

A rule counts where the original ran a line that the rule rewrote, and the migrated program, run
on the emulated device, does what the original did; the tests make sure of the latter.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from record_fixtures import ROOT, FixtureRun, all_runs, left_out

from xla2tpu.model import Mode
from xla2tpu.report.rulemarkdown import how
from xla2tpu.rulemodel import Rule
from xla2tpu.rules import load_rules
from xla2tpu.runner import Request, run
from xla2tpu.verify.record import loads
from xla2tpu.verify.run import copy

PAGE = ROOT / "docs" / "verified-rules.md"
_HEAD = """\
# Rules shown by running

<!-- made by `python scripts/verified_rules.py` -->

The programs of `fixtures/` that can run do so in the tests: the original ran under torch_xla 2.9 on
the CPU, and what it did is kept in `fixtures/records/`; the migrated program runs on the
[emulated device](emulator.md) and has to print, compute and save the same ([verify](verify.md)). A
rule stands here if such a run came over a line that the rule rewrote. The emulated device is no
TPU: what it cannot show is said there.
"""


def executed_rules(program: FixtureRun) -> set[str]:
    """The codes of rules that rewrote a line which the original ran."""
    executed = loads(program.record.read_text(encoding="utf-8")).executed
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve() / "program"
        copy(program.folder("before"), work)
        request = Request((str(work),), Mode.MIGRATE, unsafe=True, partial=True, allow_dirty=True)
        found = set()
        for result in run(request).results:
            lines = executed.get(Path(result.path).resolve().relative_to(work).as_posix(), [])
            for finding in result.findings:
                ran = any(finding.line <= line <= finding.end_line for line in lines)
                if finding.applied and ran:
                    found.add(finding.rule)
    return found


def is_gone(rule: Rule) -> bool:
    """Whether torch_xla 2.9 has none of the names of a rule."""
    removed = [
        api.removed or (api.signatures[-1].removed if api.signatures else None)
        for api in rule.apis.values()
    ]
    return bool(removed) and all(
        release and tuple(map(int, release.split("."))) <= (2, 9) for release in removed
    )


def page() -> str:
    """The text of the page."""
    by_rule: dict[str, list[str]] = {}
    for program in all_runs():
        for code in executed_rules(program):
            by_rule.setdefault(code, []).append(program.name)
    rules = load_rules(()).rules
    gaps = [
        code
        for code, rule in sorted(rules.items())
        if how(rule) not in ("by hand", "-") and code not in by_rule
    ]
    lines = [_HEAD]
    lines += [
        f"{len(by_rule)} rules are shown by {len(all_runs())} programs.",
        "",
        "| Rule | | Programs |",
        "| --- | --- | --- |",
    ]
    for code in sorted(by_rule):
        names = ", ".join(sorted(by_rule[code]))
        lines.append(f"| {code} | {rules[code].name} | {names} |")
    gone = {code for code in gaps if is_gone(rules[code])}
    possible = len(by_rule) + len(gaps) - len(gone)
    lines += ["", "## Gaps", ""]
    lines += [
        f"{len(gaps)} rules have a rewrite that no such program runs. {len(gone)} of them cannot,",
        "since torch_xla 2.9 has none of their names; of the others "
        f"{len(by_rule) / possible:.0%} are shown.",
        "",
    ]
    lines += [
        f"- {code} {rules[code].name}" + (" (gone before 2.9)" if code in gone else "")
        for code in gaps
    ]
    lines += ["", "## Programs that are not run", "", "| Fixture | Why |", "| --- | --- |"]
    lines += [f"| {name} | {why} |" for name, why in sorted(left_out().items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only tell whether it is up to date")
    options = parser.parse_args()
    text = page()
    if options.check:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
