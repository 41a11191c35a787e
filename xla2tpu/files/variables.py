"""Environment variables where files around the code set them, and what becomes of each.

Source of the meanings: torch_xla's documentation of its variables, releases 1.5 to 2.9, and the
names that the libraries of torch_tpu 0.2.0 read. Variables of libtpu, which jax reads as well, are
nobody's but their user's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from xla2tpu.model import Applicability


class Verdict(NamedTuple):
    """What becomes of a setting: it goes, or it gets another name; ``reason`` where it stays."""

    applicability: Applicability
    name: str | None = None
    value: str | None = None
    reason: str | None = None
    advice: str | None = None


_GONE = re.compile(
    r"(PJRT_(SELECT_DEFAULT_DEVICE|DYNAMIC_PLUGINS|CPU_ASYNC_CLIENT|ALLOCATOR_\w+|LIBRARY_PATH"
    r"|TPU_MAX_INFLIGHT_COMPUTATIONS|DIST_SERVICE_ADDR)"
    r"|XLA_(METRICS_\w+|FNTRACKER_\w+|COMPILATION_CACHE_SIZE|TENSOR_UPDATE_SYNC"
    r"|DISABLE_FUNCTIONALIZATION|STABLEHLO_COMPILE|LAYOUTS|RNG_BIT_GENERATOR"
    r"|RELEASE_GIL_DURING_TRANSFER|TPU_MAX_INFLIGHT_COMPUTATIONS|USE_DUMMY_STORE"
    r"|COORDINATOR_PORT|USE_IFRT|REGISTER_INSTALLED_PLUGINS)"
    r"|ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB|ENABLE_COLLECTIVE_MATMUL_IN_MP"
    r"|DISABLE_NUMERIC_CC_TOKEN)\Z"
)
_RENAMED = {
    "XLA_PERSISTENT_CACHE_PATH": "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT",
    "PTXLA_TPU_LIBRARY_PATH": "TPU_LIBRARY_PATH",
    "XLA_SYNC_WAIT": "TORCH_TPU_LAUNCH_BLOCKING",
    "XLA_USE_EAGER_DEBUG_MODE": "TORCH_TPU_LAUNCH_BLOCKING",
}
# Leaving these out is right for most, and worth a look.
_REVIEW = re.compile(
    r"(XLA_(IR_DEBUG|HLO_DEBUG|USE_SPMD|USE_32BIT_LONG|EXPERIMENTAL|DYNAMO_DEBUG"
    r"|PERSISTENT_CACHE_READ_ONLY)|PT_XLA_DEBUG\w*)\Z"
)
_NUMERICS = re.compile(r"XLA_(USE|DOWNCAST)_(BF16|FP16|F16)\Z")
_BY_HAND = re.compile(
    r"(PJRT_\w+|XRT_\w+|XLA_(AUTO_SPMD\w*|AUTO_USE_GROUP_SHARDING|NO_SPECIAL_SCALARS"
    r"|SAVE_(TENSORS_FILE|TENSORS_FMT|HLO_FILE)|DUMP_HLO_GRAPH|DUMP_POST_OPTIMIZATIONS"
    r"|ALWAYS_ALLREDUCE)|CONVERT_SHLO_TO_SHARDY|TPU_NUM_DEVICES)\Z"
)
_ON = frozenset(("1", "true", "yes", "on"))
_ADVICE = {
    "numerics": (
        'Remove it, and use model.to(torch.bfloat16) or torch.autocast("tpu", '
        "dtype=torch.bfloat16)."
    ),
    "XRT": "Remove it: the runtime of TPU Nodes is gone; use a TPU VM.",
    "DUMP": 'Set XLA_FLAGS="--xla_dump_to=DIR --xla_dump_hlo_as_text" in its place.',
    "COUNT": "Give the number of processes to torchrun as --nproc_per_node.",
}


def is_variable(name: str) -> bool:
    """Whether a name is a variable of torch_xla's run time."""
    return name in _RENAMED or any(
        pattern.match(name) for pattern in (_GONE, _REVIEW, _NUMERICS, _BY_HAND)
    ) or name == "USE_TORCH_XLA"  # fmt: skip


def verdict(name: str, value: str | None) -> Verdict:
    """What becomes of a setting of a variable that `is_variable`; ``value`` None if not known."""
    plain = (value or "").strip().lower()
    if name == "USE_TORCH_XLA":
        return Verdict(Applicability.SAFE)
    if name == "PJRT_DEVICE":
        if plain == "tpu":
            return Verdict(Applicability.SAFE)
        if plain == "cpu":
            return _by_hand("environment", "Run on the device cpu: TorchTPU has no CPU emulation.")
        if plain in ("cuda", "gpu", "neuron", "rocm", "xpu"):
            return _by_hand("other-hardware", "TorchTPU is for TPUs: keep plain torch for others.")
        return _by_hand("environment")
    if name in ("XLA_SYNC_WAIT", "XLA_USE_EAGER_DEBUG_MODE"):
        if plain in _ON:
            return Verdict(Applicability.SAFE, _RENAMED[name], "1")
        if value is None:
            return _by_hand()
        return Verdict(Applicability.SAFE) if plain in ("", "0", "false") else _by_hand()
    if name in _RENAMED:
        return Verdict(Applicability.UNSAFE, _RENAMED[name])
    if _NUMERICS.match(name):
        if plain in ("0", "false"):
            return Verdict(Applicability.SAFE)
        return _by_hand("numerics", _ADVICE["numerics"])
    if _GONE.match(name):
        return Verdict(Applicability.SAFE)
    if _REVIEW.match(name):
        return Verdict(Applicability.UNSAFE)
    if name.startswith("XRT_"):
        return _by_hand("environment", _ADVICE["XRT"])
    if name == "TPU_NUM_DEVICES":
        return _by_hand("environment", _ADVICE["COUNT"])
    if name.startswith(("XLA_SAVE_", "XLA_DUMP_")):
        return _by_hand("environment", _ADVICE["DUMP"])
    return _by_hand()


def _by_hand(reason: str = "environment", advice: str | None = None) -> Verdict:
    return Verdict(Applicability.MANUAL, reason=reason, advice=advice)
