"""Which files a run looks at."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from xla2tpu.config import Configs
from xla2tpu.discover import Discovery, discover, shown


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def found(*paths: str, force_exclude: bool = False) -> Discovery:
    return discover(paths or (".",), Configs(), force_exclude)


def names(*paths: str, force_exclude: bool = False) -> list[str]:
    return [file.path for file in found(*paths, force_exclude=force_exclude).files]


def test_python_files_in_a_stable_order() -> None:
    make("b.py", "a/z.py", "a/c.pyi", "a/readme.md", "script")
    assert names() == ["a/c.pyi", "a/z.py", "b.py"]


def test_named_files_are_taken_whatever_they_are_called() -> None:
    make("script", "venv/x.py", "a.py")
    assert names("script", "venv/x.py", "a.py", "./a.py") == ["script", "venv/x.py", "a.py"]


def test_default_excludes() -> None:
    make("venv/a.py", "node_modules/b.py", ".eggs/c.py", "site-packages/d.py", "env/e.py", "f.py")
    make("__pycache__/g.py", ".tox/py/h.py", "build/lib/i.py", "dist/j.py", "env/pyvenv.cfg")
    assert names() == ["f.py"]


def test_a_package_may_be_called_build_or_dist() -> None:
    make("dist/__init__.py", "dist/loader.py", "build/x.py")
    assert names() == ["dist/__init__.py", "dist/loader.py"]


def test_a_named_folder_is_taken_whatever_it_is_called() -> None:
    make("build/x.py", "build/venv/y.py")
    assert names("build") == ["build/x.py"]


def test_configured_excludes() -> None:
    make("legacy/a.py", "src/gen/b_pb2.py", "src/c.py", "src/old/d.py")
    Path(".xla2tpu.toml").write_text('exclude = ["legacy", "*_pb2.py", "src/old"]')
    assert names() == ["src/c.py"]
    assert names("legacy", "src/old/d.py") == ["legacy/a.py", "src/old/d.py"]
    assert names("legacy", "legacy/a.py", "src/old/d.py", "src/c.py", force_exclude=True) == [
        "src/c.py"
    ]


def test_force_exclude_knows_the_default_excludes() -> None:
    make("venv/lib/a.py", "b.py")
    assert names("venv/lib/a.py", "b.py", force_exclude=True) == ["b.py"]


def test_gitignore_is_respected() -> None:
    git("init", "-q")
    make("a.py", "out/b.py", "sub/c.py", "sub/d_gen.py")
    Path(".gitignore").write_text("out/\n*_gen.py\n")
    assert names() == ["a.py", "sub/c.py"]
    assert names("sub") == ["sub/c.py"]
    assert names("out/b.py") == ["out/b.py"]


def test_an_ignored_folder_that_is_named_is_taken() -> None:
    git("init", "-q")
    make("out/b.py", "a.py")
    Path(".gitignore").write_text("out/\n")
    assert names("out") == ["out/b.py"]


def test_git_lists_what_is_gone() -> None:
    git("init", "-q")
    make("a.py", "b.py")
    git("add", ".")
    os.unlink("a.py")
    result = found()
    assert [f.path for f in result.files] == ["b.py"]
    assert result.errors == []


def test_nested_repositories() -> None:
    git("init", "-q")
    make("a.py", "sub/b.py", "sub/ignored.py")
    git("-C", "sub", "init", "-q")
    Path("sub/.gitignore").write_text("ignored.py\n")
    assert names() == ["a.py", "sub/b.py"]


def test_the_variables_of_a_hook_do_not_mislead_git(monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "-q")
    make("a.py", "ignored.py")
    Path(".gitignore").write_text("ignored.py\n")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert names() == ["a.py"]


def test_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "-q")
    make("a.py")
    monkeypatch.setenv("PATH", "")
    assert names() == ["a.py"]


def test_names_that_git_would_quote() -> None:
    git("init", "-q")
    make('a "b"\tü.py')
    assert names() == ['a "b"\tü.py']


def test_a_folder_called_like_a_file() -> None:
    make("x.py/inner.py", "y.py")
    assert names() == ["x.py/inner.py", "y.py"]
    assert found().errors == []


@pytest.mark.parametrize("repository", [False, True])
def test_links(repository: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "o.py").write_text("")
    make("real/a.py")
    if repository:
        git("init", "-q")
    os.symlink(outside, "folder")
    os.symlink(outside / "o.py", "out.py")
    os.symlink("real/a.py", "again.py")
    os.symlink("nowhere", "broken.py")
    os.symlink(".", "real/loop")
    result = found()
    assert [f.path for f in result.files] == ["real/a.py"]
    assert result.errors == [("broken.py", "broken symbolic link")]


def test_what_cannot_be_reached() -> None:
    make("a.py")
    os.symlink("nowhere", "broken.py")
    os.mkfifo("pipe.py")
    result = found("none.py", "broken.py", "pipe.py", "a.py")
    assert [f.path for f in result.files] == ["a.py"]
    assert result.errors == [
        ("none.py", "no such file or folder"),
        ("broken.py", "broken symbolic link"),
        ("pipe.py", "not a regular file"),
    ]
    os.unlink("broken.py")
    assert found().errors == [("pipe.py", "not a regular file")]


def test_paths_are_shown_from_the_working_folder(tmp_path: Path) -> None:
    make("a/b.py")
    assert names(str(tmp_path)) == ["a/b.py"]
    assert shown(str(tmp_path / "a.py")) == "a.py"
    assert shown("/elsewhere/./a.py") == "/elsewhere/a.py"
    assert shown("./a//b.py") == "a/b.py"
