"""Where a project begins, and which folders and Python files belong to it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator

_MARKS = (".git", "pyproject.toml", "setup.cfg", "setup.py", ".xla2tpu.toml", ".hg")
_SKIPPED = frozenset(
    {
        ".git",
        ".hg",
        ".tox",
        ".nox",
        ".venv",
        "venv",
        "node_modules",
        "__pycache__",
        "build",
        "dist",
        ".eggs",
        "site-packages",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
    }
)
_IMPORTED = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)", re.M)
_SCRIPTS, _SCRIPT_BYTES = 200, 1 << 20


def find_root(path: str) -> str:
    """The folder of the project that a file belongs to: the nearest with a project's mark.

    Without one, `unmarked_root` of the file's folder.
    """
    folder = above = os.path.dirname(os.path.abspath(path))
    while True:
        if any(os.path.exists(os.path.join(above, mark)) for mark in _MARKS):
            return above
        if os.path.dirname(above) == above:
            break
        above = os.path.dirname(above)
    return unmarked_root(folder)


def unmarked_root(folder: str) -> str:
    """The project's folder where nothing marks one: that above the outermost package.

    One more where scripts beside the folder import from it by its name, as they may without
    an ``__init__.py``.
    """
    while os.path.exists(os.path.join(folder, "__init__.py")) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    above, name = os.path.split(folder)
    return above if name in packages_used_in(above) else folder


@functools.lru_cache(maxsize=64)
def packages_used_in(folder: str) -> frozenset[str]:
    """The first words of all imports in the Python files right in a folder."""
    found: set[bytes] = set()
    for text in _scripts_in(folder):
        found.update(m[1] for m in _IMPORTED.finditer(text))
    return frozenset(name.decode() for name in found)


def _scripts_in(folder: str) -> Iterator[bytes]:
    """The texts of the Python files right in a folder; it may be any folder, so not too many."""
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".py"))[:_SCRIPTS]
    except OSError:
        return
    for name in names:
        try:
            with open(os.path.join(folder, name), "rb") as handle:
                yield handle.read(_SCRIPT_BYTES)
        except OSError:
            continue


def files_below(root: str) -> Iterator[str]:
    """The Python files of the project below its root, in a stable order."""
    marked = any(os.path.exists(os.path.join(root, mark)) for mark in _MARKS)
    # Scripts may import from a folder beside them that is no package.
    near = set() if marked else packages_used_in(root)
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            f for f in folders
            if _is_searched(folder, f, marked or (folder == root and f in near))
        )  # fmt: skip
        for name in sorted(files):
            if name.endswith(".py"):
                yield os.path.join(folder, name)


def _is_searched(folder: str, name: str, marked: bool) -> bool:
    """Whether a folder may hold files of the project: no environment, no build output.

    Below a root without a project's mark only packages and ``src`` count: it may be any folder.
    """
    inner = os.path.join(folder, name)
    if name in _SKIPPED or os.path.exists(os.path.join(inner, "pyvenv.cfg")):
        return os.path.exists(os.path.join(inner, "__init__.py"))
    return marked or name == "src" or os.path.exists(os.path.join(inner, "__init__.py"))
