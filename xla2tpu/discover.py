"""From the paths of the command line to the files behind them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xla2tpu.config import Configs
from xla2tpu.kinds import kind_of
from xla2tpu.patterns import matches

EXCLUDED_FOLDERS = frozenset(
    (
        ".bzr",
        ".direnv",
        ".eggs",
        ".git",
        ".hg",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".pytype",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".venv",
        "__pycache__",
        "__pypackages__",
        "node_modules",
        "site-packages",
        "venv",
    )
)
# What a build leaves behind, unless a package of the project has that name.
_BUILD_FOLDERS = frozenset(("_build", "build", "dist"))


class Found(NamedTuple):
    """One file to look at, and the folder of the command line that it was found in, if any."""

    path: str
    tree: str | None = None


class Discovery(NamedTuple):
    """The files, each once and in a stable order, and what could not be reached and why."""

    files: list[Found]
    errors: list[tuple[str, str]]


def discover(paths: Sequence[str], configs: Configs, force_exclude: bool = False) -> Discovery:
    """All files behind ``paths``. A file that is named is taken whatever its name is.

    ``force_exclude`` holds the excludes against named files and folders too. Symbolic links
    inside a folder are not followed: what they lead to is found by itself, or lies outside.
    Raises `ConfigError`.
    """
    found = Discovery([], [])
    seen: set[str] = set()
    for path in paths:
        if force_exclude and excluded(path, configs):
            continue
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            found.errors.append((shown(path), _reason(path, error)))
            continue
        if stat.S_ISDIR(mode):
            files: Iterator[Found] = _walk(path, path, configs, found.errors)
        elif stat.S_ISREG(mode):
            files = iter((Found(path),))
        else:
            found.errors.append((shown(path), "not a regular file"))
            continue
        for file in files:
            link = os.path.islink(file.path)
            key = os.path.realpath(file.path) if link else os.path.abspath(file.path)
            if key not in seen:
                seen.add(key)
                found.files.append(Found(shown(file.path), file.tree))
    return found


def excluded(path: str, configs: Configs) -> bool:
    """Whether a named file or folder is under an exclude, as a walk from above would see it."""
    config = configs.of(path)
    relative = config.relative(path)
    if relative.startswith("../"):
        relative = os.path.basename(relative)
    parts = relative.split("/")
    return any(part in EXCLUDED_FOLDERS or part in _BUILD_FOLDERS for part in parts[:-1]) or any(
        matches(relative, pattern) for pattern in config.exclude
    )


def shown(path: str) -> str:
    """The path as reports have it: from the working folder where it lies in it."""
    path = os.path.normpath(path)
    if os.path.isabs(path):
        here = os.getcwd()
        if path.startswith(here.rstrip(os.sep) + os.sep):
            return path[len(here.rstrip(os.sep)) + 1 :]
    return path


def skips_folder(path: str) -> bool:
    """Whether a walk leaves this folder out by its name or nature."""
    name = os.path.basename(path)
    if name in EXCLUDED_FOLDERS:
        return True
    if name in _BUILD_FOLDERS:
        return not os.path.exists(os.path.join(path, "__init__.py"))
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _walk(
    folder: str, tree: str, configs: Configs, errors: list[tuple[str, str]]
) -> Iterator[Found]:
    """Files under ``folder``, which itself is taken whatever it is called."""
    from xla2tpu import git  # a hook names files, and has no folder to walk

    listing = git.listed_files(folder)
    if listing is None:
        yield from _scan(folder, tree, configs, errors)
        return
    skipped: dict[str, bool] = {}
    for name in listing:
        path = os.path.join(folder, name)
        if _in_skipped_folder(folder, os.path.dirname(name), skipped):
            continue
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue  # deleted, and git has not been told yet
        except OSError as error:
            errors.append((shown(path), _reason(path, error)))
            continue
        if stat.S_ISDIR(mode):
            if not skips_folder(path) and not _excluded_inside(path, tree, configs):
                yield from _walk(path, tree, configs, errors)
        elif kind_of(path) is not None and not _excluded_inside(path, tree, configs):
            yield from _file(path, tree, stat.S_ISLNK(mode), stat.S_ISREG(mode), errors)


def _in_skipped_folder(folder: str, name: str, known: dict[str, bool]) -> bool:
    if not name:
        return False
    if name not in known:
        known[name] = skips_folder(os.path.join(folder, name)) or _in_skipped_folder(
            folder, os.path.dirname(name), known
        )
    return known[name]


def _scan(
    folder: str, tree: str, configs: Configs, errors: list[tuple[str, str]]
) -> Iterator[Found]:
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError as error:
        errors.append((shown(folder), _reason(folder, error)))
        return
    for entry in entries:
        path = os.path.join(folder, entry.name)
        if entry.is_dir(follow_symlinks=False):
            if skips_folder(path) or _excluded_inside(path, tree, configs):
                continue
            # A repository below an unversioned folder has its own ignored files.
            nested = os.path.lexists(os.path.join(path, ".git"))
            yield from (_walk if nested else _scan)(path, tree, configs, errors)
        elif kind_of(path) is not None and not _excluded_inside(path, tree, configs):
            regular = entry.is_file(follow_symlinks=False)
            yield from _file(path, tree, entry.is_symlink(), regular, errors)


def _file(
    path: str, tree: str, link: bool, regular: bool, errors: list[tuple[str, str]]
) -> Iterator[Found]:
    if link:
        if not os.path.exists(path):
            errors.append((shown(path), "broken symbolic link"))
    elif regular:
        yield Found(path, tree)
    else:
        errors.append((shown(path), "not a regular file"))


def _excluded_inside(path: str, tree: str, configs: Configs) -> bool:
    """Whether a configured exclude names the path, below what the user named."""
    config = configs.of(path)
    if not config.exclude:
        return False
    relative = config.relative(path)
    top = config.relative(tree)
    above = 0 if top == "." or top.startswith("..") else top.count("/") + 1
    return any(matches(relative, pattern, above) for pattern in config.exclude)


def _reason(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "broken symbolic link" if os.path.islink(path) else "no such file or folder"
    return f"cannot be read: {error.strerror}"
