"""Record what a program computes, from within its own interpreter.

This file is run by interpreters that have nothing of xla2tpu, of torch_xla as well as of
torch_tpu: it imports the standard library, and torch once the program has imported it.
`site/sitecustomize.py` loads it in each Python process of a run; each writes a file of its own,
one JSON object a line, so that nothing is lost when a process is ended:

``begin``  versions and arguments of a process
``line``   a line of standard output, without its newline
``loss``   a number on which ``backward`` was called
``step``   the parameters after a step of an optimizer
``draw``   a random number for a device that both runs could draw alike
``open``   from here on, results of the runs cannot be compared; ``why``
``error``  the exception that ended the process
``failed`` what was to be recorded and could not be, ``why``: the record has a gap
``ran``    a line of the program was run, for the first time; only where ``trace`` is asked for

``at`` is the place in the program, ``file.py:line``. As a script, ``recorder.py files``, it
describes files that a program wrote; see `describe_files`.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
import threading
import time
from typing import Any

VARIABLE = "XLA2TPU_RECORD"
SEED = 0
# A parameter is told by sums over this many interleaved slices, with signs.
SLICES = 16


class _State:
    """What the hooks of one process share."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.folder: str = config["folder"]
        self.root: str = config["root"]
        self.side: str = config["side"]
        self.trace: bool = config.get("trace", False)
        self.ran: set[tuple[str, int]] = set()
        self.file: Any = None
        self.pid = 0
        self.lock = threading.RLock()
        self.places: dict[str, str | None] = {}
        self.waiting: list[dict[str, Any]] = []
        # Tensors whose values events that wait will ask for.
        self.held: list[Any] = []
        self.busy = threading.local()


_state: _State | None = None


def start() -> None:
    """Begin to record, by the configuration that the environment names."""
    global _state
    with open(os.environ[VARIABLE], encoding="utf-8") as file:
        _state = _State(json.load(file))
    # A program that sets no seed starts from the same one on both sides.
    random.seed(SEED)
    _open()
    os.register_at_fork(after_in_child=_open)
    sys.meta_path.insert(0, _AfterImport())
    if sys.stdout is not None:
        sys.stdout = _Lines(sys.stdout)
    _wrap_excepthook()
    if _state.trace:
        sys.settrace(_trace)
        threading.settrace(_trace)
    _flush_at_exit()


def _flush_at_exit() -> None:
    """Once more after torch_xla is there, to come before what it does at the end."""
    import atexit

    atexit.register(_flush)


def _module(name: str) -> Any:
    """A module that some interpreters have; what checks types has none of them."""
    import importlib

    return importlib.import_module(name)


# -- writing -------------------------------------------------------------------------------------


def _open() -> None:
    """A file for this process; a forked one has its own."""
    state = _state
    assert state is not None
    state.pid = os.getpid()
    state.lock = threading.RLock()
    state.waiting, state.held = [], []
    name = os.path.join(state.folder, f"{time.time():.6f}-{state.pid}.jsonl")
    state.file = open(name, "a", encoding="utf-8")  # noqa: SIM115
    _emit({"event": "begin", "python": sys.version.split()[0], "argv": sys.argv})


def _emit(event: dict[str, Any]) -> None:
    """Write an event, or keep it while nothing may be computed on the device."""
    state = _state
    assert state is not None
    if _is_loader_worker():
        return
    event["time"] = time.time()
    rank = _rank()
    if rank is not None:
        event["rank"] = rank
    with state.lock:
        state.waiting.append(event)
        # XLA is asked for a loss with the step that follows it: a question more makes another
        # graph for it to compile. What nothing waits for is written at once, for a process may
        # end without a word.
        if event["event"] != "loss" or not state.held:
            _flush(event["event"] not in ("line", "ran"))


def _flush(compute: bool = True) -> None:
    """Write what waits, unless that needs the device and it must not be used now."""
    state = _state
    if state is None or state.file is None:
        return
    with state.lock:
        if state.held and not (compute and _may_compute()):
            return
        waiting, state.waiting = state.waiting, []
        held, state.held = state.held, []
        try:
            _compute_all(held)
            for event in waiting:
                state.file.write(json.dumps(_plain(event)) + "\n")
        except Exception as error:
            why = f"{type(error).__name__}: {error}"[:2000]
            state.file.write(json.dumps({"event": "failed", "at": None, "why": why}) + "\n")
        state.file.flush()


