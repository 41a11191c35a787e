"""Calls without a kernel: the names that lead to them, what is left alone, and what it means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from xla2tpu import kerneltable, missingops
from xla2tpu.cli import main
from xla2tpu.comments import read
from xla2tpu.config import code_prefixes
from xla2tpu.engine import run_source
from xla2tpu.kerneltable import KernelTable
from xla2tpu.model import Applicability, FileResult, Mode, Settings, Status
from xla2tpu.prefilter import interesting
from xla2tpu.rules import load_rules

DEVICE = '\n\ndevice = torch.device("tpu")\n'


def run(source: str, **options: object) -> FileResult:
    settings = Settings(root="/nowhere", **options)  # type: ignore[arg-type]
    return run_source(source.encode(), "/nowhere/a.py", settings)


def found(source: str) -> list[tuple[str, str]]:
    return [(f.rule, f.api) for f in run(source).findings if f.rule.startswith("TPU")]


MEDIAN = ("TPU206", "torch.median")
SMOOTH = ("TPU201", "torch.nn.SmoothL1Loss")


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("x = torch.median(y)\n", MEDIAN),
        ("from torch import median as m\nx = m(y)\n", MEDIAN),
        ("import torch as th\nx = th.median(y, dim=0)\n", MEDIAN),
        ("f = torch.median\nx = f(y)\nz = f(x)\n", MEDIAN),
        ("nn = torch.nn\nx = nn.SmoothL1Loss()\n", SMOOTH),
        ("from torch.nn.modules.loss import SmoothL1Loss\nx = SmoothL1Loss()\n", SMOOTH),
        ("import torch.nn.modules as m\nx = m.SmoothL1Loss()\n", SMOOTH),
        ("class Mine(torch.nn.SmoothL1Loss):\n    pass\n", SMOOTH),
        (
            "from torch.distributions.gamma import Gamma\nx = Gamma(a, b)\n",
            ("TPU211", "torch.distributions.Gamma"),
        ),
        ("class A:\n    def f(self):\n        self.loss = torch.nn.SmoothL1Loss()\n", SMOOTH),
    ],
)
def test_names_that_lead_there(source: str, wanted: tuple[str, str]) -> None:
    assert found("import torch" + DEVICE + source) == [wanted]


@pytest.mark.parametrize(
    "source",
    [
        "def f(torch):\n    return torch.median(y)\n",
        "from numpy import median\nx = median(y)\n",
        "x = y.median()\n",
        "x = torch.median(y.cpu())\n",
        'x = torch.median(y.to("cpu"))\n',
        "def f(loss: torch.nn.SmoothL1Loss) -> torch.nn.SmoothL1Loss: ...\n",
        "x = isinstance(y, (torch.nn.L1Loss, torch.nn.SmoothL1Loss))\n",
        'x = torch.unique(y), torch.nn.functional.interpolate(y, mode="bilinear")\n',
        "x = torch.unique(*y)\n",
        "x = torch.logspace(0, 1, 5)\n",
        "torch.median = None\n",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert found("import torch" + DEVICE + source) == []


@pytest.mark.parametrize(
    ("head", "searched"),
    [
        ("import torch_xla\n", True),
        ("import torch_tpu\n", True),
        ('device = "tpu:0"\nx = y.to("tpu:0")\n', True),
        ("x = torch.ones(1, device='tpu')\n", True),
        ('device = torch.device("cuda")\n', False),
        ('trainer = Trainer(accelerator="tpu")\n', False),
        ("import torch_neuronx, torch_xla\n", False),
    ],
)
def test_only_in_files_for_tpus(head: str, searched: bool) -> None:
    source = "import torch\n" + head + "z = torch.median(y)\n"
    assert (found(source) == [MEDIAN]) is searched
    if searched:
        assert interesting(source.encode())


def test_the_place_is_told_and_nothing_is_done() -> None:
    source = "import torch" + DEVICE + "x = torch.median(y)\n"
    result = run(source, mode=Mode.MIGRATE, unsafe=True, partial=True)
    (finding,) = result.findings
    assert (finding.line, finding.column) == (4, 5)
    assert (finding.counts, finding.blocks) == (False, False)
    assert (finding.applicability, finding.reason) == (Applicability.MANUAL, "no-kernel")
    assert finding.message == (
        "`torch.median` raises on the TPU: torch_tpu 0.2.0 has no kernel for aten::median"
    )
    assert (result.output, result.status) == (None, Status.DONE)


def test_it_does_not_keep_a_file_from_being_done() -> None:
    source = "import torch\nimport torch_xla\n\nd = torch_xla.device()\nx = torch.median(y)\n"
    result = run(source, mode=Mode.FIX, unsafe=True)
    assert result.status is Status.DONE
    assert result.output is not None
    assert b"TODO" not in result.output
    assert [f.rule for f in result.findings if not f.applied] == ["TPU206"]


def test_a_kernel_that_comes_ends_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    old = kerneltable.newest()
    new = KernelTable("9.0", old.kernels | {"aten::median", "aten::median.dim_values"})
    monkeypatch.setattr(kerneltable, "newest", lambda: new)
    missingops._index.cache_clear()
    try:
        assert found("import torch" + DEVICE + "x = torch.median(y)\n") == []
        assert found("import torch" + DEVICE + "x = torch.mode(y)\n") == [("TPU206", "torch.mode")]
    finally:
        missingops._index.cache_clear()


def test_the_newest_table_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for release in ("0.2.0", "0.10.1", "0.9"):
        table = {"torch_tpu": release, "kernels": ["aten::add.out"]}
        (tmp_path / f"torch_tpu-{release}.json").write_text(json.dumps(table))
    (tmp_path / "notes.txt").write_text("")
    monkeypatch.setattr(kerneltable, "FOLDER", str(tmp_path))
    table_ = kerneltable.newest.__wrapped__()
    assert table_.torch_tpu == "0.10.1"
    assert table_.lacks("sub.out")
    assert not table_.lacks("add.out")


def test_all_that_the_rules_name_is_missing_from_the_table() -> None:
    table = kerneltable.newest()
    present = [
        f"{rule.code} {op.path}: {need}"
        for rule in load_rules().rules.values()
        for op in rule.ops
        for need in op.needs
        if not table.lacks(need)
    ]
    assert present == []


@pytest.mark.parametrize(
    "comment", ["# noqa: TPU206", "# xla2tpu: ignore[TPU2]", "# noqa: E1,TPU206"]
)
def test_suppressed(comment: str) -> None:
    result = run("import torch" + DEVICE + f"x = torch.median(y)  {comment}\n")
    assert [(f.rule, f.suppressed) for f in result.findings] == [("TPU206", True)]


def test_markers_with_these_codes_are_ours() -> None:
    assert read("# TODO(xla2tpu): TPU206 Sort.\nx = 1\n").markers == {1: "TPU206"}
    assert code_prefixes(["tpu2"]) == ("TPU2",)
    with pytest.raises(ValueError, match="no code prefix"):
        code_prefixes(["TPX2"])


def test_exit_status(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("import torch" + DEVICE + "x = torch.median(y)\n")
    status = {
        options: CliRunner().invoke(main, ["check", str(file), *options]).exit_code
        for options in ((), ("--ignore", "TPU"), ("--select", "XLA"), ("--select", "TPU206"))
    }
    assert list(status.values()) == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("name", "code"),
    [("torch.median", "TPU206"), ("F.smooth_l1_loss", "TPU201"), ("nn.SmoothL1Loss", "TPU201")],
)
def test_query(name: str, code: str) -> None:
    done = CliRunner().invoke(main, ["query", name])
    assert done.exit_code == 0
    assert f"[{code} " in done.stdout
    assert CliRunner().invoke(main, ["query", "torch.relu"]).exit_code == 1
