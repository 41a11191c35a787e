"""Process groups `tpu_dist` and `tpu`: gloo, on the host memory of tensors of the device.

torch sends a collective of tensors of the device to the kernel of its operator for PrivateUse1.
These kernels give the same tensors on the host to the group's gloo backend. So DDP and all that
is written in C++ come by here too.
"""

from __future__ import annotations

import atexit
import datetime
import functools
import gc
import os
import time
from typing import Any

import torch
import torch.distributed as dist

from xla2tpu.emulator import memory, settings

_c10d = torch._C._distributed_c10d
# torch_tpu takes the place of a process among the devices from these, not from the group.
_SETTLED = 0.2  # seconds; the threads need some microseconds of it
REQUIRED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def create(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """The backend of a group; its first one has to be the whole world, as on the device.

    Raises RuntimeError for more processes on this host than there are devices, and for several
    processes without the variables that a launcher sets.
    """
    missing = [name for name in REQUIRED if name not in os.environ]
    if size > 1 and missing:
        raise RuntimeError(
            "missing required environment variables for distributed training: "
            f"{', '.join(missing)}; please run the program via torchrun or similar tools so that "
            "the environment is set up properly"
        )
    devices = settings.read().devices
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or size)
    if local > devices:
        raise RuntimeError(
            f"{local} processes on a host with {devices} emulated TPU device(s): one process has "
            "one device. Run with `--devices`."
        )
    world = int(os.environ.get("WORLD_SIZE") or size)
    if not dist.is_initialized() and size != world:
        raise RuntimeError(
            "the first initialized ProcessGroupTpu must be of size WORLD_SIZE "
            f"(expected size {world}, got {size})"
        )
    memory.State.started = True  # a group starts the run time
    _settle_at_exit()
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


@functools.cache
def _settle_at_exit() -> None:
    """Let gloo's threads drop their last tensors before the interpreter ends.

    A thread that asks for the interpreter's lock after that aborts the process.
    """
    atexit.register(_settle)


def _settle() -> None:
    gc.collect()
    time.sleep(_SETTLED)


def register() -> None:
    """Tell torch of the backends, and of the kernels."""
    for name in ("tpu_dist", "tpu"):
        dist.Backend.register_backend(name, create, devices=["tpu"])


def _host(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_host(v) for v in value]
    if memory.block_of(value) is None:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{memory.DEVICE} and {value.device}!"
        )
    return memory.host(value)


def _backend(group: Any) -> Any:
    return dist.ProcessGroup.unbox(group)._get_backend(torch.device("tpu"))


def _options(kind: Any, timeout: int = -1, **values: Any) -> Any:
    options = kind()
    for name, value in values.items():
        setattr(options, name, value)
    if timeout > 0:
        options.timeout = datetime.timedelta(milliseconds=timeout)
    return options


def _operation(boxed: Any) -> Any:
    operation = dist.ReduceOp.RedOpType(boxed.op())
    if operation == dist.ReduceOp.PREMUL_SUM:
        raise RuntimeError("Unsupported reduction type: premul_sum")
    return dist.ReduceOp(operation)


def _done(work: Any, result: Any) -> Any:
    """``work`` of the host as work whose result are the tensors of the device."""
    try:
        future = work.get_future()
    except RuntimeError:  # gloo has no futures for some of its work, and so no result either
        return work.boxed()
    future = future.then(lambda done: (done.value(), result)[1])
    return _c10d._create_work_from_future(future).boxed()


def allreduce(
    tensors: Any,
    group: Any,
    op: Any,
    sparse: Any,
    asynchronous: bool = True,
    timeout: int = -1,
) -> Any:
    options = _options(_c10d.AllreduceOptions, timeout, reduceOp=_operation(op))
    return tensors, _done(_backend(group).allreduce(_host(tensors), options), tensors)


def broadcast(
    tensors: Any, group: Any, root: int, index: int, asynchronous: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.BroadcastOptions, timeout, rootRank=root, rootTensor=index)
    return tensors, _done(_backend(group).broadcast(_host(tensors), options), tensors)


def allgather(
    outputs: Any, inputs: Any, group: Any, asynchronous: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.AllgatherOptions, timeout)
    return outputs, _done(
        _backend(group).allgather(_host(outputs), _host(inputs), options), outputs
    )


def allgather_base(
    output: Any, tensor: Any, group: Any, asynchronous: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.AllgatherOptions, timeout)
    work = _backend(group)._allgather_base(_host(output), _host(tensor), options)
    return output, _done(work, [output])


