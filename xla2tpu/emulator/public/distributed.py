"""`torch.tpu.distributed`; `python -m torch.tpu.distributed` prints the launch environment."""

from __future__ import annotations

import functools
import os
import socket
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from xla2tpu.emulator import hardware, settings
from xla2tpu.emulator.device import _rank_mesh
from xla2tpu.emulator.stages import experimental

__all__ = [
    "set_tpu_launch_env",
    "spmd_safe",
    "topology_aware_mesh",
    *(_WINDOW := ("window_num_stripes", "window_stripe_chunk_mb")),
]
_CHANGES = "torch.tpu.distributed.{} is experimental and subject to change."


def _once(name: str, value: Callable[[], str]) -> None:
    if name not in os.environ:
        os.environ[name] = value()


def _unused_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@experimental(_CHANGES.format("set_tpu_launch_env"))
def set_tpu_launch_env(*, nnodes: int | None = None, nproc_per_node: int | None = None) -> None:
    """Set the variables that workers need, where they are not set already.

    Raises ValueError where ``nnodes`` and TPU_WORKER_HOSTNAMES disagree or a value of several
    hosts cannot be derived, and RuntimeError for a number of processes that no host has.
    """
    _once("TORCH_TPU_XPROF_SESSION_ID", lambda: str(time.time_ns()))
    listed = os.environ.get("TPU_WORKER_HOSTNAMES")
    hosts = [h for h in (listed or "").split(",") if h]
    if nnodes is not None and hosts and nnodes != len(hosts):
        raise ValueError(
            "set_tpu_launch_env(): expected nnodes to match the number of hosts in environment "
            f'variable TPU_WORKER_HOSTNAMES ({len(hosts)}: "{listed}"), got {nnodes}'
        )
    devices = settings.read().devices
    index = os.environ.get("JOB_COMPLETION_INDEX")
    if (nnodes or 1) > 1 or len(hosts) > 1 or index is not None:
        _several_hosts(hosts, nnodes, nproc_per_node or devices, index)
        return
    count = devices if nproc_per_node is None else nproc_per_node
    mesh = hardware.topology(count)
    _once(
        "TORCH_TPU_SLICEBUILDER_ADDRESSES",
        lambda: ",".join(f"localhost:{port}" for port in _unused_ports(count)),
    )
    _once("TORCH_TPU_TOPOLOGY", lambda: mesh)


def _several_hosts(hosts: list[str], nnodes: int | None, count: int, index: str | None) -> None:
    def needed() -> list[str]:
        if not hosts:
            raise ValueError(
                "set_tpu_launch_env(): expected environment variable TPU_WORKER_HOSTNAMES to be a "
                "comma-separated list of worker hostnames or IP addresses, got it as unset"
            )
        return hosts

    def rank() -> str:
        if index is None:
            raise ValueError(
                "set_tpu_launch_env(): expected either TPU device coordinates together with "
                "environment variable TORCH_TPU_TOPOLOGY, or environment variable "
                "JOB_COMPLETION_INDEX to be a 0-based index of this host (Kubernetes Indexed Jobs "
                "set this automatically), to determine NODE_RANK, got neither"
            )
        return str(int(index))

    base = int(os.environ.get("TORCH_TPU_BASE_PORT", "8070"))
    each = int(os.environ.get("TORCH_TPU_DEVICES_PER_HOST", str(count)))
    _once(
        "TORCH_TPU_SLICEBUILDER_ADDRESSES",
        lambda: ",".join(f"{host}:{base + i}" for host in needed() for i in range(each)),
    )
    _once("NNODES", lambda: str(nnodes if nnodes is not None else len(needed())))
    _once("NODE_RANK", rank)
    _once("MASTER_ADDR", lambda: needed()[0])
    _once("MASTER_PORT", lambda: "29500")
    _once("TORCH_TPU_TOPOLOGY", lambda: hardware.topology(count))


@experimental(_CHANGES.format("spmd_safe"))
def spmd_safe(func: Callable[..., Any]) -> Callable[..., Any]:
    """Collectives run at once here, so there is nothing to fuse."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


@experimental(_CHANGES.format("topology_aware_mesh"))
def topology_aware_mesh(
    mesh_shape: tuple[int, ...],
    *,
    dcn_mesh_shape: tuple[int, ...] | None = None,
    allow_split_physical_axes: bool = False,
    contiguous_submeshes: bool = False,
) -> torch.Tensor:
    """The ranks in their order: emulated devices have no places."""
    return _rank_mesh(mesh_shape)


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> int:
        if name in _WINDOW:
            raise NotImplementedError(f"torch.tpu.distributed.{name} is not emulated")
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def _print_launch_env() -> None:
    set_tpu_launch_env()
    addresses = os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"]
    for name in ("TOPOLOGY", "SLICEBUILDER_ADDRESSES", "XPROF_SESSION_ID"):
        print(f'TORCH_TPU_{name}="{os.environ[f"TORCH_TPU_{name}"]}"')
    print(f"WORLD_SIZE={len(addresses.split(','))}")
    print(f'NODE_RANK="{os.environ.get("NODE_RANK", "0")}"')
    for name in ("NNODES", "MASTER_ADDR", "MASTER_PORT"):
        if name in os.environ:
            print(f'{name}="{os.environ[name]}"')


if __name__ == "__main__":
    _print_launch_env()
else:
    sys.modules[__name__].__class__ = _Module