def _compute_all(held: list[Any]) -> None:
    """Let XLA compute all that is to be read in one graph; the program's own steps stay its own."""
    bindings = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
    tensors = [tensor for tensor in held if tensor.device.type == "xla"]
    # A call with none would start the run time, which a launcher must not.
    if bindings is not None and tensors:
        bindings._xla_sync_multi(tensors, [])


def _plain(value: Any) -> Any:
    """An event with the numbers in place of what gives them."""
    if callable(value):
        return _plain(value())
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _may_compute() -> bool:
    """Whether a value may be read now; not inside ``torch_xla.compile(full_graph=True)``."""
    torch_xla = sys.modules.get("torch_xla")
    bindings = getattr(torch_xla, "_XLAC", None)
    allow = getattr(bindings, "_get_allow_execution", None)
    return allow is None or bool(allow())


def _is_loader_worker() -> bool:
    data = sys.modules.get("torch.utils.data._utils.worker")
    return data is not None and getattr(data, "_worker_info", None) is not None


def _rank() -> int | None:
    """The rank of this process or thread, or None where it has none (yet)."""
    dist = sys.modules.get("torch.distributed")
    # In the midst of the import of torch, its parts are not there yet.
    ready = getattr(dist, "is_initialized", None)
    if ready is not None and ready():
        return int(dist.get_rank())  # type: ignore[union-attr]
    rank = os.environ.get("RANK")
    return int(rank) if rank is not None and rank.isdigit() else None


def _place() -> str | None:
    """The innermost place in the files of the program."""
    state = _state
    assert state is not None
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in state.places:
            state.places[name] = _within(name, state.root)
        short = state.places[name]
        if short is not None:
            return f"{short}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _within(name: str, root: str) -> str | None:
    if name.startswith("<"):
        return None
    path = os.path.realpath(name)
    if not path.startswith(root + os.sep) or "site-packages" in path:
        return None
    return os.path.relpath(path, root).replace(os.sep, "/")


# -- standard output and exceptions --------------------------------------------------------------


class _Lines:
    """Standard output, of which each line is recorded too."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._text = ""
        self._at: str | None = None

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        if text and not self._text:
            self._at = _place()
        self._text += text
        while "\n" in self._text:
            line, self._text = self._text.split("\n", 1)
            # A progress bar leaves what it wrote last.
            _emit({"event": "line", "text": line.rstrip("\r").rsplit("\r", 1)[-1], "at": self._at})
            self._at = _place()
        return int(written) if isinstance(written, int) else len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _wrap_excepthook() -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        state = _state
        assert state is not None
        at = None
        while trace is not None:
            short = _within(trace.tb_frame.f_code.co_filename, state.root)
            at = f"{short}:{trace.tb_lineno}" if short is not None else at
            trace = trace.tb_next
        _emit({"event": "error", "type": kind.__name__, "text": str(error)[:2000], "at": at})
        before(kind, error, error.__traceback__)

    sys.excepthook = hook


def _trace(frame: Any, event: str, argument: Any) -> Any:
    """Note the lines that are run in the files of the program, and follow no other function."""
    state = _state
    assert state is not None
    name = frame.f_code.co_filename
    if name not in state.places:
        state.places[name] = _within(name, state.root)
    short = state.places[name]
    if short is None:
        return None
    place = (short, frame.f_lineno)
    if event == "line" and place not in state.ran:
        state.ran.add(place)
        _emit({"event": "ran", "at": f"{short}:{frame.f_lineno}"})
    return _trace


# -- hooks, once a module is there ---------------------------------------------------------------


class _AfterImport:
    """Finds modules as before, and calls a function of ours when one of them is loaded."""

    def __init__(self) -> None:
        self._finding = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        then = _THEN.get(name)
        if then is None or getattr(self._finding, "on", False):
            return None
        import importlib.util

        self._finding.on = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding.on = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _after_torch(torch: Any) -> None:
    optimizer = _module("torch.optim.optimizer")

    _emit({"event": "torch", "version": str(torch.__version__)})
    torch.manual_seed(SEED)
    _watch_backward(torch)
    _watch_steps(optimizer)
    assert _state is not None
    if _state.side == "xla":
        _watch_draws(torch)


def _after_multiprocessing(util: Any) -> None:
    """A child of multiprocessing ends without `atexit`, and forgets what it was to do before."""

    def in_child(_: Any) -> None:
        util.Finalize(None, _flush, exitpriority=100)

    assert _state is not None
    util.register_after_fork(_state, in_child)


def _after_numpy(numpy: Any) -> None:
    numpy.random.seed(SEED)


def _quietly(function: Any) -> Any:
    """Let what a hook does on tensors give no events of its own."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        state = _state
        assert state is not None
        if getattr(state.busy, "on", False):
            return None
        state.busy.on = True
        try:
            return function(*args, **kwargs)
        finally:
            state.busy.on = False

    return wrapped


