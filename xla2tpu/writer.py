"""Writing results: each file at once or not at all, and never outside its tree."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from xla2tpu.discover import skips_folder


class WriteError(OSError):
    """A file could not be written and stands as it was; the message says why."""


def write(path: str, data: bytes, tree: str | None = None, before: bytes | None = None) -> None:
    """Put ``data`` in place of the file at ``path``, or make a new one.

    The bytes go to a file beside it, which then takes its place: a reader sees the old or the
    new file, and an interruption leaves the old one and nothing else. Mode and, where allowed,
    owner are kept. A symbolic link stays; what it leads to is written if it lies in ``tree``
    (without one, in the folder of ``path``). Where ``before`` is given and the file no longer
    has these bytes, nothing is written. Raises `WriteError`.
    """
    real = os.path.realpath(path)
    top = os.path.realpath(os.path.dirname(os.path.abspath(path)) if tree is None else tree)
    if os.path.commonpath((real, top)) != top:
        raise WriteError(f"not written: a symbolic link leads out of {top}")
    try:
        old: os.stat_result | None = os.stat(real)
    except FileNotFoundError:
        old = None
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror}") from error
    if old is not None:
        if not stat.S_ISREG(old.st_mode):
            raise WriteError("not written: not a regular file")
        # A renaming gets past the mode of the file, and root past all of them.
        if not old.st_mode & 0o222 or not os.access(real, os.W_OK):
            raise WriteError("not written: the file is read-only")
    _check_unchanged(real, before)
    _replace(real, data, old)


def _check_unchanged(real: str, before: bytes | None) -> None:
    if before is None:
        return
    try:
        with open(real, "rb") as file:
            now = file.read()
    except OSError as error:
        raise WriteError(f"not written: {error.strerror}") from error
    if now != before:
        raise WriteError("not written: the file was changed during the run")


def _replace(real: str, data: bytes, old: os.stat_result | None) -> None:
    folder, name = os.path.split(real)
    beside = os.path.join(folder, f".{name[:80]}.{os.getpid()}.xla2tpu")
    # The umask takes its share of a new file's mode.
    mode = 0o666 if old is None else 0o600
    try:
        # In the try: an interruption may come between the making and the next line.
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
            if old is not None:
                _keep_owner_and_mode(file.fileno(), old)
        os.replace(beside, real)
    except FileExistsError as error:
        raise WriteError(f"not written: {beside} is in the way") from error
    except OSError as error:
        _discard(beside)
        raise WriteError(f"cannot be written: {_folder_reason(folder, error)}") from error
    except BaseException:
        _discard(beside)
        raise


def _keep_owner_and_mode(descriptor: int, old: os.stat_result) -> None:
    if hasattr(os, "fchown"):
        new = os.fstat(descriptor)
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            try:
                os.fchown(descriptor, old.st_uid, old.st_gid)
            except PermissionError:
                pass  # only root may give files away
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _folder_reason(folder: str, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"the folder {folder} is not writable"
    return str(error.strerror)


def _discard(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def check_out_dir(out_dir: str) -> None:
    """Raise `WriteError` unless the folder is empty or does not exist yet."""
    try:
        with os.scandir(out_dir) as entries:
            if next(entries, None) is not None:
                raise WriteError(f"{out_dir}: the folder is not empty")
    except FileNotFoundError:
        pass
    except NotADirectoryError as error:
        raise WriteError(f"{out_dir}: not a folder") from error
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(f"{out_dir}: cannot be read: {error.strerror}") from error


def base_of(paths: list[str]) -> str:
    """The folder that stands for the output folder: the one that is given, or the nearest above
    all that are given.
    """
    if len(paths) == 1 and os.path.isdir(paths[0]):
        return os.path.abspath(paths[0])
    return os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])


def copy_tree(paths: list[str], out_dir: str, outputs: Mapping[str, bytes]) -> None:
    """Fill ``out_dir`` with all of ``paths``, the ``outputs`` in place of what they replace.

    Keys of ``outputs`` are paths; those of new files go along. Folders that a walk leaves out
    (version control, environments, caches, builds) are not copied, symbolic links stay links.
    All is made in a folder beside it, which then takes its name. Raises `WriteError`.
    """
    import shutil

    base = base_of(paths)
    target = os.path.realpath(out_dir)
    beside = f"{target}.{os.getpid()}.xla2tpu"
    left_out = {os.path.abspath(out_dir), target, beside}
    contents = {os.path.abspath(path): data for path, data in outputs.items()}
    try:
        os.makedirs(beside)
        for path in paths:
            source = os.path.abspath(path)
            _copy(source, _inside(beside, base, source), contents, left_out)
        for path, data in contents.items():  # those left are new files
            _put(_inside(beside, base, path), data)
        if os.path.isdir(target):
            os.rmdir(target)
        os.replace(beside, target)
    except shutil.Error as error:
        raise WriteError(f"{out_dir}: cannot be written: {error}") from error
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(f"{out_dir}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _inside(out_dir: str, base: str, path: str) -> str:
    relative = os.path.relpath(path, base)
    if relative.startswith(os.pardir):
        raise WriteError(f"{path}: lies outside of what is copied from {base}")
    return os.path.normpath(os.path.join(out_dir, relative))


def _copy(source: str, target: str, contents: dict[str, bytes], left_out: set[str]) -> None:
    import shutil

    if not os.path.isdir(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _copy_file(source, target, contents, follow=True)
        return
    os.makedirs(target, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            inner = os.path.join(target, entry.name)
            if entry.path in left_out:
                continue
            if entry.is_dir(follow_symlinks=False):
                if not skips_folder(entry.path):
                    _copy(entry.path, inner, contents, left_out)
            elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                _copy_file(entry.path, inner, contents, follow=False)
    shutil.copymode(source, target)


def _copy_file(source: str, target: str, contents: dict[str, bytes], follow: bool) -> None:
    import shutil

    data = contents.pop(source, None)
    if data is None:
        shutil.copy2(source, target, follow_symlinks=follow)
    else:
        _put(target, data)
        shutil.copymode(source, target)


def _put(target: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(data)
