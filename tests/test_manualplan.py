"""The manual plan of SPMD and FSDP programs: expected plans, and where there is none."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from test_targets import resolved

from xla2tpu.cli import main
from xla2tpu.manualplan import _IMPORTS
from xla2tpu.model import STAGES
from xla2tpu.report import json_

FIXTURES = Path(__file__).parent.parent / "fixtures" / "plans"
PROJECTS = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
MESH = """\
import numpy as np
import torch_xla.distributed.spmd as xs

mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
"""


def migrate(folder: Path, *options: str) -> Result:
    """Run in the folder, as a person would."""
    here = os.getcwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(main, ["migrate", ".", "--diff", *options])
    finally:
        os.chdir(here)


def document(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    """The JSON report on a project with these files."""
    for name, text in {"pyproject.toml": "", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    done = migrate(folder, "--report", "report.json")
    assert done.exit_code in (0, 1), done.output
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    jsonschema.Draft202012Validator(json_.SCHEMA).validate(report)
    return report


def steps(folder: Path, files: dict[str, str]) -> list[dict[str, Any]]:
    """The steps of the one plan on a project with these files."""
    (plan,) = document(folder, files)["plans"]
    found: list[dict[str, Any]] = plan["steps"]
    return found


@pytest.mark.parametrize("name", PROJECTS)
def test_plan_of_a_project(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    project = tmp_path / name
    shutil.copytree(FIXTURES / name, project)
    (project / "plan.txt").unlink(missing_ok=True)
    (project / "pyproject.toml").write_text("")
    output = migrate(project).stderr
    start = output.index("Plan for SPMD and FSDP in ")
    lines = output[start:].splitlines(keepends=True)
    plan = "".join(lines[:1] + _indented(lines[1:]))
    expected = FIXTURES / name / "plan.txt"
    if request.config.getoption("--update-fixtures"):
        expected.write_text(plan, encoding="utf-8")
    assert plan == expected.read_text(encoding="utf-8")


def _indented(lines: list[str]) -> list[str]:
    end = next((i for i, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    return lines[:end]


@pytest.mark.parametrize("name", PROJECTS)
def test_every_report_has_the_plan(name: str, tmp_path: Path) -> None:
    project = tmp_path / name
    shutil.copytree(FIXTURES / name, project)
    for suffix in ("json", "md", "html"):
        assert migrate(project, "--report", f"r.{suffix}").exit_code == 1
    (plan,) = json.loads((project / "r.json").read_text())["plans"]
    page, markdown = ((project / f"r.{s}").read_text() for s in ("html", "md"))
    assert plan["steps"]
    order = [list(STAGES).index(step["stage"]) for step in plan["steps"]]
    assert order == sorted(order)
    for step in plan["steps"]:
        place = f"{step['path']}:{step['line']}:{step['column']}"
        assert place in markdown or f", {step['line']}:{step['column']}" in markdown
        for line in step["target"].splitlines():
            assert line in markdown
    for stage in {step["stage"] for step in plan["steps"]}:
        assert STAGES[stage] in markdown
        assert STAGES[stage] in page
    assert 'id="plan-1"' in page


@pytest.mark.parametrize("name", PROJECTS)
def test_code_is_python(name: str, tmp_path: Path) -> None:
    project = tmp_path / name
    shutil.copytree(FIXTURES / name, project)
    migrate(project, "--report", "r.json")
    (plan,) = json.loads((project / "r.json").read_text())["plans"]
    for step in plan["steps"]:
        if step["stage"] not in ("launch", "convert") and step["target"]:
            ast.parse(f"def f():\n{textwrap.indent(step['target'], '    ')}\n")
    for line in plan["imports"]:
        ast.parse(line)


def test_imports_exist() -> None:
    pytest.importorskip("torch_tpu")
    names = []
    for line in _IMPORTS.values():
        node = ast.parse(line).body[0]
        module = node.module if isinstance(node, ast.ImportFrom) else None
        assert isinstance(node, (ast.Import, ast.ImportFrom))
        names += [f"{module}.{a.name}" if module else a.name for a in node.names]
    names += ["torch.nn.utils.clip_grad_norm_", "torch.distributed.checkpoint.async_save"]
    names += ["torch.tpu.distributed.topology_aware_mesh", "torch.distributed.fsdp.FSDPModule"]
    assert {n: a for n, a in resolved(names).items() if a} == {}


def test_no_plan_without_such_a_program(tmp_path: Path) -> None:
    code = "import torch_xla.core.xla_model as xm\n\nprint(xm.xla_device())\n"
    assert document(tmp_path, {"a.py": code})["plans"] == []


def test_no_plan_for_check(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(MESH)
    done = CliRunner().invoke(main, ["check", str(tmp_path), "--output-format", "json"])
    assert json.loads(done.stdout)["plans"] == []


def test_a_suppressed_place_is_left_out(tmp_path: Path) -> None:
    code = MESH + "xs.mark_sharding(x, mesh, (0,))  # noqa: XLA804\n"
    assert [s["what"] for s in steps(tmp_path, {"a.py": code})] == ["mesh"]


def test_projects_have_plans_of_their_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text("")
    plans = document(tmp_path, {"one/a.py": MESH, "two/a.py": MESH, "two/b.py": "x = 1\n"})["plans"]
    assert sorted(plan["project"] for plan in plans) == ["one", "two"]
    assert [len(plan["steps"]) for plan in plans] == [1, 1]


def test_files_that_work_with_a_program(tmp_path: Path) -> None:
    found = steps(
        tmp_path,
        {
            "layout.py": MESH,
            "data.py": "from torch.utils.data import DataLoader\n\nl = DataLoader(x)\nprint(1)\n",
            "train.py": "import data, layout\n\nprint(2)\nif rank == 0:\n    print(3)\n",
            "other.py": "import data\n\nprint(4)\n",
        },
    )
    places = [(s["stage"], s["path"], s["line"]) for s in found]
    assert places == [("mesh", "layout.py", 4), ("data", "data.py", 3), ("output", "train.py", 3)]


def test_lines_that_start_a_program(tmp_path: Path) -> None:
    program = MESH + '\nif __name__ == "__main__":\n    pass\n'
    found = steps(
        tmp_path,
        {
            "pkg/train.py": program,
            "run.sh": "cd x\n# python pkg/train.py\npython3 -u ./pkg/train.py --a 1\n",
            "job.yaml": "run: python -m pkg.train\n",
            "other.sh": "python other.py\npython prepkg/train.pyx\n",
            "own/train.py": "",
            "own/run.sh": "python train.py\n",
            "Dockerfile": 'CMD ["python", "-u", "pkg/train.py", "--a", "1"]\n',
        },
    )
    launch = {(s["path"], s["line"]): s["target"].splitlines()[1] for s in found[:4]}
    assert launch == {
        ("Dockerfile", 1): "torchrun --nproc_per_node=N pkg/train.py --a 1",
        ("job.yaml", 1): "torchrun --nproc_per_node=N -m pkg.train",
        ("pkg/train.py", 6): "torchrun --nproc_per_node=N pkg/train.py",
        ("run.sh", 3): "torchrun --nproc_per_node=N ./pkg/train.py --a 1",
    }
    assert {s["stage"] for s in found[4:]} == {"mesh"}


def test_the_shell_takes_the_path_of_a_program_as_one_word(tmp_path: Path) -> None:
    program = MESH + '\nif __name__ == "__main__":\n    pass\n'
    entry = steps(tmp_path, {"my code/train.py": program})[0]
    assert entry["target"].endswith("\ntorchrun --nproc_per_node=N 'my code/train.py'")


def test_notebooks(tmp_path: Path) -> None:
    cells = ["%matplotlib inline\n" + MESH, "import torch_xla.runtime as xr\n\nxr.use_spmd()\n"]
    notebook = {
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": ["# Text"]},
            *(
                {
                    "cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [],
                    "source": cell.splitlines(keepends=True),
                }
                for cell in cells
            ),
        ],
        "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
    found = steps(tmp_path, {"a.ipynb": json.dumps(notebook, indent=1)})
    assert [(s["stage"], s["path"], s["cell"], s["line"], s["column"]) for s in found] == [
        ("launch", "a.ipynb", 3, 3, 1),
        ("group", "a.ipynb", 3, 3, 1),
        ("mesh", "a.ipynb", 2, 5, 8),
    ]
    assert "a.ipynb:cell 2:5:8 mesh" in migrate(tmp_path).stderr


def test_meshes_of_different_sizes(tmp_path: Path) -> None:
    more = "other = xs.Mesh(np.arange(8), (8,))\n"
    (plan,) = document(tmp_path, {"a.py": MESH + more})["plans"]
    assert [s["devices"] for s in plan["steps"]] == [4, 8]
    assert plan["notes"][1] == (
        "Meshes of constant shape need different world sizes (4, 8): no one run."
    )


HEAD = MESH + "import torch\nimport torch_xla.runtime as xr\nfrom torch import nn\n"


@pytest.mark.parametrize(
    ("code", "stage", "target"),
    [
        ("xr.use_spmd()", "group", 'dist.init_process_group("tpu_dist")'),
        ("n = xr.global_runtime_device_count()", "ranks", "n = dist.get_world_size()"),
        (
            "m = xs.Mesh(ids, (2, 2))",
            "mesh",
            'm = DeviceMesh("tpu", torch.as_tensor(ids).reshape((2, 2)))',
        ),
        ("m = xs.Mesh(list(range(n)), (n,))", "mesh", 'm = init_device_mesh("tpu", (n,))'),
        ("xs.set_global_mesh(mesh)", "mesh", "MESH = mesh"),
        ("import torch_xla.core.xla_model as xm; xm.optimizer_step(o)", "optimizer", "o.step()"),
        (
            'm = xs.get_1d_mesh("x")',
            "mesh",
            'm = init_device_mesh("tpu", (dist.get_world_size(),), mesh_dim_names=("x",))',
        ),
        (
            "m = xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1))",
            "mesh",
            'm = DeviceMesh("tpu", torch.tpu.distributed.topology_aware_mesh((4, 2),'
            " dcn_mesh_shape=(2, 1)))",
        ),
        (
            "xs.mark_sharding(a.weight, mesh, (0, None))",
            "model",
            "a.weight = nn.Parameter(distribute_tensor(a.weight.data, mesh,"
            " [Shard(0), Replicate()]))",
        ),
        (
            "y = xs.mark_sharding(x, mesh, (0,))",
            "model",
            "y = distribute_tensor(x, mesh, [Shard(0), Replicate()])",
        ),
        (
            "y = xs.mark_sharding_with_gradients(\n    x, mesh, (0,)\n)",
            "activations",
            "y = x.redistribute(mesh, [Shard(0), Replicate()])",
        ),
        (
            "y = xs.MarkShardingFunction.apply(x, mesh, (0,))",
            "activations",
            "y = x.redistribute(mesh, [Shard(0), Replicate()])",
        ),
        ("xs.clear_sharding(x)", "activations", "x = x.full_tensor()"),
        (
            "a, b = xs.shard_as(a, b)",
            "activations",
            "b = b.redistribute(a.device_mesh, a.placements)",
        ),
        (
            "x = xs.enable_manual_sharding(x, (0,), mesh=mesh).global_tensor",
            "activations",
            "x = x.to_local()",
        ),
        (
            "d = xs.xla_distribute_tensor(x, mesh, p)",
            "model",
            "d = distribute_tensor(x, mesh, p)",
        ),
        (
            "for x in loader:\n    xs.mark_sharding(x, mesh, (0,))",
            "data",
            "x = DTensor.from_local(x, mesh, [Shard(0), Replicate()])",
        ),
    ],
)
def test_code_for_a_place(code: str, stage: str, target: str, tmp_path: Path) -> None:
    found = [s for s in steps(tmp_path, {"a.py": f"{HEAD}{code}\n"}) if s["line"] > 7]
    assert [(s["stage"], s["target"]) for s in found] == [(stage, target)]


FAKE = """\
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", rank=3, world_size=4, store=FakeStore())
"""


def run_as_one_of_four(*program: str) -> list[str]:
    """What a program prints that believes to be rank 3 of 4, on the CPU."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join((FAKE, *program)).replace('"tpu"', '"cpu"')],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_code_for_a_wrapper_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copytree(FIXTURES / "xla_fsdp", tmp_path, dirs_exist_ok=True)
    migrate(tmp_path, "--report", "r.json")
    (plan,) = json.loads((tmp_path / "r.json").read_text())["plans"]
    (code,) = [s["target"] for s in plan["steps"] if s["what"] == "wrapper of FSDP"]
    printed = run_as_one_of_four(
        *plan["imports"], (tmp_path / "net.py").read_text(), 'device = "cpu"', code,
        "print([type(m).__name__ for m in model.modules() if hasattr(m, 'unshard')])",
        "print({tuple(p.to_local().shape) for p in model.parameters() if p.dim() == 2})",
    )  # fmt: skip
    assert printed == ["['FSDPNet', 'FSDPBlock', 'FSDPBlock']", "{(4, 16)}"]


