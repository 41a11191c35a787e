"""What the files around the Python code say about torch, Python and TPUs, for `migrate`'s report.

Nothing is changed here: each fact is a note that names file and line. Only the texts in the given
folders are read, and at the top of the project the files that tell its requirements.
"""

from __future__ import annotations

import configparser
import io
import os
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from xla2tpu import discover, git
from xla2tpu.config import Configs
from xla2tpu.kinds import Kind, kind_of
from xla2tpu.model import FileResult, Note

# What the wheel of torch_tpu 0.2.0 asks for.
TORCH, PYTHON = (2, 11), (3, 11)
_WHEEL = "metadata of torch_tpu 0.2.0"


class _Floor(NamedTuple):
    """The oldest release of a package that goes with torch_tpu 0.2.0: why, what to do, source."""

    name: str
    version: tuple[int, ...]
    why: str
    advice: str
    source: str


_FLOORS = {
    "torch": _Floor("torch", TORCH, "torch_tpu takes", "", _WHEEL),
    "python": _Floor("Python", PYTHON, "torch_tpu takes", "", _WHEEL),
    "transformers": _Floor(
        "transformers", (5, 20), "finds a TPU with torch_tpu 0.2.0",
        " vllm-torchtpu-core 0.29.0 asks for less than 5.15: install it apart.",
        "transformers 5.8.1, 5.9.0, 5.19.0 and 5.20.0, is_torch_tpu_available",
    ),
}  # fmt: skip
# Packages that were made for torch_xla, pass for TorchTPU, or have no way to it.
_PACKAGES = {
    "optimum-tpu": ("is built on torch_xla", "Take transformers 5.20 or newer, or vllm-torchtpu."),
    "vllm-tpu": (
        "runs models by JAX, not by TorchTPU", "Take vllm-torchtpu, on Python 3.12 exactly.",
    ),
    "sglang": (
        "has no release for TorchTPU: a plug-in is named in documents, but no package of it",
        "Serve with vllm-torchtpu, or on JAX with SGLang-JAX; look for sglang's own word on it.",
    ),
    "torchtune": ("has no way to a TPU", "Take TorchTitan, or a loop of your own."),
    "fastai-xla-extensions": ("patches fastai for torch_xla", "Take it out."),
}  # fmt: skip
_REQUIREMENTS = re.compile(r"(?:requirements|constraints)[\w.-]*\.(?:txt|in)\Z")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;#)]*)")
_CLAUSE = re.compile(r"(===|==|~=|<=|>=|!=|<|>|\^|~)?\s*v?(\d+(?:\.\d+)*)(\.\*)?")
_TEXTS = re.compile(
    r".*\.(?:cfg|ini|ipynb|md|rst|sh|toml|txt|ya?ml)\Z|(?:Dockerfile|Makefile)[\w.-]*\Z"
)
_ACCELERATOR = re.compile(rb"(?<![\w-])v[23]-(?:8|16|32|64|128|256|512|1024|2048)(?![\w-])", re.I)
_OLD_TPU = re.compile(_ACCELERATOR.pattern + rb"|\bTPU ?v[23]\b(?!\+)", re.I)
_BF16 = re.compile(r"XLA_(?:USE|DOWNCAST)_BF16")
# An assignment from where the name of the variable stands on.
_TO_ZERO = re.compile(
    rb"""["']?\w+["']\s*(?:\]\s*=|,)\s*(?:str\()?["']?(?:0|[Ff]alse)\b["']?\s*\)?\s*(?:\)|#|$)""",
    re.M,
)
# In a shell, a Dockerfile, YAML, or the list of names and values of Kubernetes.
_SETS_BF16 = re.compile(
    rb"\b(XLA_(?:USE|DOWNCAST)_BF16)[\"']?(?:[ \t]*[=: ][ \t]*|\s+value:\s*)"
    rb"[\"']?(?:1|true|yes)\b",
    re.I,
)
_LARGEST = 1_000_000
_SERIALIZATION = "torch_xla.utils.serialization."
_CONVERT = (
    'python -c "import sys, torch, torch_xla.utils.serialization as xser; '
    'torch.save(xser.load(sys.argv[1]), sys.argv[2])" OLD NEW'
)


class _Pin(NamedTuple):
    """What a file asks for: the package or ``python``, its versions, and the text to look for."""

    package: str
    versions: str
    text: str


