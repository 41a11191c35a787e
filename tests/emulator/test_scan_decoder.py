"""A migrated program with attention, scans and compiled steps learns on the emulated device.

Its original cannot be recorded as those of other fixtures are: its kernel runs on a TPU alone.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    None in map(importlib.util.find_spec, ("torch", "numpy")),
    reason="torch and numpy are not installed",
)

ROOT = Path(__file__).parent.parent.parent
PROGRAM = ROOT / "fixtures" / "programs" / "scan_decoder_2025" / "after" / "scan_decoder.py"


def test_it_learns_the_pattern() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xla2tpu.emulator", str(PROGRAM), "--steps", "40"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = re.search(r"smoothed loss: ([\d.]+) to ([\d.]+)", done.stdout)
    assert losses is not None
    # Eight tokens without knowledge: ln 8 = 2.08; the next token follows from the one before.
    assert 1.5 < float(losses[1]) < 2.8
    assert float(losses[2]) < 0.1
    assert "right: 1.00, found: (1, 2, 6, 4)" in done.stdout
