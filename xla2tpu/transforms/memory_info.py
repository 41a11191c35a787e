"""Memory figures of the device, where the key is read at once."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.sites import Change, Site

_INFO = "torch.accelerator.get_memory_info()"

# get_memory_info() returns the free and the total bytes.
_BY_KEY = {
    "bytes_limit": f"{_INFO}[1]",
    "bytes_used": f"{_INFO}[1] - {_INFO}[0]",
    "kb_free": f"{_INFO}[0] // 1024",
    "kb_total": f"{_INFO}[1] // 1024",
    "peak_bytes_used": "torch.accelerator.max_memory_allocated()",
}


def memory_info(site: Site, builder: Builder) -> Change | str:
    """Turn ``get_memory_info(device)["bytes_limit"]`` into an expression for that figure."""
    subscript = builder.tree.parent(site.expression)
    if not isinstance(subscript, cst.Subscript) or subscript.value is not site.expression:
        return "value-escapes"
    template = _BY_KEY.get(_key(subscript) or "")
    if template is None or id(subscript) in builder.tree.stored:
        return "unsupported-form"
    return builder.replace(site, template, ["import torch"], node=subscript)


def _key(subscript: cst.Subscript) -> str | None:
    """The literal key of a subscript, None for anything else."""
    if len(subscript.slice) != 1 or not isinstance(subscript.slice[0].slice, cst.Index):
        return None
    value = subscript.slice[0].slice.value
    if not isinstance(value, cst.SimpleString):
        return None
    key = value.evaluated_value
    return key if isinstance(key, str) else None
