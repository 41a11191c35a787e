"""The operators that torch_tpu has kernels for: the table that the emulator goes by as well.

`scripts/tpu_kernels.py` makes one file for each release of torch_tpu; the newest holds.
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import NamedTuple

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "emulator", "data")
_FILE = re.compile(r"torch_tpu-(\d+(?:\.\d+)*)\.json\Z")


class KernelTable(NamedTuple):
    """``kernels`` are names as the dispatcher writes them: ``aten::add.out``."""

    torch_tpu: str
    kernels: frozenset[str]

    def lacks(self, operator: str) -> bool:
        """Whether an operator of aten, without its namespace, has no kernel."""
        return f"aten::{operator}" not in self.kernels


@functools.cache
def newest() -> KernelTable:
    """The table of the newest release of torch_tpu that there is one for."""
    releases = [m for m in map(_FILE.match, os.listdir(FOLDER)) if m is not None]
    found = max(releases, key=lambda m: [int(part) for part in m[1].split(".")])
    with open(os.path.join(FOLDER, found[0]), "rb") as file:
        table = json.load(file)
    return KernelTable(found[1], frozenset(table["kernels"]))
