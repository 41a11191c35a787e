"""What the helpers of launch and collectives do: alone, and in two processes of gloo.

The answers come from plain arithmetic on the values of both ranks, not from torch.distributed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from spawned import end_worker

from xla2tpu.rules import load_rules

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
torch = pytest.importorskip("torch")

NAMES = (
    "barrier", "gather_payloads", "mesh_reduce", "reduce_op", "all_reduce", "all_gather",
    "reduce_scatter", "all_to_all", "collective_permute", "broadcast_tensors", "broadcast_model",
    "SerialExecutor", "AllReduceWithGrad", "AllGatherWithGrad",
)  # fmt: skip


class Helpers:
    """The helpers of one file, as attributes."""

    def __init__(self) -> None:
        for name in NAMES:
            helper = load_rules().helpers[name]
            exec("\n".join((*helper.imports, helper.code)), vars(self))


def tensor(*values: float) -> Any:
    return torch.tensor(values)


def test_collectives_of_a_single_process() -> None:
    it = Helpers()
    value = tensor(1.0, 2.0)
    new = it.all_reduce("sum", value, scale=0.5)
    assert new is not value
    assert new.tolist() == [1.0, 2.0]  # torch_xla does not scale where there is one replica
    values = [value]
    assert it.all_reduce("sum", values, 0.5) is values
    assert value.tolist() == [1.0, 2.0]
    assert it.all_gather(value).tolist() == [1.0, 2.0]
    out = torch.zeros(2)
    assert it.all_gather(value, output=out) is out
    assert out.tolist() == [1.0, 2.0]
    assert [t.tolist() for t in it.all_gather([value, value])] == [[1.0, 2.0]] * 2
    outs = [torch.zeros(2), torch.zeros(2)]
    assert it.all_gather([value, value], 0, outs)[1] is outs[1]
    assert [t.tolist() for t in outs] == [[1.0, 2.0]] * 2
    shards = it.reduce_scatter("sum", [value, 2 * value], 0.5, 0, 1, output=outs)
    assert shards[1] is outs[1]
    assert [t.tolist() for t in outs] == [[0.5, 1.0], [1.0, 2.0]]
    assert it.reduce_scatter("sum", value, 0.5, 0, 1).tolist() == [0.5, 1.0]
    with pytest.raises(ValueError, match="shard_count is 2, but there are 1 processes"):
        it.reduce_scatter("sum", value, 0.5, 0, 2)
    assert it.all_to_all(torch.ones(2, 3), 0, 1, 1).shape == (2, 3)
    with pytest.raises(ValueError, match="split_count is 4"):
        it.all_to_all(value, 0, 0, 4)
    assert it.collective_permute(value, [[0, 0]]).tolist() == [1.0, 2.0]
    assert it.collective_permute(value, []).tolist() == [0.0, 0.0]
    it.broadcast_tensors([value], root=0)
    model = torch.nn.Linear(1, 1)
    assert it.broadcast_model(model) is model
    assert it.mesh_reduce({"a": 1}, lambda parts: parts) == [{"a": 1}]
    assert it.gather_payloads(b"x") == [b"x"]
    assert it.gather_payloads() == [b""]
    it.barrier()
    assert it.SerialExecutor().run(lambda: 5) == 5


def test_gradients_of_a_single_process() -> None:
    it = Helpers()
    value = tensor(1.0, 2.0).requires_grad_()
    it.AllReduceWithGrad.apply(value, "sum", 0.5).sum().backward()
    assert value.grad.tolist() == [0.5, 0.5]  # scaled in backward alone, as torch_xla does
    value.grad = None
    it.AllGatherWithGrad.apply(value).sum().backward()
    assert value.grad.tolist() == [1.0, 1.0]


def test_reduced_tensors_take_no_part_in_backward() -> None:
    it = Helpers()
    leaf = tensor(3.0).requires_grad_()
    assert not it.all_reduce("sum", leaf).requires_grad
    assert not it.all_gather(leaf).requires_grad
    assert it.mesh_reduce(leaf * 2, max).item() == 6.0


def two_ranks(rank: int, port: int, folder: str) -> None:
    """The body of one of two processes; raises where a helper answers wrongly."""
    import torch.distributed as dist

    it = Helpers()
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2",
        LOCAL_RANK=str(rank),
    )  # fmt: skip
    dist.init_process_group("gloo")
    try:
        reductions(it, rank)
        exchanges(it, rank)
        gradients(it, rank)
        objects(it, rank)
        serial(it, rank, Path(folder))
    finally:
        dist.destroy_process_group()
    end_worker()


def reductions(it: Helpers, rank: int) -> None:
    mine = tensor(1.0, -2.0) * (rank + 1)
    assert it.all_reduce("sum", mine).tolist() == [3.0, -6.0]
    assert it.all_reduce("sum", mine, scale=0.5).tolist() == [1.5, -3.0]
    assert it.all_reduce("mul", mine).tolist() == [2.0, 8.0]
    assert it.all_reduce("min", mine).tolist() == [1.0, -4.0]
    assert it.all_reduce("max", mine).tolist() == [2.0, -2.0]
    assert mine.tolist() == [1.0 * (rank + 1), -2.0 * (rank + 1)]  # a tensor is left alone
    bits = torch.tensor([6, 12][rank])
    assert it.all_reduce("and", bits).item() == 4
    assert it.all_reduce("or", bits).item() == 14
    assert it.all_reduce("sum", torch.tensor([rank + 1])).dtype == torch.int64
    parts = [mine.clone(), torch.nn.Parameter(tensor(float(rank)))]
    assert it.all_reduce("sum", parts, 0.5) is parts  # a list is reduced in place
    assert [p.tolist() for p in parts] == [[1.5, -3.0], [0.5]]
    square = torch.arange(8.0).reshape(2, 4) * (rank + 1)
    total = torch.arange(8.0).reshape(2, 4) * 3
    for dim, shard in ((0, total[rank : rank + 1]), (1, total[:, rank * 2 : rank * 2 + 2])):
        assert torch.equal(it.reduce_scatter("sum", square, 0.5, dim, 2), shard * 0.5)
        out = torch.zeros_like(shard)
        assert it.reduce_scatter("sum", square, 1.0, dim, 2, output=out) is out
        assert torch.equal(out, shard)


def exchanges(it: Helpers, rank: int) -> None:
    mine = torch.arange(6.0).reshape(2, 3) + 10 * rank
    other = torch.arange(6.0).reshape(2, 3) + 10 * (1 - rank)
    both = [mine, other] if rank == 0 else [other, mine]
    for dim in (0, 1, -1):
        assert torch.equal(it.all_gather(mine, dim), torch.cat(both, dim))
    assert torch.equal(it.all_gather(mine.t(), 0), torch.cat([b.t() for b in both], 0))
    out = torch.zeros(4, 3)
    assert it.all_gather(mine, output=out) is out
    assert torch.equal(out, torch.cat(both))
    # Rank r gets row r of each; the rows of rank 0 come first.
    expected = torch.cat([b[rank : rank + 1] for b in both], 1)
    assert torch.equal(it.all_to_all(mine, 0, 1, 2), expected)
    assert torch.equal(it.collective_permute(mine, [[0, 1], [1, 0]]), other)
    arrived = it.collective_permute(mine, [(0, 1)])
    assert torch.equal(arrived, other if rank == 1 else torch.zeros(2, 3))
    values = [tensor(float(rank)), torch.nn.Parameter(tensor(rank + 5.0))]
    it.broadcast_tensors(values, root=1)
    assert [v.item() for v in values] == [1.0, 6.0]
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model[1].running_mean += rank
    it.broadcast_model(model)
    torch.manual_seed(0)
    first = torch.nn.Linear(2, 2)
    assert torch.equal(model[0].weight, first.weight)
    assert model[1].running_mean.tolist() == [0.0, 0.0]


def gradients(it: Helpers, rank: int) -> None:
    mine = tensor(1.0 + rank, 4.0 - rank).requires_grad_()
    weights = tensor(1.0, 2.0) + rank
    largest = tensor(float(rank == 1), float(rank == 0))
    product = tensor(2.0, 12.0)
    for kind, scale, expected in (
        ("sum", 0.5, weights * 0.5),
        ("max", 1.0, weights * largest),
        ("min", 1.0, weights * (1 - largest)),
        ("mul", 0.5, weights * 0.5 * product * 0.5 / mine.detach()),
    ):
        mine.grad = None
        (it.AllReduceWithGrad.apply(mine, kind, scale) * weights).sum().backward()
        assert torch.allclose(mine.grad, expected), kind
    mine.grad = None
    (it.AllGatherWithGrad.apply(mine, 0) * torch.arange(4.0) * (rank + 1)).sum().backward()
    # The slice of this rank, and no sum over the ranks.
    assert torch.equal(mine.grad, torch.arange(4.0)[rank * 2 : rank * 2 + 2] * (rank + 1))


def objects(it: Helpers, rank: int) -> None:
    assert it.mesh_reduce(rank + 1.0, lambda parts: sum(parts) / len(parts)) == 1.5
    assert it.mesh_reduce({"name": str(rank)}, lambda parts: parts) == [
        {"name": "0"},
        {"name": "1"},
    ]
    loss = tensor(2.0 * rank).requires_grad_() * 1
    assert it.mesh_reduce((loss, "x"), lambda parts: parts[1][0]).item() == 2.0
    assert it.gather_payloads(b"abc" * (rank + 1)) == [b"abc", b"abcabc"]
    assert it.gather_payloads() == [b"", b""]
    it.barrier()


def serial(it: Helpers, rank: int, folder: Path) -> None:
    path = folder / "download"

    def fetch() -> str:
        if not path.exists():
            time.sleep(0.5)
            path.write_text(f"made by {rank}")
        return f"{path.read_text()}, read by {rank}"

    assert it.SerialExecutor().run(fetch) == f"made by 0, read by {rank}"


def test_two_ranks(tmp_path: Path) -> None:
    import torch.distributed as dist
    import torch.multiprocessing as mp

    if not dist.is_gloo_available():
        pytest.skip("torch was built without gloo")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    mp.spawn(two_ranks, args=(port, str(tmp_path)), nprocs=2)


# -- launch ---------------------------------------------------------------------------------

# Stands in for what a TPU host has: its number of devices, and the set-up of the slice.
HOST = """
import sys, types
import torch

