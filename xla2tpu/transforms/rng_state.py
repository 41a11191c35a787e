"""The device generator's state, which was a number: seeding carries over, stored states do not."""

from __future__ import annotations

import re

import libcst as cst

from xla2tpu import syntax
from xla2tpu.changes import Builder
from xla2tpu.nodes import children, descendants
from xla2tpu.scopes import Scope
from xla2tpu.sites import Change, Site

_GET = "torch_xla.core.xla_model.get_rng_state"
_SAVED = re.compile(r"state|checkpoint|ckpt|rng|resume|restore|saved|loaded", re.IGNORECASE)
_SEED = re.compile(r"seed", re.IGNORECASE)
_OLD_KEY = re.compile(r"xla|xm", re.IGNORECASE)
_LOADERS = frozenset({"torch.load", "pickle.load", "torch_xla.utils.serialization.load"})
# How many assignments a value is followed back.
_DEPTH = 3


def rng_state(site: Site, builder: Builder) -> Change | str:
    """Seed the TPU where a seed is set; leave states that are read, stored or restored.

    A number that ``get_rng_state`` gave stands in checkpoints, and is no seed of the program's
    own: seeding with it would start the random numbers anew without a word.
    """
    if site.path == _GET:
        if site.context in ("statement", "discarded"):
            site.fix_title = "Remove the call, whose value is not used"
            return builder.delete(site)
        return "file-format"
    if site.bound is None or "seed" not in site.bound.args:
        return "unsupported-form"
    seed = site.bound.args["seed"].value
    if not syntax.is_constant(seed):
        if any(other.path == _GET for other in builder.sites.values()):
            return "file-format"
        if _is_saved(seed, site.scope, builder, 0):
            return "file-format"
    return builder.replace(site, "torch.tpu.manual_seed({seed})", ["import torch"])


def _is_saved(node: cst.CSTNode, scope: Scope, builder: Builder, depth: int) -> bool:
    """Whether a value comes, as far as can be seen, out of something that was stored."""
    match node:
        case cst.Subscript():
            return not _is_seed(node, builder)
        case cst.Call(func=cst.Attribute(attr=cst.Name(value="get" | "pop"))):
            return not _is_seed(node, builder)
        case cst.Call() if builder.callee(node, scope) in _LOADERS:
            return True
        case cst.Name(value=name) | cst.Attribute(attr=cst.Name(value=name)):
            if _SAVED.search(name) or _comes_from_saved(node, scope, builder, depth):
                return True
    return any(_is_saved(child, scope, builder, depth) for child in children(node))


def _comes_from_saved(node: cst.BaseExpression, scope: Scope, builder: Builder, depth: int) -> bool:
    """Whether the name, or the attribute of self, was assigned such a value."""
    if depth == _DEPTH:
        return False
    return any(
        b.kind == "assign"
        and b.value is not None
        and _is_saved(b.value, b.scope, builder, depth + 1)
        for b in builder.names.expression(node, scope).bindings
    )


def _is_seed(node: cst.Subscript | cst.Call, builder: Builder) -> bool:
    """Whether a look-up, such as ``config["seed"]``, gives a seed of the program's own."""
    texts = [part.value for part in descendants(node) if isinstance(part, cst.SimpleString)]
    if any(_OLD_KEY.search(text) for text in texts):
        return False
    source = builder.tree.source(node)
    return "environ" in source or bool(_SEED.search(source) and not _SAVED.search(source))
