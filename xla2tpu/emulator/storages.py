"""`torch.UntypedStorage` of the device, where torch would ask an allocator in C++."""

from __future__ import annotations

from typing import Any

import torch

from xla2tpu.emulator import memory

_TOO_LARGE = (
    "the storage of an emulated TPU tensor cannot become larger than it was made: "
    "{old} bytes, not {new}"
)


def patch() -> None:
    """Teach torch's storages of the device to be made and to be resized."""
    kind = torch.UntypedStorage
    base = torch._C.StorageBase

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != "tpu":
            if device is not None:
                kwargs["device"] = device
            return base.__new__(cls, *args, **kwargs)
        (content,) = args or (0,)
        host = torch.UntypedStorage(content)
        flat = torch.ops.aten.empty.memory_format([0], dtype=torch.uint8, device="cpu")
        return memory.wrap(torch.ops.aten.set_.source_Storage(flat, host)).untyped_storage()

    def size(self: Any) -> int:
        known = self.__dict__.get("_tpu_size")
        return base.nbytes(self) if known is None else known

    def resize(self: Any, length: int) -> Any:
        if self.device.type != "tpu":
            return base.resize_(self, length)
        whole = base.nbytes(self)
        if length > whole:
            raise RuntimeError(_TOO_LARGE.format(old=whole, new=length))
        block = self._tpu_block
        host = torch.UntypedStorage(whole if length else 0)
        kept = min(length, block.storage.nbytes())
        if kept:
            host[:kept].copy_(block.storage[:kept])
        self._tpu_block = memory.Block(host)
        self._tpu_size = length
        return self

    kind.__new__ = new
    kind.resize_ = resize
    kind.nbytes = kind.size = size
    kind.__len__ = size
