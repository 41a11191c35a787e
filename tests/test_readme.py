"""What the README shows is what happens: its commands, its example, its configuration."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from xla2tpu import config

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S)
COMMANDS = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
BEFORE, AFTER, LOOP_BEFORE, LOOP_AFTER = (b for kind, b in BLOCKS if kind == "python")
LOOP_IMPORTS = """\
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
from torch.utils.data import DataLoader, DistributedSampler

from flowers import Net, data, loss_fn


"""
# What these do is done already, or is this very run.
NOT_RUN = ("python -m venv", "python -m pip install ", "python -m pytest")


def run(command: str, folder: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the README by a shell, with the package of this checkout."""
    scripts = scratch / "bin"
    scripts.mkdir(exist_ok=True)
    script = scripts / "xla2tpu"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m xla2tpu "$@"\n')
    script.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(scratch),
    }
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with what the commands speak of: the examples, and a program in `src`."""
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(BEFORE)
    (folder / "pyproject.toml").write_text('[project]\nname = "project"\nversion = "1.0"\n')
    return folder


def test_there_are_commands() -> None:
    assert {"check", "migrate", "query", "explain", "rules"} <= {
        line.split()[1] for line in COMMANDS if line.startswith("xla2tpu ")
    }
    assert "python -m pytest" in COMMANDS


def test_commands(project: Path) -> None:
    for command in COMMANDS:
        if command.startswith(NOT_RUN):
            continue
        done = run(command, project, project.parent)
        assert done.returncode in (0, 1), f"{command}\n{done.stderr}"
        assert done.stdout, command
        assert "Traceback" not in done.stderr
    assert (project / "migration.html").is_file()
    assert (project / "src" / "train.py").read_text() == AFTER


def test_example_can_be_migrated_twice(project: Path) -> None:
    (command,) = (line for line in COMMANDS if line.startswith("xla2tpu migrate examples"))
    first, second = run(command, project, project.parent), run(command, project, project.parent)
    assert first.stdout == second.stdout
    assert first.returncode == second.returncode == 0
    assert "4 files scanned, 3 have to do with torch_xla: 3 done" in first.stdout


def test_example_in_the_checkout(tmp_path: Path) -> None:
    """The example is a project of its own: the files around it do not matter."""
    done = run("xla2tpu migrate --diff examples/flowers", ROOT, tmp_path)
    assert "3 have to do with torch_xla: 3 done" in done.stderr


def test_before_and_after(project: Path) -> None:
    done = run(
        "xla2tpu check --fix - --stdin-filename src/train.py < src/train.py",
        project,
        project.parent,
    )
    assert done.stdout == AFTER


def test_the_loop(project: Path) -> None:
    (project / "src" / "train.py").write_text(LOOP_IMPORTS + LOOP_BEFORE)
    done = run("xla2tpu migrate --diff src/train.py", project, project.parent)
    assert "1 done" in done.stderr
    run("xla2tpu migrate src/train.py", project, project.parent)
    text = (project / "src" / "train.py").read_text()
    assert text.endswith("\n\n\n" + LOOP_AFTER)
    helpers = re.findall(r"^def (\w+)", text, re.M)
    assert {"world_size", "global_rank", "average_gradients", "launch"} <= set(helpers)


def test_configuration(tmp_path: Path) -> None:
    (section,) = (block for kind, block in BLOCKS if kind == "toml")
    file = tmp_path / "pyproject.toml"
    file.write_text(section)
    loaded = config.load(str(file))
    assert loaded is not None
    assert loaded.device == "accelerator"
    assert loaded.per_file_ignores == (("tests/**", ("XLA4",)),)
    missing = [key for key in config._KEYS if not re.search(rf"\b{key}\b", TEXT)]
    assert not missing


def test_hooks() -> None:
    (block,) = (block for kind, block in BLOCKS if kind == "yaml")
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    used = yaml.safe_load(block.replace("# - id", "- id"))["repos"][0]["hooks"]
    assert {hook["id"] for hook in used} == {hook["id"] for hook in hooks}
