"""Streams and events: an emulated device has done its work when a call returns."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch

from xla2tpu.emulator.stages import experimental

UNKNOWN = (
    "Streams and Events are not fully implemented in TorchTPU. Please file a feature request "
    "describing your use case."
)
_ids = itertools.count(1)
_PRIVATE_USE = 20  # c10::DeviceType::PrivateUse1
_CHANGES = "{}() is experimental and may change or be removed without notice."


class TpuStream(torch.Stream):
    """A stream of the device."""

    def __new__(
        cls, device: Any = None, priority: int = 0, stream_id: int | None = None, **kwargs: Any
    ) -> TpuStream:
        stream: TpuStream = super().__new__(
            cls,
            stream_id=next(_ids) if stream_id is None else stream_id,
            device_index=0,
            device_type=_PRIVATE_USE,
            priority=priority,
        )
        return stream

    @experimental(_CHANGES.format("wait_event"))
    def wait_event(self, event: Any) -> None:
        """Everything before is done already."""

    @experimental(_CHANGES.format("wait_stream"))
    def wait_stream(self, stream: Any) -> None:
        """Everything before is done already."""

    @experimental(_CHANGES.format("record_event"))
    def record_event(self, event: TpuEvent | None = None) -> TpuEvent:
        event = TpuEvent() if event is None else event
        event.record(self)
        return event

    @experimental(_CHANGES.format("query"))
    def query(self) -> bool:
        raise NotImplementedError(UNKNOWN)

    @experimental(_CHANGES.format("synchronize"))
    def synchronize(self) -> None:
        """Everything is done already."""

    def __repr__(self) -> str:
        return "<torch.tpu.TpuStream>"


class TpuEvent(torch.Event):
    """An event of the device."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        device: Any = None,
    ) -> TpuEvent:
        event: TpuEvent = super().__new__(
            cls,
            device=torch.device("tpu"),
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )
        event.timed = enable_timing
        event.at = None
        return event

    timed: bool
    at: float | None

    @experimental(_CHANGES.format("record"))
    def record(self, stream: Any = None) -> TpuEvent:
        if stream is not None and not isinstance(stream, torch.Stream):
            raise TypeError(f"expected torch.Stream, but got {type(stream).__name__}")
        self.at = time.perf_counter()
        return self

    @experimental(_CHANGES.format("wait"))
    def wait(self, stream: Any = None) -> None:
        """Nothing waits, as on the device."""

    @experimental(_CHANGES.format("query"))
    def query(self) -> bool:
        return True

    @experimental(_CHANGES.format("synchronize"))
    def synchronize(self) -> None:
        """Everything is done already."""

    @experimental(_CHANGES.format("elapsed_time"))
    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between two recorded events.

        Raises RuntimeError where one was not recorded or does not measure time.
        """
        if not (self.timed and end_event.timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or end_event.at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return float(end_event.at - self.at) * 1000

    def __repr__(self) -> str:
        return "<torch.tpu.TpuEvent>"
