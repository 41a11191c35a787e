"""Which hardware a text is written for, by the packages that it imports."""

from __future__ import annotations

import re

from xla2tpu.prefilter import migrated

# Packages that bring torch_xla to hardware other than TPUs.
OTHER_HARDWARE = {
    "torch_neuronx": "AWS Neuron",
    "torch_neuron": "AWS Neuron",
    "neuronx_distributed": "AWS Neuron",
    "neuronx_distributed_training": "AWS Neuron",
    "libneuronxla": "AWS Neuron",
    "optimum.neuron": "AWS Neuron",
    "tt_torch": "Tenstorrent",
    "torch_plugin_tt": "Tenstorrent",
    "pjrt_plugin_tt": "Tenstorrent",
    "tt_xla": "Tenstorrent",
    "torchacc": "TorchACC",
}
_OTHER_IMPORT = re.compile(
    rb"^(?:from|import)[ \t]+("
    + b"|".join(re.escape(n).encode() for n in OTHER_HARDWARE)
    + rb")\b",
    re.M,
)
_XLA_IMPORT = re.compile(rb"^[ \t]*(?:from|import)[ \t]+torch_xla\b", re.M)


def vendor_in(data: bytes) -> str | None:
    """The vendor whose packages the text of a file imports at its top, unguarded."""
    match = _OTHER_IMPORT.search(data)
    return OTHER_HARDWARE[match[1].decode()] if match else None


def is_for_tpu(data: bytes) -> bool:
    """Whether the text of a file imports torch_xla, or is written for TorchTPU."""
    return (b"torch_xla" in data and _XLA_IMPORT.search(data) is not None) or migrated(data)
