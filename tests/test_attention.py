"""The kernels of attention compute, migrated, what they computed under torch_xla.

The reference says in plain words what the XLA kernels do: products of queries and keys, the bias
added, all of it times the scale, masked, and a softmax over the keys.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from conftest import check_noop, check_transformed

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
torch = pytest.importorskip("torch")

HEAD = "from torch_xla.experimental.custom_kernel import flash_attention\n\n\n"
PROGRAM = HEAD + "def attend(q, k, v, ids, other_ids, bias, causal, scale):\n    return {}\n"
# The call, and what it says to the reference.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("flash_attention(q, k, v)", {}),
    "causal": ("flash_attention(q, k, v, causal=True)", {"causal": True}),
    "by position": ("flash_attention(q, k, v, True)", {"causal": True}),
    "a choice": ("flash_attention(q, k, v, causal=causal)", {"causal": True}),
    "scaled": ("flash_attention(q, k, v, sm_scale=scale)", {"scale": 0.3}),
    "all given": (
        "flash_attention(q, k, v, True, None, None, scale, ab=None, partition_spec=None)",
        {"causal": True, "scale": 0.3},
    ),
    "scale first": (
        "flash_attention(\n        q, k,  # keys\n        v=v,\n"
        "        sm_scale=scale, causal=causal)",
        {"causal": True, "scale": 0.3},
    ),
    "bias": ("flash_attention(q, k, v, ab=bias)", {"bias": True}),
    "scaled bias": (
        "flash_attention(q, k, v, sm_scale=scale, ab=bias)",
        {"bias": True, "scale": 0.3},
    ),
    "sum as bias": (
        "flash_attention(q, k, v, sm_scale=scale / 1, ab=bias + 0)",
        {"bias": True, "scale": 0.3},
    ),
    "segments": (
        "flash_attention(q, k, v, q_segment_ids=ids, kv_segment_ids=other_ids)",
        {"segments": True},
    ),
    "causal segments": (
        "flash_attention(q, k, v, causal, ids, other_ids, scale)",
        {"segments": True, "causal": True, "scale": 0.3},
    ),
}


def reference(
    q: Any, k: Any, v: Any, *, bias: Any, ids: Any, other_ids: Any, causal: bool, scale: float
) -> Any:
    """Attention of one query after the other."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            for i in range(q.shape[2]):
                scores = k[batch, head] @ q[batch, head, i]
                if bias is not None:
                    scores = scores + bias[batch, head, i]
                scores = scores * scale
                allowed = torch.ones(k.shape[2], dtype=torch.bool)
                if causal:
                    allowed &= torch.arange(k.shape[2]) <= i
                if ids is not None:
                    allowed &= other_ids[batch] == ids[batch, i]
                weights = torch.where(allowed, scores, -torch.inf).softmax(0)
                out[batch, head, i] = weights @ v[batch, head]
    return out


@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize("keys", [5, 7])
def test_attention(form: str, keys: int) -> None:
    call, said = CALLS[form]
    result = check_transformed(PROGRAM.format(call), migrated(PROGRAM.format(call)))
    assert result.output is not None
    space: dict[str, Any] = {}
    exec(result.output.decode(), space)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (5, keys, keys))
    bias = torch.randn(2, 3, 5, keys, dtype=torch.float64)
    # The first key belongs to the segment of every query, so that no query is left without one.
    ids = torch.tensor([[1, 1, 1, 1, 1], [2, 2, 2, 2, 2]])
    other_ids = torch.tensor([[1, 1, 3, 1, 1, 3, 1], [2, 3, 2, 2, 3, 2, 2]])[:, :keys]
    q.requires_grad_()
    mine = space["attend"](q, k, v, ids, other_ids, bias, True, 0.3)
    theirs = reference(
        q, k, v,
        bias=bias if said.get("bias") else None,
        ids=ids if said.get("segments") else None,
        other_ids=other_ids,
        causal=said.get("causal", False),
        scale=said.get("scale", 1.0),
    )  # fmt: skip
    torch.testing.assert_close(mine, theirs)
    gradients = [torch.autograd.grad(out.square().sum(), q)[0] for out in (mine, theirs)]
    torch.testing.assert_close(*gradients)


LEFT = {
    "calls in another order": ("flash_attention(k=k(), q=q(), v=v)", "argument-side-effects"),
    "comments before segments": (
        "flash_attention(v=v, q=q,  # queries\n        k=k, q_segment_ids=q, kv_segment_ids=k)",
        "comments",
    ),
    "comments between arguments in another order": (
        "flash_attention(v=v, q=q,  # queries\n        k=k)",
        "comments",
    ),
    "a scale that is computed twice": (
        "flash_attention(q, k, v, ab=bias, sm_scale=scale())",
        "argument-side-effects",
    ),
    "a causal bias": ("flash_attention(q, k, v, causal=causal, ab=bias)", "numerics"),
    "a bias and segments": ("flash_attention(q, k, v, False, ids, ids, ab=bias)", "numerics"),
    "one side of segments": ("flash_attention(q, k, v, q_segment_ids=ids)", "numerics"),
    "sharded": (
        "flash_attention(q, k, v, partition_spec=ids, mesh=None)",
        "single-controller",
    ),
    "a mesh alone": ("flash_attention(q, k, v, mesh=ids)", "single-controller"),
    "unpacked": ("flash_attention(q, k, v, **bias)", "starred-arguments"),
    "not called": ("q(flash_attention, k)", "numerics"),
}


@pytest.mark.parametrize("form", LEFT)
def test_left(form: str) -> None:
    call, reason = LEFT[form]
    result = check_noop(PROGRAM.format(call), todo=False)
    assert [(f.rule, f.reason) for f in result.findings] == [("XLA820", reason)]


def migrated(source: str) -> str:
    """What the migration makes of a program, which must write the scale out."""
    from xla2tpu import engine
    from xla2tpu.model import Mode, Settings

    settings = Settings(mode=Mode.MIGRATE, unsafe=True)
    output = engine.run_source(source.encode(), "attend.py", settings).output
    assert output is not None
    text = output.decode()
    assert "scale=" in text
    assert "torch_xla" not in text
    return text
