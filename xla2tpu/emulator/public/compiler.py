"""`torch.tpu.compiler`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from xla2tpu.emulator.stages import experimental

__all__ = ["custom_compiler_options"]


@experimental("torch.tpu.compiler.custom_compiler_options is experimental and subject to change.")
@contextlib.contextmanager
def custom_compiler_options(options: dict[str, str]) -> Iterator[None]:
    """Options of XLA, which does not compile anything here."""
    yield