def _watch_backward(torch: Any) -> None:
    before = torch.autograd.backward

    @functools.wraps(before)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        result = before(tensors, *args, **kwargs)
        _note_loss(tensors)
        return result

    torch.autograd.backward = backward


@_quietly
def _note_loss(tensors: Any) -> None:
    torch = _module("torch")

    given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    for tensor in given:
        if isinstance(tensor, torch.Tensor) and tensor.numel() == 1:
            value = _kept(tensor)
            _emit({"event": "loss", "at": _place(), "value": lambda v=value: _short(v().item())})


def _kept(tensor: Any) -> Any:
    """A function that gives the tensor as it is now, as float64 on the CPU."""
    torch = _module("torch")

    with torch.no_grad():
        held = tensor.detach().clone() if tensor.device.type == "xla" else tensor.detach().cpu()
        held = torch.view_as_real(held) if held.is_complex() else held
        if held.device.type != "xla":
            # Only XLA is lazy; the device of an emulator is gone when the process ends.
            value = held.to(torch.float64, copy=True)
            return lambda: value
    assert _state is not None
    _state.held.append(held)
    return lambda: held.cpu().double()


def _watch_steps(optimizer: Any) -> None:
    # A class whose step calls that of its base has the hooks called twice.
    depth: dict[int, int] = {}

    def before(opt: Any, *_: Any) -> None:
        depth[id(opt)] = depth.get(id(opt), 0) + 1

    def after(opt: Any, *_: Any) -> None:
        depth[id(opt)] -= 1
        if depth[id(opt)] == 0:
            _note_step(opt)

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


@_quietly
def _note_step(opt: Any) -> None:
    names = _names_of(opt)
    parameters: list[dict[str, Any]] = []
    for group in opt.param_groups:
        for parameter in group["params"]:
            parameters.append(
                {
                    "name": names.get(id(parameter), f"parameter {len(parameters)}"),
                    "shape": list(parameter.shape),
                    "of": functools.partial(_described, _kept(parameter)),
                }
            )
            gradient = parameter.grad
            if gradient is not None and not gradient.is_sparse:
                parameters[-1]["gradient"] = functools.partial(_norm, _kept(gradient))
    _emit(
        {
            "event": "step",
            "at": _place(),
            "optimizer": type(opt).__name__,
            "groups": [_settings(group) for group in opt.param_groups],
            "parameters": parameters,
        }
    )


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """What an optimizer's group sets: numbers, and lists of them, such as ``betas``."""
    torch = _module("torch")

    found: dict[str, Any] = {}
    for name, value in group.items():
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        # To ask XLA for a learning rate in a tensor would change what it compiles.
        if name == "params" or any(
            getattr(v, "device", torch.device("cpu")).type == "xla" for v in values
        ):
            continue
        several = isinstance(value, (list, tuple))
        values = [v.item() if isinstance(v, torch.Tensor) and v.numel() == 1 else v for v in values]
        if all(v is None or isinstance(v, (bool, int, float, str)) for v in values):
            found[name] = values if several else values[0]
    return found


def _norm(kept: Any) -> float:
    return float(kept().norm())


def _described(kept: Any) -> dict[str, Any]:
    return describe_tensor(kept())


def _names_of(opt: Any) -> dict[int, str]:
    """Names of an optimizer's parameters, by the outermost modules that hold them."""
    known: dict[int, str] | None = getattr(opt, "_xla2tpu_names", None)
    wanted = {id(p) for group in opt.param_groups for p in group["params"]}
    if known is not None and wanted <= known.keys():
        return known
    import gc

    torch = _module("torch")

    modules = [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]
    inner = {id(c) for m in modules for c in m._modules.values() if c is not None}
    known = {i: f"parameter {n}" for n, i in enumerate(wanted)}
    for module in modules:
        if id(module) not in inner:
            for name, parameter in module.named_parameters():
                if id(parameter) in wanted:
                    known[id(parameter)] = name
    opt._xla2tpu_names = known
    return known


