"""xla2tpu: move PyTorch/XLA code to TorchTPU."""

__version__ = "0.1.0"
