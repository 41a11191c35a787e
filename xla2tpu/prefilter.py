"""The byte-level test that decides, before anything heavy is imported, whether a file matters."""

from __future__ import annotations

import re

# Packages with tests for torch_xla that turn False without it, whoever calls them.
GUARD_PACKAGES = frozenset(
    {
        "accelerate", "catalyst", "composer", "datasets", "diffusers", "fairseq", "ignite",
        "lightning", "lightning_fabric", "lightning_utilities", "optimum", "peft",
        "pytorch_lightning", "sentence_transformers", "timm", "torchmetrics", "transformers", "trl",
    }
)  # fmt: skip

_XLA_MARKS = (b"torch-xla", b"xla2tpu", b"openxla", b"torchxla_trace")
_OTHER_MARKS = (b"XLA_USE_", b"XLA_DOWNCAST")
# The package's own name, and not a part of `is_torch_xla_available`.
_PACKAGE = re.compile(rb"(?<![A-Za-z0-9_])torch_xla")
# Device names: `"xla"`, `'xla:0'`, `"xla://"`, and not `"xlarge"`.
_DEVICE = re.compile(rb"""["']xla["':]""")
_GUARD = re.compile(
    rb"^[ \t]*(?:from|import)[ \t]+(?:"
    + b"|".join(name.encode() for name in sorted(GUARD_PACKAGES))
    + rb")\b",
    re.M,
)


# What migrated code says, since calls without a kernel are still to be found there.
_MIGRATED = re.compile(
    rb"""(?:\bdevice\(|\.to\(|\bdevice=)["']tpu[:"']|^[ \t]*import[ \t]+torch_tpu\b""", re.M
)

_BEFORE_TPU = (b'"', b"'", b"_")


def interesting(data: bytes) -> bool:
    """Whether the bytes of a file may hold anything that a rule is about.

    Wide on purpose: a wrong yes costs the time of one parse, a wrong no a missed reference.
    Names that come from other files of the project are not seen here.
    """
    # Most files are done with after one search.
    if b"xla" in data and _has_xla(data):
        return True
    if b"XLA_" in data and any(mark in data for mark in _OTHER_MARKS):
        return True
    if b"RT_" in data and (b"PJRT_" in data or b"XRT_" in data):
        return True
    if migrated(data):
        return True
    # UTF-16 never holds the marks as plain bytes, and is to be reported, not passed over.
    return data.startswith((b"\xff\xfe", b"\xfe\xff"))


def migrated(data: bytes) -> bool:
    """Whether a file with code for torch is written for TorchTPU."""
    if b"torch" not in data:
        return False
    # One pass, and not one for each way to quote; most that is met is `output`.
    at = data.find(b"tpu")
    while at >= 0:
        if data[at - 1 : at] in _BEFORE_TPU:
            return _MIGRATED.search(data) is not None
        at = data.find(b"tpu", at + 3)
    return False


def _has_xla(data: bytes) -> bool:
    if b"torch_xla" in data and (_PACKAGE.search(data) or _GUARD.search(data)):
        return True
    if (b'"xla' in data or b"'xla" in data) and _DEVICE.search(data):
        return True
    return any(mark in data for mark in _XLA_MARKS)
