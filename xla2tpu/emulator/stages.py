"""Stages of torch_tpu's names: what is refused to user code, and what warns once.

torch_tpu looks at the module of the caller: its device functions are for torch itself. The
messages are those of torch_tpu 0.2.0.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T", bound=Callable[..., Any])

LEGACY = "TORCH_TPU_ALLOW_LEGACY_DEVICE_APIS"
FRAMEWORK = ("torch", "torch_tpu", "xla2tpu.emulator")


def _framework(frame: Any) -> bool:
    name = str(frame.f_globals.get("__name__") or "")
    return any(name == package or name.startswith(f"{package}.") for package in FRAMEWORK)


def _torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


class _Stage:
    """One name's stage: the texts, and whether it has warned."""

    def __init__(self, name: str, kind: str, text: str, category: type[Warning]) -> None:
        self.text = f"<TorchTpu/ApiStage/{kind}/> {name} {text}"
        self.category = category
        self.warned = False
        self.error: str | None = None

    def check(self, frame: Any, depth: int = 3) -> None:
        if (self.error is None and self.warned) or torch.compiler.is_compiling():
            return
        if _framework(frame):
            return
        if self.error is not None:
            raise RuntimeError(self.error)
        self.warned = True
        warnings.warn(self.text, self.category, stacklevel=depth)


def _guard(target: T, stage: _Stage) -> T:
    function: Any = vars(target)["__init__"] if isinstance(target, type) else target

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        stage.check(sys._getframe(1))
        return function(*args, **kwargs)

    guarded.__tt_api_stage__ = stage  # type: ignore[attr-defined]
    if isinstance(target, type):
        target.__init__ = guarded  # type: ignore[misc]
        return target
    return guarded  # type: ignore[return-value]


def experimental(reason: str) -> Callable[[T], T]:
    """Callers outside of torch are warned once."""

    def decorate(target: T) -> T:
        text = f"is experimental and subject to change: {reason}"
        stage = _Stage(target.__name__, "ExperimentalApi", text, UserWarning)
        return _guard(target, stage)

    return decorate


def deprecated(version: str, reason: str) -> Callable[[T], T]:
    """Callers outside of torch are warned once that a name goes away."""

    def decorate(target: T) -> T:
        text = f"is deprecated as of TorchTPU {version} and will be removed in a future release: "
        stage = _Stage(target.__name__, "DeprecatedApi", text + reason, DeprecationWarning)
        return _guard(target, stage)

    return decorate


def internal(since: tuple[int, int], prefer: str, reason: str) -> Callable[[T], T]:
    """Callers outside of torch are refused from torch ``since`` on, and pointed to ``prefer``.

    With the environment variable of old programs they are warned once instead, as on a TPU.
    """
    if _torch_version() < since:
        return experimental(reason)

    def decorate(target: T) -> T:
        name = target.__name__
        stage = _Stage(
            name,
            "InternalApi",
            "is internal to TorchTPU and may change or be removed without notice. "
            f"Use {prefer} instead.",
            UserWarning,
        )
        if os.environ.get(LEGACY, "").lower() not in ("1", "true"):
            stage.error = (
                f"{name} is internal to TorchTPU and can only be called by the PyTorch framework "
                f"(torch and torch_tpu). Use {prefer} instead."
            )
        return _guard(target, stage)

    return decorate
