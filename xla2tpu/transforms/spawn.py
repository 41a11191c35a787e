"""``xmp.spawn``: like ``torch_xla.launch``, with a number of processes."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.sites import Change, Site
from xla2tpu.transforms.launch import single, started
from xla2tpu.workers import asks_torch_xla

_ALL = (
    "`{api}` was given a number of processes, and all TPUs are used: look at what follows from the"
    " number, such as the batch of each process and the learning rate"
)


def spawn(site: Site, builder: Builder) -> Change | str:
    """Rewrite a start of processes; one is a direct call, any other number all devices."""
    assert site.bound is not None
    join = site.bound.args.get("join")
    waits = join is None or builder.tree.source(join.value) == "True"
    if not waits and site.context == "value":
        return "unsupported-form"  # up to 2.0 it gave back the processes
    given = site.bound.args.get("nprocs")
    source = builder.tree.source(given.value) if given is not None else "None"
    if source == "1":
        return single(site, builder)
    if source == "None":
        return started(site, builder, "")
    assert given is not None
    # Asked for the number of all devices, before there is a process group to ask.
    if isinstance(given.value, cst.Integer) or asks_torch_xla(given.value, site.scope, builder):
        site.message = _ALL
        return started(site, builder, "")
    return started(site, builder, "{nprocs}")