# -- random numbers for a device -----------------------------------------------------------------


class _DeviceStream:
    """The random numbers for XLA's device: drawn on the CPU, from a stream that is theirs.

    The emulated device draws them in the same way, so that both runs have the same numbers.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.generator = torch.Generator()
        self.generator.manual_seed(SEED)
        self.saved: dict[Any, Any] = {}
        self.mode: Any = None

    def seed(self, seed: int) -> None:
        self.generator.manual_seed(int(seed) % 2**63)

    def save(self, key: Any) -> None:
        """Remember the state under what the program was given for it."""
        self.saved[key] = self.generator.get_state()

    def restore(self, key: Any) -> None:
        if key in self.saved:
            self.generator.set_state(self.saved[key])
        elif isinstance(key, int):
            self.seed(key)
        else:
            _open_end("a state of the device's random numbers comes from elsewhere")

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """The random operation on the CPU, its result on the device."""
        torch = self.torch
        device = _device_in(args, kwargs)
        default = torch.default_generator
        before = default.get_state()
        default.set_state(self.generator.get_state())
        try:
            result = function(*_moved(torch, args, "cpu"), **_moved(torch, kwargs, "cpu"))
        finally:
            self.generator.set_state(default.get_state())
            default.set_state(before)
        if function._schema.is_mutable:
            if "out" in kwargs:
                return kwargs["out"].copy_(result)
            # An operation in place on a tensor of the device.
            return args[0].copy_(result)
        return _moved(torch, result, device)


_stream: _DeviceStream | None = None


def _device_in(args: Any, kwargs: Any) -> Any:
    """The device of the first argument that is, or is on, a device of XLA."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)):
            found = _device_in(value, {})
            if found is not None:
                return found
        device = getattr(value, "device", value)
        if getattr(device, "type", None) == "xla":
            return device
    return None


def _moved(torch: Any, value: Any, device: Any) -> Any:
    if isinstance(value, dict):
        return {k: _moved(torch, v, device) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(torch, v, device) for v in value)
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return torch.device(device) if isinstance(value, torch.device) else value


def _watch_draws(torch: Any) -> None:
    global _stream
    base: Any = _module("torch.utils._python_dispatch").TorchDispatchMode

    _stream = stream = _DeviceStream(torch)
    tag = torch.Tag.nondeterministic_seeded

    class Draws(base):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            kwargs = kwargs or {}
            if tag not in function.tags or _device_in(args, kwargs) is None:
                return function(*args, **kwargs)
            name = function.overloadpacket.__name__
            if kwargs.get("generator") is not None:
                _open_end(f"{name} draws from a generator of the program's on the device")
                return function(*args, **kwargs)
            if _in_checkpoint():
                _open_end(f"{name} draws on the device in a checkpointed function")
                return function(*args, **kwargs)
            _note_draw(name)
            return stream.run(function, args, kwargs)

    # torch takes modes off and puts them back, and does not hold them meanwhile.
    stream.mode = Draws()
    stream.mode.__enter__()
    run = threading.Thread.run

    def with_draws(self: threading.Thread) -> None:
        with Draws():
            run(self)

    # A mode is a thread's own.
    threading.Thread.run = with_draws  # type: ignore[method-assign]
    _follow_seeds(torch, stream)


