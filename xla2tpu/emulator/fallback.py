"""Every operator of the device: the same operator on host memory.

torch's dispatcher calls `run` for each operator that has no kernel of its own for the device, as
it calls torch_tpu's. What there is to do for an operator is told by its schema and kept as a
plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import torch

from xla2tpu.emulator import memory, randomness
from xla2tpu.emulator.settings import TABLE

Operator = Any
Plan = Callable[..., Any]

# torch takes these arguments on the CPU, as it does for other devices.
CPU_ARGUMENTS = {
    "aten::index.Tensor": {"indices"},
    "aten::_unsafe_index.Tensor": {"indices"},
    "aten::index_put": {"indices"},
    "aten::index_put_": {"indices"},
    "aten::_index_put_impl_": {"indices"},
    "aten::_unsafe_index_put": {"indices"},
    "aten::_foreach_copy_": {"self", "src"},
    "aten::_ctc_loss.Tensor": {"targets", "input_lengths", "target_lengths"},
    "aten::_pack_padded_sequence": {"lengths"},
    "aten::lstm.data": {"batch_sizes"},
    "aten::gru.data": {"batch_sizes"},
}
# Most operators take a tensor without dimensions on the CPU as a number; these do not.
_NO_NUMBERS = re.compile(
    r"aten::(cat|stack|nll_loss\w*|index_select|gather|take|embedding|scatter\w*|index_add_?)(\.|\Z)"
)
# Their first tensor is none either.
_INDEXING = re.compile(r"aten::_?(unsafe_)?index(_put\w*)?(\.|\Z)")
_plans: dict[Operator, Plan] = {}
_kernels: frozenset[str] = frozenset()
_allow_missing = False


def load_table() -> dict[str, Any]:
    """The operators that torch_tpu has kernels for; `scripts/tpu_kernels.py` makes the file."""
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def set_up(kernels: frozenset[str], allow_missing: bool) -> None:
    """Refuse operators outside of ``kernels`` from now on, but where ``allow_missing``."""
    global _kernels, _allow_missing
    _kernels = kernels
    _allow_missing = allow_missing


def run(op: Operator, *args: Any, **kwargs: Any) -> Any:
    """The kernel of all operators that have none of their own."""
    plan = _plans.get(op)
    if plan is None:
        plan = _plans[op] = refuse(op) or make_plan(op)
    return plan(*args, **kwargs)


def refuse(op: Operator) -> Plan | None:
    """What stands for an operator without a kernel."""
    name = op._name.removesuffix(".default")
    if _allow_missing or name in _kernels:
        return None

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"operator '{name}' is not implemented for TPU. Please file a feature request"
        )

    return missing


def _mixed(device: torch.device) -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{memory.DEVICE} and {device}!"
    )


class _Arguments:
    """The arguments of an operator on the host, and what tells them apart."""

    def __init__(self, op: Operator) -> None:
        arguments = op._schema.arguments
        name = op._name.removesuffix(".default")
        cpu = CPU_ARGUMENTS.get(name, set())
        self.cpu_allowed = bool(cpu)
        self.indexing = _INDEXING.match(name) is not None
        self.numbers = _NO_NUMBERS.match(name) is None
        self.cpu = tuple(a.name in cpu for a in arguments if not a.kwarg_only)
        self.cpu_named = cpu
        self.kinds = tuple(_kind(a) for a in arguments if not a.kwarg_only)
        self.named = {a.name: _kind(a) for a in arguments}
        self.written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
        self.writes = tuple(a.name in self.written for a in arguments if not a.kwarg_only)
        self.plain = (
            self.numbers
            and not self.written
            and not any(self.named[n] not in "t-" for n in self.named)
        )

    def tensor(self, value: Any, written: bool, cpu: bool) -> Any:
        if not isinstance(value, torch.Tensor):  # torch gives a number as a number
            return value
        block = memory.block_of(value)
        if block is not None:
            return memory.host(value)
        if cpu or (value.dim() == 0 and self.numbers and not written):
            return value
        raise _mixed(value.device)

    def convert(self, kind: str, value: Any, written: bool, cpu: bool) -> Any:
        if value is None or kind == "-":
            return value
        if kind == "t":
            return self.tensor(value, written, cpu)
        if kind == "l":
            return [None if v is None else self.tensor(v, written, cpu) for v in value]
        if kind == "g":
            return randomness.host(value)
        return torch.device("cpu")

    def on_host(self, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        if self.indexing and args and memory.block_of(args[0]) is None:
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({args[0].device})"
            )
        positional = [
            value if kind == "-" else self.convert(kind, value, written, cpu)
            for kind, written, cpu, value in zip(
                self.kinds, self.writes, self.cpu, args, strict=False
            )
        ]
        named = {
            n: self.convert(self.named[n], value, n in self.written, n in self.cpu_named)
            for n, value in kwargs.items()
        }
        return positional, named


def _kind(argument: Any) -> str:
    """t(ensor), l(ist of tensors), g(enerator), d(evice) or -, nothing to be done."""
    kind = str(argument.type)
    if "Tensor" in kind:
        return "l" if "List" in kind or "[]" in kind else "t"
    if "Generator" in kind:
        return "g"
    return "d" if "Device" in kind or argument.name == "device" else "-"


def wrap_all(value: Any) -> Any:
    """``value`` with its CPU tensors as tensors of the device."""
    if isinstance(value, torch.Tensor):
        return memory.wrap(value)
    if isinstance(value, (tuple, list)):
        return type(value)(wrap_all(v) for v in value)
    return value


def make_plan(op: Operator) -> Plan:
    """How to run ``op``, which has a kernel for the CPU."""
    schema = op._schema
    arguments = _Arguments(op)
    call = _with_numbers(op._op, arguments)
    if arguments.written:
        plan = _writing(arguments, call, schema)
    elif any(r.alias_info for r in schema.returns):
        plan = _viewing(arguments, call)
    elif arguments.plain and not arguments.cpu_allowed:
        plan = _functional(call)
    else:

        def plan(*args: Any, **kwargs: Any) -> Any:
            positional, named = arguments.on_host(args, kwargs)
            return wrap_all(call(*positional, **named))

    if arguments.named.get("generator") == "g":
        return _with_generator(plan, arguments)
    if torch.Tag.nondeterministic_seeded in op.tags:
        return randomness.swapped(plan)
    return plan


def _with_numbers(call: Any, arguments: _Arguments) -> Any:
    """``call`` for numbers as well, which torch gives for tensors and not all operators take."""

    def number_as_tensor(kind: str, value: Any, args: Any) -> Any:
        if kind != "t" or not isinstance(value, (bool, int, float, complex)):
            return value
        dtype: torch.dtype | None = None if isinstance(value, (float, complex)) else torch.int64
        if isinstance(value, bool):
            dtype = torch.bool
        if isinstance(value, float) and any(
            isinstance(a, torch.Tensor) and a.dtype is torch.float64 for a in args
        ):
            dtype = torch.float64
        return torch.ops.aten.scalar_tensor(value, dtype=dtype, device="cpu")

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except RuntimeError:
            converted = [
                number_as_tensor(kind, value, args)
                for kind, value in zip(arguments.kinds, args, strict=False)
            ]
            if all(a is b for a, b in zip(converted, args, strict=True)):
                raise
            return call(*converted, **kwargs)

    return called


def _with_generator(plan: Plan, arguments: _Arguments) -> Plan:
    """``plan`` with the generator of the device where none is given."""
    place = arguments.kinds.index("g") if "g" in arguments.kinds else len(arguments.kinds)

    def seeded(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= place and kwargs.get("generator") is None:
            kwargs["generator"] = randomness.default()
        return plan(*args, **kwargs)

    return seeded


def _functional(call: Any) -> Plan:
    """Tensors and numbers in, new tensors out: most operators."""
    host, wrap, is_tensor = memory.host, memory.wrap, torch.Tensor

    def value_on_host(value: Any) -> Any:
        if isinstance(value, is_tensor):
            try:
                return host(value)
            except AttributeError:
                if memory.block_of(value) is not None:
                    return host(value)
                if value.dim():
                    raise _mixed(value.device) from None
        return value

    def plan(*args: Any, **kwargs: Any) -> Any:
        positional = [value_on_host(v) for v in args]
        if kwargs:
            result = call(*positional, **{k: value_on_host(v) for k, v in kwargs.items()})
        else:
            result = call(*positional)
        return wrap(result) if isinstance(result, is_tensor) else wrap_all(result)

    return plan


def _viewing(arguments: _Arguments, call: Any) -> Plan:
    """A view of the first tensor."""

    def plan(*args: Any, **kwargs: Any) -> Any:
        positional, named = arguments.on_host(args, kwargs)
        result = call(*positional, **named)
        if isinstance(result, torch.Tensor):
            return memory.view(args[0], result)
        return type(result)(memory.view(args[0], r) for r in result)

    return plan


def _writing(arguments: _Arguments, call: Any, schema: Any) -> Plan:
    """In place, or into `out` tensors, which may get another size by it."""
    names = [a.name for a in schema.arguments]
    outputs = [a.name for a in schema.arguments if a.is_out]
    results: list[str | None] = []
    for result in schema.returns:
        info = result.alias_info
        source = [
            a.name
            for a in schema.arguments
            if info and a.alias_info and a.alias_info.before_set == info.before_set
        ]
        results.append(source[0] if source else None)

    def plan(*args: Any, **kwargs: Any) -> Any:
        positional, named = arguments.on_host(args, kwargs)
        done = call(*positional, **named)
        given = dict(zip(names, args, strict=False)) | kwargs
        if outputs:
            hosts = dict(zip(names, positional, strict=False)) | named
            for name in outputs:
                keep_size(given[name], hosts[name])
        if not results:
            return None
        if len(results) == 1:
            name = results[0]
            return given[name] if name is not None else wrap_all(done)
        return tuple(
            given[name] if name is not None else wrap_all(value)
            for name, value in zip(results, done, strict=True)
        )

    return plan


def keep_size(tensor: Any, cpu: Any) -> None:
    """Let ``tensor`` follow ``cpu``, its host side, which an operator may have resized."""
    if isinstance(tensor, (list, tuple)):
        for one, host in zip(tensor, cpu, strict=True):
            keep_size(one, host)
    elif tensor.shape != cpu.shape or tensor.stride() != cpu.stride():
        memory.over(tensor, cpu)
