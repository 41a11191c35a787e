"""Tensors of the device and the host memory behind them.

A tensor of the device is a plain `torch.Tensor` of the PrivateUse1 backend. Its storage is a
storage of device `tpu:0` that points into host memory, and that keeps a `Block` as an attribute.
torch holds the Python object of a storage as long as the storage lives, so views, detached
tensors and what autograd saves find their block, and memory is freed with the last of them.
"""

from __future__ import annotations

import os
from typing import Any

import torch

FORKED = (
    "cannot access or re-initialize TPU in a forked subprocess. To use TPU with multiprocessing, "
    "you must use the 'spawn' start method"
)

_create_empty = torch._C._acc.create_empty_tensor
_construct_storage = torch._C._construct_storage_from_data_pointer
_empty = torch.ops.aten.empty.memory_format._op
_storage_set = torch.ops.aten.set_.source_Storage._op
_as_strided = torch.ops.aten.as_strided.default._op
_device_set = torch.ops.aten.set_.source_Storage_storage_offset.redispatch
# The kernel of the CPU moves pointers and sizes and never looks at the memory.
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class State:
    """What is allocated, in bytes, and whether this process may use the device."""

    started = False
    forked = False
    allocated = 0
    peak = 0
    total_allocated = 0
    total_freed = 0


def _after_fork() -> None:
    State.forked = State.started


os.register_at_fork(after_in_child=_after_fork)


class Block:
    """Host memory of a storage: ``host`` by dtype, as flat tensors over one CPU storage."""

    __slots__ = ("host", "nbytes", "storage")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.nbytes = storage.nbytes()
        self.host: dict[torch.dtype, torch.Tensor] = {}
        State.allocated += self.nbytes
        State.total_allocated += self.nbytes
        if State.allocated > State.peak:
            State.peak = State.allocated

    def __del__(self, state: type[State] = State) -> None:
        state.allocated -= self.nbytes
        state.total_freed += self.nbytes

    def base(self, dtype: torch.dtype) -> torch.Tensor:
        """A CPU tensor over the whole storage."""
        tensor = _empty((0,), dtype=dtype, device="cpu")
        self.host[dtype] = _storage_set(tensor, self.storage)
        return tensor


def block_of(tensor: torch.Tensor) -> Block | None:
    """The block of a tensor of the device; None for other tensors."""
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:  # sparse tensors have no storage
        return None
    block: Block | None = getattr(storage, "_tpu_block", None)
    if block is None and storage.device.type == "tpu":
        # torch made this storage in C++ over memory of another one, to read or write a file.
        address, size = storage.data_ptr(), storage.nbytes()
        block = Block(_construct_storage(address, torch.device("cpu"), size))
        storage._tpu_block = block
    return block


def host(tensor: torch.Tensor) -> torch.Tensor:
    """The CPU tensor that shares its memory with ``tensor``, which is of the device.

    Raises RuntimeError in a forked process, as `over` does.
    """
    if State.forked:
        raise RuntimeError(FORKED)
    block: Block = tensor.untyped_storage()._tpu_block
    dtype = tensor.dtype
    base = block.host.get(dtype)
    if base is None:
        base = block.base(dtype)
    return _as_strided(base, tensor.shape, tensor.stride(), tensor.storage_offset())


def wrap(cpu: torch.Tensor) -> torch.Tensor:
    """A tensor of the device that takes over the memory of ``cpu``."""
    return over(_create_empty((), cpu.dtype), cpu)


def over(tensor: torch.Tensor, cpu: torch.Tensor) -> torch.Tensor:
    """``tensor``, of the device, made to be what ``cpu`` is, over a storage of its own."""
    if State.forked:
        raise RuntimeError(FORKED)
    storage = cpu.untyped_storage()
    mine = _construct_storage(storage.data_ptr(), DEVICE, storage.nbytes())
    mine._tpu_block = Block(storage)
    return _device_set(_CPU, tensor, mine, cpu.storage_offset(), cpu.shape, cpu.stride())


def view(of: torch.Tensor, cpu: torch.Tensor) -> torch.Tensor:
    """A view of the device's tensor ``of`` that looks at its storage as ``cpu`` does."""
    tensor = _create_empty((), cpu.dtype)
    storage = of.untyped_storage()
    return _device_set(_CPU, tensor, storage, cpu.storage_offset(), cpu.shape, cpu.stride())


def check_index(device: torch.device | None) -> None:
    """Raise RuntimeError for a device that this process does not have."""
    if device is not None and device.type == "tpu" and device.index not in (None, 0):
        raise RuntimeError(
            f"Device index {device.index} does not exist: a TorchTPU process has one device, tpu:0"
        )


def allocate(make: Any, *args: Any, device: torch.device | None, **kwargs: Any) -> torch.Tensor:
    """A new tensor of the device, made on the CPU by ``make``.

    Raises RuntimeError for a device that this process does not have.
    """
    State.started = True
    check_index(device)
    return wrap(make(*args, device="cpu", **kwargs))


DEVICE = torch.device("cpu")


def device_is_registered() -> None:
    """Tell this module that torch knows the device type by now."""
    global DEVICE
    DEVICE = torch.device("tpu", 0)
