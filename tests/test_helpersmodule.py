"""`--helpers-module`: helpers in one module, in every place where that may stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from xla2tpu.cli import main

XM = "import torch_xla.core.xla_model as xm\n"
USE = f"{XM}\n\ndef f():\n    return [xm.save, xm.get_ordinal]\n"


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("setup.cfg").touch()


def migrate(module: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["migrate", ".", "--helpers-module", module, *options])


def put(**files: str) -> None:
    for name, text in files.items():
        path = Path(name.replace("__", "/").replace("/init/", "__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(file: str) -> str:
    """The names that a module has once it is imported, those of torch replaced by stand-ins."""
    code = (
        "import sys, types, importlib.util as u\n"
        "for m in ('torch', 'torch.distributed', 'torch.utils', 'torch.utils._pytree'):\n"
        "    sys.modules[m] = types.ModuleType(m); sys.modules[m].tree_map_only = None\n"
        "sys.modules['torch'].distributed = sys.modules['torch.distributed']\n"
        f"import {file} as m; print(*sorted(n for n in vars(m) if n[:2] != '__'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_module() -> None:
    put(a=USE, pkg__b=USE)
    assert migrate("pkg.tpu").exit_code == 0
    assert Path("a.py").read_text() == (
        "from pkg.tpu import global_rank, save_cpu\n\n\n"
        "def f():\n    return [save_cpu, global_rank]\n"
    )
    assert "save_cpu" in names("pkg.b")
    assert migrate("pkg.tpu").exit_code == 0


def test_a_package() -> None:
    put(a=USE)
    Path("flowers/tpu").mkdir(parents=True)
    Path("flowers/__init__.py").touch()
    Path("flowers/tpu/__init__.py").write_text("kept = 1\n")
    assert migrate("flowers.tpu").exit_code == 0
    assert not Path("flowers/tpu.py").exists()
    assert Path("flowers/tpu/__init__.py").read_text().startswith("import torch")
    assert "kept" in names("flowers.tpu")
    assert "save_cpu" in names("a")


def test_a_module_that_uses_torch_xla_itself() -> None:
    put(flowers__tpu=f"{USE}\n\nw = xm.xrt_world_size\n", a=USE)
    done = migrate("flowers.tpu")
    assert done.exit_code == 0, done.output
    text = Path("flowers/tpu.py").read_text()
    assert "torch_xla" not in text
    assert "from flowers" not in text
    assert text.count("def save_cpu(") == text.count("def global_rank(") == 1
    assert "world_size" in names("flowers.tpu")
    assert "global_rank" in names("a")
    assert migrate("flowers.tpu").stdout.startswith("3 files scanned, nothing of torch_xla")


TAKEN = {
    "assigned": "save_cpu = 3\n",
    "imported": "from logs import save_cpu\n",
    "under a condition": "if flag:\n    def save_cpu(): pass\n",
    "in a loop": "for save_cpu in x: pass\n",
    "another function": 'def save_cpu(x):\n    """Mine."""\n',
}


@pytest.mark.parametrize("text", TAKEN.values(), ids=TAKEN)
def test_another_thing_of_that_name(text: str) -> None:
    put(a=USE, h=text)
    done = migrate("h")
    assert done.exit_code == 2
    assert "another save_cpu stands there" in done.output
    assert Path("h.py").read_text() == text
    assert Path("a.py").read_text() == USE


def test_standard_input_says_what_is_missing() -> None:
    command = [
        "check",
        "--fix",
        "--unsafe-fixes",
        "-",
        "--stdin-filename",
        "a.py",
        "--helpers-module",
        "h",
    ]
    done = CliRunner().invoke(main, command, input=USE)
    assert "h has to hold global_rank, save_cpu" in done.stderr


def test_a_keyword_is_no_name() -> None:
    assert migrate("class.a").exit_code == 2
