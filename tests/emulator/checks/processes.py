"""Several processes: groups, collectives, DDP, and which children are emulated."""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from expect import raises
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

TPU = torch.device("tpu")


def _entry(rank: int, function: Callable[[], None], backend: str, count: int, port: int) -> None:
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(count),
        LOCAL_WORLD_SIZE=str(count),
    )
    dist.init_process_group(backend)
    try:
        function()
    finally:
        dist.destroy_process_group()


def launch(function: Callable[[], None], backend: str = "tpu_dist", count: int = 2) -> None:
    torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=count)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(_entry, args=(function, backend, count, port), nprocs=count)


def _collectives() -> None:
    rank = dist.get_rank()
    assert dist.get_backend() == "tpu_dist"
    assert os.environ["TORCH_TPU_TOPOLOGY"] == "1,2,1"
    assert torch.accelerator.device_count() == 2
    assert torch.accelerator.current_device_index() == 0

    def mine(*shape: int) -> torch.Tensor:
        return torch.full(shape, float(rank + 1), device=TPU)

    for op, expected in (("SUM", 3), ("AVG", 1.5), ("MAX", 2), ("MIN", 1), ("PRODUCT", 2)):
        x = mine(2)
        dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
        assert x.tolist() == [expected] * 2, (op, x)
    view = torch.zeros(2, 3, device=TPU)
    dist.all_reduce(view[:, 0].add_(1).contiguous())
    work = dist.all_reduce(x := mine(2), async_op=True)
    work.wait()
    assert x.tolist() == [3, 3]
    x = mine(2)
    dist.broadcast(x, src=1)
    assert x.tolist() == [2, 2]
    parts = [torch.empty(1, device=TPU) for _ in range(2)]
    dist.all_gather(parts, mine(1))
    assert [p.item() for p in parts] == [1, 2]
    whole = torch.empty(2, device=TPU)
    dist.all_gather_into_tensor(whole, mine(1))
    assert whole.tolist() == [1, 2]
    part = torch.empty(1, device=TPU)
    dist.reduce_scatter_tensor(part, torch.arange(2.0, device=TPU))
    assert part.item() == 2 * rank
    dist.reduce_scatter(part, list(torch.arange(2.0, device=TPU).split(1)))
    assert part.item() == 2 * rank
    out = torch.empty(2, device=TPU)
    dist.all_to_all_single(out, torch.arange(2.0, device=TPU) + 10 * rank)
    assert out.tolist() == [rank, 10 + rank]
    outs = [torch.empty(1, device=TPU) for _ in range(2)]
    dist.all_to_all(outs, list((torch.arange(2.0, device=TPU) + 10 * rank).split(1)))
    assert [o.item() for o in outs] == [rank, 10 + rank]
    gathered = [torch.empty(1, device=TPU) for _ in range(2)] if rank == 0 else None
    dist.gather(mine(1), gathered, dst=0)
    assert rank or [g.item() for g in gathered] == [1, 2]
    scattered = torch.empty(1, device=TPU)
    dist.scatter(scattered, list(torch.arange(2.0, device=TPU).split(1)) if rank == 0 else None)
    assert scattered.item() == rank
    if rank == 0:
        dist.send(mine(1), 1)
    else:
        dist.recv(scattered, 0)
        assert scattered.item() == 1
    dist.barrier()
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert [o["rank"] for o in objects] == [0, 1]
    one = ["x" if rank == 0 else None]
    dist.broadcast_object_list(one, src=0)
    assert one == ["x"]
    group = dist.new_group([0, 1])
    dist.all_reduce(x := mine(1), group=group)
    assert x.item() == 3
    assert torch.tpu.ops.all_gather_dim(mine(1, 1), 1).tolist() == [[1, 2]]
    import torch.distributed._functional_collectives as functional

    assert functional.all_reduce(mine(1), "sum", dist.group.WORLD).item() == 3
    gathered = functional.all_gather_tensor(mine(1), 0, dist.group.WORLD)
    assert gathered.tolist() == [1, 2]


