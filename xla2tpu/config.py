"""The configuration of a file: `[tool.xla2tpu]` in `pyproject.toml`, or `.xla2tpu.toml`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from xla2tpu.model import FAMILIES
from xla2tpu.patterns import matches
from xla2tpu.roots import unmarked_root

FILE_NAMES = (".xla2tpu.toml", "pyproject.toml")
DEVICES = ("tpu", "accelerator")
LAUNCHERS = ("spawn", "torchrun")
PROCESSES = ("several", "single")
# The nearest folder with one of these is the project, from which names are followed across files.
_PROJECT_MARKS = (*FILE_NAMES, "setup.py", "setup.cfg", ".git", ".hg")
# Patterns are compiled where they are used: most runs have no configuration.
_CODE_PREFIX = rf"(?:{'|'.join(FAMILIES)})\d{{0,3}}\Z"
_RELEASE = r"\d+\.\d+(\.\d+)?\Z"


class ConfigError(ValueError):
    """A configuration is wrong; the message names file and key."""


# A named tuple is made in a fifth of the time of a dataclass, which is felt at start-up.
class Config(NamedTuple):
    """One configuration. ``folder`` is where its globs start, None without a file.

    Field names are the keys, with underscores for hyphens.
    """

    folder: str | None = None
    file: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    exclude: tuple[str, ...] = ()
    rule_files: tuple[str, ...] = ()
    helpers_module: str | None = None
    source_version: str | None = None
    device: str = "tpu"
    launcher: str = "spawn"
    processes: str = "several"

    def ignored_in(self, path: str) -> tuple[str, ...]:
        """Code prefixes that are ignored in one file, by `ignore` and `per-file-ignores`."""
        codes = list(self.ignore)
        if self.per_file_ignores:
            relative = self.relative(path)
            for pattern, more in self.per_file_ignores:
                if matches(relative, pattern):
                    codes += more
        return tuple(dict.fromkeys(codes))

    def relative(self, path: str) -> str:
        """``path`` as the globs see it: from the folder of the configuration, with slashes."""
        start = self.folder if self.folder is not None else os.getcwd()
        return os.path.relpath(os.path.abspath(path), start).replace(os.sep, "/")


class Configs:
    """Finds and keeps the configuration and the project of each file."""

    def __init__(self, explicit: str | None = None) -> None:
        """``explicit`` is the file of `--config`, which then holds for all."""
        self._explicit = None if explicit is None else load(explicit, required=True)
        self._by_folder: dict[str, Config] = {}
        self._roots: dict[str, str | None] = {}
        self._folders: dict[str, str] = {}
        self._unmarked: dict[str, str] = {}

    def of(self, path: str) -> Config:
        """The configuration of a file. Raises `ConfigError`."""
        if self._explicit is not None:
            return self._explicit
        return self._of_folder(self._folder(path))

    def _folder(self, path: str) -> str:
        """The absolute folder of a file, worked out once for all of its files."""
        folder = os.path.dirname(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.abspath(folder)
        return self._folders[folder]

    def _of_folder(self, folder: str) -> Config:
        found = self._by_folder.get(folder)
        if found is None:
            here = (load(os.path.join(folder, name)) for name in FILE_NAMES)
            found = next((config for config in here if config is not None), None)
            parent = os.path.dirname(folder)
            if found is None:
                found = Config() if parent == folder else self._of_folder(parent)
            self._by_folder[folder] = found
        return found

    def root(self, path: str, tree: str | None) -> str:
        """The project's folder: the nearest with a mark of one, else what `unmarked_root` makes
        of ``tree`` where the file was found, or of the file's own folder.
        """
        folder = self._folder(path)
        marked = self._marked(folder)
        if marked is not None:
            return marked
        if tree is not None:
            folder = os.path.abspath(tree)
        if folder not in self._unmarked:
            self._unmarked[folder] = unmarked_root(folder)
        return self._unmarked[folder]

    def _marked(self, folder: str) -> str | None:
        if folder not in self._roots:
            parent = os.path.dirname(folder)
            # A home folder under version control is not a project to read through.
            if parent == folder or folder == os.path.expanduser("~"):
                self._roots[folder] = None
            elif any(os.path.lexists(os.path.join(folder, mark)) for mark in _PROJECT_MARKS):
                self._roots[folder] = folder
            else:
                self._roots[folder] = self._marked(parent)
        return self._roots[folder]


def load(file: str, required: bool = False) -> Config | None:
    """Read one configuration file; None where it does not exist or has nothing for us.

    With ``required`` a missing file or section is an error too. Raises `ConfigError`.
    """
    try:
        with open(file, "rb") as stream:
            data = stream.read()
    except FileNotFoundError as error:
        if required:
            raise ConfigError(f"{file}: no such file") from error
        return None
    except (NotADirectoryError, IsADirectoryError):
        if required:
            raise ConfigError(f"{file}: not a file") from None
        return None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    shared = os.path.basename(file) == "pyproject.toml"
    if shared and b"xla2tpu" not in data and not required:
        return None  # spares the TOML parser in nearly every project
    import tomllib

    try:
        section: Any = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    if shared:
        tools = section.get("tool", {})
        section = tools.get("xla2tpu") if isinstance(tools, dict) else None
        if section is None:
            if required:
                raise ConfigError(f"{file}: there is no section [tool.xla2tpu]")
            return None
    return _parse(section, file, "tool.xla2tpu" if shared else "")


def _parse(section: Any, file: str, prefix: str) -> Config:
    if not isinstance(section, dict):
        raise ConfigError(f"{file}: {prefix}: must be a table")
    config = Config(folder=os.path.dirname(os.path.abspath(file)), file=file)
    for key, value in section.items():
        parser = _KEYS.get(key)
        name = f"{prefix}.{key}".lstrip(".")
        if parser is None:
            raise ConfigError(f"{file}: {name}: unknown key{_hint(key)}")
        try:
            parsed: Any = parser(value, config)
        except ValueError as error:
            raise ConfigError(f"{file}: {name}: {error}") from error
        config = config._replace(**{key.replace("-", "_"): parsed})
    return config


def _hint(key: str) -> str:
    import difflib

    close = difflib.get_close_matches(key.replace("_", "-"), _KEYS, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known keys are {', '.join(_KEYS)}"


def code_prefixes(values: object) -> tuple[str, ...]:
    """Code prefixes as `XLA1` or `XLA101`, in capitals. Raises ValueError."""
    codes = _texts(values)
    for code in codes:
        if not re.match(_CODE_PREFIX, code.upper()):
            raise ValueError(f"{code!r} is no code prefix such as 'XLA1' or 'XLA101'")
    return tuple(code.upper() for code in codes)


def module_name(value: object) -> str:
    """A dotted module name. Raises ValueError."""
    import keyword

    parts = value.split(".") if isinstance(value, str) else []
    if not parts or not all(p.isidentifier() and not keyword.iskeyword(p) for p in parts):
        raise ValueError(f"must be a dotted module name such as 'pkg.helpers', not {value!r}")
    return str(value)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"must be a list of texts, not {value!r}")
    return tuple(value)


def _codes(value: Any, _: Config) -> tuple[str, ...]:
    return code_prefixes(value)


def _per_file(value: Any, _: Config) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, dict):
        raise ValueError("must be a table of globs and lists of code prefixes")
    return tuple((pattern, code_prefixes(codes)) for pattern, codes in value.items())


def _globs(value: Any, _: Config) -> tuple[str, ...]:
    return _texts(value)


def _rule_files(value: Any, config: Config) -> tuple[str, ...]:
    files = tuple(os.path.join(config.folder or "", name) for name in _texts(value))
    for file in files:
        if not os.path.isfile(file):
            raise ValueError(f"{file}: no such file")
    return files


def _module(value: Any, _: Config) -> str:
    return module_name(value)


def _version(value: Any, _: Config) -> str:
    if not isinstance(value, str) or not re.match(_RELEASE, value):
        raise ValueError(f"must be a quoted torch_xla release such as '2.1', not {value!r}")
    return value


def _device(value: Any, _: Config) -> str:
    return _one_of(DEVICES, value)


def _processes(value: Any, _: Config) -> str:
    return _one_of(PROCESSES, value)


def _one_of(words: tuple[str, str], value: Any) -> str:
    if value not in words:
        raise ValueError(f"must be {words[0]!r} or {words[1]!r}, not {value!r}")
    return str(value)


def _launcher(value: Any, _: Config) -> str:
    if value not in LAUNCHERS:
        raise ValueError(f"must be 'spawn' or 'torchrun', not {value!r}")
    return str(value)


_KEYS: dict[str, Callable[[Any, Config], object]] = {
    "select": _codes,
    "ignore": _codes,
    "per-file-ignores": _per_file,
    "exclude": _globs,
    "rule-files": _rule_files,
    "helpers-module": _module,
    "source-version": _version,
    "device": _device,
    "launcher": _launcher,
    "processes": _processes,
}
