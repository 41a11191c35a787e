"""Attention without segment ids, in the order in which the arguments were given."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.sites import Change, Site


def attention_call(site: Site, builder: Builder) -> Change | str:
    """Call `scaled_dot_product_attention` with its scale written out, and the bias scaled too."""
    assert site.bound is not None
    given = {
        name: arg.value
        for name, arg in site.bound.args.items()
        if builder.tree.source(arg.value) != "None"
    }
    scale = given.get("sm_scale")
    scaled = scale is not None and builder.tree.source(scale) != "1.0"
    keywords = {"sm_scale": "scale={sm_scale}"}
    for name in ("causal", "casual"):  # the operator spells it so
        if name in given and builder.tree.source(given[name]) != "False":
            keywords[name] = f"is_causal={{{name}}}"
    if "ab" in given:
        product = "{ab} * {sm_scale}"
        if _may_be_none(given["ab"], site, builder):
            product = f"None if {{ab}} is None else {product}"
        keywords["ab"] = f"attn_mask={product}" if scaled else "attn_mask={ab}"
        if scaled and scale is not None and not builder.droppable(scale, site.scope):
            return "argument-side-effects"
    ordered = sorted(
        (name for name in keywords if name in given), key=lambda n: builder.tree.span(given[n])
    )
    parts = [keywords[name] for name in ordered]
    if scale is None:
        parts.append("scale=1.0")
    template = f"F.scaled_dot_product_attention({{q}}, {{k}}, {{v}}, {', '.join(parts)})"
    change = builder.replace(site, template, ["import torch.nn.functional as F"])
    if isinstance(change, Change) and "#" in builder.tree.source(site.expression):
        whole = builder.tree.span(site.expression)
        if [(cut.start, cut.end) for cut in change.cuts] == [whole]:
            return "unsupported-form"  # comments between the arguments would go
    return change


def _may_be_none(node: cst.BaseExpression, site: Site, builder: Builder) -> bool:
    """Whether an expression is an attribute, or a parameter that is None by default."""
    if isinstance(node, cst.Attribute):
        return True
    if not isinstance(node, cst.Name):
        return False
    owner = site.scope.owner(node.value)
    bindings = owner.bindings[node.value] if owner is not None else []
    return any(
        b.kind == "none" or (b.value is not None and builder.tree.source(b.value) == "None")
        for b in bindings
    )