def _refusals() -> None:
    x = torch.ones(1, device=TPU)
    with raises(RuntimeError, "does not support reduce"):
        dist.reduce(x, 0)
    with raises(RuntimeError, "does not support allreduce_coalesced"):
        dist.all_reduce_coalesced([x])
    with raises(RuntimeError, "No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(1))
    with raises(RuntimeError, "Device index 1"):
        dist.barrier(device_ids=[1])
    with raises(RuntimeError, "premul_sum"):
        dist.all_reduce(x, op=dist._make_nccl_premul_sum(2.0))


def _tpu_dist() -> None:
    _collectives()
    _refusals()
    _gradients_of_ddp()


def check_tpu_dist() -> None:
    launch(_tpu_dist)


def _both() -> None:
    host, device = torch.ones(1), torch.ones(1, device=TPU)
    dist.all_reduce(host)
    dist.all_reduce(device)
    assert host.item() == device.item() == 2
    dist.barrier()
    objects = [None, None]
    dist.all_gather_object(objects, dist.get_rank())
    assert objects == [0, 1]
    _ddp()
    _sharded()


def check_two_backends() -> None:
    launch(_both, "cpu:gloo,tpu:tpu_dist")


def _ddp() -> None:
    rank, count = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # DDP has to make the weights equal
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).to(TPU)
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.randint(2, (8,))
    for options in ({}, {"gradient_as_bucket_view": True, "broadcast_buffers": False}):
        wrapped = nn.parallel.DistributedDataParallel(model, **options)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            part = slice(rank * 8 // count, (rank + 1) * 8 // count)
            loss = nn.functional.cross_entropy(wrapped(x[part].to(TPU)), y[part].to(TPU))
            loss.backward()
            optimizer.step()
        for parameter in model.parameters():
            assert parameter.grad.device.type == "tpu"
            both = [torch.empty_like(parameter) for _ in range(count)]
            dist.all_gather(both, parameter.detach())
            assert torch.equal(both[0], both[1])
            dist.all_gather(both, parameter.grad)
            assert torch.equal(both[0], both[1])


def _gradients_of_ddp() -> None:
    rank = dist.get_rank()
    model = nn.Linear(2, 1, bias=False).to(TPU)
    with torch.no_grad():
        model.weight.fill_(1)
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped(torch.full((1, 2), float(rank), device=TPU)).sum().backward()
    assert model.weight.grad.tolist() == [[0.5, 0.5]]


def _sharded() -> None:
    """DTensor, tensor parallelism and FSDP2, against the same on one process."""
    mesh = init_device_mesh("tpu", (2,))
    x = torch.arange(8.0, device=TPU).view(4, 2)
    sharded = distribute_tensor(x, mesh, [Shard(0)])
    product = sharded @ sharded.t()
    assert torch.equal(product.full_tensor().cpu(), x.cpu() @ x.cpu().t())

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(TPU)
    whole, parallel = copy.deepcopy(model), copy.deepcopy(model)
    parallelize_module(parallel, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.ones(2, 4, device=TPU)
    torch.testing.assert_close(parallel(x).cpu(), whole(x).cpu())
    parallel(x).sum().backward()

    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in (model, whole)]
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        x = torch.randn(3, 4, generator=generator).to(TPU)
        for one, optimizer in zip((model, whole), optimizers, strict=True):
            optimizer.zero_grad()
            one(x).pow(2).mean().backward()
        for parameter in whole.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        for optimizer in optimizers:
            optimizer.step()
    for sharded, parameter in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(sharded.full_tensor().cpu(), parameter.cpu())


def check_more_processes_than_devices() -> None:
    os.environ["LOCAL_WORLD_SIZE"] = "4"
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            raises(RuntimeError, "4 processes on a host with 2 emulated TPU device(s)"),
        ):
            store = f"file://{folder}/store"
            dist.init_process_group("tpu_dist", init_method=store, rank=0, world_size=1)
    finally:
        del os.environ["LOCAL_WORLD_SIZE"]


def check_variables_of_a_launcher() -> None:
    from xla2tpu.emulator import collectives

    os.environ.pop("LOCAL_RANK", None)
    with raises(RuntimeError, "missing required environment variables for distributed training"):
        collectives.create(dist.HashStore(), 0, 2, timedelta(seconds=1))


def check_one_process_group() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        dist.init_process_group("tpu", init_method=store, rank=0, world_size=1)
        try:
            x = torch.ones(2, device=TPU)
            dist.all_reduce(x)
            assert x.tolist() == [1, 1]
            nn.parallel.DistributedDataParallel(nn.Linear(2, 2).to(TPU))(x).sum().backward()
        finally:
            dist.destroy_process_group()


def check_default_backend() -> None:
    assert dist.get_default_backend_for_device("tpu") == "tpu_dist"
    assert dist.Backend.backend_capability["tpu_dist"] == ["tpu"]


CHILD = """
import os, sys
import torch
print(torch.ones(2, device="tpu").sum().item(), os.environ.get("RANK"), __name__)
"""


def check_python_children() -> None:
    """Also with a `sitecustomize` of the user, from another folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text("import sys; sys.mine = 1\n")
        path = os.pathsep.join([os.environ["PYTHONPATH"], folder])
        done = subprocess.run(
            [sys.executable, "-c", CHILD + "print(sys.mine)"],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
        )
    assert done.stdout.split() == ["2.0", "None", "__main__", "1"], done


def check_torchrun() -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(
            "import torch, torch.distributed as dist\n"
            "dist.init_process_group('tpu_dist')\n"
            "x = torch.ones(1, device='tpu') * (dist.get_rank() + 1)\n"
            "dist.all_reduce(x)\n"
            "print(f'sum {x.item()}\\n', end='')\n"
            "dist.destroy_process_group()\n"
        )
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", script]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("sum 3.0") == 2, done


def check_launch_environment() -> None:
    torch.tpu.distributed.set_tpu_launch_env()
    assert os.environ["TORCH_TPU_TOPOLOGY"] == "1,2,1"
    addresses = os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"]
    assert len(set(addresses.split(","))) == 2
    torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=1)
    assert os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"] == addresses, "what is set stays"
    with raises(RuntimeError, "No TPU topology found for count: 3"):
        torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=3)
    with raises(ValueError, "expected environment variable TPU_WORKER_HOSTNAMES"):
        del os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"]
        torch.tpu.distributed.set_tpu_launch_env(nnodes=2)
