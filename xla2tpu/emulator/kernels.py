"""The operators whose kernels are not the operator of the same name on host memory."""

from __future__ import annotations

from typing import Any

import torch

from xla2tpu.emulator import fallback, memory, randomness

aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_COMPOSITE = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
_HOST = torch.device("cpu")


def empty(
    size: list[int],
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:
    if memory_format is torch.preserve_format:
        memory_format = None
    return memory.allocate(
        aten.empty.memory_format._op,
        size,
        dtype=dtype or torch.get_default_dtype(),
        device=device,
        memory_format=memory_format,
    )


def empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> torch.Tensor:
    return memory.allocate(
        aten.empty_strided.default._op,
        size,
        stride,
        dtype=dtype or torch.get_default_dtype(),
        device=device,
    )


def _same_on_any_device(op: Any) -> Any:
    """The kernel of the CPU for an operator that makes a view and never looks at the memory."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return op.redispatch(_CPU, *args, **kwargs)

    return kernel


def set_storage(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    return set_storage_offset(tensor, storage, 0, [storage.nbytes() // tensor.element_size()])


def set_storage_offset(
    tensor: torch.Tensor,
    storage: torch.UntypedStorage,
    offset: int,
    size: list[int],
    stride: list[int] | None = None,
) -> torch.Tensor:
    if storage.device.type != "tpu":
        raise RuntimeError(
            "Attempted to set the storage of a tensor on device "
            f'"{memory.DEVICE}" to a storage on different device "{storage.device}"'
        )
    if not stride:
        stride, step = [], 1
        for length in reversed(size):
            stride.insert(0, step)
            step *= max(length, 1)
    needed = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    needed = 0 if 0 in size else needed * tensor.element_size()
    if needed > storage.nbytes():
        raise RuntimeError("Trying to resize storage that is not resizable")
    if getattr(storage, "_tpu_block", None) is None:
        storage._tpu_block = memory.Block(torch.UntypedStorage(0))
    return memory._device_set(_CPU, tensor, storage, offset, size, stride)


def set_tensor(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return set_storage_offset(
        tensor,
        source.untyped_storage(),
        source.storage_offset(),
        list(source.shape),
        list(source.stride()),
    )


def set_nothing(tensor: torch.Tensor) -> torch.Tensor:
    return memory.over(tensor, aten.empty.memory_format((0,), dtype=tensor.dtype, device="cpu"))


def resize(tensor: torch.Tensor, size: list[int], *, memory_format: Any = None) -> torch.Tensor:
    cpu = memory.host(tensor)
    aten.resize_.default(cpu, size, memory_format=memory_format)
    fallback.keep_size(tensor, cpu)
    return tensor


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` on the host; conjugates and negatives are marks of a tensor, not of memory."""
    cpu = tensor if memory.block_of(tensor) is None else memory.host(tensor)
    if cpu is not tensor:
        if tensor.is_conj():
            cpu = cpu.conj()
        if tensor.is_neg():
            cpu = torch._neg_view(cpu)
    return cpu


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> Any:
    _resolved(target).copy_(_resolved(source))
    return target


def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if target.shape != source.shape:
        target.resize_(source.shape)
    return copy_from(source, target)


def to_copy(
    tensor: torch.Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> torch.Tensor:
    """A copy from the device; torch itself would ask for pinned memory that there is not."""
    kind = "tpu" if device is None else device.type
    if kind not in ("cpu", "tpu"):
        return aten._to_copy.default.redispatch(
            _COMPOSITE, tensor, dtype=dtype, device=device, memory_format=memory_format
        )
    memory.check_index(device)
    cpu = aten._to_copy.default(
        _resolved(tensor), dtype=dtype, layout=layout, device=_HOST, memory_format=memory_format
    )
    return cpu if kind == "cpu" else memory.wrap(cpu)


def zero_tensor(size: list[int], *, dtype: Any = None, **options: Any) -> torch.Tensor:
    """Zeros that torch does not want to spend memory on; they are spent here."""
    return memory.wrap(aten.zeros.default(size, dtype=dtype, device=_HOST))


def item(tensor: torch.Tensor) -> Any:
    return aten._local_scalar_dense.default(_resolved(tensor))


def native_dropout(
    tensor: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    cpu = memory.host(tensor)
    if train is False or tensor.numel() == 0:
        return memory.wrap(cpu.clone()), memory.wrap(aten.ones_like.default(cpu, dtype=torch.bool))
    kept = 1.0 - p
    mask = aten.empty_like.default(cpu, dtype=torch.bool)
    mask = mask.bernoulli_(kept, generator=randomness.default())
    scale = 0.0 if kept == 0 else 1.0 / kept
    return memory.wrap((cpu * mask).mul_(scale)), memory.wrap(mask)


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """The cell in one step, which torch has for devices and not for the CPU."""
    gates = input_gates + hidden_gates
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    i, f, g, o = workspace.chunk(4, 1)
    squashed = cy.tanh()
    grad_c = torch.zeros_like(cy) if grad_cy is None else grad_cy
    grad_o = torch.zeros_like(cy)
    if grad_hy is not None:
        grad_c = grad_c + grad_hy * o * (1 - squashed * squashed)
        grad_o = grad_hy * squashed
    gates = [
        grad_c * g * i * (1 - i),
        grad_c * cx * f * (1 - f),
        grad_c * i * (1 - g * g),
        grad_o * o * (1 - o),
    ]
    grad_gates = torch.cat(gates, 1)
    return grad_gates, grad_c * f, grad_gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The cell in one step, which torch has for devices and not for the CPU."""
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    (ri, zi, ni), (rh, zh, nh) = input_gates.chunk(3, 1), hidden_gates.chunk(3, 1)
    r, z = (ri + rh).sigmoid(), (zi + zh).sigmoid()
    n = (ni + r * nh).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, nh], 1)


def gru_cell_backward(
    grad: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    r, z, n, hx, nh = workspace.chunk(5, 1)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_z = grad * (hx - n) * z * (1 - z)
    grad_r = grad_n * nh * r * (1 - r)
    of_input = torch.cat([grad_r, grad_z, grad_n], 1)
    of_hidden = torch.cat([grad_r, grad_z, grad_n * r], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad * z, *biases


# These take tensors of two devices; torch composes them of `_copy_from`.
BETWEEN_DEVICES = frozenset({"aten::copy_", "aten::_foreach_copy_"})
VIEWS = ("as_strided", "view", "_reshape_alias", "unfold")


def special() -> dict[str, Any]:
    """The kernels by the name of the operator, without its namespace."""
    return {
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "set_.source_Storage": set_storage,
        "set_.source_Storage_storage_offset": set_storage_offset,
        "set_.source_Tensor": set_tensor,
        "set_": set_nothing,
        "resize_": resize,
        "_copy_from": copy_from,
        "_copy_from_and_resize": copy_from_and_resize,
        "_to_copy": to_copy,
        "_efficientzerotensor": zero_tensor,
        "_local_scalar_dense": item,
        "native_dropout": native_dropout,
        "record_stream": lambda tensor, stream: None,
        "_thnn_fused_lstm_cell": lstm_cell,
        "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
        "_thnn_fused_gru_cell": gru_cell,
        "_thnn_fused_gru_cell_backward": gru_cell_backward,
        **{name: _same_on_any_device(getattr(aten, name).default) for name in VIEWS},
    }


def direct(kernels: frozenset[str]) -> list[str]:
    """The operators that torch would compose, though torch_tpu has kernels for them.

    One of them is an operator that torch makes of its `out` form; the fewer steps the faster.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = []
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        if has(name, "CompositeExplicitAutogradNonFunctional"):
            if name in kernels or _out_of(name) in kernels:
                names.append(name)
        elif name in kernels and has(name, "CompositeExplicitAutograd"):
            makes_tensors = any(a.name == "device" for a in operator(name)._schema.arguments)
            if name not in BETWEEN_DEVICES and not makes_tensors:
                names.append(name)
    return names


def operator(name: str) -> Any:
    """The operator of a name as the dispatcher writes it: `aten::add.Tensor`."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _out_of(name: str) -> str | None:
    """The `out` form of a structured operator, told by the arguments that both have."""
    op = operator(name)
    forms = getattr(aten, op._schema.name.removeprefix("aten::").removesuffix("_"))
    for overload in forms.overloads():
        form = getattr(forms, overload)
        if any(a.is_out for a in form._schema.arguments) and _inputs(form) == _inputs(op):
            return str(form._name)
    return None


def _inputs(op: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
