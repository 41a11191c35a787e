"""Kinds by name, what a walk finds, and that what does not matter stays cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from xla2tpu.config import Configs
from xla2tpu.discover import discover
from xla2tpu.kinds import Kind, kind_of
from xla2tpu.prefilter import matters


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a/b.py", Kind.PYTHON),
        ("a.pyi", Kind.PYTHON),
        ("setup.py", Kind.SETUP_PY),
        ("a.ipynb", Kind.NOTEBOOK),
        ("requirements.txt", Kind.REQUIREMENTS),
        ("requirements-tpu.txt", Kind.REQUIREMENTS),
        ("dev_requirements.in", Kind.REQUIREMENTS),
        ("requirements/tpu.txt", Kind.REQUIREMENTS),
        ("constraints.txt", Kind.REQUIREMENTS),
        ("notes.txt", None),
        ("my_requirements_notes.md", None),
        ("environment.yml", Kind.CONDA),
        ("environment-tpu.yaml", Kind.CONDA),
        (".github/workflows/a.yml", Kind.CI),
        ("x/.github/actions/a/action.yml", Kind.CI),
        (".gitlab-ci.yml", Kind.CI),
        ("config.yml", Kind.YAML),
        ("Dockerfile", Kind.DOCKERFILE),
        ("Dockerfile.tpu", Kind.DOCKERFILE),
        ("tpu.dockerfile", Kind.DOCKERFILE),
        ("run.sh", Kind.SHELL),
        (".env", Kind.DOTENV),
        (".env.local", Kind.DOTENV),
        ("poetry.lock", Kind.LOCK),
        ("README.md", None),
    ],
)
def test_kind(path: str, kind: Kind | None) -> None:
    assert kind_of(path) == kind


def test_a_walk_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (".github/workflows/a.yml", "a.ipynb", "b.sh", "c.md", "requirements.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x\n")
    Path(".ipynb_checkpoints").mkdir()
    Path(".ipynb_checkpoints/a.ipynb").write_text("{}")
    found = [f.path for f in discover(["."], Configs()).files]
    assert found == [".github/workflows/a.yml", "a.ipynb", "b.sh", "requirements.txt"]


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"torch==2.0\nnumpy\n", False),
        (b"torch-xla\n", True),
        (b"export PJRT_DEVICE=TPU\n", True),
        (b"# xla2tpu: ignore-file\n", True),
        (b"export LD_LIBRARY_PATH=x\n", False),
    ],
)
def test_what_matters(data: bytes, answer: bool) -> None:
    assert matters(Kind.SHELL, data) is answer


def test_strings_in_notebooks_matter() -> None:
    assert matters(Kind.NOTEBOOK, b'["x.to(\\"xla\\")"]')
    assert matters(Kind.NOTEBOOK, b"[\"x.to('xla:0')\"]")
    assert not matters(Kind.NOTEBOOK, b'["xlabel(\\"xla bel\\")"]')


@pytest.mark.parametrize(
    ("name", "content", "loaded"),
    [
        ("requirements.txt", "torch\n", []),
        ("a.ipynb", '{"cells": []}', []),
        ("pyproject.toml", "[project]\n", []),
        ("requirements.txt", "torch_xla\n", ["yaml"]),
        ("a.sh", "export PJRT_DEVICE=TPU\n", ["yaml"]),
    ],
)
def test_imports_only_what_it_needs(
    name: str, content: str, loaded: list[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    code = (
        "import sys\nfrom xla2tpu.runner import Request, run\n"
        f"run(Request(paths=({str(tmp_path)!r},)))\n"
        "print(sorted({'libcst', 'yaml', 'multiprocessing'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(loaded)
