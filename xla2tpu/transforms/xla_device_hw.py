"""The kind of hardware behind a device, from a device or from its name."""

from __future__ import annotations

from xla2tpu import devices
from xla2tpu.changes import Builder
from xla2tpu.sites import Change, Site


def xla_device_hw(site: Site, builder: Builder) -> Change | str:
    """Take the type of the device; what is not known to be a device is made one first."""
    if site.context != "value" or site.bound is None:
        return "unsupported-form"
    if devices.is_device(site.bound.args["device"].value, site.scope, builder):
        return builder.replace(site, "{device}.type.upper()")
    return builder.replace(site, "torch.device({device}).type.upper()", ["import torch"])
