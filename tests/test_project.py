"""Names across the files of a project, and what a file keeps for the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from xla2tpu import batch
from xla2tpu.model import FileResult, Mode, Settings
from xla2tpu.runner import Request, run

XM = "import torch_xla.core.xla_model as xm\n"


class Run:
    """A migration of a project: its files before, the results, and its files after."""

    def __init__(self, root: Path, files: dict[str, str], only: list[str] | None = None) -> None:
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        settings = Settings(mode=Mode.MIGRATE, unsafe=True, todo=False, root=str(root))
        self.jobs = [(str(root / name), settings) for name in only or files]
        results = batch.run_project(self.jobs)
        self.results = {str(Path(r.path).relative_to(root)): r for r in results}
        for result in results:
            assert result.error is None
            if result.output is not None:
                Path(result.path).write_bytes(result.output)
        self.after = {name: (root / name).read_text() for name in files}
        again = batch.run_project(self.jobs)
        assert [r.path for r in again if r.output is not None] == []

    def left(self, name: str) -> list[tuple[str, str | None]]:
        """The code and the reason of what stays in a file."""
        result: FileResult = self.results[name]
        return [(f.rule, f.reason) for f in result.findings if not f.applied]


IMPORTERS = {
    "name": "from pkg.device import xm\n\nxm.mark_step()\nprint(1)\n",
    "module": "from pkg import device\n\ndevice.xm.mark_step()\nprint(1)\n",
    "dotted": "import pkg.device\n\npkg.device.xm.mark_step()\nprint(1)\n",
    "alias": "import pkg.device as d\n\nd.xm.mark_step()\nprint(1)\n",
    "star": "from pkg.device import *\n\nxm.mark_step()\nprint(1)\n",
}


@pytest.mark.parametrize("form", IMPORTERS)
def test_followed_through_a_module(tmp_path: Path, form: str) -> None:
    files = {"pkg/__init__.py": "", "pkg/device.py": XM, "run.py": IMPORTERS[form]}
    run = Run(tmp_path, files)
    assert [f.rule for f in run.results["run.py"].findings if f.counts] == ["XLA101"]
    assert "xm" not in run.after["run.py"]
    assert run.after["pkg/device.py"] == ""


@pytest.mark.parametrize("layout", ["", "src/"])
def test_relative_imports_and_layouts(tmp_path: Path, layout: str) -> None:
    files = {
        f"{layout}pkg/__init__.py": "",
        f"{layout}pkg/device.py": XM,
        f"{layout}pkg/sub/__init__.py": "",
        f"{layout}pkg/sub/train.py": "from ..device import xm\n\nxm.mark_step()\nprint(1)\n",
        "run.py": "from pkg.device import xm\n\nxm.mark_step()\nprint(2)\n",
    }
    run = Run(tmp_path, files)
    assert run.after[f"{layout}pkg/sub/train.py"] == "print(1)\n"
    assert run.after["run.py"] == "print(2)\n"
    assert run.after[f"{layout}pkg/device.py"] == ""


REEXPORT = {"pkg/__init__.py": "from . import device as dev_mod\n", "pkg/device.py": XM}
FROM_PACKAGE = 'from pkg import dev_mod\n\ndev_mod.xm.mark_step()\nprint("one")\n'
THROUGH_PACKAGE = 'import pkg\n\npkg.dev_mod.xm.mark_step()\nprint("two")\n'


def test_module_under_another_name_is_followed(tmp_path: Path) -> None:
    run = Run(tmp_path, {**REEXPORT, "m1.py": FROM_PACKAGE, "m2.py": THROUGH_PACKAGE})
    for name in ("m1.py", "m2.py"):
        assert [f.api for f in run.results[name].findings if f.counts] == [
            "torch_xla.core.xla_model.mark_step"
        ]
    assert "mark_step" not in run.after["m1.py"] + run.after["m2.py"]
    assert run.after["m1.py"].endswith('print("one")\n')
    assert run.after["m2.py"].endswith('print("two")\n')
    assert run.after["pkg/device.py"] == ""


def test_name_goes_only_with_its_importers(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/device.py": XM,
        "one.py": "from pkg.device import xm\n\nxm.mark_step()\nprint(1)\n",
        "two.py": "from pkg.device import xm\n\nxm.optimizer_step(opt, groups=g)\n",
    }
    run = Run(tmp_path, files)
    assert run.after["one.py"] == "print(1)\n"
    assert run.after["pkg/device.py"] == XM
    assert run.left("pkg/device.py") == [("XLA001", "imported-elsewhere")]
    assert run.left("two.py") == [("XLA501", "argument-not-supported")]


def test_importer_outside_the_run_keeps_the_name(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/device.py": XM,
        "run.py": "from pkg.device import xm\n\nxm.mark_step()\nprint(1)\n",
    }
    run = Run(tmp_path, files, only=["pkg/device.py"])
    assert run.after == files
    assert run.left("pkg/device.py") == [("XLA001", "imported-elsewhere")]


PATCHES = {
    "decorator": '@mock.patch("pkg.device.xm")\ndef test_it(fake):\n    fake.assert_not_called()\n',
    "with": 'with mock.patch("pkg.device.xm", None):\n    print(1)\n',
    "attribute": '@mock.patch("pkg.device.xm.mark_step")\ndef test_it(fake):\n    print(fake)\n',
}


@pytest.mark.parametrize("form", PATCHES)
def test_string_that_names_a_binding_keeps_it(tmp_path: Path, form: str) -> None:
    test = f"from unittest import mock\n\n\n{PATCHES[form]}"
    run = Run(tmp_path, {"pkg/__init__.py": "", "pkg/device.py": XM, "test_it.py": test})
    assert run.after["pkg/device.py"] == XM
    assert run.left("pkg/device.py") == [("XLA001", "imported-elsewhere")]


def test_star_and_named_reexports(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "from .names import *\nfrom .names import xm\n",
        "pkg/names.py": f"{XM}import torch_xla.runtime as xr\n",
        "run.py": "from pkg import xm, xr\n\nprint(xr.device_count())\nxm.mark_step()\n",
    }
    run = Run(tmp_path, files)
    assert [f.applied for f in run.results["run.py"].findings] == [True, True]
    assert "pkg" not in run.after["run.py"]
    assert run.after["pkg/__init__.py"] == files["pkg/__init__.py"]
    assert "import torch_xla.core.xla_model as xm\n" in run.after["pkg/names.py"]


def test_local_name_elsewhere_is_not_followed(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/device.py": f"def load():\n    {XM}    return xm\n\n\nxm = 1\n",
        "run.py": "from pkg.device import xm\n\nxm.mark_step()\n",
    }
    run = Run(tmp_path, files)
    assert run.results["run.py"].findings == []
    assert run.after["run.py"] == files["run.py"]


def test_folders_that_are_no_packages(tmp_path: Path) -> None:
    """Without a mark of a project only packages are searched, and all files of the run."""
    files = {
        "lib/device.py": XM,
        "lib/sub/train.py": "from lib.device import xm\n\nxm.optimizer_step(opt, groups=g)\n",
    }
    run = Run(tmp_path, files)
    assert run.after == files
    assert run.left("lib/device.py") == [("XLA001", "imported-elsewhere")]
    assert run.left("lib/sub/train.py") == [("XLA501", "argument-not-supported")]


def test_a_folder_without_any_mark_knows_its_importers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lib` is no package and no project; scripts beside it and in it import from it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / "work"
    (home / "lib").mkdir(parents=True)
    bind = "import torch_xla.core.xla_model as xm\nimport torch_xla.runtime as xr\n"
    (home / "lib" / "device.py").write_text(f"{bind}\nxm.mark_step()\n")
    (home / "lib" / "beside.py").write_text("from device import xr\n\nprint(xr)\n")
    (home / "train.py").write_text("from lib.device import xm\n\nprint(xm)\n")
    file = home / "lib" / "device.py"
    for given in (file, home / "lib"):
        run(Request((str(given),), Mode.FIX, partial=True))
        assert file.read_text() == bind
