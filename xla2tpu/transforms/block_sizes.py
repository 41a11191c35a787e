"""Settings of the attention kernel that change its speed alone."""

from __future__ import annotations

import libcst as cst

from xla2tpu import syntax
from xla2tpu.changes import Builder
from xla2tpu.sites import Change, Site


def block_sizes(site: Site, builder: Builder) -> Change | str:
    """Delete an assignment of block sizes, as a whole or of one of them; a use of them stays."""
    target: cst.CSTNode = site.expression
    parent = builder.tree.parent(target)
    if isinstance(parent, cst.Subscript) and parent.value is target:
        target, parent = parent, builder.tree.parent(parent)
    assign = builder.tree.parent(parent) if parent is not None else None
    if not isinstance(assign, cst.Assign) or not isinstance(parent, cst.AssignTarget):
        return "no-equivalent"
    if len(assign.targets) != 1 or not syntax.is_pure(assign.value):
        return "no-equivalent"
    return Change(deletes=[assign], replaced=[assign])
