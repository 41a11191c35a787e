"""A meeting of all processes becomes a barrier, in the same place."""

from __future__ import annotations

from xla2tpu.changes import Builder
from xla2tpu.sites import Change, Site

_BARRIER = "if dist.is_initialized():\n    dist.barrier()"
_DIST = ("import torch.distributed as dist",)


def rendezvous(site: Site, builder: Builder) -> Change | str:
    """Wait at a barrier; through a helper where a file has several."""
    if site.context == "statement" and builder.helper_uses.get("barrier", 0) <= 1:
        return builder.statement(site, _BARRIER, _DIST)
    return builder.replace(site, "barrier()", helpers=["barrier"])
