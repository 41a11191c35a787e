"""The command line, from arguments to output and exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_engine
import pytest
from click.testing import CliRunner, Result

from xla2tpu import __version__
from xla2tpu.cli import main

SAFE = b"import torch_xla\nxm.mark_step()\n"
DONE = b"import torch_xla\npass\n"
UNSAFE = b"import torch_xla\nxm.optimizer_step\n"
MANUAL = b"import torch_xla\nxm.all_gather\n"


@pytest.fixture
def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    fake_engine.install(monkeypatch)


fake = pytest.mark.usefixtures("_fake")


def call(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


def put(name: str, data: bytes) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@fake
def test_check() -> None:
    put("a.py", SAFE)
    put("b.py", b"x = 1\n")
    result = call("check")
    assert result.exit_code == 1
    assert result.stdout.startswith("a.py\n  2:1 XLA101 mark-step, safe: ")
    assert "    2 | xm.mark_step()\n      | ^^^^^^^^^^^^^^\n    fix: Rewrite it\n" in result.stdout
    assert "\n\n2 files scanned, 1 has to do with torch_xla: 0 done" in result.stdout
    assert result.stderr == ""


@fake
def test_nothing_left() -> None:
    put("b.py", b"x = 1\n")
    result = call("check", ".")
    assert result.exit_code == 0
    assert result.stdout == "1 file scanned, nothing of torch_xla found.\n"


@fake
def test_exit_zero() -> None:
    put("a.py", SAFE)
    assert call("check", "--exit-zero").exit_code == 0
    assert call("check", "--exit-zero", "none.py").exit_code == 2


@fake
def test_file_that_is_not_there() -> None:
    put("a.py", SAFE)
    result = call("check", "none.py", "a.py")
    assert result.exit_code == 2
    assert "none.py\n  error: no such file or folder\n" in result.stdout
    assert "XLA101" in result.stdout


@fake
def test_fix() -> None:
    file = put("a.py", SAFE)
    result = call("check", "--fix")
    assert result.exit_code == 0
    assert file.read_bytes() == DONE
    assert "1 rewritten" in result.stdout


@fake
def test_fix_holds_back_what_would_be_left_half_way() -> None:
    file = put("a.py", SAFE + MANUAL)
    result = call("check", "--fix")
    assert result.exit_code == 1
    assert file.read_bytes() == SAFE + MANUAL
    assert "left as it is: 1 places would be left" in result.stdout
    call("check", "--fix", "--partial")
    assert file.read_bytes() == DONE + MANUAL


@fake
def test_unsafe_fixes() -> None:
    file = put("a.py", UNSAFE)
    result = call("check", "--fix")
    assert "1 unsafe fix held back: --unsafe-fixes." in result.stdout
    assert call("check", "--fix", "--unsafe-fixes").exit_code == 0
    assert b"optimizer_step" not in file.read_bytes()


@fake
def test_diff() -> None:
    file = put("a.py", SAFE)
    result = call("check", "--diff")
    assert result.exit_code == 1
    assert result.stdout == (
        "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n import torch_xla\n-xm.mark_step()\n+pass\n"
    )
    assert "1 to rewrite" in result.stderr
    assert file.read_bytes() == SAFE
    assert call("migrate", "--diff", ".").stdout == result.stdout
    patched = subprocess.run(["patch", "-p1", "-s"], input=result.stdout_bytes, check=False)
    assert patched.returncode == 0
    assert file.read_bytes() == DONE


@fake
def test_stdin() -> None:
    result = call("check", "-", "--stdin-filename", "p/t.py", stdin=SAFE)
    assert result.exit_code == 1
    assert result.stdout.startswith("p/t.py\n  2:1 XLA101")


@fake
def test_stdin_fixed_goes_to_stdout_and_findings_to_stderr() -> None:
    result = call("check", "--fix", "--partial", "-", stdin=SAFE + MANUAL)
    assert result.exit_code == 1
    assert result.stdout_bytes == DONE + MANUAL
    assert result.stderr.startswith("-\n")
    assert "XLA512" in result.stderr


@pytest.mark.parametrize("data", [b"x = 1\r\n\xfe\x00", b"torch_xla \xff", b""])
@fake
def test_stdin_comes_back_as_it_was(data: bytes) -> None:
    assert call("check", "--fix", "-", "-q", stdin=data).stdout_bytes == data


@fake
def test_stdin_diff() -> None:
    result = call("check", "--diff", "-", "--stdin-filename", "t.py", stdin=SAFE)
    assert result.stdout.startswith("--- a/t.py\n")
    assert result.stdout.endswith("+pass\n")


@fake
def test_migrate() -> None:
    file = put("a.py", SAFE + UNSAFE + MANUAL)
    result = call("migrate", ".")
    assert result.exit_code == 1
    assert file.read_bytes() == DONE + UNSAFE.replace(b"xm.optimizer_step", b"step") + MANUAL
    assert "4:1 XLA301 optimizer-step, rewritten, to review" in result.stdout
    assert "1 rewritten, 1 rewritten and to review, 1 by hand." in result.stdout
    assert result.stderr == (
        "note: 1 changed files are not under version control: there is no undo\n"
    )


@fake
def test_migrate_without_unsafe_fixes() -> None:
    file = put("a.py", SAFE + UNSAFE)
    result = call("migrate", "--no-unsafe-fixes", "a.py")
    assert file.read_bytes() == DONE + UNSAFE
    assert "1 unsafe fix held back: migrate without --no-unsafe-fixes." in result.stdout


@fake
def test_migrate_to_another_folder() -> None:
    file = put("src/a.py", SAFE)
    result = call("migrate", "src", "--out-dir", "out")
    assert result.exit_code == 0
    assert file.read_bytes() == SAFE
    assert Path("out/a.py").read_bytes() == DONE
    assert "note: the migrated copy is in out\n" in result.stderr
    again = call("migrate", "src", "--out-dir", "out")
    assert again.exit_code == 2
    assert again.stderr == "xla2tpu: error: --out-dir out: the folder is not empty\n"


@fake
def test_migrate_refuses_uncommitted_changes() -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    file = put("a.py", SAFE)
    result = call("migrate", ".")
    assert result.exit_code == 2
    assert "uncommitted changes:\n  a.py\nnothing was changed" in result.stderr
    assert file.read_bytes() == SAFE
    assert call("migrate", "--allow-dirty", ".").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "--unsafe-fixes"], "need --fix or --diff"),
        (["check", "--partial"], "need --fix or --diff"),
        (["check", "-", "a.py"], "stands alone"),
        (["check", "--stdin-filename", "a.py"], "needs `-`"),
        (["check", "--select", "E501"], "no code prefix"),
        (["check", "--report", "r.txt"], ".json or .html"),
        (["check", "--diff", "--output-format", "json"], "exclude each other"),
        (["check", "-q", "-v"], "exclude each other"),
        (["check", "--jobs", "0"], "0 is not in the range"),
        (["check", "--config", "none.toml"], "none.toml: no such file"),
        (["check", "--helpers-module", "a-b"], "dotted module name"),
        (["check", "--launcher", "slurm"], "'slurm' is not one of 'spawn', 'torchrun'"),
        (["migrate"], "Missing argument"),
        (["migrate", "-"], "check --fix -"),
        (["migrate", ".", "--diff", "--out-dir", "o"], "exclude each other"),
    ],
)
@fake
def test_wrong_usage(arguments: list[str], message: str) -> None:
    put("a.py", SAFE)
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


@fake
def test_bad_configuration() -> None:
    put("pyproject.toml", b"[tool.xla2tpu]\nselcet = []\n")
    put("a.py", SAFE)
    result = call("check")
    assert result.exit_code == 2
    assert "tool.xla2tpu.selcet: unknown key; did you mean 'select'?" in result.stderr


@fake
def test_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(fake_engine, "run_project", crash)
    put("a.py", SAFE)
    result = call("check")
    assert result.exit_code == 2
    assert "ZeroDivisionError" in result.stderr
    assert "internal error" in result.stderr


@fake
def test_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fake_engine, "run_project", interrupt)
    put("a.py", SAFE)
    result = call("check")
    assert result.exit_code == 130
    assert result.stderr == "xla2tpu: interrupted\n"


@fake
def test_json() -> None:
    put("a.py", SAFE)
    result = call("check", "--output-format", "json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["files"][0]["findings"][0]["fix"]["edits"] == [
        {"start": 17, "end": 31, "content": "pass"}
    ]
    assert "1 file scanned" in result.stderr


@fake
def test_concise_and_github() -> None:
    put("a.py", SAFE)
    result = call("check", "--output-format", "concise")
    assert result.stdout == "a.py:2:1: XLA101 `mark_step` cuts the lazy graph [safe fix]\n"
    result = call("check", "--output-format", "github", "-q")
    assert result.stdout.startswith("::error title=xla2tpu XLA101 (mark-step),file=a.py,line=2,")
    assert result.stderr == ""


@fake
def test_statistics() -> None:
    put("a.py", SAFE)
    result = call("check", "--statistics")
    assert "1        0     1       0       0           0  XLA101 mark-step\n" in result.stdout
    assert "Rewrite it" not in result.stdout
    result = call("check", "--statistics", "--output-format", "json")
    assert json.loads(result.stdout)["summary"]["fixable"] == 1
    assert "XLA101 mark-step\n" in result.stderr


@fake
def test_report_files() -> None:
    put("a.py", SAFE)
    assert call("check", "--report", "r.md").exit_code == 1
    assert Path("r.md").read_text().startswith("# From torch_xla to TorchTPU\n")
    call("check", "--report", "r.json", "--output-format", "concise")
    fix = json.loads(Path("r.json").read_text())["files"][0]["findings"][0]["fix"]
    assert fix["title"] == "Rewrite it"
    result = call("check", "--report", "none/r.md")
    assert result.exit_code == 2
    assert "--report none/r.md" in result.stderr


@fake
def test_quiet_and_verbose() -> None:
    put("a.py", SAFE)
    put("b.py", b"x = 1\n")
    quiet = call("check", "-q")
    assert quiet.stdout.endswith("+ pass\n")
    assert "scanned" not in quiet.stdout
    assert "b.py\n  clean\n" in call("check", "-v").stdout


@fake
def test_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    put("a.py", SAFE)
    assert "\x1b" not in call("check").stdout
    coloured = call("check", "--color", "always").stdout
    assert "\x1b[31m^" in coloured
    assert "\x1b[1m1 file scanned" in coloured
    assert "\x1b" in call("check", "--color", "always", "--diff").stdout
    assert "\x1b" not in call("check", "--color", "never").stdout


@fake
def test_source_that_the_terminal_cannot_spell(monkeypatch: pytest.MonkeyPatch) -> None:
    put("a.py", SAFE.replace(b")", ")  # ä€".encode()))
    result = CliRunner(charset="ascii").invoke(main, ["check"])
    assert result.exit_code == 1
    assert "# \\xe4\\u20ac" in result.stdout


def test_version_and_help() -> None:
    assert call("--version").stdout == f"xla2tpu, version {__version__}\n"
    text = call("check", "-h").stdout
    for option in [
        "--select",
        "--ignore",
        "--output-format",
        "--report",
        "--statistics",
        "--jobs",
        "--config",
        "--exit-zero",
        "--quiet",
        "--verbose",
        "--color",
        "--force-exclude",
        "--fix",
        "--unsafe-fixes",
        "--partial",
        "--diff",
        "--stdin-filename",
    ]:
        assert option in text
    text = call("migrate", "-h").stdout
    for option in ["--no-unsafe-fixes", "--out-dir", "--diff", "--no-todo", "--allow-dirty"]:
        assert option in text


def test_rules() -> None:
    result = call("rules")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].startswith("XLA")
    listed = json.loads(call("rules", "--output-format", "json").stdout)["rules"]
    assert len(listed) == len(result.stdout.splitlines())
    assert {"code", "name", "title", "apis", "cases", "why"} <= set(listed[0])


def test_explain_every_rule() -> None:
    for line in call("rules").stdout.splitlines():
        code, name = line.split()[:2]
        by_code, by_name = call("explain", code), call("explain", name)
        assert by_code.exit_code == 0
        assert by_code.stdout == by_name.stdout
        assert by_code.stdout.startswith(f"{code} {name} (")


def test_explain_unknown() -> None:
    result = call("explain", "XLA9")
    assert result.exit_code == 2
    assert "there is no rule 'XLA9'" in result.stderr


@pytest.mark.parametrize(
    "name",
    [
        "xm.mark_step",
        "mark_step",
        "xm.mark_step()",
        "xla_model.mark_step",
        "torch_xla.core.xla_model.mark_step",
    ],
)
def test_query(name: str) -> None:
    result = call("query", name)
    assert result.exit_code == 0
    assert result.stdout.startswith("torch_xla.core.xla_model.mark_step: XLA")
    assert "why: " in result.stdout


def test_query_module() -> None:
    result = call("query", "xm")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) > 20


def test_query_json() -> None:
    found = json.loads(call("query", "xm.mark_step", "--output-format", "json").stdout)
    assert found["names"][0]["api"] == "torch_xla.core.xla_model.mark_step"
    assert found["names"][0]["cases"]


def test_query_unknown() -> None:
    result = call("query", "xm.marc_step")
    assert result.exit_code == 1
    assert "Did you mean" in result.stdout
    assert "mark_step" in result.stdout


def run_python(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parent.parent)
    environment = dict(os.environ, PYTHONPATH=root)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
    )


HEAVY = """
import sys
sys.argv = ["xla2tpu", "check", "a.py"]
from xla2tpu.cli import main
try:
    main()
