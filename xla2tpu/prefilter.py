"""The byte-level test that decides, before anything heavy is imported, whether a file matters."""

from __future__ import annotations

import re

from xla2tpu.kinds import Kind

# Packages with tests for torch_xla that turn False without it, whoever calls them.
GUARD_PACKAGES = frozenset(
    {
        "accelerate", "catalyst", "composer", "datasets", "diffusers", "fairseq", "ignite",
        "lightning", "lightning_fabric", "lightning_utilities", "optimum", "peft",
        "pytorch_lightning", "sentence_transformers", "timm", "torchmetrics", "transformers", "trl",
    }
)  # fmt: skip

_XLA_MARKS = (b"torch-xla", b"xla2tpu", b"openxla", b"torchxla_trace", b"ops.xla.")
_OTHER_MARKS = (b"XLA_USE_", b"XLA_DOWNCAST")
# The package's own name, and not a part of `is_torch_xla_available`.
_PACKAGE = re.compile(rb"(?<![A-Za-z0-9_])torch_xla")
# Device names: `"xla"`, `'xla:0'`, `"xla://"`, and not `"xlarge"`.
_DEVICE = re.compile(rb"""["']xla["':]""")
_GUARDING = b"|".join(name.encode() for name in sorted(GUARD_PACKAGES))
_GUARD = re.compile(rb"^[ \t]*(?:from|import)[ \t]+(?:" + _GUARDING + rb")\b", re.M)
# Such a test is imported by its name, or looked up in a module.
_GUARD_NAME = re.compile(
    rb"^[ \t]*from[ \t]+(?:" + _GUARDING + rb")\b[\w.]*[ \t\\\r\n]+import\b"
    rb"(?:[ \t\\\r\n]*\((?:[^)#]|#[^\n]*)*?|(?:[^\n\\#(]|\\\r?\n)*?)\b\w*xla\w*"
    rb"|\.[\s\\]*\w*xla\w*(?:available|support)",
    re.M | re.I,
)


# Packages that drive TPUs by torch_xla, or did so; rules/frameworks tells by which names.
FRAMEWORKS = (
    "accelerate", "composer", "fairseq", "fastai_xla_extensions", "ignite",
    "lightning", "lightning_fabric", "optimum", "peft", "pytorch_lightning", "ray", "timm",
    "torchprime", "transformers", "trl", "vllm",
)  # fmt: skip
_FRAMEWORK_NAMES = tuple(name.encode() for name in FRAMEWORKS)
_IMPORT = rb"[ \t]*(?:from|import)[ \t]+(?:" + b"|".join(_FRAMEWORK_NAMES) + rb")\b"
_FRAMEWORK = re.compile(rb"^" + _IMPORT, re.M)
# A line of a cell begins behind a quote, or behind the escaped end of the one before.
_LINE_IN_NOTEBOOK = re.compile(rb"[\"n]" + _IMPORT)
# Words that are cheap to search, where `tpu` alone would be found in each `output`; for some, what
# they have to be part of.
_TPU_WORDS: tuple[tuple[bytes, re.Pattern[bytes] | None], ...] = (
    (b"TPU", re.compile(rb"TPU(?<=[.e]TPU)\b|TPU(?:Spawn|Acc|Prec|Bf16|Dist|Plugin|Strat|_MET)")),
    (b"tpu_", None),
    (b"_tpu", None),
    (b".tpu", None),
    (b"import tpu", None),
    (b"EnvXla", None),
    (b"torchprime", None),
)  # fmt: skip
_LOWER_WORD = re.compile(
    rb"""["']xla(?:["'-]|_debug|_fsdp|_tpu)|_xla["']|install_xla|\bxla=|fastai_xla"""
)
_XLA_WORD = re.compile(
    rb"XLA(?<=[._]XLA)\b|XLA(?:Strat|FSDP|Acc|Prof|Prec|Check|Env|Device|Config|_TPU)"
)
_MADE = (b"accelerate", b"Trainer", b"timm")
# What migrated code says, since calls without a kernel are still to be found there.
_MIGRATED = re.compile(
    rb"""(?:\bdevice\(|\.to\(|\bdevice=)["']tpu[:"']|^[ \t]*import[ \t]+torch_tpu\b""", re.M
)


