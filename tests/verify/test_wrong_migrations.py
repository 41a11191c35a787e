"""Migrations that are wrong are caught, with words that say what is wrong and where."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from xla2tpu.cli import main
from xla2tpu.verify.record import dumps
from xla2tpu.verify.run import Program, on_torch, record

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)

TRAIN = """\
import torch

torch.manual_seed(0)
device = torch.device("tpu")
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    batch = torch.rand(8, 4)
    batch = batch.to(device)
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item())
torch.save({"weight": model.weight.detach().cpu()}, "weight.pt")
"""
PLAIN = TRAIN.replace('"tpu"', '"cpu"')

PARALLEL = """\
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def average_gradients(optimizer):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)


def work(rank, count, port):
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(count),
        LOCAL_WORLD_SIZE=str(count),
    )
    dist.init_process_group("cpu:gloo,tpu:tpu_dist")
    torch.manual_seed(0)
    device = torch.device("tpu")
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        batch = torch.rand(8, 4)[rank::count].to(device)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        average_gradients(optimizer)
        optimizer.step()
    if rank == 0:
        print("trained")
    dist.destroy_process_group()


if __name__ == "__main__":
    count = torch.accelerator.device_count()
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=count)
    mp.spawn(work, args=(count, port), nprocs=count)
"""
ALONE = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.rand(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
print("trained")
"""


@pytest.fixture(scope="module")
def baselines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What plain PyTorch does, which stands for the original here."""
    found = {}
    for name, text in (("one", PLAIN), ("several", ALONE)):
        folder = tmp_path_factory.mktemp(name)
        root = folder / "program"
        root.mkdir()
        (root / "train.py").write_text(text)
        made = record(Program(root, "train.py"), on_torch(sys.executable, 120), folder / "record")
        assert made.status == 0, made.stderr
        (root / "weight.pt").unlink(missing_ok=True)
        found[name] = folder / "baseline.json"
        found[name].write_text(dumps(made))
    return found


def verify(tmp_path: Path, text: str, baseline: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the report on ``text`` as the migrated program."""
    program = tmp_path / "train.py"
    program.write_text(text)
    command = ["verify", str(program), "--migrated", str(program), "--baseline", str(baseline)]
    done = CliRunner().invoke(main, [*command, *options, "--output-format", "json"])
    assert done.exit_code in (0, 1), done.output
    return done.exit_code, json.loads(done.stdout)


def line_of(text: str, part: str) -> str:
    number = text[: text.index(part)].count("\n") + 1
    return f"train.py:{number}"


def test_right_migration(tmp_path: Path, baselines: dict[str, Path]) -> None:
    status, report = verify(tmp_path, TRAIN, baselines["one"])
    assert (status, report["verdict"], report["first"]) == (0, "same", None)
    compared = {part["name"]: part["compared"] for part in report["parts"]}
    assert compared == {
        "exit status": 1,
        "losses": 3,
        "parameters": 3,
        "printed lines": 3,
        "files": 1,
    }


def test_batch_that_was_not_moved(tmp_path: Path, baselines: dict[str, Path]) -> None:
    text = TRAIN.replace("    batch = batch.to(device)\n", "")
    status, report = verify(tmp_path, text, baselines["one"])
    assert (status, report["verdict"]) == (1, "differs")
    assert "Expected all tensors to be on the same device" in report["first"]["what"]
    assert report["first"]["migrated"] == line_of(text, "model(batch)")


def test_name_that_users_may_not_call(tmp_path: Path, baselines: dict[str, Path]) -> None:
    text = TRAIN.replace(
        "    optimizer.step()\n", "    optimizer.step()\n    torch.tpu.synchronize()\n"
    )
    status, report = verify(tmp_path, text, baselines["one"])
    assert (status, report["verdict"]) == (1, "differs")
    assert "synchronize is internal to TorchTPU" in report["first"]["what"]
    assert report["first"]["migrated"] == line_of(text, "torch.tpu.synchronize")


def test_operator_without_a_kernel(tmp_path: Path, baselines: dict[str, Path]) -> None:
    text = TRAIN.replace(".square().mean()", ".square().flatten().mode().values")
    status, report = verify(tmp_path, text, baselines["one"])
    assert (status, report["verdict"]) == (1, "differs")
    assert "'aten::mode' is not implemented for TPU" in report["first"]["what"]
    assert report["first"]["migrated"] == line_of(text, "mode()")


def test_other_numbers(tmp_path: Path, baselines: dict[str, Path]) -> None:
    text = TRAIN.replace("lr=0.1", "lr=0.11")
    status, report = verify(tmp_path, text, baselines["one"])
    assert (status, report["verdict"]) == (1, "differs")
    # The first loss is from before the first step.
    assert report["first"]["part"] == "losses"
    assert report["first"]["what"].startswith("loss 2: ")
    assert [row["agree"] for row in report["losses"]] == [True, False, False]
    assert report["first"]["migrated"] == line_of(text, "loss.backward()")


def test_two_processes_that_average(tmp_path: Path, baselines: dict[str, Path]) -> None:
    status, report = verify(tmp_path, PARALLEL, baselines["several"], "--devices", "2")
    assert (status, report["verdict"], report["first"]) == (0, "same", None)
    assert report["runs"]["original"]["origin"] == "reference"
    assert report["runs"]["migrated"]["processes"] == 2


def test_averaging_left_out(tmp_path: Path, baselines: dict[str, Path]) -> None:
    text = PARALLEL.replace("        average_gradients(optimizer)\n", "")
    status, report = verify(tmp_path, text, baselines["several"], "--devices", "2")
    assert (status, report["verdict"]) == (1, "differs")
    assert report["first"]["part"] == "ranks"
    assert "gradients were not averaged over the processes" in report["first"]["what"]
    assert report["first"]["migrated"] == line_of(text, "optimizer.step()")
