"""`torch.compile`: what torch_tpu says of its arguments, and the function itself, not compiled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

INDUCTOR = (
    "torch.compile(..., backend='inductor') on TPU is experimental and does not yet have full TPU "
    "support; compilation is likely to fail with cryptic errors, e.g. "
    "https://github.com/google-pytorch/torch_tpu/issues/4300. Pass backend='tpu' or do not specify "
    "`backend` in torch.compile to use TorchTPU, which does have full TPU support. If you do want "
    "to run Inductor on TPU, you can bypass this error by passing "
    "options={'tpu_backend': 'pallas'}."
)
DYNAMIC = (
    "TPU backend does not support torch.compile(..., dynamic=True, ...). Please run "
    "torch.compile() with dynamic=None or default dynamism i.e. torch.compile(model) and try again."
)
MAX_BUCKETS = 8


def has_tpu_inputs(inputs: Any) -> bool:
    """Whether a tensor among the arguments of a call is on the device."""
    flat = torch.utils._pytree.tree_leaves(inputs)
    return any(isinstance(x, torch.Tensor) and x.device.type == "tpu" for x in flat)


def check(backend: Any, mode: str | None, dynamic: bool | None, options: dict[str, Any]) -> None:
    """Raise what torch_tpu's compiler would for inputs on the device."""
    if backend == "inductor":
        if options.get("tpu_backend") != "pallas":
            raise RuntimeError(INDUCTOR)
        return
    if backend in ("openxla", "openxla_eval"):
        # torch knows the name still, and imports torch_xla when it compiles.
        raise torch._dynamo.exc.BackendCompilerFailed(
            torch._dynamo.lookup_backend(backend),
            ModuleNotFoundError("No module named 'torch_xla'", name="torch_xla"),
            None,
        )
    if backend not in (None, "tpu"):
        return
    buckets = options.get("num_dynamic_buckets")
    if buckets is not None and not (isinstance(buckets, int) and 1 <= buckets <= MAX_BUCKETS):
        raise ValueError(
            f"`num_dynamic_buckets` must be an integer between 1 and {MAX_BUCKETS}, got {buckets}"
        )
    size = options.get("bucket_size")
    if size is not None and not (isinstance(size, int) and size > 0):
        raise ValueError(f"`bucket_size` must be a positive integer, got {size}")
    callback = options.get("debug_callback")
    if callback is not None and not callable(callback):
        raise TypeError("'debug_callback' must be callable")
    if mode not in (None, "default"):
        raise TypeError(f"Unexpected keyword arguments: {{'mode': {mode!r}}}")
    if dynamic:
        raise NotImplementedError(DYNAMIC)


def patch() -> None:
    """Put `compile` in the place of torch's."""
    original = torch.compile
    accepted = frozenset(inspect.signature(original).parameters)

    @functools.wraps(original)
    def compile(
        model: Any = None,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        backend: Any = None,
        mode: str | None = None,
        options: dict[str, Any] | None = None,
        disable: bool = False,
        **others: Any,
    ) -> Any:
        known = {name: value for name, value in others.items() if name in accepted}
        if others != known:
            name = next(name for name in others if name not in accepted)
            raise TypeError(f"compile() got an unexpected keyword argument '{name}'")
        if model is None:
            return functools.partial(
                compile,
                fullgraph=fullgraph,
                dynamic=dynamic,
                backend=backend,
                mode=mode,
                options=options,
                disable=disable,
                **others,
            )
        if mode is not None and options is not None:
            raise RuntimeError(
                "Either mode or options can be specified, but both can't be specified at the same "
                "time."
            )
        if isinstance(backend, str) and backend != "tpu":
            torch._dynamo.lookup_backend(backend)
        if disable:
            return model
        checked = functools.partial(check, backend, mode, dynamic, dict(options or {}))
        return _checking(model, checked)

    torch.compile = compile


def _checking(model: Any, checked: Callable[[], None]) -> Any:
    """``model`` as torch would give it back, a module as one around it."""
    compiled = torch._dynamo.disable(model)
    run = compiled.forward if isinstance(model, torch.nn.Module) else compiled

    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        if has_tpu_inputs((args, kwargs)):
            checked()
        return run(*args, **kwargs)

    if isinstance(model, torch.nn.Module):
        compiled.forward = call
        return compiled
    return call
