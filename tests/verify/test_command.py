"""`xla2tpu verify` from its command line."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from xla2tpu.cli import main
from xla2tpu.verify.record import Record, dumps

XLA_PYTHON = os.environ.get("XLA2TPU_XLA_PYTHON") or None
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
needs_xla = pytest.mark.skipif(
    XLA_PYTHON is None,
    reason="XLA2TPU_XLA_PYTHON names no interpreter with torch_xla 2.9",
)
PROGRAM = """\
import sys
import time

import torch
import torch_xla.core.xla_model as xm

torch.manual_seed(int(sys.argv[1]))
device = xm.xla_device()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
model = model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.rand(4, 4).to(device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    xm.mark_step()
    xm.master_print("rank", xm.get_ordinal(), "of", xm.xrt_world_size(), loss.item())
print("took", time.time())
xm.save(model.state_dict(), "model.pt")
"""


def verify(*arguments: object, xla_python: str | None = None) -> Result:
    variables = {"XLA2TPU_XLA_PYTHON": xla_python}
    return CliRunner(env=variables).invoke(main, ["verify", *map(str, arguments)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give --xla-python, or a --baseline"),
        (("--xla-python", sys.executable, "--devices", "2"), "collectives hang"),
        (("--baseline", "b.json", "--reference", "r.py"), "exclude each other"),
        (("--baseline", "b.json", "--save-baseline", "c.json"), "exclude each other"),
        (("--xla-python", sys.executable, "--record-only"), "goes with --save-baseline"),
        (("--ignore-lines", "("), "Invalid value for '--ignore-lines'"),
        (("--baseline", "none.json"), "none.json: "),
        (("--xla-python", os.path.join(os.sep, "no", "python")), "cannot be run"),
        (("--script", "train.py", "--baseline", "b.json"), "go with a folder"),
    ],
)
def test_wrong_usage(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    done = verify(script, *options)
    assert (done.exit_code, message in done.output) == (2, True), done.output


def test_interpreter_without_torch_xla(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    done = verify(script, "--xla-python", sys.executable)
    assert done.exit_code == 2
    assert "lacks" in done.output
    assert "torch_xla" in done.output


@needs_torch
def test_reference_is_named_in_the_report(tmp_path: Path) -> None:
    script, plain = tmp_path / "train.py", tmp_path / "plain.py"
    script.write_text("import torch\nprint(torch.ones(2, device='xla'))\n")
    plain.write_text("import torch\nprint(torch.ones(2))\n")
    done = verify(script, "--reference", plain)
    assert done.exit_code == 1
    assert "original: plain PyTorch on the CPU, a reference" in done.stdout
    # A reference on the CPU prints no device.
    assert "'tensor([1., 1.])' became" in done.stdout
    plain.write_text("print(\"tensor([1., 1.], device='tpu:0')\")\n")
    done = verify(script, "--reference", plain)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (
        0,
        "same: the migrated program did what the original did",
    )


@needs_torch
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_termination_ends_what_runs(tmp_path: Path, name: str) -> None:
    number = getattr(signal, name)
    script, told = tmp_path / "train.py", tmp_path / "told"
    script.write_text(
        "import os, sys, time\n"
        "with open(sys.argv[1] + '.new', 'w') as file:\n"
        "    file.write(str(os.getpid()))\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "time.sleep(600)\n"
    )
    kept = tmp_path / "kept.json"
    kept.write_text(dumps(Record("torch_xla", 0, {}, {0: []}, args=[str(told)])))
    command = [sys.executable, "-m", "xla2tpu", "verify", str(script)]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    running = subprocess.Popen(
        [*command, "--baseline", str(kept), "--", str(told)],
        env=os.environ | {"TMPDIR": str(scratch)},
        cwd=Path(__file__).parents[2],
    )
    try:
        deadline = time.monotonic() + 120
        while not told.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        running.send_signal(number)
        assert running.wait(60) == 128 + number
    finally:
        running.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)
    assert list(scratch.iterdir()) == []


@needs_torch
@needs_xla
def test_draws_that_cannot_be_shared(tmp_path: Path) -> None:
    assert XLA_PYTHON is not None
    script = tmp_path / "train.py"
    # The layer's dropout is computed again in the backward pass, in a thread of XLA's.
    text = PROGRAM.replace(
        "import sys", "import sys\nfrom torch_xla.utils.checkpoint import checkpoint"
    )
    script.write_text(text.replace("loss = model(", "loss = checkpoint(model, "))
    done = verify(script, "--ignore-lines", "^took", "--", 7, xla_python=XLA_PYTHON)
    assert done.exit_code == 1, done.output
    assert "draws on the device in a checkpointed function" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("not comparable")


@needs_torch
@needs_xla
def test_whole_way(tmp_path: Path) -> None:
    assert XLA_PYTHON is not None
    script, kept = tmp_path / "project" / "train.py", tmp_path / "kept.json"
    script.parent.mkdir()
    script.write_text(PROGRAM)
    ignored = ("--ignore-lines", "^took")
    done = verify(script, "--save-baseline", kept, *ignored, "--", 7, xla_python=XLA_PYTHON)
    assert done.exit_code == 0, done.output
    assert "3 compared, agree" in done.stdout
    assert "draws random numbers on the device (bernoulli_)" in done.stdout
    assert [path.name for path in script.parent.iterdir()] == ["train.py"]

    # The baseline stands for the original from now on.
    done = verify(script, "--baseline", kept, *ignored, "--output-format", "json", "--", 7)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["verdict"], report["baseline"]) == ("same", str(kept))
    assert report["runs"]["original"]["versions"]["torch_xla"].startswith("2.")

    done = verify(script, "--baseline", kept, "--", 8)
    assert done.exit_code == 2
    assert "recorded with the arguments ['7'], not ['8']" in done.output
