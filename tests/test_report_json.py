"""The reports for programs: JSON and its schema, GitHub."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_engine import finding

from xla2tpu import __version__
from xla2tpu.model import Applicability, Edit, FileResult, Fix, Mode, Status
from xla2tpu.report import github, json_
from xla2tpu.runner import Run

ROOT = Path(__file__).parent.parent


def example() -> Run:
    fix = Fix("Remove", Applicability.SAFE, (Edit(0, 3, "ä"),))
    places = [
        finding(fix=fix),
        finding(applied=True),
        finding(applicability=Applicability.MANUAL, reason="no-equivalent", counts=False),
    ]
    return Run(
        Mode.CHECK,
        [
            FileResult("c.py", Status.CLEAN),
            FileResult("e\udcff.py", Status.ERROR, error="cannot be read"),
            FileResult("t.py", Status.NEEDS_WORK, places, mentions_torch_xla=True),
        ],
    )


def test_shape() -> None:
    report = json.loads(json_.render(example()))
    assert list(report) == ["version", "tool_version", "summary", "files", "notes", "plans"]
    assert report["version"] == 1
    assert report["tool_version"] == __version__
    assert report["summary"] == {
        "files_scanned": 3,
        "files_with_torch_xla": 1,
        "files_done": 0,
        "files_needing_work": 1,
        "references": 2,
        "applied": 1,
        "fixable": 1,
        "manual": 0,
        "suppressed": 0,
        "errors": 1,
    }
    file = report["files"][2]
    assert {k: v for k, v in file.items() if k != "findings"} == {
        "path": "t.py",
        "status": "needs-work",
        "references": 2,
        "applied": 1,
        "fixable": 1,
        "manual": 0,
        "suppressed": 0,
        "error": None,
        "held_back": None,
    }
    assert file["findings"][0] == {
        "rule": "XLA101",
        "name": "mark-step",
        "path": "t.py",
        "cell": None,
        "line": 1,
        "column": 1,
        "end_line": 1,
        "end_column": 4,
        "api": "torch_xla.core.xla_model.mark_step",
        "counts": True,
        "blocks": True,
        "applicability": "safe",
        "reason": None,
        "effort": "trivial",
        "applied": False,
        "suppressed": False,
        "in_baseline": False,
        "message": "`mark_step` cuts the lazy graph",
        "advice": "Delete the call.",
        "fix": {
            "title": "Remove",
            "applicability": "safe",
            "edits": [{"start": 0, "end": 3, "content": "ä"}],
        },
    }


def test_any_terminal_takes_it() -> None:
    json_.render(example()).encode("ascii")


def test_report_fits_its_schema() -> None:
    check(json.loads(json_.render(example())), json_.SCHEMA, "report")


@pytest.mark.parametrize(
    "change", [{"status": "fine"}, {"references": -1}, {"more": 1}, {"error": 3}]
)
def test_schema_refuses_other_things(change: dict[str, Any]) -> None:
    report = json_.document(example())
    report["files"][0].update(change)
    with pytest.raises(AssertionError):
        check(report, json_.SCHEMA, "report")


def test_schema_file_is_current() -> None:
    file = ROOT / "docs" / "schemas" / "report.schema.json"
    assert json.loads(file.read_text()) == json_.SCHEMA


def test_members_are_documented() -> None:
    page = (ROOT / "docs" / "json-report.md").read_text()
    names = set(re.findall(r'"(\w+)": \{', json.dumps(json_.SCHEMA["properties"])))
    missing = [n for n in names - {"properties", "items"} if f"`{n}`" not in page]
    assert [n for n in missing if f'"{n}"' not in page] == []


def test_github() -> None:
    run = example()
    run.results[2].findings[2].end_line = 2
    run.results[2].findings[2].blocks = False
    run.results[2].path = "a,b/100%.py"
    assert github.render(run).splitlines() == [
        "::error title=xla2tpu,file=e\udcff.py::cannot be read",
        "::error title=xla2tpu XLA101 (mark-step),file=a%2Cb/100%25.py,line=1,endLine=1,col=1,"
        "endColumn=4::XLA101 `mark_step` cuts the lazy graph",
        "::warning title=xla2tpu XLA101 (mark-step),file=a%2Cb/100%25.py,line=1,endLine=2::"
        "XLA101 `mark_step` cuts the lazy graph. Delete the call. (no-equivalent)",
    ]


def check(value: Any, schema: dict[str, Any], where: str) -> None:
    """The part of JSON schema that ours uses."""
    if "anyOf" in schema:
        branch = schema["anyOf"][0] if value is not None else schema["anyOf"][1]
        check(value, branch, where)
    if "enum" in schema:
        assert value in schema["enum"], where
    if "const" in schema:
        assert value == schema["const"], where
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(_is(value, name) for name in types), where
    if "minimum" in schema:
        assert value >= schema["minimum"], where
    if "pattern" in schema:
        assert re.search(schema["pattern"], value), where
    if schema.get("type") == "object":
        assert set(schema["required"]) <= set(value), where
        assert set(value) <= set(schema["properties"]), where
        for name, inner in value.items():
            check(inner, schema["properties"][name], f"{where}.{name}")
    if schema.get("type") == "array":
        for index, inner in enumerate(value):
            check(inner, schema["items"], f"{where}[{index}]")


def _is(value: Any, name: str) -> bool:
    kinds: dict[str, Any] = {
        "string": str,
        "integer": int,
        "boolean": bool,
        "null": type(None),
        "object": dict,
        "array": list,
    }
    if name == "integer" and isinstance(value, bool):
        return False
    return isinstance(value, kinds[name])
