"""The byte-level test that decides, before anything heavy is imported, whether a file matters."""

from __future__ import annotations

# `"xla` and `'xla` are device literals, `"xla:0"` and backend names among them.
_MARKS = (
    b"torch_xla",
    b'"xla',
    b"'xla",
    b"xla2tpu",
    b"PJRT_",
    b"XLA_USE_",
    b"XLA_DOWNCAST",
    b"XRT_",
)
# In any case of the letters: `TORCH_XLA_VERSION`, `is_torch_xla_available`, `Torch-XLA`.
_FOLDED_MARKS = (b"torch_xla", b"torch-xla")


def interesting(data: bytes) -> bool:
    """Whether the bytes of a file may hold anything that a rule is about.

    Wide on purpose: a wrong yes costs the time of one parse, a wrong no a missed reference.
    Names that come from other files of the project are not seen here.
    """
    # UTF-16 never holds the marks as plain bytes, and is to be reported, not passed over.
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    folded = data.lower()
    # Every mark holds one of these: most files are done with after three searches.
    if not (b"xla" in folded or b"pjrt_" in folded or b"xrt_" in folded):
        return False
    return any(mark in data for mark in _MARKS) or any(mark in folded for mark in _FOLDED_MARKS)