def interesting(data: bytes) -> bool:
    """Whether the bytes of a file may hold anything that a rule is about.

    Wide on purpose: a wrong yes costs the time of one parse, a wrong no a missed reference.
    Names that come from other files of the project are not seen here.
    """
    # Most files are done with after a few searches.
    xla, upper = b"xla" in data, b"XLA" in data
    if xla and _has_xla(data):
        return True
    if upper and b"XLA_" in data and any(mark in data for mark in _OTHER_MARKS):
        return True
    if b"RT_" in data and (b"PJRT_" in data or b"XRT_" in data):
        return True
    quoted = b'"tpu' in data or b"'tpu" in data
    if (quoted or b"import torch_tpu" in data) and migrated(data):
        return True
    if quoted or _has_words(data, xla, upper):
        return _FRAMEWORK.search(data) is not None
    # UTF-16 never holds the marks as plain bytes, and is to be reported, not passed over.
    return data.startswith((b"\xff\xfe", b"\xfe\xff"))


def _framework_in_notebook(data: bytes) -> bool:
    """Whether a notebook may use another package for TPUs; its lines are strings of JSON."""
    # Pictures make notebooks large, so that words go first.
    if not any(b"from " + name in data or b"import " + name in data for name in _FRAMEWORK_NAMES):
        return False
    worded = b'"tpu' in data or b"'tpu" in data or _has_words(data, b"xla" in data, b"XLA" in data)
    return worded and _LINE_IN_NOTEBOOK.search(data) is not None


def _has_words(data: bytes, xla: bool, upper: bool) -> bool:
    """Whether a file has a word that other packages have for TPUs; it has ``xla``, or ``XLA``."""
    for mark, pattern in _TPU_WORDS:
        if mark in data and (pattern is None or pattern.search(data)):
            return True
    if upper and _XLA_WORD.search(data):
        return True
    return xla and _LOWER_WORD.search(data) is not None


def silent(data: bytes) -> bool:
    """Whether code may end up on the CPU without a word, if its project is for TPUs."""
    return any(mark in data for mark in _MADE) and _FRAMEWORK.search(data) is not None


def migrated(data: bytes) -> bool:
    """Whether a file with code for torch is written for TorchTPU."""
    marked = b'"tpu' in data or b"'tpu" in data or b"import torch_tpu" in data
    return marked and b"torch" in data and _MIGRATED.search(data) is not None


# What stands in files around the code: the packages, their sources, variables, launchers.
_AROUND = re.compile(
    rb"torch[-_.](?:xla|tpu)|pytorch[-/]xla|tpu-pytorch|xla_spawn|xla_dist|accelerate launch"
    rb"|tpu-vm-(?:v4-)?pt"
    rb"|xla2tpu|PJRT_|XRT_|XLA_[A-Z]|PT_?XLA|ALLREDUCE_GRADIENTS_BUCKET"
    rb"|TPU_NUM_DEVICES|CONVERT_SHLO|COLLECTIVE_MATMUL_IN_MP"
    rb"|NUMERIC_CC_TOKEN|distributed_type:\s*[\"']?(?:TPU|XLA)\b|^\s+xla:\s*[Tt]rue\b",
    re.M,
)
# What a list of requirements includes may ask for torch_xla.
_INCLUDES = re.compile(rb"^[ \t]*(?:-r|--requirement)", re.M)
# In JSON, quotes of strings in code are escaped.
_IN_NOTEBOOK = re.compile(rb"COLAB_TPU_ADDR|openxla|torchxla_trace|\\\"xla[\\:]|'xla[':]|xla2tpu")


def matters(kind: Kind, data: bytes) -> bool:
    """The same for a file of any kind."""
    if kind is Kind.PYTHON:
        return interesting(data)
    if _AROUND.search(data):
        return True
    if kind is Kind.NOTEBOOK:
        return _IN_NOTEBOOK.search(data) is not None or _framework_in_notebook(data)
    if kind is Kind.REQUIREMENTS:
        return _INCLUDES.search(data) is not None
    return kind is Kind.SETUP_PY and interesting(data)


def _has_xla(data: bytes) -> bool:
    if b"torch_xla" in data:
        if _PACKAGE.search(data):
            return True
        if _GUARD.search(data) and _GUARD_NAME.search(data):
            return True
    if (b'"xla' in data or b"'xla" in data) and _DEVICE.search(data):
        return True
    return any(mark in data for mark in _XLA_MARKS)
