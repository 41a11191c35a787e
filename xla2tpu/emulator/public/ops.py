"""`torch.tpu.ops`: the pooling and collective functions; those of the TPU's units are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from xla2tpu.emulator.refusal import not_emulated
from xla2tpu.emulator.stages import experimental

_CHANGES = "torch.tpu.ops.{} is experimental and subject to change."
_NOT_EMULATED = (
    "align_jagged_to_multiple",
    "ragged_all_to_all",
    "ragged_dot",
    "ragged_dot_weight_grad",
    "recv",
    "send",
    "sparse_dense_matmul",
    "sparse_dense_matmul_activation_unstack",
    "sparse_dense_matmul_grad_with_adagrad",
    "sparse_dense_matmul_grad_with_adam",
    "sparse_dense_matmul_grad_with_sgd",
    "sparse_dense_matmul_gradient_stack",
    "sparse_gather",
    "sparse_gather_backward",
    "sparse_iota",
    "sparse_map_row",
    "splash_sdpa",
    "strip_jagged_padding",
)


def _pooling(dimensions: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    pool = getattr(torch.nn.functional, f"max_pool{dimensions}d")

    def forward(
        input: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> torch.Tensor:
        """Max pooling without a gradient."""
        with torch.no_grad():
            result: torch.Tensor = pool(input, kernel_size, stride, padding, dilation, ceil_mode)
        return result

    def backward(
        grad_output: torch.Tensor,
        input: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> torch.Tensor:
        """The gradient of the pooling with respect to its input."""
        with torch.enable_grad():
            leaf = input.detach().requires_grad_()
            result = pool(leaf, kernel_size, stride, padding, dilation, ceil_mode)
        (gradient,) = torch.autograd.grad(result, leaf, grad_output)
        return gradient

    forward.__name__ = forward.__qualname__ = f"max_pool{dimensions}d"
    backward.__name__ = backward.__qualname__ = f"max_pool{dimensions}d_backward"
    return forward, backward


max_pool1d, max_pool1d_backward = _pooling(1)
max_pool2d, max_pool2d_backward = _pooling(2)
max_pool3d, max_pool3d_backward = _pooling(3)


@experimental(_CHANGES.format("optimization_barrier"))
def optimization_barrier(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs: there is no compiler to be held back."""
    return list(inputs)


def _group(group: Any) -> Any:
    group = dist.group.WORLD if group is None else group
    if group is None:
        raise ValueError(
            "Default process group has not been initialized, please make sure to call "
            "init_process_group."
        )
    return group


@experimental(_CHANGES.format("all_gather_dim"))
def all_gather_dim(input: torch.Tensor, dim: int, group: Any = None) -> torch.Tensor:
    """The inputs of all ranks, joined along ``dim``, without a gradient."""
    group = _group(group)
    with torch.no_grad():
        parts = [torch.empty_like(input) for _ in range(group.size())]
        dist.all_gather(parts, input.contiguous(), group=group)
        return torch.cat(parts, dim)


@experimental(_CHANGES.format("reduce_scatter_dim"))
def reduce_scatter_dim(
    input: torch.Tensor, dim: int, group: Any = None, reduce_op: str = "sum"
) -> torch.Tensor:
    """This rank's part along ``dim`` of what all ranks' inputs add up to, without a gradient."""
    group = _group(group)
    with torch.no_grad():
        parts = [part.contiguous() for part in input.chunk(group.size(), dim)]
        output = torch.empty_like(parts[0])
        op = getattr(dist.ReduceOp, reduce_op.upper())
        dist.reduce_scatter(output, parts, op=op, group=group)
        return output


globals().update({name: not_emulated(f"torch.tpu.ops.{name}") for name in _NOT_EMULATED})

__all__ = sorted(
    [
        *_NOT_EMULATED,
        "all_gather_dim",
        "max_pool1d",
        "max_pool1d_backward",
        "max_pool2d",
        "max_pool2d_backward",
        "max_pool3d",
        "max_pool3d_backward",
        "optimization_barrier",
        "reduce_scatter_dim",
    ]
)
