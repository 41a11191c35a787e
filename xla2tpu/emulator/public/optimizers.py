"""`torch.tpu.optimizers`: the functional optimizers of torch_tpu are not emulated."""

from __future__ import annotations

from xla2tpu.emulator.refusal import not_emulated

__all__ = ["AdamW", "Muon", "Optimizer", "Sgd", "SingleTraceTrainer"]

AdamW = not_emulated("torch.tpu.optimizers.AdamW")
Muon = not_emulated("torch.tpu.optimizers.Muon")
Optimizer = not_emulated("torch.tpu.optimizers.Optimizer")
Sgd = not_emulated("torch.tpu.optimizers.Sgd")
SingleTraceTrainer = not_emulated("torch.tpu.optimizers.SingleTraceTrainer")
