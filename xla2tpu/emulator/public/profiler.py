"""`torch.tpu.profiler`: there is no device to be profiled."""

from __future__ import annotations

from xla2tpu.emulator.refusal import not_emulated

__all__ = ["TpuProfilerConfig"]

TpuProfilerConfig = not_emulated("torch.tpu.profiler.TpuProfilerConfig")
