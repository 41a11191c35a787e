"""The language server in Emacs with Eglot, without a screen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pygls", reason="pygls is not installed: pip install 'xla2tpu[lsp]'")
EMACS = shutil.which("emacs")
SCRIPT = Path(__file__).with_name("emacs.el")
TOOL = [sys.executable, "-m", "xla2tpu"]
TEXT = """\
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp


def größe(model, batch):
    with xp.StepTrace("😋"):
        model(batch)
    '😋'; xm.mark_step()
"""


def has_eglot() -> bool:
    if EMACS is None:
        return False
    load = ["--batch", "--eval", "(progn (require 'package) (package-initialize) (require 'eglot))"]
    return subprocess.run([EMACS, *load], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(
    not has_eglot(), reason="there is no Emacs with Eglot (Debian: emacs-nox, elpa-eglot)"
)
def test_fix_all_saves_what_the_command_line_writes(tmp_path: Path) -> None:
    assert EMACS is not None
    paths = [tmp_path / name / "train.py" for name in ("editor", "command")]
    for path in paths:
        path.parent.mkdir()
        (path.parent / "pyproject.toml").touch()
        path.write_text(TEXT, encoding="utf-8")
    subprocess.run(["git", "init", "--quiet", paths[0].parent], check=True)
    seen = tmp_path / "seen"
    done = subprocess.run(
        [EMACS, "--batch", "--load", SCRIPT, paths[0]],
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "LC_ALL": "C.UTF-8",
            "XLA2TPU_COMMAND": "\n".join([*TOOL, "server"]),
            "XLA2TPU_SEEN": str(seen),
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line.split(":")[0] for line in seen.read_text().splitlines()) == [
        "6 xla2tpu [XLA711]",
        "8 xla2tpu [XLA101]",
    ]
    check = [*TOOL, "check", "--fix", "--unsafe-fixes", str(paths[1])]
    subprocess.run(check, capture_output=True, check=True)
    fixed = paths[1].read_bytes()
    assert b"torch_xla" not in fixed
    assert paths[0].read_bytes() == fixed
