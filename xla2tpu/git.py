"""What git knows of a folder: its files without the ignored ones, and those with changes."""

from __future__ import annotations

import os
from collections.abc import Iterable

# A hook runs with these set for its own repository; questions about a folder must not see them.
_HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


class GitError(OSError):
    """git is missing, or does not answer about a folder that is in version control."""


def repository_of(path: str) -> str | None:
    """The nearest folder from ``path`` upwards that holds ``.git``, as an absolute path."""
    folder = os.path.abspath(path)
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder


def listed_files(folder: str) -> list[str] | None:
    """Tracked and untracked files under ``folder`` that are not ignored, relative to it.

    Submodules and nested repositories are listed as folders. None where git has no say: outside
    version control, without git, or where the folder itself is ignored as a whole.
    """
    if repository_of(folder) is None:
        return None
    try:
        listing = _ask(folder, "ls-files", "-co", "--exclude-standard", "-z")
        if not listing and _is_ignored(folder):
            return None
    except GitError:
        return None
    return sorted({name.rstrip("/") for name in listing.split("\0") if name})


def changed_files(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Of ``paths``, those with uncommitted changes, and those outside version control.

    Untracked files count as changed: git could not bring them back. Ignored ones are outside
    version control. Raises `GitError` where git cannot be asked.
    """
    changed: list[str] = []
    outside: list[str] = []
    in_repository: dict[str, list[str]] = {}
    for path in paths:
        repository = repository_of(os.path.dirname(os.path.realpath(path)))
        if repository is None:
            outside.append(path)
        else:
            in_repository.setdefault(repository, []).append(path)
    for repository, members in in_repository.items():
        states = _states(repository)
        for path in members:
            relative = os.path.relpath(os.path.realpath(path), os.path.realpath(repository))
            state = _state_of(relative.replace(os.sep, "/"), states)
            if state == "!!":
                outside.append(path)
            elif state is not None:
                changed.append(path)
    return changed, outside


def _states(repository: str) -> dict[str, str]:
    """Path to two-letter state, for all that is not committed; ignored folders end in ``/``."""
    output = _ask(
        repository,
        "status",
        "--porcelain=v1",
        "-z",
        "--untracked-files=all",
        "--ignored=traditional",
    )
    states: dict[str, str] = {}
    entries = iter(output.split("\0"))
    for entry in entries:
        if not entry:
            continue
        states[entry[3:]] = entry[:2]
        if entry[0] in "RC":
            states[next(entries)] = entry[:2]
    return states


def _state_of(path: str, states: dict[str, str]) -> str | None:
    if path in states:
        return states[path]
    while "/" in path:
        path = path.rpartition("/")[0]
        if path + "/" in states:
            return states[path + "/"]
    return None


def _is_ignored(folder: str) -> bool:
    return bool(_ask(folder, "check-ignore", "-z", ".", accepted=(0, 1)))


def _ask(folder: str, *arguments: str, accepted: tuple[int, ...] = (0,)) -> str:
    import subprocess  # single files never come here, and the import is felt at start-up

    environment = {k: v for k, v in os.environ.items() if k not in _HOOK_VARIABLES}
    # A file system monitor would be a program that the repository names.
    command = ["git", "-C", folder, "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, env=environment)
    except OSError as error:
        raise GitError(f"git cannot be run: {error.strerror}") from error
    if done.returncode not in accepted:
        lines = os.fsdecode(done.stderr).strip().splitlines()
        raise GitError(lines[0] if lines else f"git ended with status {done.returncode}")
    return os.fsdecode(done.stdout)