torch.accelerator.device_count = lambda: {devices}
torch.tpu = types.SimpleNamespace(
    distributed=types.SimpleNamespace(
        set_tpu_launch_env=lambda nproc_per_node: print("host of", nproc_per_node, flush=True)
    )
)
"""
BODY = """
def worker(index, name, fail=None):
    rank, size, local = dist.get_rank(), dist.get_world_size(), os.environ["LOCAL_RANK"]
    assert (str(index), str(rank)) == (local, local)
    names = [None] * size
    dist.all_gather_object(names, f"{name}{rank}")
    if rank == 0:
        print(names, "of", os.environ["LOCAL_WORLD_SIZE"], flush=True)
    if fail == "exit":
        sys.exit(3)
    if fail and rank == size - 1:
        raise OSError(fail)
    return "dropped"
"""


def program(folder: Path, devices: int, main: str) -> Path:
    helpers = [load_rules().helpers[name] for name in ("launch_worker", "launch")]
    imports = sorted({text for helper in helpers for text in helper.imports})
    # No TPU here: the part of the backend that is for the CPU.
    codes = [h.code.replace('"cpu:gloo,tpu:tpu_dist"', '"gloo"') for h in helpers]
    assert "gloo" in codes[1]
    text = [*imports, HOST.format(devices=devices), *codes, BODY]
    text.append('if __name__ == "__main__":\n' + textwrap.indent(textwrap.dedent(main), "    "))
    path = folder / "program.py"
    path.write_text("\n".join(text))
    return path


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    gone = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TPU_WORKER_HOSTNAMES")
    env = {k: v for k, v in os.environ.items() if k not in gone}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, check=False,
        env={**env, **variables},
    )  # fmt: skip


def test_launch_starts_a_process_for_each_device(tmp_path: Path) -> None:
    main = """
    print(launch(worker, args=("a",)))
    launch(worker, ("b",), nprocs=8)
    print(dist.is_initialized(), "RANK" in os.environ)
    """
    done = run(str(program(tmp_path, 2, main)))
    assert done.returncode == 0, done.stderr
    lines = ["host of 2", "['a0', 'a1'] of 2", "None", "host of 2", "['b0', 'b1'] of 2"]
    assert [x for x in done.stdout.splitlines() if x] == [*lines, "False False"]


def test_launch_of_one_process_stays_in_it(tmp_path: Path) -> None:
    main = """
    FOUND = []
    launch(lambda index, *more: FOUND.append((index, *more)), args=[1, 2], nprocs=1)
    launch(worker, ("a",), nprocs=1)
    print(FOUND, dist.is_initialized())
    """
    done = run(str(program(tmp_path, 2, main)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "host of 1", "host of 1", "['a0'] of 1", "[(0, 1, 2)] False"
    ]  # fmt: skip


def test_launch_hands_exceptions_on(tmp_path: Path) -> None:
    main = """
    try:
        launch(worker, args=("a", "no disk"))
    except mp.ProcessRaisedException as error:
        print("no disk" in str(error))
    launch(worker, args=("b", "exit"))
    """
    done = run(str(program(tmp_path, 2, main)))
    assert "True" in done.stdout.splitlines(), done.stderr
    assert done.returncode != 0
    assert "exit code 3" in done.stderr
    alone = run(str(program(tmp_path, 1, 'launch(worker, args=("a", "no disk"))')))
    assert "OSError: no disk" in alone.stderr


def test_launch_under_torchrun(tmp_path: Path) -> None:
    main = """
    for name in ("a", "b"):
        launch(worker, args=(name,))
    """
    path = str(program(tmp_path, 8, main))
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['a0', 'a1'] of 2", "['b0', 'b1'] of 2"]


def test_launch_on_several_hosts_is_for_torchrun(tmp_path: Path) -> None:
    path = program(tmp_path, 2, 'launch(worker, args=("a",))')
    done = run(str(path), TPU_WORKER_HOSTNAMES="host-0,host-1")
    assert "RuntimeError: on several hosts, start this program with torchrun" in done.stderr
    one = run(str(path), TPU_WORKER_HOSTNAMES="host-0")
    assert one.returncode == 0, one.stderr