def test_code_for_parameters_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = (
        "xs.mark_sharding(model.weight, mesh, (None, 1))\n"
        "for name, p in model.named_parameters():\n    xs.mark_sharding(p, mesh, (0,))\n"
    )
    (plan,) = document(tmp_path, {"a.py": HEAD + code})["plans"]
    one, every = (s["target"] for s in plan["steps"] if s["stage"] == "model")
    setup = (
        'mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))\n'
        "def shapes():\n"
        "    laid = (p for p in model.parameters() if hasattr(p, 'to_local'))\n"
        "    return [tuple(p.to_local().shape) for p in laid]\n"
    )
    made, shown = "model = nn.Linear(8, 6)", "print(shapes())"
    program = (*plan["imports"], setup, made, one, shown, made, every, shown)
    assert run_as_one_of_four(*program) == ["[(6, 4)]", "[(3, 8), (3,)]"]


def test_a_loop_becomes_one_function(tmp_path: Path) -> None:
    code = (
        "for name, p in model.named_parameters():\n"
        '    if "up" in name:\n        xs.mark_sharding(p, mesh, ("model", None))\n'
        '    else:\n        xs.mark_sharding(p, mesh, (None, "model"))\n'
    )
    first, second = (s for s in steps(tmp_path, {"a.py": HEAD + code}) if s["stage"] == "model")
    assert first["target"].endswith("distribute_module(model, mesh, shard)")
    assert second["target"] == (
        "sharded = distribute_tensor(param.data, mesh, [Replicate(), Shard(1)])"
    )


