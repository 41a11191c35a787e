"""Reports for other programs: SARIF, GitLab's Code Quality, JUnit."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from xla2tpu.cli import main

SOURCE = """\
import torch_xla.core.xla_model as xm

é = "ü"; xm.mark_step()
xm.rendezvous("a", replicas=[1])
xm.mark_step()  # noqa: XLA101
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").touch()
    Path("pkg").mkdir()
    Path("pkg/a file.py").write_text(SOURCE, encoding="utf-8")
    Path("pkg/bad.py").write_bytes(b"# coding: nonsense\nimport torch_xla\n")
    Path("pkg/plain.py").write_text("x = 1\n")


def report(output_format: str, *options: str) -> str:
    command = ["check", "--output-format", output_format, "pkg", *options]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2  # the file that cannot be decoded
    return result.stdout


def sarif(*options: str) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(report("sarif", *options))
    return log


def test_sarif_places_and_states() -> None:
    (run,) = sarif()["runs"]
    results = run["results"]
    assert [(r["ruleId"], r["level"]) for r in results] == [
        ("XLA101", "warning"),
        ("XLA520", "error"),
        ("XLA101", "warning"),
    ]
    place = results[0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "pkg/a%20file.py"}
    assert place["region"] == {"startLine": 3, "startColumn": 10, "endLine": 3, "endColumn": 22}
    assert [r.get("suppressions") for r in results] == [None, None, [{"kind": "inSource"}]]
    assert results[0]["partialFingerprints"] != results[2]["partialFingerprints"]
    rules = run["tool"]["driver"]["rules"]
    assert [rules[r["ruleIndex"]]["id"] for r in results] == [r["ruleId"] for r in results]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert "nonsense" in invocation["toolExecutionNotifications"][0]["message"]["text"]


@pytest.mark.parametrize("lead", ["", "\N{ZERO WIDTH NO-BREAK SPACE}"], ids=["plain", "bom"])
def test_sarif_fixes_are_the_edits(lead: str) -> None:
    """Applied by their lines and columns, they give what the fix gives."""
    text = "import torch_xla.core.xla_model as xm; xm.mark_step()\né = 1\n"
    Path("pkg/a file.py").write_text(lead + text, encoding="utf-8")
    (result,) = sarif()["runs"][0]["results"]
    (change,) = result["fixes"][0]["artifactChanges"]
    starts = [0, text.index("\n") + 1, len(text)]
    for replacement in reversed(change["replacements"]):
        region = replacement["deletedRegion"]
        start = starts[region["startLine"] - 1] + region["startColumn"] - 1
        end = starts[region["endLine"] - 1] + region["endColumn"] - 1
        text = text[:start] + replacement["insertedContent"]["text"] + text[end:]
    assert text == "é = 1\n"


def test_sarif_is_valid() -> None:
    """The schema is OASIS's; `.ci/run` says where it comes from."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = os.environ.get("XLA2TPU_SARIF_SCHEMA")
    if not schema:
        pytest.skip("XLA2TPU_SARIF_SCHEMA does not name the schema of SARIF 2.1.0")
    rules = json.loads(Path(schema).read_text(encoding="utf-8-sig"))
    validator = jsonschema.validators.validator_for(rules)(rules)
    assert [e.message for e in validator.iter_errors(sarif())] == []
    assert list(validator.iter_errors({"version": "2.1.0"}))


def test_gitlab() -> None:
    issues = json.loads(report("gitlab"))
    assert [(i["check_name"], i["severity"]) for i in issues] == [
        ("XLA101", "minor"),
        ("XLA520", "major"),
        ("xla2tpu", "blocker"),
    ]
    assert issues[0]["location"] == {"path": "pkg/a file.py", "lines": {"begin": 3}}
    before = {i["fingerprint"] for i in issues}
    assert len(before) == 3
    path = Path("pkg/a file.py")
    path.write_text("# moved\n" + SOURCE, encoding="utf-8")
    assert {i["fingerprint"] for i in json.loads(report("gitlab"))} == before


def test_junit() -> None:
    root = ET.fromstring(report("junit"))
    assert root.attrib == {"name": "xla2tpu", "tests": "4", "failures": "2", "errors": "1"}
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["pkg/a file.py", "pkg/bad.py", "pkg/plain.py"]
    first = suites["pkg/a file.py"][0]
    assert (first.get("name"), first.get("line")) == ("XLA101 mark-step (line 3)", "3")
    failure = first.find("failure")
    assert failure is not None
    assert (failure.text or "").startswith("pkg/a file.py:3:10: XLA101 ")
    assert suites["pkg/bad.py"][0].find("error") is not None
    assert len(suites["pkg/plain.py"][0]) == 0


def test_places_in_a_notebook_are_those_of_its_file() -> None:
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": ["import torch_xla.core.xla_model as xm\n", 'xm.send(x, "é")\n'],
    }
    book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    text = json.dumps(book, indent=1)
    Path("pkg/book.ipynb").write_text(text)
    line = next(i for i, t in enumerate(text.splitlines(), 1) if "xm.send" in t)
    results = [
        r
        for r in sarif()["runs"][0]["results"]
        if "book" in r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    ]
    assert [r["locations"][0]["physicalLocation"]["region"]["startLine"] for r in results] == [line]
    issues = [i for i in json.loads(report("gitlab")) if "book" in i["location"]["path"]]
    assert [i["location"]["lines"]["begin"] for i in issues] == [line]
    assert "pkg/book.ipynb:cell 1:2:1: XLA521" in report("junit")
    assert "file=pkg/book.ipynb::cell 1:2:1: XLA521" in report("github")
