"""Run a program under the recorder, in a process group of its own, within a time limit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from xla2tpu.verify import recorder
from xla2tpu.verify.record import Record, read_events

OLDEST_TORCH = (2, 11)
_HERE = Path(__file__).resolve().parent
_GRACE = 3.0
_TAIL = 4000
_LARGEST = 2**30
_NOT_COPIED = (".git", ".hg", "__pycache__", ".venv", "venv", "node_modules", ".tox", "*.pyc")
# Their names and contents have the time and the machine in them.
_NOT_COMPARED = ("events.out.tfevents.",)


class RunError(Exception):
    """A run could not begin; the message says why and what to do."""


class Program(NamedTuple):
    """What is run: a script, relative to ``root``, or a module, with its arguments."""

    root: Path
    target: str
    module: bool = False
    args: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """What follows the interpreter on the command line."""
        start = ["-m", self.target] if self.module else [self.target]
        return [*start, *self.args]


class Way(NamedTuple):
    """How a program is run: ``origin`` as in `Record`, the start of the command line, what the
    environment gets and the time limit in seconds.
    """

    origin: str
    start: tuple[str, ...]
    environment: dict[str, str]
    timeout: float


def on_xla(python: str, timeout: float) -> Way:
    """Under torch_xla, on the CPU, in one process."""
    environment = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}
    return Way("torch_xla", (python,), environment, timeout)


def on_emulator(python: str, devices: int, allow_missing_ops: bool, timeout: float) -> Way:
    """On the emulated device."""
    start = [python, "-m", "xla2tpu.emulator", "--devices", str(devices)]
    if allow_missing_ops:
        start.append("--allow-missing-ops")
    return Way("emulated", tuple(start), {}, timeout)


def on_torch(python: str, timeout: float) -> Way:
    """A reference in plain PyTorch, on the CPU."""
    return Way("reference", (python,), {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, timeout)


def copy(root: Path, into: Path) -> None:
    """A copy of a project to run in, without what version control and environments hold.

    Raises `RunError`, also for a folder of more than a gibibyte.
    """
    patterns = shutil.ignore_patterns(*_NOT_COPIED)
    target = os.path.realpath(into)
    size = 0

    def left_out(folder: str, names: list[str]) -> set[str]:
        nonlocal size
        left = set(patterns(folder, names))
        for name in set(names) - left:
            path = os.path.join(folder, name)
            # The copy may stand below what is copied, and a pipe would be waited for.
            holds = (target + os.sep).startswith(os.path.realpath(path) + os.sep)
            if holds or not (os.path.islink(path) or os.path.isfile(path) or os.path.isdir(path)):
                left.add(name)
            else:
                size += os.lstat(path).st_size
        if size > _LARGEST:
            raise RunError(
                f"{root} would be copied as a whole, and holds more than 1 GiB: put the program "
                "into a folder of its own, and name its data by absolute paths"
            )
        return left

    try:
        shutil.copytree(root, into, symlinks=True, ignore=left_out, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise RunError(f"{root} cannot be copied: {str(error)[:500]}") from error


def record(program: Program, way: Way, scratch: Path, trace: bool = False) -> Record:
    """Run ``program`` and tell what it did; it writes to its own folder, which is a copy.

    ``scratch`` is an empty folder for what the recorder writes; ``trace`` asks for the lines that
    are run. Whatever the program started is
    ended when this returns or raises. Raises `RunError`.
    """
    root = program.root.resolve()
    scratch = scratch.resolve()
    events = scratch / "events"
    events.mkdir(parents=True)
    config = scratch / "recorder.json"
    side = "xla" if way.origin == "torch_xla" else "tpu"
    config.write_text(
        json.dumps({"folder": str(events), "root": str(root), "side": side, "trace": trace}),
        encoding="utf-8",
    )
    environment = _environment(way, config, scratch)
    before = _files(root)
    sources = _sources(root)
    command = [*way.start, *program.command()]
    with open(scratch / "stdout", "wb") as out, open(scratch / "stderr", "wb") as err:
        status = _run(command, root, environment, out.fileno(), err.fileno(), way.timeout, config)
    written = [
        name
        for name, digest in _files(root).items()
        if before.get(name) != digest and not name.split("/")[-1].startswith(_NOT_COMPARED)
    ]
    told = read_events(str(events))
    failed = next((e for all_ in told.ranks.values() for e in all_ if e["event"] == "failed"), None)
    if failed is not None:
        raise RunError(f"{way.origin}: a part of the run could not be recorded: {failed['why']}")
    tail = (scratch / "stderr").read_bytes()[-_TAIL:].decode("utf-8", errors="replace")
    return Record(
        way.origin,
        status,
        told.versions,
        told.ranks,
        _described(way, root, written, environment),
        list(program.args),
        sources,
        told.executed,
        tail.replace(str(root) + os.sep, ""),
    )


def _environment(way: Way, config: Path, scratch: Path) -> dict[str, str]:
    path = [str(_HERE / "site")]
    if way.origin == "emulated":
        # Another interpreter need not have xla2tpu, and the folder of ours holds more than that.
        # Children may stand in any folder, so that both must find this one package.
        package = scratch / "path" / "xla2tpu"
        shutil.copytree(_HERE.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        path.append(str(package.parent))
    path += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        recorder.VARIABLE: str(config),
        **way.environment,
    }


def _files(root: Path) -> dict[str, str]:
    """Digests of all files below a folder."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f != "__pycache__"]
        for name in names:
            path = Path(folder, name)
            if path.is_file():
                found[path.relative_to(root).as_posix()] = sha256(path.read_bytes()).hexdigest()
    return found