finally:
    heavy = {"libcst", "yaml", "multiprocessing", "concurrent.futures.process", "subprocess",
             "tomllib", "difflib", "tempfile", "json", "torch"}
    print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


def test_an_irrelevant_file_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'a'\n")
    done = run_python(HEAVY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "[]\n"


def test_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    code = "import runpy, sys; sys.argv[0] = 'x'; runpy.run_module('xla2tpu', run_name='__main__')"
    done = run_python(code, "check", "a.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


STUCK = """
import os, sys, time
from xla2tpu import writer
def wait(*_):
    print("writing", flush=True)
    time.sleep(60)
writer.os.replace = wait
sys.argv = ["xla2tpu", "check", "--fix", "a.py"]
sys.path.insert(0, sys.argv_tests)
import fake_engine, xla2tpu
sys.modules["xla2tpu.engine"] = xla2tpu.engine = fake_engine
sys.modules["xla2tpu.batch"] = xla2tpu.batch = fake_engine
from xla2tpu.cli import main
main()
""".replace("sys.argv_tests", repr(str(Path(__file__).parent)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "a.py").write_bytes(SAFE)
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parent.parent))
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    assert len(os.listdir(tmp_path)) == 2
    time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=20) == 128 + number
    process.stdout.close()
    assert os.listdir(tmp_path) == ["a.py"]
    assert (tmp_path / "a.py").read_bytes() == SAFE


def test_files_of_the_current_folder_are_no_libraries(tmp_path: Path) -> None:
    for name in ("libcst", "click", "yaml", "tomllib", "train"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported a file of the project')\n")
    done = subprocess.run(
        [sys.executable, "-m", "xla2tpu", "check", "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "imported" not in done.stdout + done.stderr


def test_emulate_refuses_unknown_options() -> None:
    done = CliRunner().invoke(main, ["emulate", "--bogus", "a.py"])
    assert done.exit_code == 2
    assert "No such option" in done.output
