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


USES = "\n\ndef f(q, k):\n    {}\n    return torch.ops.xla.{}(q, q, k)\n"


def test_import_that_registers_stays_with_an_operator() -> None:
    source = f"import torch\n{REGISTERED}{USES.format('q.add_(k)', 'paged_attention')}"
    result = check_noop(source, todo=False)
    assert [(f.rule, f.reason) for f in result.findings] == [
        ("XLA001", "goes-together"),
        ("XLA821", "no-equivalent"),
    ]


def test_import_that_registers_stays_with_a_suppressed_operator() -> None:
    source = f"import torch\n{REGISTERED}{USES.format('q.add_(k)', 'gmm')[:-1]}  # noqa: XLA822\n"
    result = check_noop(source, todo=False)
    assert ("XLA001", "goes-together") in [(f.rule, f.reason) for f in result.findings]


def test_import_that_is_used_stays_with_an_operator() -> None:
    gmm = "from torch_xla.experimental.custom_kernel import gmm\n"
    body = USES.format("q = {}(q, k, k)", "paged_attention")
    check_transformed(
        f"import torch\nimport torch_xla\n{gmm}{body.format('gmm')}",
        f"import torch\n{gmm}{body.format('torch.tpu.ops.ragged_dot')}",
        todo=False,
    )


def test_safe_fixes_leave_the_import_that_registers() -> None:
    source = f"import torch\n{REGISTERED}{USES.format('q.add_(k)', 'gmm')}"
    check_noop(source, todo=False, unsafe=False)
