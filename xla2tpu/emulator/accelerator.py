"""`torch.accelerator` where torch has no way to ask a backend written in Python."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from xla2tpu.emulator import device as tpu
from xla2tpu.emulator import hardware, memory

State = memory.State
_RESET = "torch.accelerator.memory.reset_accumulated_memory_stats is not implemented for TPU."


def _check(device: Any) -> None:
    if device is not None:
        tpu.check_device(device)


def set_device_index(device: Any, /) -> None:
    tpu.check_device(torch.device(device) if isinstance(device, str) else device)


def synchronize(device: Any = None, /) -> None:
    _check(device)


def current_stream(device: Any = None, /) -> Any:
    _check(device)
    return tpu.current_stream()


def set_stream(stream: Any) -> None:
    tpu.set_stream(stream)


class device_index:
    """There is one device, and it is the current one."""

    def __init__(self, device: int | None, /) -> None:
        self.idx = device

    def __enter__(self) -> None:
        _check(self.idx)

    def __exit__(self, *exception: object) -> None:
        return None


def empty_cache() -> None:
    """Memory is given back when it is not used any more."""


def memory_stats(device_index: Any = None, /) -> OrderedDict[str, Any]:
    _check(device_index)
    stats: OrderedDict[str, Any] = OrderedDict()
    for kind in ("allocated_bytes", "reserved_bytes"):
        stats[f"{kind}.all.allocated"] = State.total_allocated
        stats[f"{kind}.all.current"] = State.allocated
        stats[f"{kind}.all.freed"] = State.total_freed
        stats[f"{kind}.all.peak"] = State.peak
    return stats


def memory_allocated(device_index: Any = None, /) -> int:
    _check(device_index)
    return State.allocated


def max_memory_allocated(device_index: Any = None, /) -> int:
    _check(device_index)
    return State.peak


def reset_accumulated_memory_stats(device_index: Any = None, /) -> None:
    raise RuntimeError(_RESET)


def reset_peak_memory_stats(device_index: Any = None, /) -> None:
    _check(device_index)
    State.peak = State.allocated


def get_memory_info(device_index: Any = None, /) -> tuple[int, int]:
    _check(device_index)
    return hardware.MEMORY - State.allocated, hardware.MEMORY


def patch() -> None:
    """Put these in the place of torch's."""
    functions = {
        "set_device_index": set_device_index,
        "set_device_idx": set_device_index,
        "synchronize": synchronize,
        "current_stream": current_stream,
        "set_stream": set_stream,
        "device_index": device_index,
        "empty_cache": empty_cache,
        "memory_stats": memory_stats,
        "memory_allocated": memory_allocated,
        "max_memory_allocated": max_memory_allocated,
        "memory_reserved": memory_allocated,
        "max_memory_reserved": max_memory_allocated,
        "reset_accumulated_memory_stats": reset_accumulated_memory_stats,
        "reset_peak_memory_stats": reset_peak_memory_stats,
        "get_memory_info": get_memory_info,
    }
    for module in (torch.accelerator, torch.accelerator.memory):
        for name, function in functions.items():
            if hasattr(module, name):
                setattr(module, name, function)
