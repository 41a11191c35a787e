"""Loaders that move batches: the plain loader with a move in the loop, or a small wrapper."""

from __future__ import annotations

from xla2tpu.changes import Builder
from xla2tpu.loaders import CLASSES, Loaders
from xla2tpu.model import Applicability
from xla2tpu.sites import Change, Site


def device_loader(site: Site, builder: Builder) -> Change | str:
    """Rewrite what makes a loader, and what is called on one; all of a file are decided at once.

    A class in a test by ``isinstance`` becomes the wrapper's, where this file makes loaders, or all
    share one wrapper.
    """
    loaders = Loaders.of(builder)
    if site.call is None and site.path in CLASSES:
        in_one_place = loaders.makers or builder.settings.helpers_module is not None
        if not in_one_place or not loaders.is_tested(site):
            return "value-escapes"
        # Another file may hand a wrapper of its own to this one.
        site.applicability = Applicability.UNSAFE
        return builder.replace(site, "DeviceLoader", helpers=["DeviceLoader"])
    return loaders.change_of(site)
