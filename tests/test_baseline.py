"""`--baseline`: what is known is accepted, what is new is not, and counts only fall."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from xla2tpu.cli import main

XM = "import torch_xla.core.xla_model as xm\n"


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").touch()


def check(*options: str) -> Result:
    return CliRunner().invoke(main, ["check", "--baseline", "known.json", *options])


def places(result: Result) -> list[str]:
    lines = (line for line in result.stdout.splitlines() if ": XLA" in line)
    return [line.partition(" ")[0].rstrip(":") for line in lines]


def allowed() -> dict[str, dict[str, int]]:
    files = json.loads(Path("known.json").read_text())["files"]
    return {path: {r: len(m) for r, m in rules.items()} for path, rules in files.items()}


def test_known_places_are_accepted_and_new_ones_are_not() -> None:
    Path("a.py").write_text(f"{XM}xm.mark_step()\n")
    made = check("--write-baseline")
    assert (made.exit_code, allowed()) == (0, {"a.py": {"XLA101": 1}})
    assert "note: 1 places are in the new known.json" in made.stderr
    # Lines move, and the same line is no new place.
    Path("a.py").write_text(f"# a comment\n\n{XM}if True:\n    xm.mark_step()  # here\n")
    assert check().exit_code == 0
    Path("a.py").write_text(f"{XM}xm.rendezvous('a')\nxm.mark_step()\nif x:\n    xm.mark_step()\n")
    Path("b.py").write_text(f"{XM}xm.mark_step()\n")
    result = check("--output-format", "concise")
    assert result.exit_code == 1
    assert places(result) == ["a.py:2:1", "a.py:5:5", "b.py:2:1"]
    assert "1 known place in the baseline." in check().stdout


def test_counts_only_fall_and_mended_files_go() -> None:
    Path("a.py").write_text(f"{XM}xm.mark_step()\nxm.mark_step(wait=True)\n")
    Path("b.py").write_text(f"{XM}xm.mark_step()\n")
    Path("c.py").write_text(f"{XM}xm.mark_step()\n")
    check("--write-baseline")
    Path("a.py").write_text(f"{XM}xm.mark_step(wait=True)\n")
    Path("b.py").unlink()
    before = Path("known.json").read_text()
    told = check("a.py")
    assert told.exit_code == 0
    assert "allows 2 places that are mended" in told.stderr
    assert Path("known.json").read_text() == before
    # `c.py` is not looked at, and stays.
    check("--write-baseline", "a.py")
    assert allowed() == {"a.py": {"XLA101": 1}, "c.py": {"XLA101": 1}}
    Path("a.py").write_text(f"{XM}xm.mark_step(wait=True)\nxm.mark_step()\n")
    Path("c.py").write_text("x = 1\n")
    assert check("--write-baseline").exit_code == 1
    assert allowed() == {"a.py": {"XLA101": 1}}


def test_in_the_reports() -> None:
    Path("a.py").write_text(f"{XM}xm.mark_step()\n")
    check("--write-baseline")
    result = check("--output-format", "json")
    file, _ = json.loads(result.stdout)["files"]
    assert (file["suppressed"], file["status"]) == (1, "ready")
    assert file["findings"][0]["in_baseline"] is True
    log = json.loads(check("--output-format", "sarif").stdout)
    assert log["runs"][0]["results"][0]["suppressions"] == [{"kind": "external"}]


def test_paths_are_those_from_the_baselines_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("sub").mkdir()
    Path("sub/a.py").write_text(f"{XM}xm.mark_step()\n")
    check("--write-baseline")
    assert allowed() == {"sub/a.py": {"XLA101": 1}}
    monkeypatch.chdir(tmp_path / "sub")
    file = str(tmp_path / "known.json")
    assert CliRunner().invoke(main, ["check", "--baseline", file, "a.py"]).exit_code == 0


BAD = {
    "not json": ("{", "known.json: not valid JSON"),
    "another version": ('{"version": 2, "files": {}}', "not a baseline of version 1"),
    "no files": ('{"version": 1}', "files: must be an object"),
    "no lists": ('{"version": 1, "files": {"a.py": {"XLA101": 3}}}', "files.a.py: must map"),
}


@pytest.mark.parametrize(("text", "error"), BAD.values(), ids=BAD)
def test_what_is_no_baseline(text: str, error: str) -> None:
    Path("known.json").write_text(text)
    result = check()
    assert result.exit_code == 2
    assert error in result.stderr


def test_usage() -> None:
    assert "--write-baseline makes it" in check().stderr
    alone = CliRunner().invoke(main, ["check", "--write-baseline"])
    assert alone.exit_code == 2
    assert CliRunner().invoke(main, ["check", "--help"]).exit_code == 0
