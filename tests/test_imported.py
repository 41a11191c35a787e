"""Operators without a kernel in modules that programs of torch_xla import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from xla2tpu.cli import main

TRAIN = """\
import torch_xla.core.xla_model as xm

from net import losses
from net.blocks import Head

device = xm.xla_device()
"""
LOSSES = """\
import torch.nn.functional as F
from torch import median as middle


def loss(x, y):
    return F.smooth_l1_loss(x, y) + F.smooth_l1_loss(y, x) + middle(x)
"""
BLOCKS = "from . import parts\n\n\nclass Head(parts.Part):\n    pass\n"
PARTS = "import torch\n\nPart = torch.nn.Module\nroot = torch.linalg.cholesky\n"
UNUSED = "import torch\n\nx = torch.median(torch.ones(3))\n"


def notes(folder: Path, files: dict[str, str]) -> list[dict[str, Any]]:
    for name, text in {"pyproject.toml": "", "net/__init__.py": "", **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    report = folder / "report.json"
    command = ["migrate", str(folder), "--diff", "--report", str(report)]
    done = CliRunner().invoke(main, command)
    assert report.exists(), done.output
    found = json.loads(report.read_text())["notes"]
    return [note for note in found if note["name"] == "missing-operator"]


FILES = {
    "train.py": TRAIN,
    "net/losses.py": LOSSES,
    "net/blocks.py": BLOCKS,
    "net/parts.py": PARTS,
    "net/unused.py": UNUSED,
}


def test_what_a_program_imports_is_looked_at(tmp_path: Path) -> None:
    found = notes(tmp_path, FILES)
    places = [(Path(n["path"]).name, n["line"], n["column"]) for n in found]
    assert places == [("losses.py", 6, 12), ("losses.py", 6, 62), ("parts.py", 4, 8)]
    smooth, middle, root = (note["message"] for note in found)
    assert smooth.startswith("`torch.nn.functional.smooth_l1_loss` raises on the TPU")
    assert "also at 1 more place below; " in smooth
    assert smooth.endswith("train.py leads to this file")
    assert middle.startswith("`torch.median`")
    assert "more place" not in middle
    assert root.startswith("`torch.linalg.cholesky`")
    assert all(note["kind"] == "project" and note["advice"] for note in found)


def test_nothing_changes_for_it(tmp_path: Path) -> None:
    notes(tmp_path, FILES)
    done = CliRunner().invoke(main, ["migrate", str(tmp_path), "--allow-dirty"])
    assert done.exit_code == 0, done.output
    assert "losses.py:6:12" in done.output
    assert (tmp_path / "net/losses.py").read_text() == LOSSES


@pytest.mark.parametrize(
    "files",
    [
        {**FILES, "train.py": TRAIN.replace("torch_xla.core.xla_model", "experiments.manager")},
        {**FILES, "pyproject.toml": '[tool.xla2tpu]\nexclude = ["net/**"]\n'},
        {**FILES, "net/losses.py": "def loss(:\n    torch.median\n", "net/parts.py": ""},
        {**FILES, "net/losses.py": "x = range(3)\n", "net/parts.py": "from torch import range\n"},
    ],
    ids=["no-program", "excluded", "does-not-parse", "not-called"],
)
def test_nothing_is_told(tmp_path: Path, files: dict[str, str]) -> None:
    assert notes(tmp_path, files) == []
