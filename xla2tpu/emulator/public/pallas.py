"""`torch.tpu.pallas`: kernels in JAX are not emulated."""

from __future__ import annotations

from xla2tpu.emulator.refusal import not_emulated

__all__ = ["get_pallas_mesh", "jax_op"]

get_pallas_mesh = not_emulated("torch.tpu.pallas.get_pallas_mesh")
jax_op = not_emulated("torch.tpu.pallas.jax_op")
