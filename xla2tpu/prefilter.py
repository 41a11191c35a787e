"""The byte-level test that decides, before anything heavy is imported, whether a file matters."""

from __future__ import annotations

import re

_MARKS = (
    b"torch_xla",
    b"torch-xla",
    b"xla2tpu",
    b"openxla",
    b"torchxla_trace",
    b"PJRT_",
    b"XLA_USE_",
    b"XLA_DOWNCAST",
    b"XRT_",
)
# Device names: `"xla"`, `'xla:0'`, `"xla://"`, and not `"xlarge"`.
_DEVICE = re.compile(rb"""["']xla["':]""")


def interesting(data: bytes) -> bool:
    """Whether the bytes of a file may hold anything that a rule is about.

    Wide on purpose: a wrong yes costs the time of one parse, a wrong no a missed reference.
    Names that come from other files of the project are not seen here.
    """
    if any(mark in data for mark in _MARKS):
        return True
    if (b'"xla' in data or b"'xla" in data) and _DEVICE.search(data) is not None:
        return True
    # UTF-16 never holds the marks as plain bytes, and is to be reported, not passed over.
    return data.startswith((b"\xff\xfe", b"\xfe\xff"))
