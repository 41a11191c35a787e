"""Every public name of torch_xla, of releases from 1.5 to 2.9, is known to the rules."""

from __future__ import annotations

import ast
import importlib.util
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from xla2tpu.engine import run_source
from xla2tpu.model import Applicability, Settings
from xla2tpu.report import coverage
from xla2tpu.rules import load_rules

ROOT = Path(__file__).parent.parent
INVENTORY: dict[str, Any] = json.loads((ROOT / "docs/data/torch_xla_names.json").read_bytes())


def test_every_name_has_a_rule() -> None:
    assert coverage.uncovered(load_rules(), INVENTORY) == []


def test_what_is_not_covered_is_told() -> None:
    inventory = {"releases": ["9.9"], "names": {"torch_xla": {"sync": "9.9", "nonsense": "9.9"}}}
    assert coverage.uncovered(load_rules(), inventory) == ["torch_xla.nonsense"]
    assert "| 9.9 | 2 | 1 | 0 |" in coverage.page(load_rules(), inventory)


@pytest.mark.parametrize("module", INVENTORY["names"])
def test_every_name_is_found_in_a_program(module: str, tmp_path: Path) -> None:
    names = list(INVENTORY["names"][module])
    lines = [f"from {module} import {name} as n{i}" for i, name in enumerate(names)]
    source = "\n".join([*lines, "", *(f"print(n{i})" for i in range(len(names)))]) + "\n"
    result = run_source(source.encode(), str(tmp_path / "p.py"), Settings(root=str(tmp_path)))
    found = {f.api: f for f in result.findings if f.counts}
    assert set(found) == {f"{module}.{name}" for name in names}
    for finding in found.values():
        assert finding.rule != coverage.UNKNOWN
        assert finding.reason or finding.applicability is not Applicability.MANUAL


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("names", ROOT / "scripts/torch_xla_names.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_reads_archives(tmp_path: Path) -> None:
    sources = {
        "torch_xla/__init__.py": "from .core import *\nfrom .utils import helper\n_a = 1",
        "torch_xla/core.py": "import os\nif os.name:\n    def sync(): ...\nA: int = 1\nB = C = 2",
        "torch_xla/utils/__init__.py": "def helper(): ...\n",
        "torch_xla/utils/things.py": "__all__ = ['x']\nfrom a import x, y\nx, z = 1, 2\n",
        "torch_xla/_internal/tpu.py": "def version(): ...\n",
        "other/thing.py": "def thing(): ...\n",
    }
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        for path, source in sources.items():
            ast.parse(source)
            file.writestr(path, source)
    found = _script().inventory(str(tmp_path / "a.zip"))
    assert found == {
        "torch_xla": {"A", "B", "C", "helper", "sync"},
        "torch_xla.core": {"A", "B", "C", "sync"},
        "torch_xla.utils": {"helper"},
        "torch_xla.utils.things": {"x", "z"},
    }