def test_the_terminal_shows_the_first_places_of_a_stage(tmp_path: Path) -> None:
    marks = "".join(f"xs.mark_sharding(x{i}, mesh, (0,))\n" for i in range(14))
    assert len(steps(tmp_path, {"a.py": MESH + marks})) == 15
    assert "     and 2 places more: --report FILE has all\n" in migrate(tmp_path).stderr


@pytest.mark.parametrize(
    ("spec", "mesh", "line"),
    [
        ("(None, None)", "mesh", "replicas, part = 1, 0"),
        (
            '(("data", "model"), None)',
            "mesh",
            "replicas, part = dist.get_world_size(), dist.get_rank()",
        ),
        (
            '("data",)',
            "mesh",
            'replicas, part = mesh["data"].size(), mesh["data"].get_local_rank()',
        ),
        ("(1,)", "mesh", 'replicas, part = mesh["model"].size(), mesh["model"].get_local_rank()'),
        ('("data",)', "unknown", ""),
        ("spec", "mesh", ""),
    ],
)
def test_how_a_batch_is_split(spec: str, mesh: str, line: str, tmp_path: Path) -> None:
    code = (
        "from torch.utils.data import DataLoader\nloader = DataLoader(data, 8, shuffle=True,)\n"
        f"for x in loader:\n    xs.mark_sharding(x, {mesh}, {spec})\n"
    )
    (target,) = [
        s["target"] for s in steps(tmp_path, {"a.py": HEAD + code}) if s["what"] == "loader"
    ]
    sampler = "sampler = DistributedSampler(data, num_replicas=replicas, rank=part, shuffle=True)"
    loader = "loader = DataLoader(data, batch_size=8 // replicas, sampler=sampler)"
    assert target.splitlines() == [*([line] if line else []), sampler, loader]