def facts(
    paths: Sequence[str], roots: Iterable[str], results: Sequence[FileResult], configs: Configs
) -> list[Note]:
    """The notes on a project: ``paths`` were given, ``roots`` are the projects of the files.

    Raises `ConfigError`.
    """
    found: list[Note] = []
    for file in texts(paths, roots):
        if discover.excluded(file, configs):
            continue
        try:
            if os.path.getsize(file) > _LARGEST:
                continue
            with open(file, "rb") as stream:
                data = stream.read()
        except OSError:
            continue  # it is not what the run is about
        found += _pins(file, data)
        found += _mentions(file, data)
    for result in results:
        if result.source is not None:
            found += _old_tpu(result.path, result.source, _ACCELERATOR)
    found += _variables(results)
    found += _checkpoints(results)
    return sorted(found, key=lambda note: (note.name, note.path, note.line))


def texts(paths: Sequence[str], roots: Iterable[str]) -> list[str]:
    """Texts in the given folders, and requirements at the top of the projects; each once."""
    found: dict[str, str] = {}
    tops = (
        file
        for root in roots
        for file in _listed(root, deep=False)
        if _reader(os.path.basename(file)) is not None
    )
    below = (file for path in paths if os.path.isdir(path) for file in _listed(path, deep=True))
    for file in (*tops, *below):
        if _TEXTS.match(os.path.basename(file)) and os.path.isfile(file):
            found.setdefault(os.path.realpath(file), discover.shown(file))
    return list(found.values())


def _listed(folder: str, deep: bool) -> Iterator[str]:
    """The files of a folder that git does not ignore, with those below it where ``deep``."""
    names = git.listed_files(folder)
    if names is not None:
        yield from (os.path.join(folder, n) for n in names if deep or os.sep not in n)
        return
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not discover.skips_folder(os.path.join(here, f)))
        yield from (os.path.join(here, name) for name in sorted(files))
        if not deep:
            return


def _note(
    name: str, path: str, data: bytes, at: int, message: str, advice: str, source: str
) -> Note:
    line = data.count(b"\n", 0, at) + 1
    column = len(data[data.rfind(b"\n", 0, at) + 1 : at].decode(errors="replace")) + 1
    return Note("project", name, path, line, column, message, advice, source)


# -- versions ------------------------------------------------------------------------------------


def _pins(path: str, data: bytes) -> Iterator[Note]:
    reader = _reader(os.path.basename(path))
    if reader is None:
        return
    for pin in reader(data.decode(errors="replace")):
        at = max(data.find(pin.text.encode()), 0)
        if pin.package in _PACKAGES:
            what, advice = _PACKAGES[pin.package]
            message = f"`{pin.package}` {what}"
            yield _note("framework-package", path, data, at, message, advice, "docs/frameworks.md")
            continue
        floor = _FLOORS.get(pin.package)
        if floor is None or not excludes(pin.versions, floor.version):
            continue
        shown = ".".join(map(str, floor.version))
        yield _note(
            f"{pin.package}-pin", path, data, at,
            f"`{pin.text.strip()}` excludes {floor.name} {shown}, the oldest that {floor.why}",
            f"Allow {floor.name} {shown} or newer.{floor.advice}", floor.source,
        )  # fmt: skip


def _reader(name: str) -> Callable[[str], Iterator[_Pin]] | None:
    """What reads the requirements in a file of this name; None where it holds none."""
    if name == "pyproject.toml":
        return _of_pyproject
    if name == "setup.cfg":
        return _of_setup_cfg
    return _of_requirements if _REQUIREMENTS.match(name) else None


def excludes(versions: str, needed: tuple[int, ...]) -> bool:
    """Whether a specifier such as ``>=2.0,<2.5`` lets no release from ``needed`` on through.

    Alternatives (``||``) and what is not understood let everything through.
    """
    if "|" in versions:
        return False
    return any(
        _ends_before(match[1] or "", match[2], bool(match[3]), needed)
        for match in map(_CLAUSE.fullmatch, map(str.strip, versions.split(",")))
        if match is not None
    )


def _ends_before(operator: str, text: str, wild: bool, needed: tuple[int, ...]) -> bool:
    version = tuple(int(part) for part in text.split("."))
    if operator == "<":
        return version <= needed
    if operator in ("<=", "==", "===") or (operator == "" and not wild):
        if wild:
            return _next(version) <= needed
        return version < needed
    if operator == "" and wild:
        return _next(version) <= needed
    if operator == "~=":
        return _next(version[:-1]) <= needed if len(version) > 1 else False
    if operator == "~":
        return _next(version[:2]) <= needed
    if operator == "^":
        leading = next((i for i, part in enumerate(version) if part), len(version) - 1)
        return _next(version[: leading + 1]) <= needed
    return False


def _next(version: tuple[int, ...]) -> tuple[int, ...]:
    """The first release that does not begin with these numbers."""
    return (*version[:-1], version[-1] + 1)


def _of_requirements(text: str) -> Iterator[_Pin]:
    for line in text.splitlines():
        match = _REQUIREMENT.match(line)
        name = re.sub(r"[-_.]+", "-", match[1]).lower() if match is not None else ""
        if match is not None and (name in _PACKAGES or (name in _FLOORS and name != "python")):
            yield _Pin(name, match[2], line.partition("#")[0].rstrip())


