"""Writing: whole or not at all, and never outside the tree."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from xla2tpu import writer
from xla2tpu.writer import WriteError, copy_tree, write


def test_keeps_the_mode(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(b"old")
    file.chmod(0o751)
    write(str(file), b"new")
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o751
    assert os.listdir(tmp_path) == ["a.py"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_keeps_the_owner(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(b"old")
    os.chown(file, 1234, 1234)
    write(str(file), b"new")
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 1234)


def test_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(str(tmp_path / "a.py"), b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.py").stat().st_mode) == 0o640


def test_read_only_file(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(b"old")
    file.chmod(0o444)
    with pytest.raises(WriteError, match="read-only"):
        write(str(file), b"new")
    assert file.read_bytes() == b"old"


def test_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(b"old")

    def refuse(*_: object) -> int:  # root is not stopped by modes
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(writer.os, "open", refuse)
    with pytest.raises(WriteError, match="not writable"):
        write(str(file), b"new")
    assert file.read_bytes() == b"old"


def test_link_inside_the_tree_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    real = tmp_path / "sub" / "real.py"
    real.write_bytes(b"old")
    link = tmp_path / "link.py"
    link.symlink_to("sub/real.py")
    write(str(link), b"new", tree=str(tmp_path))
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


@pytest.mark.parametrize("through_folder", [False, True])
def test_link_out_of_the_tree(tmp_path: Path, through_folder: bool) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_bytes(b"old")
    if through_folder:
        (tree / "folder").symlink_to(outside)
        path = tree / "folder" / "a.py"
    else:
        path = tree / "a.py"
        path.symlink_to(outside / "a.py")
    with pytest.raises(WriteError, match="leads out of"):
        write(str(path), b"new", tree=str(tree))
    if not through_folder:
        with pytest.raises(WriteError, match="leads out of"):
            write(str(path), b"new")
    assert (outside / "a.py").read_bytes() == b"old"


def test_tree_that_is_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.py").write_bytes(b"old")
    (tmp_path / "tree").symlink_to("real")
    write(str(tmp_path / "tree" / "a.py"), b"new", tree=str(tmp_path / "tree"))
    assert (tmp_path / "real" / "a.py").read_bytes() == b"new"


def test_file_that_changed_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(b"mine")
    with pytest.raises(WriteError, match="changed during the run"):
        write(str(file), b"new", before=b"old")
    assert file.read_bytes() == b"mine"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
@pytest.mark.parametrize("call", ["replace", "fchmod"])
def test_interruption_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], call: str
) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(b"old")

    def interrupt(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(writer.os, call, interrupt)
        with pytest.raises((error, WriteError)):
            write(str(file), b"new")
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.py"]


def test_long_name(tmp_path: Path) -> None:
    file = tmp_path / ("a" * 250 + ".py")
    file.write_bytes(b"old")
    write(str(file), b"new")
    assert file.read_bytes() == b"new"


def tree(tmp_path: Path) -> Path:
    source = tmp_path / "src"
    (source / "pkg").mkdir(parents=True)
    (source / ".git").mkdir()
    (source / ".git" / "HEAD").write_text("ref")
    (source / "pkg" / "a.py").write_text("old")
    (source / "pkg" / "a.py").chmod(0o555)
    (source / "data.bin").write_bytes(b"\0\1")
    (source / "link").symlink_to("data.bin")
    return source


def test_copy_of_a_folder(tmp_path: Path) -> None:
    source = tree(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    outputs = {str(source / "pkg" / "a.py"): b"new", str(source / "pkg" / "helpers.py"): b"def"}
    copy_tree([str(source)], str(out), outputs)
    assert (out / "pkg" / "a.py").read_bytes() == b"new"
    assert stat.S_IMODE((out / "pkg" / "a.py").stat().st_mode) == 0o555
    assert (out / "pkg" / "helpers.py").read_bytes() == b"def"
    assert (out / "data.bin").read_bytes() == b"\0\1"
    assert os.readlink(out / "link") == "data.bin"
    assert not (out / ".git").exists()
    assert (source / "pkg" / "a.py").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["out", "src"]


def test_copy_of_several_paths(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "x.py").write_text("x")
    copy_tree([str(tmp_path / "src" / "pkg"), str(tmp_path / "x.py")], str(tmp_path / "out"), {})
    assert (tmp_path / "out" / "src" / "pkg" / "a.py").read_text() == "old"
    assert (tmp_path / "out" / "x.py").read_text() == "x"


def test_copy_into_the_tree_itself(tmp_path: Path) -> None:
    source = tree(tmp_path)
    copy_tree([str(source)], str(source / "out"), {})
    assert sorted(os.listdir(source / "out")) == ["data.bin", "link", "pkg"]


def test_interrupted_copy_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tree(tmp_path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_put", interrupt)
        with pytest.raises(KeyboardInterrupt):
            copy_tree([str(source)], str(tmp_path / "out"), {str(source / "pkg" / "a.py"): b"n"})
    assert os.listdir(tmp_path) == ["src"]


def test_output_outside_of_the_copy(tmp_path: Path) -> None:
    source = tree(tmp_path)
    with pytest.raises(WriteError, match="lies outside"):
        copy_tree([str(source)], str(tmp_path / "out"), {str(tmp_path / "h.py"): b"new"})
    assert os.listdir(tmp_path) == ["src"]


def test_out_dir_must_be_empty_or_new(tmp_path: Path) -> None:
    writer.check_out_dir(str(tmp_path))
    writer.check_out_dir(str(tmp_path / "new"))
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="not empty"):
        writer.check_out_dir(str(tmp_path))
    with pytest.raises(WriteError, match="not a folder"):
        writer.check_out_dir(str(tmp_path / "file"))
