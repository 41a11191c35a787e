"""Runs TorchTPU programs on the CPU: device `tpu`, `torch_tpu`, `torch.tpu` without a TPU.

This package imports torch when it is activated and not before, and nothing else that Python does
not bring along.
"""

from __future__ import annotations

import sys

from xla2tpu.emulator import settings as _settings
from xla2tpu.emulator.hardware import real_tpus

__all__ = ["activate", "activate_from_environment", "prepare", "step_aside"]


def prepare(*, devices: int = 1, allow_missing_ops: bool = False) -> None:
    """Set the environment so that Python processes started from here are emulated.

    ``devices`` is how many devices this host has (each process uses one of them), and
    ``allow_missing_ops`` lets operators run that torch_tpu has no kernel for. Raises ValueError for
    a count that no host has.
    """
    _settings.write(_settings.Settings(devices, allow_missing_ops))


def activate(*, devices: int = 1, allow_missing_ops: bool = False) -> None:
    """Make this process, and those that it starts, TorchTPU processes. Idempotent.

    Where torch_tpu would find a TPU, this says so and leaves it to torch_tpu. Raises ValueError for
    a count of devices that no host has, and RuntimeError where the real torch_tpu has registered
    itself already.
    """
    if step_aside():
        return
    prepare(devices=devices, allow_missing_ops=allow_missing_ops)
    activate_from_environment()


def step_aside() -> bool:
    """Whether this host has TPUs, which is said on stderr."""
    found = real_tpus()
    if found:
        text = f"xla2tpu: this host has {found} TPU(s): it is left to torch_tpu, not emulated"
        print(text, file=sys.stderr)
    return bool(found)


def activate_from_environment() -> None:
    """`activate` with the settings that the environment holds."""
    if str(_settings.SHADOW) not in sys.path:
        sys.path.insert(0, str(_settings.SHADOW))
    # torch loads its backends when it is imported, and so calls this function again: it has to be
    # complete before the modules that need it are.
    import torch  # noqa: F401

    from xla2tpu.emulator import registration

    registration.register(_settings.read())
