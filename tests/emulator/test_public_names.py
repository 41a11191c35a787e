"""The names of `torch.tpu` are those of torch_tpu 0.2.0, with its stages and its signatures."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xla2tpu.emulator.settings import TABLE

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)

ROOT = Path(__file__).parent.parent.parent
# In the real one, this starts no run time: the names that are read are those of its tables.
REAL = """
import inspect, json, warnings
warnings.simplefilter("ignore")
import torch, torch_tpu
from torch_tpu._internal.public_api import _PUBLIC_MODULES
from torch_tpu._internal.device._device_module import TpuDeviceModule, __tt_api_stages__

found = {}
for module, spec in _PUBLIC_MODULES.items():
    for name, target in spec.exports.items():
        entry = found[f"{module}.{name}"] = {"stage": "", "prefer": "", "signature": ""}
        if module in ("torch.tpu", "torch.tpu.distributed") and isinstance(target, str):
            if name in __tt_api_stages__:
                continue
            if module == "torch.tpu":
                value = inspect.getattr_static(TpuDeviceModule, name)
                value = getattr(value, "__func__", value)
            else:
                from torch_tpu._internal import public_api
                value = public_api._import_target(target)
            entry["stage"] = getattr(value, "__tt_api_stage__", "")
            entry["prefer"] = getattr(value, "__tt_api_prefer__", "")
            if not isinstance(value, type):
                names = list(inspect.signature(value).parameters)
                entry["signature"] = [n for n in names if n != "cls"]

operators = set()
for name in torch._C._dispatch_get_all_op_names():
    try:
        torch._C._dispatch_find_schema_or_throw(*name.partition(".")[::2])
    except RuntimeError:
        continue
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1"):
        operators.add(name)
print(json.dumps({"names": found, "operators": sorted(operators), "torch": torch.__version__}))
"""
EMULATED = """
import importlib, inspect, json, warnings
warnings.simplefilter("ignore")
import torch

found = {}
modules = ["torch.tpu", *(f"torch.tpu.{m}" for m in
    ("compiler", "distributed", "ops", "optimizers", "pallas", "profiler"))]
for module in modules:
    held = importlib.import_module(module)
    for name in held.__all__:
        if f"{module}.{name}" in modules:
            continue
        entry = found[f"{module}.{name}"] = {"stage": "", "prefer": "", "signature": ""}
        value = held.__dict__.get(name)
        if value is None:
            continue
        stage = getattr(value.__init__ if isinstance(value, type) else value,
                        "__tt_api_stage__", None)
        if stage is not None:
            kind = stage.text.split("/")[2].removesuffix("Api")
            entry["stage"] = kind
            if kind == "Internal":
                entry["prefer"] = stage.text.split("Use ")[1].split(" ")[0]
        if not isinstance(value, type):
            entry["signature"] = list(inspect.signature(value).parameters)
print(json.dumps(found))
"""


def run(code: str, *command: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *command, *([] if command else ["-c"]), code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@functools.cache
def real() -> dict[str, Any]:
    return run(REAL, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def torch_tpu_version() -> str:
    try:
        return importlib.metadata.version("torch_tpu")
    except importlib.metadata.PackageNotFoundError:
        return ""


@pytest.mark.skipif(torch_tpu_version() != "0.2.0", reason="torch_tpu 0.2.0 is not installed")
def test_names(tmp_path: Path) -> None:
    program = tmp_path / "names.py"
    program.write_text(EMULATED)
    names = real()["names"]
    mine = run(str(program), "-m", "xla2tpu.emulator", PYTHONPATH=str(ROOT))
    assert set(mine) == set(names)
    for name, entry in names.items():
        if entry["stage"]:
            assert mine[name]["stage"] == entry["stage"], name
        if entry["stage"] == "Internal":
            assert mine[name]["prefer"] == entry["prefer"], name
        if entry["signature"]:
            assert mine[name]["signature"] == entry["signature"], name
    refused = {name for name, entry in names.items() if entry["stage"] == "Internal"}
    assert len(refused) >= 8


@pytest.mark.skipif(torch_tpu_version() != "0.2.0", reason="torch_tpu 0.2.0 is not installed")
def test_table_of_kernels() -> None:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    if not real()["torch"].startswith(table["torch"]):
        pytest.skip(f"the table is that of torch {table['torch']}")
    kernels = {name for name in real()["operators"] if name.startswith("aten::")}
    assert {name for name in table["kernels"] if name.startswith("aten::")} == kernels
    assert len(kernels) > 600
    assert not set(table["missing"]) & kernels
