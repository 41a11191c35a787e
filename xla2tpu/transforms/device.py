"""The device of a TorchTPU process, in the form that its uses ask for."""

from __future__ import annotations

import libcst as cst

from xla2tpu import devices
from xla2tpu.changes import Builder
from xla2tpu.sites import Change, Site
from xla2tpu.suites import smalls_of

_INDEXED = 'torch.device("tpu", torch.accelerator.current_device_index())'


def device(site: Site, builder: Builder) -> Change | str:
    """Rewrite ``xm.xla_device()`` and its successors.

    A statement of its own goes, unless it is a probe in a ``try``. A device that is compared,
    hashed or asked for its index gets the indexed form, since ``tpu`` and ``tpu:0`` differ.
    """
    if _is_probe(site, builder):
        return "unsupported-form"
    if site.context in ("statement", "discarded"):
        return builder.delete(site)
    if builder.settings.device == "accelerator":
        return builder.replace(site, devices.PORTABLE, ["import torch"])
    indexed = devices.needs_index(site, builder)
    template = _INDEXED if indexed else 'torch.device("tpu")'
    return builder.replace(site, template, ["import torch"])


def _is_probe(site: Site, builder: Builder) -> bool:
    """Whether a ``try`` finds out by this call whether there is a device.

    torch.device("tpu") opens nothing, so the handler would answer another question.
    """
    tree = builder.tree
    statement = tree.statement(site.expression)
    line = tree.parent(statement)
    suite = tree.parent(line) if isinstance(line, cst.SimpleStatementLine) else line
    block = tree.parent(suite) if suite is not None else None
    if not isinstance(block, cst.Try) or block.body is not suite:
        return False
    if not block.handlers:
        return False
    if site.context in ("statement", "discarded"):
        return True
    rest = smalls_of(block.body)
    return len(rest) <= 2 and not isinstance(statement, cst.Return)
