"""`python -m xla2tpu.docs`: the parts of the documentation that are made from code and rules.

Writes `docs/rules/`, the table of rules in the README, `docs/reasons.md`, `docs/coverage.md` and
`docs/schemas/`.
With `--check` nothing is written, and the exit status is 1 when something is stale.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from xla2tpu import ruleschema
from xla2tpu.reasons import REASONS
from xla2tpu.report import coverage, json_, rulemarkdown
from xla2tpu.rulemodel import RuleSet
from xla2tpu.rules import load_rules

ROOT = Path(__file__).resolve().parent.parent
START, END = "<!-- rules: made by `python -m xla2tpu.docs` -->", "<!-- end of rules -->"


def main(arguments: list[str] | None = None) -> int:
    """Write what is stale, or with `--check` name it; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m xla2tpu.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 if stale")
    check = parser.parse_args(arguments).check
    if not (ROOT / "docs").is_dir():
        parser.error("the documentation is made in a checkout of the project")
    stale = changes(ROOT)
    for path, content in stale.items():
        print(f"{'stale' if check else 'written' if content is not None else 'removed'}: {path}")
        if not check:
            _put(ROOT / path, content)
    return 1 if check and stale else 0


def changes(root: Path) -> dict[str, str | None]:
    """What has to be written below ``root``: content by path, None for a page that has to go."""
    names = json.loads((root / "docs" / "data" / "torch_xla_names.json").read_bytes())
    wanted = generated(load_rules(), (root / "README.md").read_text(encoding="utf-8"), names)
    found: dict[str, str | None] = {}
    for page in sorted((root / "docs" / "rules").glob("*.md")):
        path = page.relative_to(root).as_posix()
        if path not in wanted:
            found[path] = None
    for path, content in wanted.items():
        file = root / path
        if not file.is_file() or file.read_bytes() != content.encode():
            found[path] = content
    return found


def generated(ruleset: RuleSet, readme: str, names: dict[str, Any]) -> dict[str, str]:
    """All that is made, by path; ``readme`` is the text around the table of rules, ``names``
    the inventory of torch_xla's public names.
    """
    pages = {
        f"docs/rules/{rule.code}.md": rulemarkdown.page(rule) for rule in ruleset.rules.values()
    }
    return {
        **pages,
        "docs/rules/README.md": rulemarkdown.index(ruleset),
        "docs/reasons.md": reasons(),
        "docs/coverage.md": coverage.page(ruleset, names) + "\n",
        "docs/schemas/report.schema.json": _json(json_.SCHEMA),
        "docs/schemas/rule.schema.json": _json(ruleschema.schema()),
        "README.md": with_table(readme, rulemarkdown.family_table(ruleset, "docs/rules/README.md")),
    }


def reasons() -> str:
    """The page of the words for why a place is not rewritten."""
    lines = [
        "<!-- Made by `python -m xla2tpu.docs` from xla2tpu/reasons.py; do not edit. -->",
        "# Reasons",
        "",
        "Every place that is left to a person has one of these words, the same in every output.",
        "",
        "| Word | Why nothing is rewritten |",
        "| --- | --- |",
        *(f"| `{word}` | {meaning} |" for word, meaning in sorted(REASONS.items())),
    ]
    return "\n".join(lines) + "\n"


def with_table(readme: str, table: str) -> str:
    """``readme`` with what stands between the two marks replaced. Raises ValueError."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"README.md lacks the marks {START} and {END}")
    return f"{before}{START}\n{table}{END}{after}"


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _put(file: Path, content: str | None) -> None:
    if content is None:
        file.unlink()
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode())


if __name__ == "__main__":
    sys.exit(main())
