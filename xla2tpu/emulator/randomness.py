"""Generators of the device: generators of the CPU that call themselves `tpu`.

The numbers of the device come from a generator of their own, so that what a program draws on the
CPU does not depend on what it draws on the device. They are not those of a TPU.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

_CpuGenerator: Any = torch._C.Generator
# By the address of the C++ object: torch hands a kernel another Python object for it.
_of_device: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_lock = threading.Lock()


class _GeneratorType(type(_CpuGenerator)):  # type: ignore[misc]
    """`torch.Generator(...)` gives generators of each device, and all are instances of it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _CpuGenerator)

    def __call__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != "tpu":
            return _CpuGenerator(device)
        made = type.__call__(cls)
        _of_device[made._cdata] = made
        return made


class Generator(_CpuGenerator, metaclass=_GeneratorType):
    """A generator of the device."""

    @property
    def device(self) -> torch.device:
        return torch.device("tpu", 0)

    def clone_state(self) -> Any:
        other = Generator("tpu")
        other.set_state(self.get_state())
        return other


_default: list[Generator] = []


def default() -> Generator:
    """The generator that operators of the device draw from if they are given none."""
    if not _default:
        _default.append(Generator("tpu"))
    return _default[0]


def host(generator: Any) -> Any:
    """``generator``, which an operator of the device was given.

    Raises RuntimeError for a generator of another device, with torch's message.
    """
    if generator._cdata not in _of_device:
        raise RuntimeError(
            f"Expected a 'tpu' device type for generator but found '{generator.device.type}'"
        )
    return generator


def swapped(plan: Callable[..., Any]) -> Callable[..., Any]:
    """``plan`` of an operator that always draws from the default generator of the CPU."""

    def seeded(*args: Any, **kwargs: Any) -> Any:
        cpu = torch.default_generator
        with _lock:
            state = cpu.get_state()
            cpu.set_state(default().get_state())
            try:
                return plan(*args, **kwargs)
            finally:
                default().set_state(cpu.get_state())
                cpu.set_state(state)

    return seeded
