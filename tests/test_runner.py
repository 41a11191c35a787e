"""A run from files to files, with an engine of a few lines."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import fake_engine
import pytest

from xla2tpu.config import ConfigError
from xla2tpu.model import Mode, Settings, Status
from xla2tpu.runner import Refused, Request, run, run_stdin

SAFE = b"import torch_xla\nxm.mark_step()\n"
DONE = b"import torch_xla\npass\n"


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fake_engine.install(monkeypatch)


def put(name: str, data: bytes) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def settings_of(monkeypatch: pytest.MonkeyPatch, request: Request) -> dict[str, Settings]:
    seen: dict[str, Settings] = {}

    def look(files: list[tuple[str, Settings]], jobs: int, progress: object) -> list[object]:
        seen.update(files)
        return []

    monkeypatch.setattr(fake_engine, "run_project", look)
    run(request)
    return seen


def test_check_writes_nothing() -> None:
    file = put("a.py", SAFE)
    done = run(Request())
    assert file.read_bytes() == SAFE
    assert done.exit_status() == 1
    assert done.exit_status(exit_zero=True) == 0


def test_fix_writes() -> None:
    file = put("a.py", SAFE)
    done = run(Request(mode=Mode.FIX))
    assert file.read_bytes() == DONE
    assert done.exit_status() == 0


def test_diff_writes_nothing_and_differs() -> None:
    file = put("a.py", SAFE)
    assert run(Request(mode=Mode.FIX, diff=True)).exit_status() == 1
    assert file.read_bytes() == SAFE


def test_clean_files_are_not_touched() -> None:
    file = put("a.py", b"x = 1\r\n\xfe")
    before = file.stat()
    assert run(Request(mode=Mode.FIX)).exit_status() == 0
    assert file.stat() == before


def test_errors_do_not_stop_the_run() -> None:
    put("bad.py", b"\xff")
    put("locked.py", SAFE).chmod(0o444)
    os.symlink("nowhere", "broken.py")
    file = put("z.py", SAFE)
    done = run(Request(mode=Mode.FIX))
    assert file.read_bytes() == DONE
    assert {r.path: r.error for r in done.errors} == {
        "bad.py": "cannot be decoded as utf-8",
        "broken.py": "broken symbolic link",
        "locked.py": "not written: the file is read-only",
    }
    assert done.exit_status() == done.exit_status(exit_zero=True) == 2


def test_what_was_not_written_was_not_applied() -> None:
    put("locked.py", SAFE).chmod(0o444)
    result = run(Request(mode=Mode.FIX)).results[0]
    assert result.status is Status.ERROR
    assert result.output is None
    assert result.count("applied") == 0
    assert result.references == result.count("fixable") == 1


def test_suppressed_places_are_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    put("a.py", SAFE)
    done = run(Request())
    for finding in done.results[0].findings:
        finding.suppressed = True
    assert done.exit_status() == 0


def test_migrate_refuses_uncommitted_changes() -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    file = put("a.py", SAFE)
    with pytest.raises(Refused, match=r"1 of the files[^$]*a\.py[^$]*--allow-dirty"):
        run(Request(mode=Mode.MIGRATE))
    assert file.read_bytes() == SAFE
    run(Request(mode=Mode.MIGRATE, diff=True))
    run(Request(mode=Mode.MIGRATE, out_dir="out"))
    assert file.read_bytes() == SAFE
    assert Path("out/a.py").read_bytes() == DONE
    run(Request(mode=Mode.MIGRATE, allow_dirty=True))
    assert file.read_bytes() == DONE


def test_migrate_does_not_mind_changes_in_other_files() -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    put("other.py", b"x = 1\n")
    assert run(Request(mode=Mode.MIGRATE)).exit_status() == 0


def test_migrate_refuses_where_git_does_not_answer() -> None:
    Path(".git").mkdir()
    put("a.py", SAFE)
    with pytest.raises(Refused, match="cannot tell"):
        run(Request(mode=Mode.MIGRATE))


def test_migrate_says_that_there_is_no_undo() -> None:
    put("a.py", SAFE)
    done = run(Request(mode=Mode.MIGRATE))
    assert done.notes == ["1 changed files are not under version control: there is no undo"]


def test_out_dir_must_be_empty() -> None:
    put("a.py", SAFE)
    put("out/x", b"")
    with pytest.raises(Refused, match="not empty"):
        run(Request(mode=Mode.MIGRATE, out_dir="out"))


def test_out_dir_of_a_folder_has_its_contents() -> None:
    put("src/pkg/a.py", SAFE)
    put("src/data.txt", b"d")
    done = run(Request(("src",), mode=Mode.MIGRATE, out_dir="out"))
    assert Path("out/pkg/a.py").read_bytes() == DONE
    assert Path("out/data.txt").read_bytes() == b"d"
    assert Path("src/pkg/a.py").read_bytes() == SAFE
    assert done.notes == ["the migrated copy is in out"]


def test_settings_come_from_command_line_and_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put("a.py", b"")
    put("tests/b.py", b"")
    put("sub/c.py", b"")
    put(
        "pyproject.toml",
        b'[tool.xla2tpu]\nignore=["XLA1"]\nsource-version="2.1"\ndevice="accelerator"\n'
        b'launcher="torchrun"\n'
        b'processes="single"\n'
        b'helpers-module="p.h"\n[tool.xla2tpu.per-file-ignores]\n"tests"=["XLA2"]\n',
    )
    put("sub/.xla2tpu.toml", b'select=["XLA3"]\n')
    seen = settings_of(monkeypatch, Request(mode=Mode.FIX, unsafe=True))
    assert seen["a.py"] == Settings(
        mode=Mode.FIX,
        unsafe=True,
        ignore=("XLA1",),
        source_version="2.1",
        device="accelerator",
        processes="single",
        helpers_module="p.h",
        launcher="torchrun",
        root=str(tmp_path),
    )
    assert seen["tests/b.py"].ignore == ("XLA1", "XLA2")
    assert seen["sub/c.py"].select == ("XLA3",)
    assert seen["sub/c.py"].root == str(tmp_path / "sub")
    request = Request(
        mode=Mode.FIX, select=("XLA5",), ignore=(), helpers_module="q", launcher="spawn"
    )
    given = settings_of(monkeypatch, request)["tests/b.py"]
    assert (given.select, given.ignore, given.helpers_module) == (("XLA5",), ("XLA2",), "q")
    assert given.launcher == "spawn"
    assert given.partial


def test_bad_configuration_stops_before_anything() -> None:
    file = put("a.py", SAFE)
    put("z/.xla2tpu.toml", b"nonsense = 1\n")
    put("z/b.py", SAFE)
    with pytest.raises(ConfigError):
        run(Request(mode=Mode.FIX))
    assert file.read_bytes() == SAFE


def test_unknown_code_prefix_stops_before_anything() -> None:
    file = put("a.py", SAFE)
    with pytest.raises(ConfigError, match="no rule has a code that starts with XLA99"):
        run(Request(mode=Mode.FIX, ignore=("XLA99",)))
    assert file.read_bytes() == SAFE


def test_no_files() -> None:
    done = run(Request())
    assert done.notes == ["no Python files found"]
    assert done.exit_status() == 0


def test_results_are_sorted_by_path() -> None:
    for name in ("b.py", "a/x.py", "a.py", "a-b/x.py"):
        put(name, b"")
    paths = [r.path for r in run(Request(("b.py", "."))).results]
    assert paths == ["a/x.py", "a-b/x.py", "a.py", "b.py"]


def test_progress_is_told() -> None:
    put("a.py", b"")
    put("b.py", b"")
    told: list[object] = []

    def start(total: int) -> object:
        told.append(total)
        return lambda *a: told.append(a)

    run(Request(), start)
    assert told == [2, ("a.py",), ("b.py",)]


def test_stdin(tmp_path: Path) -> None:
    put("p/.xla2tpu.toml", b'exclude=["gen"]\n')
    done = run_stdin(SAFE, "p/x.py", Request(mode=Mode.FIX))
    assert done.results[0].output == DONE
    assert done.results[0].path == "p/x.py"
    assert not Path("p/x.py").exists()
    assert run_stdin(SAFE, None, Request()).results[0].path == "-"
    assert run_stdin(SAFE, "p/gen/x.py", Request(force_exclude=True)).results == []
