"""The wrapper that let forked processes share one host copy of a model."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.sites import Change, Site


def model_wrapper(site: Site, builder: Builder) -> Change | str:
    """Take the model itself, and give all processes the same weights where it is moved.

    Forked processes had the weights that the first process had made; spawned ones make their own.
    """
    if site.path.endswith(".to"):
        if not site.makers:
            return "value-escapes"
        site.follows = list(site.makers)
        return builder.replace(site, "broadcast_model({call})", helpers=["broadcast_model"])
    if not _is_followed(site, builder):
        return "value-escapes"
    return builder.replace(site, "{model}")


def _is_followed(site: Site, builder: Builder) -> bool:
    """Whether all uses of the wrapper are seen: ``.to``, or an argument of a launcher."""
    tree = builder.tree
    uses = [s for s in builder.sites.values() if site in s.makers]
    parent = tree.parent(site.expression)
    if isinstance(parent, cst.Attribute):
        return bool(uses)
    if not isinstance(parent, cst.Assign) or len(parent.targets) != 1:
        return False
    target = parent.targets[0].target
    if isinstance(target, cst.Attribute):
        return bool(uses)
    if not isinstance(target, cst.Name):
        return False
    owner = site.scope.owner(target.value)
    if owner is None:
        return False
    roots = {id(s.root) for s in uses}
    loads = [n for n, _ in tree.loads_of(target.value, owner)]
    return bool(loads) and all(id(n) in roots or _is_handed_on(n, builder) for n in loads)


def _is_handed_on(load: cst.CSTNode, builder: Builder) -> bool:
    """Whether a name stands among the arguments that a launcher hands to the processes."""
    for above in builder.tree.ancestors(load):
        found = builder.sites.get(id(above))
        if found is not None:
            return found.rule.code in ("XLA506", "XLA507")
    return False
