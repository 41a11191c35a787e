"""The language server in a real editor: Neovim without a screen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pygls", reason="pygls is not installed: pip install 'xla2tpu[lsp]'")
NEOVIM = shutil.which("nvim")
pytestmark = pytest.mark.skipif(
    NEOVIM is None, reason="there is no nvim on this machine (Debian: apt-get install neovim)"
)
SCRIPT = Path(__file__).with_name("neovim.lua")
TOOL = [sys.executable, "-m", "xla2tpu"]

PLAIN = """\
import torch
import torch_xla.core.xla_model as xm


def fit(model, batches):
    device = xm.xla_device()
    for batch in batches:
        model(batch.to(device)).sum().backward()
        xm.mark_step()
    xm.master_print("done", xm.get_ordinal())
"""
WIDE = """\
# größe 😋
import torch_xla.core.xla_model as xm

é = '😋'; xm.mark_step(); print('😋', xm.get_ordinal(), xm.get_ordinal())  # 😋


def last():
    xm.mark_step()
    return 'ü'"""
UNSAFE = """\
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp


def fit(model, batch):
    with xp.StepTrace("train"):
        model(batch)
    xm.mark_step()
"""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "wide": (WIDE, {}),
    "carriage returns": (WIDE.replace("\n", "\r\n") + "\r\n", {}),
    "unsafe": (UNSAFE, {"unsafeFixes": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_fix_all_writes_what_the_command_line_writes(tmp_path: Path, case: str) -> None:
    text, settings = CASES[case]
    for name in ("editor", "command"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "pyproject.toml").write_text("")
        (folder / "train.py").write_bytes(text.encode())
    seen = in_neovim(tmp_path / "editor" / "train.py", settings, tmp_path / "seen.json")
    path = tmp_path / "command" / "train.py"
    check = [*TOOL, "check", str(path)]
    found = subprocess.run([*check, "--output-format", "json"], capture_output=True, check=False)
    (file,) = json.loads(found.stdout)["files"]
    assert sorted((d["line"], d["code"], d["source"]) for d in seen["opened"]) == sorted(
        (f["line"] - 1, f["rule"], "xla2tpu") for f in file["findings"]
    )
    # Neovim counts in bytes.
    spans = {
        len(text.splitlines()[f["line"] - 1][: f["column"] - 1].encode()) for f in file["findings"]
    }
    assert spans == {d["column"] for d in seen["opened"]}
    unsafe = ["--unsafe-fixes"] if settings else []
    subprocess.run([*check, "--fix", *unsafe], capture_output=True, check=True)
    fixed = path.read_bytes()
    assert b"torch_xla" not in fixed
    # Neovim ends the last line of a file.
    newline = b"" if fixed.endswith(b"\n") else b"\n"
    assert (tmp_path / "editor" / "train.py").read_bytes() == fixed + newline


def in_neovim(path: Path, settings: dict[str, Any], seen: Path) -> Any:
    """What Neovim saw of the file, which it leaves fixed."""
    assert NEOVIM is not None
    plan = seen.with_name("plan.json")
    plan.write_text(
        json.dumps(
            {
                "command": [*TOOL, "server"],
                "root": str(path.parent),
                "settings": {"xla2tpu": settings},
                "seen": str(seen),
            }
        )
    )
    home = {name: str(seen.parent / "home") for name in ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")}
    done = subprocess.run(
        [NEOVIM, "--headless", "--clean", "-n", str(path), "-c", f"luafile {SCRIPT}"],
        env={**os.environ, **home, "XLA2TPU_PLAN": str(plan), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(seen.read_text())
