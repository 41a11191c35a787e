"""Writes the table of the operators that torch_tpu has a kernel for.

    TORCH_DEVICE_BACKEND_AUTOLOAD=0 python scripts/tpu_kernels.py

torch_tpu registers its kernels with torch's dispatcher when its libraries are loaded, with or
without a TPU, and the dispatcher is asked which they are; the TPU run time is not started. So the
table says for certain which operators are registered, for the releases of torch and torch_tpu that
are installed. It does not say that a kernel takes every dtype and shape: nothing was run on a TPU.

- ``kernels``: operators with a kernel of their own. Any other operator that reaches the device
  raises; composite operators of torch are made of those that it has.
- ``autograd``: operators for which torch_tpu has a derivative of its own.
- ``autocast``: operators that change the dtype of their inputs under autocast.
- ``missing``: operators of aten that torch runs on CPU, and that raise on the device.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "xla2tpu" / "emulator" / "data"
COMPOSITES = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


def registered(key: str) -> set[str]:
    """The operators, with their overloads, that have a kernel for ``key`` now."""
    import torch

    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        try:
            torch._C._dispatch_find_schema_or_throw(*name.partition(".")[::2])
        except RuntimeError:  # a kernel for an operator that this torch does not have
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            found.add(name)
    return found


def main() -> None:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        sys.exit("set TORCH_DEVICE_BACKEND_AUTOLOAD=0: what is registered before is compared")
    import torch

    before = {key: registered(key) for key in ("PrivateUse1", "AutogradPrivateUse1")}
    import torch_tpu._internal.device._device_ops_backend  # noqa: F401

    kernels = registered("PrivateUse1") - before["PrivateUse1"]
    composite = set().union(*map(registered, COMPOSITES))
    missing = registered("CPU") - composite - kernels
    version = importlib.metadata.version("torch_tpu")
    table = {
        "torch_tpu": version,
        "torch": torch.__version__.partition("+")[0],
        "kernels": sorted(kernels),
        "autograd": sorted(registered("AutogradPrivateUse1") - before["AutogradPrivateUse1"]),
        "autocast": sorted(registered("AutocastPrivateUse1")),
        "missing": sorted(name for name in missing if name.startswith("aten::")),
    }
    path = FOLDER / f"torch_tpu-{version}.json"
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(path, *(f"{len(table[key])} {key}" for key in ("kernels", "autocast", "missing")))


if __name__ == "__main__":
    main()
