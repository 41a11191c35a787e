"""Names across the files of a project, and what a file keeps for the others."""

from __future__ import annotations

import re
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


BIND = XM
USE = "xm.mark_step()\n"

# Files of a project; the names of `use.py` are found, and what it imports stays bound.
ACROSS = {
    "backslash": {
        "device.py": "from torch_xla.core.xla_model import mark_step, \\\n    xla_device\n",
        "use.py": "from device import xla_device\nd = xla_device()\n",
    },
    "backslash in a plain import": {
        "device.py": BIND,
        "use.py": "import os, sys, \\\n    device\ndevice.xm.mark_step()\n",
    },
    "backslash before import": {
        "device.py": BIND,
        "use.py": f"from device \\\n    import xm\n{USE}",
    },
    "parenthesis in a comment": {
        "device.py": "from torch_xla.core.xla_model import (\n    mark_step,  # flush (it)\n"
        "    xla_device,\n)\n",
        "use.py": "from device import (\n    mark_step,  # the (lazy) graph\n    xla_device,\n)\n"
        "d = xla_device()\n",
    },
    "semicolon": {
        "device.py": f"import os; {BIND}",
        "use.py": f"import os; from device import xm\n{USE}",
    },
    "one-line if": {
        "device.py": f"if True: {BIND}",
        "use.py": f"if True: from device import xm\n{USE}",
    },
    "loop": {
        "device.py": f"for i in range(1):\n    {BIND}",
        "use.py": f"from device import xm\n{USE}",
    },
    "after a string in a try": {
        "device.py": f'try:\n    Y = """\nx\n"""\n    {BIND}except ImportError:\n    xm = None\n',
        "use.py": f"from device import xm\n{USE}",
    },
    "module under another name": {
        "pkg/__init__.py": "",
        "pkg/device.py": BIND,
        "pkg/mid.py": "from . import device as dd\n",
        "use.py": "from pkg.mid import dd\ndd.xm.mark_step()\n",
    },
    "module under another name, in a package": {
        "src/acme/__init__.py": "from .a import dev as hw\n",
        "src/acme/a/__init__.py": "",
        "src/acme/a/dev.py": "from torch_xla.core import xla_model\n",
        "use.py": "import acme\nacme.hw.xla_model.mark_step()\n",
    },
    "aliases in a tuple": {
        "device.py": f"{BIND}mark, wait = xm.mark_step, xm.wait_device_ops\n",
        "use.py": "from device import mark\nmark()\n",
    },
    "alias in between": {
        "pkg/__init__.py": "",
        "pkg/device.py": BIND,
        "pkg/mid.py": "from .device import xm\nmark = xm.mark_step\n",
        "use.py": "from pkg.mid import mark\nmark()\n",
    },
    "getattr": {"device.py": BIND, "use.py": 'import device\ngetattr(device, "xm").mark_step()\n'},
}


@pytest.mark.parametrize("more", [0, 70], ids=["few", "many"])
@pytest.mark.parametrize("files", ACROSS.values(), ids=ACROSS)
def test_names_are_followed_in_any_form(tmp_path: Path, files: dict[str, str], more: int) -> None:
    files = {**files, **{f"other{i}.py": "x = 1\n" for i in range(more)}}
    project = Run(tmp_path, files)
    found = project.results["use.py"].findings
    assert [f.api.rpartition(".")[2] for f in found if f.counts] in (["mark_step"], ["xla_device"])


@pytest.mark.parametrize("files", ACROSS.values(), ids=ACROSS)
def test_what_others_use_stays(tmp_path: Path, files: dict[str, str]) -> None:
    (binding,) = (n for n, text in files.items() if "torch_xla" in text)
    project = Run(tmp_path, files, [binding])
    names = re.findall(r"\b(?:xm|mark|xla_device|xla_model)\b", files["use.py"])
    assert {"xm", *names} & set(re.findall(r"\w+", project.after[binding]))


TWICE = {
    "two modules": "if flag:\n    import torch_xla.core.xla_model as xm\nelse:\n"
    "    import torch_xla.runtime as xm\n",
    "a stand-in": "try:\n    import torch_xla.core.xla_model as xm\nexcept ImportError:\n"
    "    from . import fake as xm\n",
}


@pytest.mark.parametrize("text", TWICE.values(), ids=TWICE)
def test_a_name_that_is_bound_twice_elsewhere(tmp_path: Path, text: str) -> None:
    files = {"p/__init__.py": "", "p/fake.py": "", "p/dev.py": text}
    project = Run(tmp_path, {**files, "p/use.py": f"from .dev import xm\n{USE}"})
    (finding,) = (f for f in project.results["p/use.py"].findings if f.counts)
    assert finding.reason == "ambiguous-binding"
    assert project.results["p/use.py"].output is None or b"xm.mark_step" in (
        project.results["p/use.py"].output or b""
    )


def test_a_module_that_leads_back_to_itself(tmp_path: Path) -> None:
    files = {"pkg/__init__.py": "from .version import version\nfrom ._ext import nms as _ext\n"}
    project = Run(tmp_path, {**files, "train.py": f"from pkg import version\n{BIND}{USE}"})
    assert all(r.error is None for r in project.results.values())
    assert project.after["train.py"] == "from pkg import version\n"


OTHERS = {
    "a flag": (
        "from helpers import HAVE\nif HAVE:\n    import torch_xla.core.xla_model as xm\n"
        "\n\ndef f():\n    xm.mark_step()\n",
        "from a import HAVE\n",
        "from helpers import HAVE",
    ),
    "a module": (
        f'import os\n{BIND}if os.environ.get("X"):\n    xm.mark_step()\n',
        "import a\n\nprint(a.os.sep)\n",
        "import os",
    ),
    "all": (
        f'import os\n{BIND}if os.environ.get("X"):\n    xm.mark_step()\n',
        "from a import *\n\nprint(os.sep)\n",
        "import os",
    ),
}


@pytest.mark.parametrize(("text", "user", "kept"), OTHERS.values(), ids=OTHERS)
def test_other_names_that_are_imported_from_here_stay(
    tmp_path: Path, text: str, user: str, kept: str
) -> None:
    project = Run(tmp_path, {"a.py": text, "b.py": user, "helpers.py": "HAVE = True\n"})
    assert kept in project.after["a.py"]
    assert "torch_xla" not in project.after["a.py"]


def test_a_star_takes_what_is_used_and_not_what_is_only_spoken_of(tmp_path: Path) -> None:
    files = {
        "a.py": f"{XM}xm.mark_step()\n",
        "b.py": 'from a import *\n\n# xm.mark_step()\n\n\ndef f():\n    """`xm.mark_step()`"""\n',
    }
    assert Run(tmp_path, files).after["a.py"] == ""
