"""Whole programs and hard cases: what `migrate` makes of them, against files kept beside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import check_harmless, check_transformed

from xla2tpu import batch, engine
from xla2tpu.model import FileResult, Mode, Settings, Status

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
PROGRAMS = sorted(
    f"{kind}/{p.name}" for kind in ("programs", "runnable") for p in (FIXTURES / kind).iterdir()
)
HARD = sorted(p.name.removesuffix(".before.py") for p in (FIXTURES / "hard").glob("*.before.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    before, after = FIXTURES / name / "before", FIXTURES / name / "after"
    work = tmp_path / name
    shutil.copytree(before, work)
    results = _migrate(work)
    assert [(r.path, r.error) for r in results if r.error] == []
    for result in results:
        old = Path(result.path).read_bytes()
        check_harmless(old, result.output or old, result)
        if result.output is not None:
            Path(result.path).write_bytes(result.output)
    assert [r.path for r in _migrate(work) if r.output is not None] == []
    if pytestconfig.getoption("--update-fixtures"):
        shutil.rmtree(after, ignore_errors=True)
        shutil.copytree(work, after)
    assert _tree(work) == _tree(after)


@pytest.mark.parametrize("name", HARD)
def test_hard(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    before = (FIXTURES / "hard" / f"{name}.before.py").read_bytes()
    expected = FIXTURES / "hard" / f"{name}.after.py"
    if pytestconfig.getoption("--update-fixtures"):
        settings = Settings(mode=Mode.MIGRATE, unsafe=True, root=str(tmp_path))
        result = engine.run_source(before, str(tmp_path / "example.py"), settings)
        expected.write_bytes(before if result.output is None else result.output)
    check_transformed(before, expected.read_bytes())


def test_names_of_other_projects_give_no_finding() -> None:
    source = (FIXTURES / "programs/not_ours_2024/before/names_of_others.py").read_bytes()
    result = engine.run_source(source, "names_of_others.py", Settings(mode=Mode.CHECK))
    assert (result.findings, result.status) == ([], Status.CLEAN)


def test_wrong_encoding_is_an_error_and_changes_nothing() -> None:
    data = b"import torch_xla.core.xla_model as xm\nname = 'K\xf6ln'\nxm.mark_step()\n"
    result = engine.run_source(data, "example.py", Settings(mode=Mode.MIGRATE, unsafe=True))
    assert (result.status, result.output) == (Status.ERROR, None)
    assert result.error is not None
    assert result.error.startswith("line 2: ")


def _migrate(root: Path) -> list[FileResult]:
    settings = Settings(mode=Mode.MIGRATE, unsafe=True, root=str(root))
    return batch.run_project([(str(p), settings) for p in sorted(root.rglob("*.py"))])


def _tree(root: Path) -> dict[str, str]:
    """The text of every file below ``root``; latin-1 shows each byte as one character."""
    return {
        str(p.relative_to(root)): p.read_bytes().decode("latin-1")
        for p in sorted(root.rglob("*"))
        if p.is_file() and "__pycache__" not in p.parts
    }
