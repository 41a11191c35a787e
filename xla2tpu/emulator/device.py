"""What `torch.tpu` holds. The names, stages and messages are those of torch_tpu 0.2.0."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from xla2tpu.emulator import hardware, memory, randomness, settings
from xla2tpu.emulator.stages import deprecated, experimental, internal
from xla2tpu.emulator.streams import TpuEvent, TpuStream

_NOTICE = "{}() is experimental and subject to change without notice."
_CHANGES = "{}() is experimental and may change or be removed without notice."

AMP_DTYPES = (
    torch.bfloat16,
    torch.bool,
    torch.complex128,
    torch.complex64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.int8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.uint8,
)


class EagerMode(enum.Enum):
    """When operators are run; they are run at once here, whatever the mode."""

    DEFER_AND_FUSE = "DEFER_AND_FUSE"
    DEFER_NEVER = "DEFER_NEVER"
    DEFER_NEVER_AND_LAUNCH_BLOCKING = "DEFER_NEVER_AND_LAUNCH_BLOCKING"


class Precision(enum.Enum):
    """How float32 products are made; they are made in float32 here, whatever the precision."""

    DEFAULT = "DEFAULT"
    HIGH = "HIGH"
    HIGHEST = "HIGHEST"


class Modes:
    """The modes of the process."""

    eager: ClassVar = [EagerMode.DEFER_NEVER]
    precision: ClassVar = [Precision.DEFAULT]
    excess_precision = False
    stream: Any = None


def _check_rng_device(device: Any) -> None:
    name, index = None, None
    if isinstance(device, str):
        name = device
    elif isinstance(device, torch.device):
        name, index = device.type, device.index
    elif isinstance(device, int):
        index = device
    else:
        raise TypeError(f"got unrecognized device type: {device}")
    if name is not None and name != "tpu":
        raise ValueError(f"expected device type 'tpu' for RNG state access, got '{name}'")
    if index is not None and index != 0:
        raise ValueError(
            f"expected local device index 0, got {index}: accessing RNG state of a non-current "
            "TPU device is not supported"
        )


def check_device(device: Any) -> None:
    """Raise ValueError, as the device does, where ``device`` is not the one of this process."""
    index: int | None = 0
    if isinstance(device, str):
        if device != "tpu":
            raise ValueError(f"Invalid device string {device}")
    elif isinstance(device, torch.device):
        if device.type != "tpu":
            raise ValueError(f"Invalid device type {device.type}")
        index = device.index or 0
    elif isinstance(device, int):
        index = device
    else:
        raise TypeError(f"Got unrecognized device type, {device}")
    if index != 0:
        raise ValueError(
            f"Cannot set TPU device to index {index}, current process is bound to device index 0. "
            "Changing the active TPU device within a process is not supported."
        )


@internal(
    (2, 11),
    "torch.accelerator.device_index",
    "device() context manager is experimental and subject to change without notice.",
)
class _DeviceContext:
    def __init__(self, device: Any) -> None:
        self.index = device

    def __enter__(self) -> None:
        if not (self.index is None or (isinstance(self.index, int) and self.index < 0)):
            check_device(self.index)

    def __exit__(self, *exception: object) -> None:
        return None


@experimental("device_of() context manager is experimental and subject to change without notice.")
class _DeviceOfContext:
    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __enter__(self) -> None:
        """There is one device."""

    def __exit__(self, *exception: object) -> None:
        return None


@internal((2, 11), "torch.accelerator.is_available", _NOTICE.format("is_available"))
def is_available() -> bool:
    return True


@internal((2, 11), "torch.accelerator.device_count", _NOTICE.format("device_count"))
def device_count() -> int:
    return settings.read().devices


@internal((2, 11), "torch.accelerator.current_device_index", _NOTICE.format("current_device"))
def current_device() -> int:
    return 0


@internal((2, 11), "torch.accelerator.set_device_index", _NOTICE.format("set_device"))
def set_device(device: int | str | torch.device) -> None:
    check_device(device)


@internal((2, 11), "torch.accelerator.synchronize", _NOTICE.format("synchronize"))
def synchronize(device: int | None = None) -> None:
    """Everything is done already."""


@internal((2, 11), "torch.accelerator.current_stream", _NOTICE.format("current_stream"))
def current_stream(device: torch.device | None = None) -> TpuStream:
    return Modes.stream or TpuStream(stream_id=0)


@internal((2, 11), "torch.accelerator.set_stream", _NOTICE.format("set_stream"))
def set_stream(stream: TpuStream) -> None:
    Modes.stream = stream


@internal((2, 13), "torch.accelerator.random.initial_seed", _CHANGES.format("initial_seed"))
def initial_seed() -> int:
    return int(randomness.default().initial_seed())


@internal((2, 13), "torch.accelerator.random.get_rng_state", _NOTICE.format("get_rng_state"))
def get_rng_state(device: int | str | torch.device = "tpu") -> torch.Tensor:
    _check_rng_device(device)
    return randomness.default().get_state()


@experimental(_NOTICE.format("set_rng_state"))
def set_rng_state(new_state: torch.Tensor, device: int | str | torch.device = "tpu") -> None:
    _check_rng_device(device)
    randomness.default().set_state(new_state)


@experimental(_CHANGES.format("manual_seed"))
def manual_seed(seed: int) -> None:
    randomness.default().manual_seed(seed)


@experimental(_CHANGES.format("manual_seed_all"))
def manual_seed_all(seed: int) -> None:
    randomness.default().manual_seed(seed)


@experimental(_NOTICE.format("is_initialized"))
def is_initialized() -> bool:
    return memory.State.started and not memory.State.forked


@experimental(_NOTICE.format("default_stream"))
def default_stream(device: torch.device | None = None) -> TpuStream:
    return TpuStream(stream_id=0)


class TpuStreamContext:
    """The current stream of a `with` statement."""

    def __init__(self, stream: TpuStream | None) -> None:
        self.stream = stream
        self.before: Any = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self.before, Modes.stream = Modes.stream, self.stream

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            Modes.stream = self.before


@experimental(_NOTICE.format("stream"))
def stream(stream: TpuStream | None) -> TpuStreamContext:
    return TpuStreamContext(stream)


@experimental(_CHANGES.format("Stream"))
def Stream(device: Any = None, priority: int = 0, **kwargs: Any) -> TpuStream:
    return TpuStream(device, priority, **kwargs)


@experimental(_CHANGES.format("Event"))
def Event(
    enable_timing: bool = False,
    blocking: bool = False,
    interprocess: bool = False,
    external: bool = False,
    device: Any = None,
) -> TpuEvent:
    return TpuEvent(enable_timing, blocking, interprocess, external, device)


@experimental(_CHANGES.format("get_amp_supported_dtype"))
def get_amp_supported_dtype() -> list[torch.dtype]:
    return list(AMP_DTYPES)


@experimental(_NOTICE.format("get_device_name"))
def get_device_name(device: int | str | torch.device | None = None) -> str:
    return hardware.NAME


@dataclass(frozen=True)
class _TpuDeviceProperties:
    name: str
    total_memory: int
    multi_processor_count: int = 1


@experimental(_NOTICE.format("get_device_properties"))
def get_device_properties(
    device: int | str | torch.device | None = None,
) -> _TpuDeviceProperties:
    return _TpuDeviceProperties(hardware.NAME, hardware.MEMORY)


@experimental("Op precision context manager.")
@contextlib.contextmanager
def precision(mode: Precision) -> Iterator[None]:
    if mode not in Precision:
        raise ValueError(
            "expected to be one of 'PrecisionConfig.DEFAULT', 'PrecisionConfig.HIGH', or "
            f"'PrecisionConfig.HIGHEST', got '{mode}'"
        )
    Modes.precision.append(mode)
    try:
        yield
    finally:
        Modes.precision.pop()


@experimental("Context manager for setting the eager mode.")
@contextlib.contextmanager
def set_eager_mode(mode: EagerMode) -> Iterator[None]:
    Modes.eager.append(mode)
    try:
        yield
    finally:
        Modes.eager.pop()


def _rank_mesh(mesh_shape: tuple[int, ...]) -> torch.Tensor:
    """The ranks in their order: the hosts of the emulated devices have no topology."""
    count = 1
    for length in mesh_shape:
        count *= length
    return torch.arange(count).reshape(mesh_shape)


@deprecated("0.2.0", "Use torch.tpu.distributed.topology_aware_mesh instead.")
def topology_aware_mesh(
    mesh_shape: tuple[int, ...],
    *,
    dcn_mesh_shape: tuple[int, ...] | None = None,
    allow_split_physical_axes: bool = False,
    contiguous_submeshes: bool = False,
) -> torch.Tensor:
    return _rank_mesh(mesh_shape)


def _is_in_bad_fork() -> bool:
    return memory.State.forked


def _lazy_init() -> None:
    if memory.State.forked:
        raise RuntimeError(memory.FORKED)


def _exchange_device(device: int) -> int:
    if device < 0:
        return -1
    check_device(device)
    return 0


def _get_generator(device: torch.device) -> torch.Generator:
    return randomness.default()