def allgather_into_tensor_coalesced(
    outputs: Any, inputs: Any, group: Any, asynchronous: bool = True
) -> Any:
    works = [
        _backend(group)._allgather_base(_host(o), _host(i), _c10d.AllgatherOptions())
        for o, i in zip(outputs, inputs, strict=True)
    ]
    return _all_done(works, outputs)


def reduce_scatter(
    outputs: Any, inputs: Any, group: Any, op: Any, asynchronous: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.ReduceScatterOptions, timeout, reduceOp=_operation(op))
    work = _backend(group).reduce_scatter(_host(outputs), _host(inputs), options)
    return outputs, _done(work, outputs)


def reduce_scatter_base(
    output: Any, tensor: Any, group: Any, op: Any, asynchronous: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.ReduceScatterOptions, timeout, reduceOp=_operation(op))
    work = _backend(group)._reduce_scatter_base(_host(output), _host(tensor), options)
    return output, _done(work, [output])


def reduce_scatter_tensor_coalesced(
    outputs: Any, inputs: Any, group: Any, op: Any, asynchronous: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.ReduceScatterOptions, timeout, reduceOp=_operation(op))
    works = [
        _backend(group)._reduce_scatter_base(_host(o), _host(i), options)
        for o, i in zip(outputs, inputs, strict=True)
    ]
    return _all_done(works, outputs)


def alltoall(
    outputs: Any, inputs: Any, group: Any, asynchronous: bool = True, timeout: int = -1
) -> Any:
    """gloo exchanges parts of one tensor, so the tensors are joined and parted again."""
    parts, flat = _host(outputs), [t.reshape(-1) for t in _host(inputs)]
    joined = torch.cat(flat)
    received = joined.new_empty(sum(part.numel() for part in parts))
    options = _options(_c10d.AllToAllOptions, timeout)
    _backend(group).alltoall_base(
        received, joined, [p.numel() for p in parts], [f.numel() for f in flat], options
    ).wait()
    for part, piece in zip(parts, received.split([p.numel() for p in parts]), strict=True):
        part.copy_(piece.view_as(part))
    return outputs, _all_done([], outputs)


def alltoall_base(
    output: Any,
    tensor: Any,
    group: Any,
    output_sizes: Any,
    input_sizes: Any,
    asynchronous: bool = True,
    timeout: int = -1,
) -> Any:
    options = _options(_c10d.AllToAllOptions, timeout)
    work = _backend(group).alltoall_base(
        _host(output), _host(tensor), output_sizes, input_sizes, options
    )
    return _done(work, [output])


def gather(
    outputs: Any, inputs: Any, group: Any, root: int, asynchronous: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.GatherOptions, timeout, rootRank=root)
    return _done(_backend(group).gather(_host(outputs), _host(inputs), options), outputs)


def scatter(
    outputs: Any, inputs: Any, group: Any, root: int, asynchronous: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.ScatterOptions, timeout, rootRank=root)
    return outputs, _done(_backend(group).scatter(_host(outputs), _host(inputs), options), outputs)


def send(tensors: Any, group: Any, target: int, tag: int) -> Any:
    return _backend(group).send(_host(tensors), target, tag).boxed()


def recv(tensors: Any, group: Any, source: int, tag: int) -> Any:
    return _backend(group).recv(_host(tensors), source, tag).boxed()


def barrier(
    tensor: Any, group: Any, device_ids: Any, asynchronous: bool = True, timeout: int = -1
) -> Any:
    return _backend(group).barrier(_options(_c10d.BarrierOptions, timeout)).boxed()


def _all_done(works: Any, result: Any) -> Any:
    for work in works:
        work.wait()
    future: Any = torch.futures.Future()
    future.set_result(result)
    return _c10d._create_work_from_future(future).boxed()


def _unsupported(name: str) -> Any:
    def refused(*args: Any) -> Any:
        raise RuntimeError(f"Backend tpu_dist does not support {name}")

    return refused


KERNELS = {
    "allreduce_": allreduce,
    "broadcast_": broadcast,
    "allgather_": allgather,
    "_allgather_base_": allgather_base,
    "allgather_into_tensor_coalesced_": allgather_into_tensor_coalesced,
    "reduce_scatter_": reduce_scatter,
    "_reduce_scatter_base_": reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": reduce_scatter_tensor_coalesced,
    "alltoall_": alltoall,
    "alltoall_base_": alltoall_base,
    "gather_": gather,
    "scatter_": scatter,
    "send": send,
    "recv_": recv,
    "barrier": barrier,
    "reduce_": _unsupported("reduce"),
    "allreduce_coalesced_": _unsupported("allreduce_coalesced"),
    "allgather_coalesced_": _unsupported("allgather_coalesced"),
    "recv_any_source_": _unsupported("recvAnysource"),
}
