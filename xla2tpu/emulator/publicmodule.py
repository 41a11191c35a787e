"""The module `torch.tpu`."""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from xla2tpu.emulator import device, randomness
from xla2tpu.emulator.stages import _framework

FUNCTIONS = (
    "current_device",
    "current_stream",
    "default_stream",
    "device_count",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "initial_seed",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "precision",
    "set_device",
    "set_eager_mode",
    "set_rng_state",
    "set_stream",
    "stream",
    "synchronize",
    "topology_aware_mesh",
    "Event",
    "Stream",
)
PRIVATE = ("_is_in_bad_fork", "_lazy_init", "_exchange_device", "_get_generator")
SUBMODULES = ("compiler", "distributed", "ops", "optimizers", "pallas", "profiler")
# Names that warn when they are read, and what the warning says.
VALUES = {
    "EagerMode": "TPU eager execution mode configuration.",
    "Precision": "StableHLO precision configuration.",
    "default_generators": "Default generators for TPU devices.",
}
PROPERTIES = ("allow_excess_precision", "eager_mode")
PREFIX = "<TorchTpu/ApiStage/ExperimentalApi/> "


class TpuModule(types.ModuleType):
    """`torch.tpu`, with the two properties that can be set."""

    def __init__(self) -> None:
        super().__init__("torch.tpu", "Public TorchTPU device module (`torch.tpu`).")
        path = [str(Path(__file__).parent / "public")]
        self.__spec__ = ModuleSpec("torch.tpu", None, origin=__file__, is_package=True)
        self.__spec__.submodule_search_locations = path
        self.__path__ = path
        for name in FUNCTIONS + PRIVATE:
            setattr(self, name, getattr(device, name))
        self.device = device._DeviceContext
        self.device_of = device._DeviceOfContext
        self._maybe_exchange_device = device._exchange_device
        self._warned: set[str] = set()
        self.__all__ = sorted(
            (*FUNCTIONS, *SUBMODULES, *VALUES, *PROPERTIES, "device", "device_of")
        )

    def __getattr__(self, name: str) -> Any:
        if name in VALUES:
            self._warn(name, f"'{name}' is experimental and subject to change: {VALUES[name]}")
            if name == "default_generators":
                return (randomness.default(),)
            return getattr(device, name)
        if name in SUBMODULES:
            return importlib.import_module(f"torch.tpu.{name}")
        raise AttributeError(f"module 'torch.tpu' has no attribute '{name}'")

    def __dir__(self) -> list[str]:
        return self.__all__

    def _warn(self, name: str, text: str) -> None:
        frame: Any = sys._getframe(2)
        while frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        if name not in self._warned and not _framework(frame):
            self._warned.add(name)
            warnings.warn(PREFIX + text, UserWarning, stacklevel=3)

    @property
    def eager_mode(self) -> device.EagerMode:
        self._warn("eager_mode", _property_text("eager_mode"))
        return device.Modes.eager[-1]

    @eager_mode.setter
    def eager_mode(self, value: device.EagerMode) -> None:
        self._warn("eager_mode", _property_text("eager_mode"))
        device.Modes.eager[-1] = value

    @property
    def allow_excess_precision(self) -> bool:
        self._warn("allow_excess_precision", _property_text("allow_excess_precision"))
        return device.Modes.excess_precision

    @allow_excess_precision.setter
    def allow_excess_precision(self, value: bool) -> None:
        self._warn("allow_excess_precision", _property_text("allow_excess_precision"))
        device.Modes.excess_precision = value


def _property_text(name: str) -> str:
    return (
        f"{name} is experimental and subject to change: {name} is experimental and may change or "
        "be removed without notice."
    )
