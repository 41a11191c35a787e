"""Saving a CPU copy on the right process."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.model import Applicability
from xla2tpu.nodes import descendants
from xla2tpu.sites import Change, Site

_TEMPLATE = (
    "save_cpu({data}, {file_or_path}, master_only={master_only}, global_master={global_master})"
)


def save(site: Site, builder: Builder) -> Change | str:
    """Call the helper; unsafe where the data may be more than tensors in containers.

    torch_xla copied the tensors in any object to the CPU, the helper those in dicts, lists,
    tuples and named tuples.
    """
    assert site.bound is not None
    if not _is_plain(site.bound.args["data"].value):
        site.applicability = Applicability.UNSAFE
    return builder.replace(site, _TEMPLATE, helpers=["save_cpu"])


def _is_plain(node: cst.CSTNode) -> bool:
    """Whether the data is seen to hold no whole module or other object."""
    if isinstance(node, cst.Call):
        name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
        return isinstance(name, cst.Name) and name.value in ("state_dict", "dict", "detach", "cpu")
    if isinstance(node, cst.Dict):
        values = [e.value for e in node.elements]
        return all(_is_plain(v) or not _may_be_object(v) for v in values)
    if isinstance(node, (cst.List, cst.Tuple)):
        return all(_is_plain(e.value) for e in node.elements)
    return isinstance(node, (cst.SimpleString, cst.Integer, cst.Float))


def _may_be_object(node: cst.CSTNode) -> bool:
    """Whether an entry may be a module: a bare name or attribute that says no more."""
    names = [n for n in descendants(node) if isinstance(n, cst.Name)]
    return any(n.value in ("model", "net", "module", "optimizer", "self") for n in names)
