"""How a process becomes an emulated one, and when the command steps aside."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from click.testing import CliRunner

from xla2tpu import emulator
from xla2tpu.cli import main
from xla2tpu.emulator import hardware, launch, settings

ROOT = Path(__file__).parent.parent.parent
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def python(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={k: v for k, v in os.environ.items() if not k.startswith("XLA2TPU")}
        | {"PYTHONPATH": str(ROOT), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


ACTIVATED = """
import subprocess, sys
{first}
from xla2tpu import emulator
emulator.activate(devices=4)
emulator.activate(devices=4)
import torch, torch_tpu
child = [sys.executable, "-c", "import torch; print(torch.accelerator.device_count())"]
print(torch.ones(2, device="tpu").sum().item(), torch_tpu.__version__, flush=True)
print(subprocess.run(child, capture_output=True, text=True).stdout.strip())
"""


@needs_torch
@pytest.mark.parametrize("first", ["", "import torch"])
def test_activate(first: str) -> None:
    done = python("-c", ACTIVATED.format(first=first))
    assert done.stdout.split() == ["2.0", "0.2.0", "4"], done.stderr


@needs_torch
@pytest.mark.skipif(
    importlib.util.find_spec("torch_tpu") is None, reason="torch_tpu is not installed"
)
def test_activate_after_the_real_torch_tpu() -> None:
    code = "import torch, torch_tpu\nfrom xla2tpu import emulator\nemulator.activate()"
    done = python("-W", "ignore", "-c", code)
    assert done.returncode == 1
    assert "torch_tpu has registered its operators in this process already" in done.stderr


@needs_torch
def test_torch_tpu_is_imported_first(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import torch_tpu, torch\nprint(torch.ones(1, device='tpu').item())\n")
    done = python("-m", "xla2tpu.emulator", str(script))
    assert done.stdout == "1.0\n", done.stderr


@needs_torch
def test_program_is_started_as_by_python(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, os\n"
        "print(__name__, sys.argv[1:], sys.path[0], sys.modules['__main__'].__file__)\n"
        "print(sorted(k for k in os.environ if k.startswith('XLA2TPU')))\n"
        "sys.exit(7)\n"
    )
    arguments = ["--devices", "9", "-m", "x", "-h"]
    done = python("-m", "xla2tpu.emulator", "--devices", "2", str(script), *arguments)
    assert done.returncode == 7
    shown, names = done.stdout.splitlines()
    assert shown == f"__main__ {arguments} {tmp_path} {script}"
    assert names == str(sorted([settings.ACTIVE, settings.DEVICES, settings.ALLOW_MISSING_OPS]))
    assert done.stderr.startswith("xla2tpu: emulating 2 TPU device(s) on the CPU")


@needs_torch
def test_command_line() -> None:
    done = python("-m", "xla2tpu", "emulate", "--devices", "2", "-m", "torch.tpu.distributed")
    lines = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert lines["TORCH_TPU_TOPOLOGY"] == '"1,2,1"'
    assert lines["WORLD_SIZE"] == "2"
    assert len(lines["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")) == 2


def test_help_is_that_of_the_command() -> None:
    result = CliRunner().invoke(main, ["emulate", "--help"])
    assert result.exit_code == 0
    assert "Run SCRIPT, a TorchTPU program, on the CPU" in result.output


def test_packages_of_python_are_enough() -> None:
    code = (
        "import sys, xla2tpu.emulator.launch\n"
        "print({'torch', 'click', 'libcst', 'yaml', 'numpy'} & set(sys.modules))"
    )
    assert python("-c", code).stdout == "set()\n"


class Started(Exception):
    """The program would run now."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def execv(path: str, command: list[str]) -> None:
        raise Started(*command)

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(os, "name", "posix")
    monkeypatch.setattr(os, "environ", dict(os.environ, PYTHONPATH="mine"))
    monkeypatch.setattr(launch, "version", lambda name: "2.13.0+cpu")
    return monkeypatch


def test_steps_aside_for_a_tpu(
    started: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started.setattr(emulator, "real_tpus", lambda: 4)
    with pytest.raises(Started) as caught:
        launch.main(["train.py", "--x"])
    assert caught.value.args[-2:] == ("train.py", "--x")
    assert "this host has 4 TPU(s): it is left to torch_tpu" in capsys.readouterr().err
    assert os.environ["PYTHONPATH"] == "mine"


def test_environment_of_the_program(started: pytest.MonkeyPatch) -> None:
    started.setattr(emulator, "real_tpus", lambda: 0)
    with pytest.raises(Started) as caught:
        launch.main(["--devices", "8", "--allow-missing-ops", "-m", "train", "-m", "x"])
    assert caught.value.args[-4:] == ("-m", "train", "-m", "x")
    assert settings.read() == settings.Settings(8, allow_missing_ops=True)
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(settings.SHADOW), "mine"])
    assert os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "1"


def test_without_torch(started: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    started.setattr(launch, "version", missing)
    with pytest.raises(SystemExit, match="which is not installed; pip install 'xla2tpu"):
        launch.main(["train.py"])
    started.setattr(launch, "version", lambda name: "2.9.1")
    with pytest.raises(SystemExit, match=r"needs torch 2\.11 or newer, not 2\.9\.1"):
        launch.main(["train.py"])


def test_count_of_devices() -> None:
    with pytest.raises(ValueError, match="not 3"):
        emulator.prepare(devices=3)
    with pytest.raises(RuntimeError, match="No TPU topology found for count: 3"):
        hardware.topology(3)


@pytest.mark.parametrize(
    ("vendor", "device", "open_to_us", "count"),
    [
        ("0x1ae0", "0x0063", True, 1),
        ("0x1ae0", "0x0063", False, 0),
        ("0x1ae0", "0x0027", True, 0),
        ("0x10de", "0x0063", True, 0),
    ],
)
def test_real_tpus(tmp_path: Path, vendor: str, device: str, open_to_us: bool, count: int) -> None:
    """As torch_tpu looks for them: on the bus, of a known kind, and given to VFIO."""
    place = tmp_path / "pci" / "0000:00:05.0"
    place.mkdir(parents=True)
    (place / "vendor").write_text(f"{vendor}\n")
    (place / "device").write_text(f"{device}\n")
    (place / "iommu_group").symlink_to("/sys/kernel/iommu_groups/7")
    vfio = tmp_path / "vfio"
    vfio.mkdir()
    if open_to_us:
        (vfio / "7").touch()
    assert hardware.real_tpus(tmp_path / "pci", vfio) == count
    assert hardware.real_tpus(tmp_path / "none", vfio) == 0