def _of_pyproject(text: str) -> Iterator[_Pin]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    project = _table(document, "project")
    python = project.get("requires-python")
    if isinstance(python, str):
        yield _Pin("python", python, python)
    lists = [project.get("dependencies"), *_table(project, "optional-dependencies").values()]
    lists += _table(document, "dependency-groups").values()
    for items in lists:
        for item in items if isinstance(items, list) else ():
            if isinstance(item, str):
                yield from _of_requirements(item)
    poetry = _table(_table(document, "tool"), "poetry")
    groups = [poetry, *_table(poetry, "group").values()]
    for group in groups:
        for name, value in _table(group, "dependencies").items():
            versions = value.get("version") if isinstance(value, dict) else value
            if name in _PACKAGES:
                yield _Pin(name, "", name)
            elif name in _FLOORS and isinstance(versions, str):
                yield _Pin(name, versions, versions)


def _table(data: Any, key: str) -> dict[str, Any]:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


def _of_setup_cfg(text: str) -> Iterator[_Pin]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return
    python = parser.get("options", "python_requires", fallback="")
    if python:
        yield _Pin("python", python, python)
    yield from _of_requirements(parser.get("options", "install_requires", fallback=""))
    if parser.has_section("options.extras_require"):
        for _, lines in parser.items("options.extras_require"):
            yield from _of_requirements(lines)


# -- mentions --------------------------------------------------------------------------------------


def _mentions(path: str, data: bytes) -> Iterator[Note]:
    yield from _old_tpu(path, data)
    match = _SETS_BF16.search(data)
    if match is not None:
        yield _bf16(path, data, match.start(), match[1].decode())


def _old_tpu(path: str, data: bytes, pattern: re.Pattern[bytes] = _OLD_TPU) -> Iterator[Note]:
    comments = _comments(data) if path.endswith(".py") and pattern.search(data) else []
    for match in pattern.finditer(data):
        if any(start <= match.start() < end for start, end in comments):
            continue
        yield _note(
            "old-tpu", path, data, match.start(),
            f"`{match[0].decode()}`: TorchTPU does not run on TPU v2 and v3",
            "Take a v4, v5e, v5p, v6e or newer; their hosts have 4 or 8 chips, one process each.",
            "torch_tpu 0.2.0, the generations that it recognises",
        )  # fmt: skip
        return


def _comments(data: bytes) -> list[tuple[int, int]]:
    """Where the comments of a Python source are, in bytes; what they tell is no fact of it."""
    starts = [0, *(match.end() for match in re.finditer(rb"\n", data))]
    found = []
    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            if token.type == tokenize.COMMENT:
                line = data[starts[token.start[0] - 1] :].split(b"\n", 1)[0]
                at = len(line.decode(errors="replace")[: token.start[1]].encode())
                start = starts[token.start[0] - 1] + at
                found.append((start, start + len(token.string.encode())))
    except (tokenize.TokenError, SyntaxError):
        pass  # what was read until there
    return found


def _bf16(path: str, data: bytes, at: int, name: str) -> Note:
    return _note(
        "bf16-variable", path, data, at,
        f"{name} does nothing any longer: float32 stays float32, with twice the memory",
        "Use model.to(torch.bfloat16), or torch.autocast('tpu', dtype=torch.bfloat16) around the"
        " forward pass and the loss.",
        "torch_tpu 0.2.0, its environment variables",
    )  # fmt: skip


def _variables(results: Sequence[FileResult]) -> Iterator[Note]:
    """In code; other files are read for the values that they set."""
    for result in results:
        is_code = kind_of(result.path) in (Kind.PYTHON, Kind.NOTEBOOK)
        for finding in result.findings if is_code else ():
            if _BF16.fullmatch(finding.api) and not _turns_off(result.source, finding.start):
                yield _bf16(result.path, result.source or b"", finding.start, finding.api)
                break


def _turns_off(source: bytes | None, at: int) -> bool:
    """Whether the variable that is named there is set to a value that leaves float32 alone."""
    return source is not None and _TO_ZERO.match(source, at) is not None


def _checkpoints(results: Sequence[FileResult]) -> Iterator[Note]:
    """One note for the project, at the first place that writes or reads such files."""
    for result in results:
        for finding in result.findings:
            if finding.api.startswith(_SERIALIZATION):
                yield _note(
                    "xser-checkpoint", result.path, result.source or b"", finding.start,
                    "only torch_xla can read the checkpoints that its serialization wrote",
                    f"Convert them while it is still installed: `{_CONVERT}`",
                    "pytorch/xla, torch_xla/utils/serialization.py",
                )  # fmt: skip
                return
