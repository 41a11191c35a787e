"""Makes this process a TorchTPU process."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

import torch
from torch.utils import backend_registration

from xla2tpu.emulator import (
    accelerator,
    autocast,
    compilation,
    device,
    fallback,
    kernels,
    memory,
    randomness,
    storages,
)
from xla2tpu.emulator.publicmodule import TpuModule
from xla2tpu.emulator.settings import SHADOW, Settings

LOADED = (
    "torch_tpu has registered its operators in this process already, so they cannot be emulated. "
    "Start the program with `xla2tpu emulate`, or set "
    "TORCH_DEVICE_BACKEND_AUTOLOAD=0."
)
_begun = False
# torch keeps what is registered as long as these are there.
_libraries: list[Any] = []


def register(settings: Settings) -> None:
    """Register the device with torch; done once in a process.

    Raises RuntimeError where the real torch_tpu was there first.
    """
    global _begun
    if _begun:  # importing `torch_tpu` below comes back here
        return
    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::add.out", "PrivateUse1"):
        raise RuntimeError(LOADED)
    _begun = True
    _shadow_torch_tpu()
    if hasattr(torch, "tpu"):  # what torch_tpu leaves on a host without TPUs
        del torch.tpu
    module = TpuModule()
    backend_registration._setup_privateuseone_for_python_backend("tpu", backend_module=module)
    memory.device_is_registered()
    _register_operators(settings)
    _patch_torch()
    device.manual_seed_all(torch.initial_seed())


def _shadow_torch_tpu() -> None:
    """Let `torch_tpu` be the package of the shadow folder."""
    shadow = str(SHADOW)
    for name in [n for n in sys.modules if n.split(".")[0] == "torch_tpu"]:
        if not str(getattr(sys.modules[name], "__file__", "")).startswith(shadow):
            del sys.modules[name]
    for name in [n for n in sys.modules if n == "torch.tpu" or n.startswith("torch.tpu.")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    importlib.import_module("torch_tpu")


def _register_operators(settings: Settings) -> None:
    table = fallback.load_table()
    there = frozenset(table["kernels"])
    fallback.set_up(there, settings.allow_missing_ops)
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(fallback.run, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    special = kernels.special()
    for name, kernel in special.items():
        aten.impl(name, kernel, "PrivateUse1")
    for name in kernels.direct(there):
        short = name.removeprefix("aten::")
        if short not in special:
            aten.impl(short, fallback.make_plan(kernels.operator(name)), "PrivateUse1")
    # Marks of conjugates are taken off by a copy, so a copy has to see them.
    for mark in ("Conjugate", "Negative"):
        for name in ("_copy_from", "_copy_from_and_resize"):
            aten.impl(name, torch.library.fallthrough_kernel, mark)
    _libraries.extend((everything, aten, *autocast.register(table["autocast"])))
    if torch.distributed.is_available():
        from xla2tpu.emulator import collectives

        c10d = torch.library.Library("c10d", "IMPL", "PrivateUse1")
        with warnings.catch_warnings():
            # torch has kernels there that hand the tensors to the group as they are.
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered")
            for name, kernel in collectives.KERNELS.items():
                c10d.impl(name, kernel, allow_override=True)
        _libraries.append(c10d)
        collectives.register()


def _patch_torch() -> None:
    torch.Generator = randomness.Generator
    accelerator.patch()
    compilation.patch()
    storages.patch()
    _patch_pinning()
    _patch_precision()


def _patch_pinning() -> None:
    """Pinned memory is a copy with a mark, as there is no allocator for it."""

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if self.device.type == "tpu":
            raise RuntimeError(
                "cannot pin 'torch.tpu.FloatTensor' only dense CPU tensors can be pinned"
            )
        if is_pinned(self):
            return self
        pinned = self.clone()
        pinned.untyped_storage()._tpu_pinned = True
        return pinned

    def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
        return getattr(self.untyped_storage(), "_tpu_pinned", False)

    torch.Tensor.pin_memory = pin_memory
    torch.Tensor.is_pinned = is_pinned


def _patch_precision() -> None:
    """torch_tpu keeps the precision of products in its own words."""
    names = {"medium": "DEFAULT", "high": "HIGH", "highest": "HIGHEST"}

    def set_precision(precision: str) -> None:
        if precision not in names:
            raise ValueError(
                f"expected to be one of 'highest', 'high', or 'medium', got '{precision}'"
            )
        device.Modes.precision[0] = device.Precision[names[precision]]

    def get_precision() -> str:
        value = device.Modes.precision[0].name
        return next(name for name, kind in names.items() if kind == value)

    torch.set_float32_matmul_precision = set_precision
    torch.get_float32_matmul_precision = get_precision
