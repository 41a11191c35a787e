"""The operators that torch_xla registers with torch, found without an import of torch_xla."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

from xla2tpu import prefilter

REGISTERED = "import torch_xla.experimental.custom_kernel  # makes the operators\n"
# What a function returns, and what of it.
CALLS = {
    "attention": (
        "torch.ops.xla.flash_attention(q, k, v)",
        "F.scaled_dot_product_attention(q, k, v, scale=1.0)",
    ),
    "causal attention": (
        "torch.ops.xla.flash_attention(q, k, v, True)",
        "F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)",
    ),
    "causal attention, as the operator spells it": (
        "torch.ops.xla.flash_attention(q, k, v, casual=q.causal)",
        "F.scaled_dot_product_attention(q, k, v, is_causal=q.causal, scale=1.0)",
    ),
    "grouped product": (
        "torch.ops.xla.gmm(q, k, v, [128, 128, 128])",
        "torch.tpu.ops.ragged_dot(q, k, v)",
    ),
}
LEFT = {
    "an overload": "torch.ops.xla.flash_attention.default(q, k, v)",
    "no rule of its own": "torch.ops.xla.write_mlir_debuginfo(q, k, v)",
    "the namespace": "torch.ops.xla",
    "handed on": "q(torch.ops.xla.gmm)",
    "unknown parameter": "torch.ops.xla.flash_attention(q, k, v, scale=2.0)",
    "starred": "torch.ops.xla.gmm(*q)",
}


@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize("registered", ["", REGISTERED])
def test_rewritten(form: str, registered: str) -> None:
    before, after = CALLS[form]
    start = "import torch.nn.functional as F\n" if after.startswith("F.") else "import torch\n"
    program = "\n\ndef f(q, k, v):\n    return {}\n"
    check_transformed(
        f"import torch\n{registered}{program.format(before)}", start + program.format(after)
    )


@pytest.mark.parametrize("form", LEFT)
def test_left(form: str) -> None:
    source = f"import torch\n\n\ndef f(q, k, v):\n    return {LEFT[form]}\n"
    result = check_noop(source, todo=False)
    assert [f.applied for f in result.findings] == [False]


def test_found_by_other_imports() -> None:
    source = "from torch import ops as operators\n\nmark = operators.xla.mark_tensor\n"
    assert [f.rule for f in check_noop(source, todo=False).findings] == ["XLA842"]
    assert prefilter.interesting(source.encode()) is False  # seen where the file matters anyway
    assert prefilter.interesting(b"import torch\nmark = torch.ops.xla.mark_tensor\n")


def test_other_operators_are_left_alone() -> None:
    source = (
        "import torch\n\n\ndef f(x, ops):\n"
        "    return torch.ops.xlabs.gmm(x), torch.ops.aten.xla.gmm(x), ops.xla.gmm(x)\n"
    )
    assert check_noop(source, todo=False).findings == []