def _in_checkpoint() -> bool:
    """Whether the function is one that is computed again for the gradient, in another thread."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.replace(os.sep, "/").endswith("utils/checkpoint.py"):
            return True
        frame = frame.f_back
    return False


_noted: set[Any] = set()


def _note_draw(name: str) -> None:
    at = _place()
    if (name, at) not in _noted:
        _noted.add((name, at))
        _emit({"event": "draw", "at": at, "what": name})


def _open_end(why: str) -> None:
    at = _place()
    if (why, at) not in _noted:
        _noted.add((why, at))
        _emit({"event": "open", "at": at, "why": why})


def _follow_seeds(torch: Any, stream: _DeviceStream) -> None:
    for module in (torch, torch.random):
        _also(module, "manual_seed", lambda seed, *_, **__: stream.seed(seed))


def _also(module: Any, name: str, then: Any) -> None:
    """Call ``then`` with the same arguments after a function of a module."""
    before = getattr(module, name, None)
    if before is None or hasattr(before, "_xla2tpu"):
        return

    @functools.wraps(before)
    def both(*args: Any, **kwargs: Any) -> Any:
        result = before(*args, **kwargs)
        then(*args, **kwargs)
        return result

    both._xla2tpu = True  # type: ignore[attr-defined]
    setattr(module, name, both)


# -- names that torch_xla had --------------------------------------------------------------------


def _after_torch_xla(torch_xla: Any) -> None:
    """Supply what torch_xla 2.9 lacks, and let the device say that it is a TPU.

    A program asks which hardware there is to choose its way; on the CPU it would take another
    one than the migrated program takes.
    """
    xm = _module("torch_xla.core.xla_model")
    xr = _module("torch_xla.runtime")

    _emit({"event": "torch_xla", "version": str(torch_xla.__version__)})
    _supply(xm, "xrt_world_size", lambda defval=1: xr.world_size())
    _supply(xm, "get_ordinal", lambda defval=0: xr.global_ordinal())
    _supply(xm, "parse_xla_device", _parse_xla_device)
    _supply(xr, "using_pjrt", lambda: True)
    _supply(xr, "requires_pjrt", lambda function: function)
    supported = xm.get_xla_supported_devices
    xm.get_xla_supported_devices = lambda devkind=None, max_devices=None: supported(
        devkind if isinstance(devkind, int) else max_devices
    )
    local = xm.get_local_ordinal
    xm.get_local_ordinal = lambda defval=0: local()
    _as_tpu(xm, "xla_device_hw", lambda value: "TPU" if value == "CPU" else value)
    _as_tpu(xm, "xla_real_devices", lambda value: [v.replace("CPU", "TPU") for v in value])
    _as_tpu(torch_xla, "real_devices", lambda value: [v.replace("CPU", "TPU") for v in value])
    _as_tpu(xr, "device_type", lambda value: "TPU" if value == "CPU" else value)
    _flush_at_exit()
    stream = _stream
    assert stream is not None
    get = xm.get_rng_state

    @functools.wraps(get)
    def get_rng_state(*args: Any, **kwargs: Any) -> Any:
        state = get(*args, **kwargs)
        stream.save(int(state))
        return state

    xm.get_rng_state = get_rng_state
    _also(xm, "set_rng_state", lambda seed, *_, **__: stream.restore(int(seed)))
    if hasattr(torch_xla, "manual_seed"):
        _also(torch_xla, "manual_seed", lambda seed, *_, **__: stream.seed(seed))


def _supply(module: Any, name: str, value: Any) -> None:
    if not hasattr(module, name):
        setattr(module, name, value)


def _parse_xla_device(device: str) -> tuple[str, int] | None:
    kind, _, number = device.partition(":")
    return (kind.upper(), int(number)) if number.isdigit() else None


def _as_tpu(module: Any, name: str, change: Any) -> None:
    """Change what the program and autocast get; torch_xla itself needs the truth."""
    before = getattr(module, name)

    @functools.wraps(before)
    def function(*args: Any, **kwargs: Any) -> Any:
        value = before(*args, **kwargs)
        state = _state
        assert state is not None
        caller = sys._getframe(1).f_code.co_filename
        asked = _within(caller, state.root) is not None or caller.endswith("autocast_mode.py")
        return change(value) if asked else value

    setattr(module, name, function)


def _after_experimental(experimental: Any) -> None:
    def compile(*args: Any, **kwargs: Any) -> Any:
        return _module("torch_xla").compile(*args, **kwargs)

    _supply(experimental, "compile", compile)


def _after_spawn(xmp: Any) -> None:
    """Any number of processes stands for all there are, as it did before torch_xla 2.6."""
    before = xmp.spawn

    @functools.wraps(before)
    def spawn(fn: Any, args: Any = (), nprocs: Any = None, *rest: Any, **kwargs: Any) -> Any:
        return before(fn, args, nprocs if nprocs == 1 else None, *rest, **kwargs)

    xmp.spawn = spawn


def _after_amp(amp: Any) -> None:
    """`GradScaler`, which is gone: on a TPU it never scaled anything."""
    torch = _module("torch")

    if hasattr(amp, "GradScaler"):
        return

    base: Any = torch.amp.GradScaler

    class GradScaler(base):  # type: ignore[misc]
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__("cpu", enabled=False)

    amp.GradScaler = GradScaler


_THEN = {
    "multiprocessing.util": _after_multiprocessing,
    "torch": _after_torch,
    "numpy": _after_numpy,
    "torch_xla": _after_torch_xla,
    "torch_xla.distributed.xla_multiprocessing": _after_spawn,
    "torch_xla.amp": _after_amp,
    "torch_xla.experimental": _after_experimental,
}


# -- tensors and files ---------------------------------------------------------------------------


def _short(value: float) -> float:
    """Nine digits are all that a float32 has."""
    return float(f"{value:.9g}")


def describe_tensor(tensor: Any) -> dict[str, Any]:
    """Some numbers in which a difference at any element shows: ``norm``, the mean of absolute
    values, and sums with signs over interleaved slices.
    """
    torch = _module("torch")

    flat = tensor.detach().cpu()
    flat = (torch.view_as_real(flat) if flat.is_complex() else flat).double().flatten()
    count = flat.numel()
    if count == 0:
        return {"norm": 0.0, "mean": 0.0, "slices": []}
    slices = min(count, SLICES)
    signs = torch.arange(count) * 2654435761 % 2**32 // 2**16 % 2 * 2 - 1
    signed = torch.nn.functional.pad(flat * signs, (0, -count % slices))
    sums = signed.view(-1, slices).sum(0) if count > slices else flat
    return {
        "norm": _short(flat.norm().item()),
        "mean": _short(flat.abs().mean().item()),
        "slices": [_short(v) for v in sums.tolist()],
    }


def describe_files(root: str, names: list[str]) -> dict[str, Any]:
    """What stands in files: tensors and numbers by their names, or lines, or a digest.

    ``names`` are relative to ``root``; the parts of a checkpoint of
    ``torch_xla.utils.serialization`` belong to the file that refers to them.
    """
    found: dict[str, Any] = {}
    for name in sorted(names):
        if any(part.endswith(".tensors") for part in name.split("/")[:-1]):
            continue
        found[name] = _describe_file(os.path.join(root, *name.split("/")))
    return found


def _describe_file(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        data = file.read()
    if data[:4] == b"PK\x03\x04" or data[:1] == b"\x80":
        for reader in (_read_numpy if path.endswith(".npz") else _read_torch,):
            try:
                entries: dict[str, Any] = {}
                _flatten(reader(path), "", entries)
                return {"kind": "values", "values": entries}
            except Exception as error:
                return _digest(data, f"{type(error).__name__}: {error}"[:200])
    if path.endswith(".npy"):
        entries = {}
        _flatten(_read_numpy(path), "", entries)
        return {"kind": "values", "values": entries}
    try:
        return {"kind": "text", "lines": data.decode("utf-8").splitlines()}
    except UnicodeDecodeError:
        return _digest(data, "")


def _digest(data: bytes, why: str) -> dict[str, Any]:
    import hashlib

    return {"kind": "bytes", "sha256": hashlib.sha256(data).hexdigest(), "unread": why}


def _read_torch(path: str) -> Any:
    torch = _module("torch")

    if os.path.isdir(path + ".tensors"):
        return _module("torch_xla.utils.serialization").load(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        # The program wrote the file a moment ago, on this machine.
        return torch.load(path, map_location="cpu", weights_only=False)


def _read_numpy(path: str) -> Any:
    numpy = _module("numpy")
    read = numpy.load(path, allow_pickle=False)
    return read if isinstance(read, numpy.ndarray) else dict(read)


def _flatten(value: Any, name: str, into: dict[str, Any]) -> None:
    torch = _module("torch")

    if hasattr(value, "state_dict") and not isinstance(value, type):
        value = value.state_dict()
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        value = torch.as_tensor(value) if value.dtype.kind in "biufc" else value.tolist()
    if isinstance(value, torch.Tensor):
        into[name or "value"] = {
            "shape": list(value.shape),
            "dtype": str(value.dtype),
            "of": describe_tensor(value),
        }
    elif isinstance(value, dict):
        for key, inner in value.items():
            _flatten(inner, f"{name}.{key}" if name else str(key), into)
    elif isinstance(value, (list, tuple)) and value and len(value) <= 64:
        for number, inner in enumerate(value):
            _flatten(inner, f"{name}[{number}]", into)
    elif value is None or isinstance(value, (bool, int, float, str)):
        into[name or "value"] = value
    else:
        into[name or "value"] = f"<{type(value).__name__}>"


def main() -> None:
    """``recorder.py files``: a JSON object on standard input, its description on the output."""
    asked = json.load(sys.stdin)
    json.dump(describe_files(asked["root"], asked["names"]), sys.stdout)


if __name__ == "__main__":
    main()
