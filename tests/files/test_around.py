"""Projects with the files around their code, against what `migrate` is known to make of them."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from xla2tpu import batch
from xla2tpu.config import Configs
from xla2tpu.discover import discover
from xla2tpu.files.places import apply
from xla2tpu.model import FileResult, Mode, Settings, Status

AROUND = Path(__file__).resolve().parents[2] / "fixtures" / "around"
NOTEBOOKS = AROUND.parent / "notebooks"
PROJECTS = sorted(p.name for p in AROUND.iterdir())


@pytest.mark.parametrize("name", [*PROJECTS, "notebooks"])
def test_project(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    home = NOTEBOOKS if name == "notebooks" else AROUND / name
    before, after = home / "before", home / "after"
    work = tmp_path / name
    shutil.copytree(before, work)
    results = run(work)
    assert [(r.path, r.error) for r in results if r.error] == []
    for result in results:
        _check(result)
        if result.output is not None:
            Path(result.path).write_bytes(result.output)
    again = run(work)
    assert [r.path for r in again if r.output is not None] == []
    # What is done has nothing left that blocks, and stays so.
    done = {r.path for r in results if r.status is Status.DONE}
    left = {r.path for r in again if any(f.blocks and not f.suppressed for f in r.findings)}
    assert not done & left
    if pytestconfig.getoption("--update-fixtures"):
        shutil.rmtree(after, ignore_errors=True)
        shutil.copytree(work, after)
    assert tree(work) == tree(after)


def run(root: Path, mode: Mode = Mode.MIGRATE) -> list[FileResult]:
    """All files of a folder, as a run on it finds them."""
    settings = Settings(mode=mode, unsafe=True, root=str(root), with_fixes=True)
    found = discover([str(root)], Configs())
    return batch.run_project([(f.path, settings) for f in found.files])


def _check(result: FileResult) -> None:
    """Accounting, and that the edits of a result are the only difference that it makes."""
    assert result.source is not None or result.output is None
    counts = [result.count(s) for s in ("applied", "fixable", "manual", "suppressed")]
    assert result.references == sum(counts)
    source = result.source or b""
    for finding in result.findings:
        assert 0 <= finding.start <= finding.end <= len(source)
        assert finding.line >= 1
        assert finding.column >= 1
        assert (
            (finding.reason is None) == (finding.fix is not None)
            or finding.suppressed
            or (finding.rule in ("XLA095", "XLA096"))
        )
    if result.output is not None:
        assert apply(source, result.edits, "utf-8") == result.output
        ends = [(e.start, e.end) for e in sorted(result.edits)]
        assert all(a[1] <= b[0] for a, b in pairwise(ends))


def tree(root: Path) -> dict[str, str]:
    """The text of every file below a folder; latin-1 shows each byte as one character."""
    return {
        os.fspath(p.relative_to(root)): p.read_bytes().decode("latin-1")
        for p in sorted(root.rglob("*"))
        if p.is_file() and "__pycache__" not in p.parts
    }
