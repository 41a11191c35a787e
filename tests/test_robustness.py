"""Files and folders as they are found in the wild: the run goes on, and no file is harmed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from xla2tpu import engine
from xla2tpu.cli import main
from xla2tpu.model import FileResult, Mode, Settings, Status

ROOT = Path(__file__).resolve().parent.parent
BASE = b"import torch_xla.core.xla_model as xm\nxm.mark_step()\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, which is the working folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("")
    monkeypatch.chdir(folder)
    return folder


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert "Traceback" not in result.output
    assert "internal error" not in result.output
    return result


def files_of(*arguments: str) -> dict[str, dict[str, Any]]:
    """The files of the JSON report, by path."""
    report = json.loads(call(*arguments, "--output-format", "json").stdout)
    return {file["path"]: file for file in report["files"]}


def migrate(data: bytes, root: Path) -> FileResult:
    settings = Settings(mode=Mode.MIGRATE, unsafe=True, root=str(root))
    return engine.run_source(data, str(root / "example.py"), settings)


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which may not take forever."""
    return subprocess.run(
        [sys.executable, "-m", "xla2tpu", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


# -- sources that are no Python, or odd ----------------------------------------------------------

BROKEN = {
    "python2": (b"print 'hello'\n", 3),
    "python2_exec": (b"exec 'x = 1'\n", 3),
    "python2_except": (b"try:\n    pass\nexcept E, e:\n    pass\n", 5),
    "shell": (b"!pip install torch_xla\n", 3),
    "magic": (b"%matplotlib inline\n", 3),
    "half": (b"def f(x):\n", 3),
    "open_bracket": (b"f(1,\n", 3),
    "open_string": (b'x = """abc\n', 3),
    "dedent": (b"if x:\n        a\n    b\n", 5),
    "conflict": (b"<<<<<<< HEAD\nx = 1\n=======\n", 3),
    "nul": (b"x = 1\0\n", 3),
    "vertical_tab": (b"\x0bx = 1\n", 3),
    "control_z": (b"x = 1\n\x1a", 4),
    "bare_except": (b"try: x\nexcept: y\nexcept: z\n", 1),
}


def is_valid(data: bytes) -> bool:
    """Whether it is valid now: `except E, e:` is, from Python 3.14 on."""
    try:
        compile(data, "example.py", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


@pytest.mark.parametrize("name", BROKEN)
def test_source_that_does_not_parse(name: str, tmp_path: Path) -> None:
    tail, line = BROKEN[name]
    if is_valid(tail):
        pytest.skip("this Python takes it")
    result = migrate(BASE + tail, tmp_path)
    assert (result.error, result.output) == (None, None)
    (finding,) = result.findings
    assert (finding.rule, finding.reason) == ("XLA000", "does-not-parse")
    # Parsers differ by a line where something is open at the end.
    assert line - 1 <= finding.line <= line + 2


def test_the_run_goes_on(project: Path) -> None:
    for name, (tail, _) in BROKEN.items():
        Path(f"{name}.py").write_bytes(BASE + tail)
    Path("good.py").write_bytes(BASE)
    assert call("migrate", ".", "--no-todo").exit_code == 1
    assert Path("good.py").read_bytes() == b""
    for name, (tail, _) in BROKEN.items():
        if is_valid(tail):
            continue
        assert Path(f"{name}.py").read_bytes() == BASE + tail


UNDECODABLE = {
    "latin-1": BASE + b"# K\xf6ln\n",
    "unknown": b"# coding: klingon\n" + BASE,
    "no text": b"# coding: hex\n" + BASE,
    "undefined": b"# coding: undefined\n" + BASE,
    "punycode": b"# coding: punycode\n" + BASE,
    "two encodings": b"\xef\xbb\xbf# coding: latin-1\n" + BASE,
    "surrogate": BASE + b"x = '\xed\xa0\x80'\n",
    "utf-16": BASE.decode().encode("utf-16"),
    "utf-32": BASE.decode().encode("utf-32"),
    "wrong cookie": b"# coding: ascii\n" + BASE + "# Köln\n".encode(),
}


@pytest.mark.parametrize("name", UNDECODABLE)
def test_wrong_encoding(name: str, project: Path) -> None:
    Path("bad.py").write_bytes(UNDECODABLE[name])
    Path("good.py").write_bytes(BASE)
    result = call("check", "--fix", ".")
    assert result.exit_code == 2
    assert "bad.py\n  error: " in result.stdout
    assert Path("bad.py").read_bytes() == UNDECODABLE[name]
    assert Path("good.py").read_bytes() == b""


ENCODED = ["latin-1", "cp1252", "shift_jis", "gbk", "iso2022_jp", "utf-7", "koi8-r", "utf-8-sig"]


@pytest.mark.parametrize("encoding", ENCODED)
def test_encoding_is_kept(encoding: str, tmp_path: Path) -> None:
    word = {"latin-1": "Köln", "cp1252": "5 €", "koi8-r": "Привет"}.get(encoding, "日本")
    head = f"# coding: {encoding}\n"
    body = f"xm.master_print('{word}'); a = '{word}'\nxm.mark_step()  # {word}\nb = '{word}'\n"
    text = head + "import torch_xla.core.xla_model as xm\n" + body
    result = migrate(text.encode(encoding), tmp_path)
    assert result.error is None
    assert result.output is not None
    new = result.output.decode(encoding)
    assert new.startswith(head)
    assert new.count(word) == 3
    assert "xm" not in new.replace("xmark", "")


EMPTY = [b"", b"\n", b"\r\n\r\n", b"\xef\xbb\xbf", b"# torch_xla\n", b"\x0c", b"   ", b"\\\n"]


@pytest.mark.parametrize("data", EMPTY)
def test_empty_file(data: bytes, project: Path) -> None:
    Path("a.py").write_bytes(data)
    result = call("migrate", ".")
    assert result.exit_code == 0
    assert Path("a.py").read_bytes() == data


FORM_FEEDS = {
    "at the start": b"\x0cimport torch_xla.core.xla_model as xm\nxm.mark_step()\nx = 1\n",
    "alone": b"import torch_xla.core.xla_model as xm\n\x0c\nxm.mark_step()\nx = 1\n",
    "before a statement": b"import torch_xla.core.xla_model as xm\n\x0cxm.mark_step()\nx = 1\n",
    "in a suite": b"import torch_xla.core.xla_model as xm\nif x:\n\x0c    xm.mark_step()\n    y\n",
    "after blanks": b"import torch_xla.core.xla_model as xm\nif x:\n \x0c   xm.mark_step()\n   y\n",
    "in a line": b"import torch_xla.core.xla_model as xm\nx = 1;\x0cxm.mark_step()\n",
    "two": b"import torch_xla.core.xla_model as xm\n\x0c\x0cxm.mark_step()\nx = 1\n",
    "carriage return": b"import torch_xla.core.xla_model as xm\r\n\x0cxm.mark_step()\r\nx = 1\r\n",
    "in a string": b"import torch_xla.core.xla_model as xm\nx = '''\n\x0ca'''; xm.mark_step()\n",
}


@pytest.mark.parametrize("name", FORM_FEEDS)
def test_form_feed(name: str, tmp_path: Path) -> None:
    data = FORM_FEEDS[name]
    compile(data, "example.py", "exec")
    result = migrate(data, tmp_path)
    assert result.error is None
    assert [f.rule for f in result.findings] == ["XLA101"]
    assert result.output is not None
    assert b"xm" not in result.output
    compile(result.output, "example.py", "exec")
    if name == "in a string":
        assert b"'''\n\x0ca'''" in result.output


# What comes out is either a rewritten file or a finding; a crash ends the process.
DEEP = {
    "parentheses": b"x = " + b"(" * 5000 + b"1" + b")" * 5000,
    "lists": b"x = " + b"[" * 150 + b"]" * 150,
    "calls": b"x = a" + b"(1)" * 20_000,
    "attributes": b"x = a" + b".b" * 20_000,
    "signs": b"x = " + b"-" * 20_000 + b"1",
    "nots": b"x = " + b"not " * 20_000 + b"1",
    "sums": b"x = " + b"+".join([b"1"] * 20_000),
    "powers": b"x = " + b"**".join([b"1"] * 5000),
    "lambdas": b"x = " + b"lambda: " * 5000 + b"1",
    "conditions": b"x = " + b"1 if a else " * 5000 + b"1",
    "suites": b"".join(b" " * i + b"if x:\n" for i in range(99)) + b" " * 99 + b"xm.mark_step()",
    "too many suites": b"".join(b" " * i + b"if x:\n" for i in range(500)) + b" " * 500 + b"x",
    "short lines": b"x = (" + b"(\n" * 3000 + b"1" + b")\n" * 3000 + b")",
    "sums over lines": b"x = (1" + b"\n + 1" * 20_000 + b")",
    "chain": b"x = (a" + b"\n .b()" * 4000 + b")",
    "elifs": b"if a: pass\n" + b"elif b: f()\n" * 2000,
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_nesting(name: str, project: Path) -> None:
    Path("deep.py").write_bytes(BASE + DEEP[name] + b"\n")
    done = command("check", "--output-format", "json", cwd=project)
    assert done.returncode == 1, done.stderr[-500:]
    (file,) = json.loads(done.stdout)["files"]
    assert file["findings"]
    assert file["error"] is None


def test_many_deep_files(project: Path) -> None:
    """In the pool, too, one file that is too deep does not harm the others."""
    for index in range(20):
        Path(f"a{index:02}.py").write_bytes(BASE)
    for name in ("attributes", "sums over lines", "short lines"):
        Path(f"deep_{name.replace(' ', '_')}.py").write_bytes(BASE + DEEP[name] + b"\n")
    done = command("check", "--jobs", "2", "--output-format", "json", cwd=project)
    assert "internal error" not in done.stdout
    files = json.loads(done.stdout)["files"]
    assert len(files) == 23
    assert all(file["references"] == 1 for file in files if file["path"].startswith("a"))


def test_long_file(tmp_path: Path) -> None:
    """20,000 lines with a place in every tenth, in seconds and not in minutes."""
    text = "import torch\nimport torch_xla.core.xla_model as xm\n" + "".join(
        f"def f{i}(x):\n    y = x.sum({i})\n    z = y + 1\n    print(y, z)\n    xm.mark_step()\n"
        "    for k in z:\n        y += k\n    w = [y, z]\n    print(w)\n    return w\n"
        for i in range(2000)
    )
    start = time.process_time()
    result = engine.run_source(
        text.encode(), "long.py", Settings(mode=Mode.CHECK, root=str(tmp_path))
    )
    # Parsing alone takes about two seconds on a slow machine.
    assert time.process_time() - start < 10
    assert result.references == 2000


def test_time_grows_with_the_length(tmp_path: Path) -> None:
    """Four times as many places take about four times as long, not sixteen."""

    def seconds(places: int) -> float:
        text = "import torch_xla.core.xla_model as xm\n" + "".join(
            f"def f{i}(x):\n    xm.mark_step()\n    return x\n" for i in range(places)
        )
        start = time.process_time()
        migrate(text.encode(), tmp_path)
        return time.process_time() - start

    seconds(10)
    assert seconds(1000) < 8 * seconds(250)


@pytest.mark.parametrize("line", ["elif a == {i}: xm.mark_step()\n", "elif a == {i}: f({i})\n"])
def test_long_chain_of_branches(line: str, tmp_path: Path) -> None:
    branches = "".join(line.format(i=i) for i in range(250))
    text = f"import torch_xla.core.xla_model as xm\nif a: xm.mark_step()\n{branches}"
    start = time.process_time()
    result = migrate(text.encode(), tmp_path)
    assert result.error is None
    assert time.process_time() - start < 3


# -- what stands in folders ----------------------------------------------------------------------


def test_folder_with_the_name_of_a_file(project: Path) -> None:
    Path("x.py").mkdir()
    Path("x.py/y.py").write_bytes(BASE)
    assert list(files_of("check")) == ["x.py/y.py"]
    assert list(files_of("check", "x.py")) == ["x.py/y.py"]
    assert call("migrate", ".").exit_code == 0
    assert Path("x.py/y.py").read_bytes() == b""


def test_broken_link(project: Path) -> None:
    Path("broken.py").symlink_to("nowhere.py")
    Path("loop.py").symlink_to("loop.py")
    Path("good.py").write_bytes(BASE)
    result = call("check", "--fix")
    assert result.exit_code == 2
    assert result.stdout.count("error: ") == 2
    assert Path("good.py").read_bytes() == b""
    assert Path("broken.py").is_symlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipe(project: Path) -> None:
    """A pipe is reported where it is asked for, and never waited for."""
    os.mkfifo("pipe.py")
    Path("good.py").write_bytes(BASE)
    done = command("check", "--output-format", "json", "good.py", cwd=project)
    assert done.returncode == 1
    done = command("check", cwd=project)
    assert done.returncode == 2
    assert "pipe.py\n  error: not a regular file" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="names are text there")
def test_name_that_is_no_text(project: Path) -> None:
    Path(os.fsdecode(b"bad\xff.py")).write_bytes(BASE)
    Path("good.py").write_bytes(BASE)
    for arguments in (["check"], ["check", "good.py"], ["check", "--output-format", "json"]):
        assert call(*arguments).exit_code == 1
    assert call("migrate", ".", "--report", "r.md").exit_code == 0
    assert Path("good.py").read_bytes() == b""


def test_link_out_of_the_tree(project: Path) -> None:
    outside = project.parent / "outside.py"
    outside.write_bytes(BASE)
    Path("link.py").symlink_to(outside)
    Path("folder").symlink_to(project.parent / "elsewhere", target_is_directory=True)
    (project.parent / "elsewhere").mkdir()
    (project.parent / "elsewhere/a.py").write_bytes(BASE)
    assert call("migrate", ".").exit_code == 0
    result = call("migrate", "link.py")
    assert result.exit_code == 2
    assert "a symbolic link leads out of" in result.stdout
    assert outside.read_bytes() == BASE
    assert (project.parent / "elsewhere/a.py").read_bytes() == BASE
    assert Path("link.py").is_symlink()


def test_link_to_a_file_of_the_tree(project: Path) -> None:
    Path("real.py").write_bytes(BASE + b"x = 1\n")
    Path("link.py").symlink_to("real.py")
    assert call("migrate", ".").exit_code == 0
    assert Path("real.py").read_bytes() == b"x = 1\n"
    assert Path("link.py").is_symlink()


def test_file_and_a_link_to_it(project: Path) -> None:
    """Both are named: the second must not undo the first, or fail for its sake."""
    Path("real.py").write_bytes(BASE + b"x = 1\n")
    Path("link.py").symlink_to("real.py")
    assert call("migrate", "real.py", "link.py").exit_code == 0
    assert Path("real.py").read_bytes() == b"x = 1\n"
    assert Path("link.py").is_symlink()


def test_read_only_file(project: Path) -> None:
    Path("fixed.py").write_bytes(BASE)
    Path("fixed.py").chmod(0o444)
    Path("good.py").write_bytes(BASE)
    result = call("migrate", ".")
    assert result.exit_code == 2
    assert "fixed.py\n" in result.stdout
    assert "the file is read-only" in result.stdout
    assert Path("fixed.py").read_bytes() == BASE
    assert Path("good.py").read_bytes() == b""


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o664])
def test_mode_bits_are_kept(mode: int, project: Path) -> None:
    Path("a.py").write_bytes(BASE)
    Path("a.py").chmod(mode)
    assert call("check", "--fix", "a.py").exit_code == 0
    assert stat.S_IMODE(Path("a.py").stat().st_mode) == mode


def test_hard_link(project: Path) -> None:
    """A renaming breaks the link; the other name keeps the old text and is whole."""
    Path("a.py").write_bytes(BASE + b"x = 1\n")
    os.link("a.py", "b.py")
    assert call("migrate", "a.py").exit_code == 0
    assert Path("a.py").read_bytes() == b"x = 1\n"
    assert Path("b.py").read_bytes() in (BASE + b"x = 1\n", b"x = 1\n")


def test_untouched_files_are_not_written(project: Path) -> None:
    Path("plain.py").write_bytes(b"import torch\r\nx = 1  \n")
    Path("manual.py").write_bytes(b"import torch_xla.core.xla_model as xm\nx = xm.optimizer_step\n")
    before = {path: Path(path).stat() for path in ("plain.py", "manual.py")}
    call("check", "--fix", "--unsafe-fixes", ".")
    call("migrate", "--no-todo", ".")
    for path, old in before.items():
        new = Path(path).stat()
        assert (new.st_ino, new.st_mtime_ns) == (old.st_ino, old.st_mtime_ns)


# -- interruptions -------------------------------------------------------------------------------

SLOW = """
import os, sys, time
from xla2tpu import writer
old = os.replace
def replace(*arguments):
    print("writing", flush=True)
    time.sleep(0.2)
    old(*arguments)
writer.os.replace = replace
sys.argv = ["xla2tpu", *sys.argv[1:]]
from xla2tpu.cli import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("arguments", [["migrate", "."], ["migrate", ".", "--out-dir", "out"]])
def test_interrupted_writes(arguments: list[str], number: signal.Signals, project: Path) -> None:
    """Each file is old or new, and nothing else is left."""
    after = b"x = 1\n" * 2000
    names = {f"a{i}.py" for i in range(8)}
    for name in names:
        Path(name).write_bytes(BASE + after)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=20) == 128 + number
    process.stdout.close()
    assert set(os.listdir()) - {"pyproject.toml"} == names
    for name in names:
        assert Path(name).read_bytes() in (BASE + after, after)


def test_full_disk(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.py").write_bytes(BASE)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("xla2tpu.writer.os.replace", full)
    result = call("migrate", ".")
    assert result.exit_code == 2
    assert "No space left on device" in result.stdout
    assert Path("a.py").read_bytes() == BASE
    assert sorted(os.listdir()) == ["a.py", "pyproject.toml"]


def test_failure_inside_is_one_files_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours ends with status 2 after all other files, standard input included."""
    Path("bad.py").write_bytes(BASE)
    Path("good.py").write_bytes(BASE)
    real = engine.run_source

    def fail(data: bytes, path: str, *arguments: Any, **more: Any) -> FileResult:
        if "bad" in path:
            raise ZeroDivisionError("a fault")
        return real(data, path, *arguments, **more)

    monkeypatch.setattr(engine, "run_source", fail)
    result = CliRunner().invoke(main, ["migrate", "."])
    assert result.exit_code == 2
    assert "bad.py\n  error: internal error, nothing written: ZeroDivisionError" in result.stdout
    assert Path("good.py").read_bytes() == b""
    result = CliRunner().invoke(
        main, ["check", "--fix", "-", "--stdin-filename", "bad.py"], input=BASE
    )
    assert result.exit_code == 2
    # An editor that takes the output must not lose the text.
    assert result.stdout_bytes == BASE


def test_no_warnings_of_the_users_code(project: Path) -> None:
    Path("a.py").write_bytes(BASE + b"x = 1 is 1\ny = '\\d'\n")
    done = command("migrate", ".", cwd=project)
    assert "Warning" not in done.stderr


def test_error_is_not_called_clean(project: Path) -> None:
    Path("a.py").write_bytes(UNDECODABLE["latin-1"])
    result = call("check")
    assert result.exit_code == 2
    assert "nothing of torch_xla found" not in result.output


def test_statuses_are_known() -> None:
    assert {str(status) for status in Status} >= {"clean", "done", "ready", "needs-work", "error"}
