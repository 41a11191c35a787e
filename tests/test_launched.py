"""Programs that launch processes, migrated and run on the emulated device.

What they print is compared with plain PyTorch in one process, or with arithmetic.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xla2tpu.engine import run_source
from xla2tpu.model import Mode, Settings, Status

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
torch = pytest.importorskip("torch")
if importlib.util.find_spec("xla2tpu.emulator") is None:
    pytest.skip("there is no emulator", allow_module_level=True)

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "fixtures" / "launched"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


def run(name: str, folder: Path, devices: int, torchrun: bool = False) -> dict[str, Any]:
    """Migrate a program, start it as a user would, and return what it prints."""
    launcher = "torchrun" if torchrun else "spawn"
    settings = Settings(mode=Mode.MIGRATE, unsafe=True, launcher=launcher, root=str(folder))
    result = run_source((PROGRAMS / f"{name}.py").read_bytes(), str(folder / name), settings)
    assert result.status is Status.DONE, [f for f in result.findings if not f.applied]
    assert result.output is not None
    path = folder / f"{name}_{launcher}.py"
    path.write_bytes(result.output)
    return start(path, devices, torchrun)


def start(path: Path, devices: int, torchrun: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "xla2tpu.emulator", "--devices", str(devices)]
    gone = ("TORCH_DEVICE_BACKEND_AUTOLOAD", "RANK", "LOCAL_RANK", "WORLD_SIZE")
    env = {k: v for k, v in os.environ.items() if k not in gone}
    done = subprocess.run(
        [*command, *(TORCHRUN if torchrun else ()), str(path)],
        capture_output=True, text=True, timeout=300, check=False,
        env=env | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 1, done.stdout
    found: dict[str, Any] = json.loads(lines[0])
    return found


def trained(seed: int, steps: int, parts: int) -> dict[str, Any]:
    """The same training in one process: the mean over the means of the parts, which are equal."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.arange(16.0).reshape(8, 2) / 10
    for _ in range(steps):
        optimizer.zero_grad()
        losses = [model(data[part::parts]).pow(2).mean() for part in range(parts)]
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
    weights = {"weight": model.weight.tolist(), "bias": model.bias.item()}
    return {"loss": loss.item(), **weights}


@pytest.mark.parametrize(("name", "seed"), [("training", 0), ("ddp", 0)])
@pytest.mark.parametrize(
    ("devices", "torchrun"), [(1, False), (2, False), (2, True)], ids=["one", "two", "torchrun"]
)
def test_training(name: str, seed: int, devices: int, torchrun: bool, tmp_path: Path) -> None:
    found = run(name, tmp_path, devices, torchrun)
    expected = trained(seed, 5, devices)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert found["weight"][0] == pytest.approx(expected["weight"][0], rel=1e-5)
    assert found["bias"] == pytest.approx(expected["bias"], rel=1e-5)


def test_program_with_the_spawn_helper_runs_under_torchrun(tmp_path: Path) -> None:
    run("training", tmp_path, 2)
    found = start(tmp_path / "training_spawn.py", 2, torchrun=True)
    assert found["loss"] == pytest.approx(trained(0, 5, 2)["loss"], rel=1e-5)


def test_collectives_of_one_process(tmp_path: Path) -> None:
    assert run("collectives", tmp_path, 1) == {
        "flags": "flags", "size": 1, "index": True, "mean": [1.0, 2.0], "kept": [1.0, 2.0],
        "max": [1.0, 2.0], "gather": [1.0, 2.0], "scatter": [0.0, 1.0, 2.0, 3.0],
        "exchange": [[0.0, 1.0], [2.0, 3.0]], "permute": [1.0, 2.0], "mesh": [3.0], "meet": [1],
        "gradient": [0.0, 1.0], "half": [0.5, 0.5], "serial": "done", "spread": 0.0,
        "broadcast": 0.0,
    }  # fmt: skip


def test_collectives_of_two_processes(tmp_path: Path) -> None:
    assert run("collectives", tmp_path, 2) == {
        "flags": "flags", "size": 2, "index": True, "mean": [1.5, 3.0], "kept": [1.0, 2.0],
        "max": [2.0, 4.0], "gather": [1.0, 2.0, 2.0, 4.0], "scatter": [0.0, 2.0],
        "exchange": [[0.0, 1.0], [10.0, 11.0]], "permute": [0.0, 0.0], "mesh": [3.0, 6.0],
        "meet": [1, 2], "gradient": [0.0, 1.0], "half": [0.5, 0.5], "serial": "done",
        "spread": 0.0, "broadcast": 1.0,
    }  # fmt: skip
