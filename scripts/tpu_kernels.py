"""Writes the table of the operators that torch_tpu has a kernel for.

    TORCH_DEVICE_BACKEND_AUTOLOAD=0 python scripts/tpu_kernels.py

torch_tpu registers its kernels with torch's dispatcher when its libraries are loaded, with or
without a TPU, and the dispatcher is asked which they are; the TPU run time is not started. So the
table says for certain which operators are registered, for the releases of torch and torch_tpu that
are installed. It does not say that a kernel takes every dtype and shape: nothing was run on a TPU.

- ``kernels``: operators with a kernel of their own. Any other operator that reaches the device
  raises; composite operators of torch are made of those that it has.
- ``autograd``: operators for which torch_tpu has a derivative of its own.
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
            if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
                found.add(name)
        except RuntimeError:  # a kernel for an operator that this torch does not have
            continue
    return found


def main() -> None:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        sys.exit("set TORCH_DEVICE_BACKEND_AUTOLOAD=0: what is registered before is compared")
    import torch

    before = registered("PrivateUse1"), registered("AutogradPrivateUse1")
    import torch_tpu._internal.device._device_ops_backend  # noqa: F401

    kernels = registered("PrivateUse1") - before[0]
    composite = set().union(*map(registered, COMPOSITES))
    missing = registered("CPU") - composite - kernels
    version = importlib.metadata.version("torch_tpu")
    table = {
        "torch_tpu": version,
        "torch": torch.__version__.partition("+")[0],
        "kernels": sorted(kernels),
        "autograd": sorted(registered("AutogradPrivateUse1") - before[1]),
        "missing": sorted(name for name in missing if name.startswith("aten::")),
    }
    path = FOLDER / f"torch_tpu-{version}.json"
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(path, *(f"{len(table[key])} {key}" for key in ("kernels", "autograd", "missing")))


if __name__ == "__main__":
    main()
