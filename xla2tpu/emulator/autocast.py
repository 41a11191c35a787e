"""`torch.autocast("tpu")`: which operators it changes is torch_tpu's own list.

The list is in the table of kernels. What is done to an operator follows torch: products and
convolutions get the lower precision, all others of the list float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

LOWER = frozenset(
    {
        "_addmm_activation",
        "_convolution",
        "_native_multi_head_attention",
        "_scaled_dot_product_flash_attention",
        "_thnn_fused_gru_cell",
        "_thnn_fused_lstm_cell",
        "addbmm",
        "addmm",
        "addmv",
        "addr",
        "baddbmm",
        "bmm",
        "chain_matmul",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "convolution",
        "einsum",
        "gru_cell",
        "linalg_multi_dot",
        "linalg_vecdot",
        "linear",
        "lstm_cell",
        "matmul",
        "mm",
        "mv",
        "prelu",
        "rnn_relu_cell",
        "rnn_tanh_cell",
        "scaled_dot_product_attention",
    }
)
_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_tensor = torch.Tensor


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, _tensor):
        eligible = value.is_floating_point() and value.dtype is not torch.float64
        if eligible and value.dtype is not dtype and value.device.type == "tpu":
            return value.to(dtype)
        return value
    if isinstance(value, (list, tuple)):
        return [_cast(v, dtype) for v in value]
    return value


def kernel(op: Any) -> Callable[..., Any]:
    """What runs in the place of ``op`` under autocast."""
    lower = op._schema.name.removeprefix("aten::") in LOWER

    def cast_inputs(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("tpu") if lower else torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            given = {name: _cast(value, dtype) for name, value in kwargs.items()}
            return op(*[_cast(value, dtype) for value in args], **given)

    return cast_inputs


def register(names: Iterable[str]) -> list[Any]:
    """Register the operators ``names``; the libraries have to be kept."""
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for name in names:
        short = name.removeprefix("aten::")
        packet, _, overload = short.partition(".")
        operators = getattr(torch.ops.aten, packet, None)
        op = getattr(operators, overload or "default", None)
        if op is not None:  # releases of torch differ in a few operators
            aten.impl(short, kernel(op))
    return [others, aten]