def _sources(root: Path) -> dict[str, str]:
    return {name: digest for name, digest in _files(root).items() if name.endswith(".py")}


def changed_sources(record: Record, root: Path) -> list[str]:
    """The Python files of a project that are not what they were when a record was made."""
    now = _sources(root.resolve())
    names = sorted(now.keys() | record.sources.keys())
    return [name for name in names if now.get(name) != record.sources.get(name)]


def _described(
    way: Way, root: Path, names: list[str], environment: dict[str, str]
) -> dict[str, object]:
    """What stands in the files, told by the interpreter that wrote them."""
    if not names:
        return {}
    environment = {k: v for k, v in environment.items() if k != recorder.VARIABLE}
    script = str(_HERE / "recorder.py")
    try:
        done = subprocess.run(
            [*way.start, script],
            input=json.dumps({"root": str(root), "names": names}).encode(),
            capture_output=True,
            cwd=root.parent,
            env=environment,
            timeout=way.timeout,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError("the files of the program could not be read back in time") from error
    if done.returncode:
        raise RunError(
            "the files of the program could not be read back: "
            + done.stderr.decode("utf-8", errors="replace")[-_TAIL:]
        )
    text = done.stdout.decode("utf-8")
    described: dict[str, object] = json.loads(text[text.index("{") :])
    return described


def _run(
    command: list[str],
    cwd: Path,
    environment: dict[str, str],
    out: int,
    err: int,
    timeout: float,
    config: Path,
) -> int | None:
    """The exit status, or None after the time limit."""
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    except OSError as error:
        raise RunError(f"{command[0]} cannot be run: {error.strerror}") from error
    with _ended(process, config):
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None


@contextmanager
def _ended(process: subprocess.Popen[bytes], config: Path) -> Iterator[None]:
    """End a process and all that it started, however the block is left."""
    try:
        yield
    finally:
        if process.poll() is None:
            _signal_group(process.pid, signal.SIGTERM)
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                pass
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        # Launchers give their workers sessions of their own.
        for pid in _strays(config):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def _strays(config: Path) -> list[int]:
    """Processes that still have the environment of a run; known where there is /proc."""
    mark = f"{recorder.VARIABLE}={config}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def check_interpreter(
    python: str,
    modules: tuple[str, ...],
    torch: tuple[int, int] | None = None,
    timeout: float = 60,
) -> None:
    """Raise `RunError` unless an interpreter can be run and has the modules, and at least this
    release of torch.
    """
    code = (
        "import importlib.metadata, importlib.util; "
        f"missing = [m for m in {list(modules)!r} if importlib.util.find_spec(m) is None]; "
        "print(*missing); "
        f"print(importlib.metadata.version('torch') if {torch is not None} and not missing else '')"
    )
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=timeout, check=False
        )
    except OSError as error:
        raise RunError(f"{python} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        waited = time.monotonic() - begin
        raise RunError(f"{python} did not answer within {waited:.0f} s") from error
    if done.returncode:
        raise RunError(f"{python} is not a Python that runs: {done.stderr[-500:]}")
    missing, installed = done.stdout.split("\n")[:2]
    if missing:
        raise RunError(f"{python} lacks {', '.join(missing.split())}")
    if torch is not None and tuple(map(int, installed.split(".")[:2])) < torch:
        oldest = ".".join(map(str, torch))
        raise RunError(f"{python} needs torch {oldest} or newer, not {installed}")
