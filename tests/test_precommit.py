"""The hooks, run by the real pre-commit in repositories of their own."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from xla2tpu.kinds import kind_of

ROOT = Path(__file__).parent.parent
XM = "import torch_xla.core.xla_model as xm\n"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("pre_commit") is None, reason="pre-commit is not installed"
    ),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]


def git(folder: Path, *command: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, *command], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the hooks of this checkout."""
    copy = tmp_path_factory.mktemp("hooks") / "xla2tpu"
    ignored = shutil.ignore_patterns(".*cache", "__pycache__", ".git", ".venv", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored)
    git(copy, "init", "-q")
    git(copy, "add", "-A")
    git(copy, "commit", "-qm", "hooks")
    git(copy, "tag", "v0")
    return copy


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pre-commit keeps the environment of the hooks, made once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def project(tmp_path: Path, hooks: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text('[project]\nname = "pkg"\nversion = "1"\n')
    (folder / ".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {hooks}\n  rev: v0\n  hooks:\n  - id: xla2tpu\n  - id: xla2tpu-fix\n"
    )
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "start")
    return folder


def hook(name: str, folder: Path, home: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pre_commit", "run", name, "--color", "never", *options]
    environment = {**os.environ, "PRE_COMMIT_HOME": str(home)}
    for variable in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        environment.pop(variable, None)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_check_and_fix(project: Path, home: Path) -> None:
    file = project / "pkg" / "train.py"
    file.write_text(f"{XM}\nxm.mark_step()\nprint(1)\n")
    git(project, "add", "-A")
    status, told = hook("xla2tpu", project, home)
    assert status == 1
    assert "pkg/train.py" in told
    assert "XLA101 mark-step, safe" in told
    assert file.read_text().startswith(XM)
    status, told = hook("xla2tpu-fix", project, home)
    assert status == 1
    assert "files were modified by this hook" in told
    assert file.read_text() == "print(1)\n"
    git(project, "add", "-A")
    assert hook("xla2tpu-fix", project, home)[0] == 0
    assert hook("xla2tpu", project, home)[0] == 0


def test_names_come_from_files_that_are_not_staged(project: Path, home: Path) -> None:
    (project / "pkg" / "device.py").write_text(XM)
    git(project, "add", "-A")
    git(project, "commit", "-qm", "device")
    file = project / "pkg" / "train.py"
    file.write_text("from pkg.device import xm\n\nxm.mark_step()\n")
    git(project, "add", "pkg/train.py")
    status, told = hook("xla2tpu", project, home)
    assert status == 1
    assert "XLA101" in told
    assert "1 file scanned" in told
    # And what another file imports from a staged one is not taken from it.
    status, told = hook("xla2tpu-fix", project, home, "--files", "pkg/device.py")
    assert (project / "pkg" / "device.py").read_text() == XM
    assert "imported-elsewhere" in told


def test_excluded_files_stay_out(project: Path, home: Path) -> None:
    (project / "pkg" / "train.py").write_text(f"{XM}xm.mark_step()\n")
    with (project / "pyproject.toml").open("a") as config:
        config.write('[tool.xla2tpu]\nexclude = ["pkg/train.py"]\n')
    git(project, "add", "-A")
    assert hook("xla2tpu", project, home)[0] == 0


def test_a_project_without_torch_xla(project: Path, home: Path) -> None:
    for index in range(20):
        (project / "pkg" / f"m{index}.py").write_text("import torch\n\nx = torch.ones(3)\n")
    git(project, "add", "-A")
    status, told = hook("xla2tpu", project, home, "--verbose")
    assert status == 0
    assert "20 files scanned, nothing of torch_xla found." in told


SEEN = (
    "a.py x/b.ipynb requirements.txt dev-requirements.txt requirements/base.txt pyproject.toml "
    "Dockerfile docker/Dockerfile.tpu env.sh .github/workflows/ci.yml environment.yml .env "
    "setup.cfg setup.py tox.ini Pipfile uv.lock job.yaml gpu.dockerfile .gitlab-ci.yml .envrc "
    "prod.env"
)
NOT_SEEN = "README.md a.txt a.json data/environments.md"


@pytest.mark.parametrize("name", [*SEEN.split(), *NOT_SEEN.split()])
def test_the_hooks_see_what_a_walk_sees(name: str) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {bool(re.search(hook["files"], name)) for hook in hooks} == {kind_of(name) is not None}
    assert (kind_of(name) is not None) == (name in SEEN.split())
