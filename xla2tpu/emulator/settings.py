"""What a process and its children are told by the environment."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

ACTIVE = "XLA2TPU_EMULATE"
DEVICES = "XLA2TPU_EMULATE_DEVICES"
ALLOW_MISSING_OPS = "XLA2TPU_EMULATE_ALLOW_MISSING_OPS"
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"

# The release that is emulated: its names, its refusals and its operators.
TORCH_TPU_VERSION = "0.2.0"
# The operators that it has kernels for; `scripts/tpu_kernels.py` writes it and tells of its keys.
TABLE = Path(__file__).parent / "data" / f"torch_tpu-{TORCH_TPU_VERSION}.json"
# A folder with a package `torch_tpu` and its metadata. torch loads the backends that installed
# packages name, and of two packages of a name the first on the path counts: with this folder on
# PYTHONPATH, every Python process that imports torch loads the emulator as it would load torch_tpu.
SHADOW = Path(__file__).parent / "shadow"
# Counts of devices that one host of the emulated generation can have.
DEVICE_COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Settings:
    """``devices`` on this host, and whether operators without a kernel run all the same."""

    devices: int = 1
    allow_missing_ops: bool = False

    def __post_init__(self) -> None:
        if self.devices not in DEVICE_COUNTS:
            raise ValueError(f"a host has {DEVICE_COUNTS} devices, not {self.devices}")


def read(environment: MutableMapping[str, str] | None = None) -> Settings:
    """The settings that ``environment`` (of this process by default) holds.

    Raises ValueError where the count of devices is none that a host can have.
    """
    environment = os.environ if environment is None else environment
    return Settings(
        devices=int(environment.get(DEVICES) or 1),
        allow_missing_ops=environment.get(ALLOW_MISSING_OPS) == "1",
    )


def write(settings: Settings, environment: MutableMapping[str, str] | None = None) -> None:
    """Put ``settings`` into ``environment`` so that Python processes below are emulated too."""
    environment = os.environ if environment is None else environment
    environment[ACTIVE] = "1"
    environment[DEVICES] = str(settings.devices)
    environment[ALLOW_MISSING_OPS] = "1" if settings.allow_missing_ops else "0"
    environment[AUTOLOAD] = "1"
    shadow = str(SHADOW)
    rest = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p and p != shadow]
    environment["PYTHONPATH"] = os.pathsep.join([shadow, *rest])
