"""What torch_tpu has and the emulator does not: the name is there, and using it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def not_emulated(name: str) -> Callable[..., Any]:
    """A stand-in for ``name`` that raises NotImplementedError where it is called."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{name} is not emulated: it needs a TPU")

    refused.__name__ = refused.__qualname__ = name.rpartition(".")[2]
    refused.__doc__ = f"`{name}` is not emulated."
    return refused
