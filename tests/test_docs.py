"""The documentation that is made from code and rules is current, and its schemas hold."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from xla2tpu import docs, ruleschema
from xla2tpu.reasons import REASONS
from xla2tpu.report import json_, rulemarkdown
from xla2tpu.rules import load_rules

ROOT = Path(__file__).parent.parent
RULES = sorted(ROOT.glob("rules/*/[XT]*.yaml"))
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(
        page
        for name in ("benchmarks", "docs", "editors")
        for page in sorted(ROOT.glob(f"{name}/**/*.md"))
    ),
]
RULE: dict[str, Any] = {
    "code": "XLA199",
    "name": "some-name",
    "title": "A title",
    "message": "`{api}` is gone",
    "why": "Because.\nIt is.",
    "advice": "Delete it.",
    "effort": "trivial",
    "apis": {"torch_xla.gone": "(a, *, b=1)"},
    "cases": [
        {"when": {"args": {"b": ["absent", False]}}, "delete": True, "applicability": "safe"}
    ],
    "examples": [{"before": "import torch_xla\n", "left": 1}],
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    return tmp_path


def test_nothing_is_stale() -> None:
    stale = sorted(docs.changes(ROOT))
    assert not stale, "run `python -m xla2tpu.docs`"


def test_check_and_write(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs.main([])
    (checkout / "docs" / "rules" / "XLA101.md").unlink()
    (checkout / "docs" / "rules" / "XLA198.md").write_text("# Gone\n")
    readme = checkout / "README.md"
    text = readme.read_text()
    readme.write_text(docs.with_table(text, "nothing\n"))
    capsys.readouterr()
    assert docs.main(["--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "stale: docs/rules/XLA198.md",
        "stale: docs/rules/XLA101.md",
        "stale: README.md",
    ]
    assert docs.main([]) == 0
    assert readme.read_text() == text
    assert not (checkout / "docs" / "rules" / "XLA198.md").exists()
    assert docs.main(["--check"]) == 0


def test_readme_without_marks() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        docs.with_table("# xla2tpu\n", "")


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_rules_fit_their_schema(path: Path) -> None:
    validator = jsonschema.Draft202012Validator(ruleschema.schema())
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        validator.validate(document)


@pytest.mark.parametrize(
    "change",
    [
        {"code": "XLA1"},
        {"code": None},
        {"more": 1},
        {"effort": "huge"},
        {"tools": True},
        {"apis": {"torch_xla.gone": 3}},
        {"apis": {"torch_xla.gone": {"since": 2.1}}},
        {"cases": [{"delete": True, "keep": True}]},
        {"cases": [{"reason": "because"}]},
        {"cases": [{"delete": True, "when": {"context": "anywhere"}}]},
        {"examples": [{"before": "import torch_xla\n"}]},
    ],
    ids=str,
)
def test_schema_refuses_other_things(change: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(ruleschema.schema())
    assert validator.is_valid(RULE)
    assert not validator.is_valid(RULE | change)


@pytest.mark.parametrize("schema", [json_.SCHEMA, ruleschema.schema()], ids=["report", "rule"])
def test_schemas_are_schemas(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema)


def test_pages_name_all_that_a_rule_says() -> None:
    for rule in load_rules().rules.values():
        page = rulemarkdown.page(rule)
        for text in (rule.code, rule.name, rule.title, rule.message, rule.advice, *rule.references):
            assert text in page
        for api in rule.apis.values():
            assert f"`{api.path}`" in page
        for op in rule.ops:
            assert f"| `{op.path}` |" in page
            assert (op.advice or rule.advice) in page
        for example in rule.examples:
            assert example.before.rstrip() in page
            assert (example.after or "").rstrip() in page


def test_every_family_is_described() -> None:
    table = rulemarkdown.family_table(load_rules(), "rules.md")
    assert "|  |" not in table
    assert table.count("\n") == 2 + len(rulemarkdown.families(load_rules()))


def test_reasons_are_all_there() -> None:
    page = docs.reasons()
    assert [word for word in REASONS if f"`{word}`" not in page] == []


def _anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page.parent / name if name else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
            assert anchor in {_anchor(h) for h in headings}, link


def test_rule_format_names_every_key() -> None:
    page = (ROOT / "docs" / "rule-format.md").read_text(encoding="utf-8")
    schema = ruleschema.schema()
    case = schema["properties"]["cases"]["items"]["properties"]
    keys = [*schema["properties"], *case, *case["when"]["properties"], "since", "removed"]
    keys += schema["properties"]["examples"]["items"]["properties"]
    assert [key for key in keys if not re.search(rf"\b{key}\b", page)] == []
