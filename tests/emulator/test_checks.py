"""What a program can do with the emulated device, check by check.

A check is a function of a module in `checks/`. The checks of a module run in one process, which
the command starts as it does a user's program.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    None in map(importlib.util.find_spec, ("torch", "numpy")),
    reason="torch and numpy are not installed",
)

CHECKS = Path(__file__).parent / "checks"
ROOT = CHECKS.parent.parent.parent
# Options of the command by module.
OPTIONS = {"processes": ["--devices", "2"], "all_operators": ["--allow-missing-ops"]}


def names() -> list[tuple[str, str]]:
    return [
        (path.stem, node.name)
        for path in sorted(CHECKS.glob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]


@functools.cache
def results(module: str) -> dict[str, list[str]]:
    command = [sys.executable, "-m", "xla2tpu.emulator", *OPTIONS.get(module, [])]
    done = subprocess.run(
        [*command, str(CHECKS), module],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("module", "check"), names())
def test_check(module: str, check: str) -> None:
    error = results(module)[check][0]
    assert not error, error
