"""What git is asked about files that are to be changed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from xla2tpu.git import GitError, changed_files, listed_files, repository_of


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    monkeypatch.chdir(folder)
    run("init", "-q")
    run("config", "user.name", "n")
    run("config", "user.email", "e@example.org")
    Path(".gitignore").write_text("ignored/\n")
    for name in ("clean.py", "changed.py", "staged.py", "moved.py"):
        Path(name).write_text(f"{name}\n" * 9)
    run("add", ".")
    run("commit", "-qm", "one")
    return folder


def run(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def test_states(repository: Path) -> None:
    Path("changed.py").write_text("x")
    Path("staged.py").write_text("x")
    run("add", "staged.py")
    run("mv", "moved.py", "new.py")
    Path("un tracked").mkdir()
    Path("un tracked/ä.py").write_text("x")
    Path("ignored").mkdir()
    Path("ignored/i.py").write_text("x")
    outside = str(repository.parent / "o.py")
    names = ["clean.py", "changed.py", "staged.py", "new.py", "un tracked/ä.py", "ignored/i.py"]
    assert changed_files([*names, outside]) == (names[1:5], [outside, "ignored/i.py"])


def test_from_a_folder_below(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("sub").mkdir()
    monkeypatch.chdir(repository / "sub")
    Path("../changed.py").write_text("x")
    assert changed_files(["../changed.py", "../clean.py"]) == (["../changed.py"], [])
    assert repository_of(".") == str(repository)


def test_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GitError, match="git cannot be run"):
        changed_files(["clean.py"])
    assert listed_files(".") is None


def test_broken_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    with pytest.raises(GitError):
        changed_files([str(tmp_path / "a.py")])


def test_outside(tmp_path: Path) -> None:
    assert listed_files(str(tmp_path)) is None
    assert changed_files([os.path.join(tmp_path, "a.py")]) == ([], [os.path.join(tmp_path, "a.py")])
