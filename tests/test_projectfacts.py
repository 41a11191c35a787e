"""What the files around the code say against TorchTPU."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from xla2tpu.cli import main
from xla2tpu.projectfacts import PYTHON, TORCH, excludes
from xla2tpu.report import json_

CODE = """\
import os

import torch_xla.core.xla_model as xm
import torch_xla.utils.serialization as xser

os.environ["XLA_USE_BF16"] = "1"


def keep(model):
    xser.save(model.state_dict(), "model.pt")
    xm.mark_step()
"""


@pytest.mark.parametrize(
    ("versions", "needed", "wanted"),
    [
        ("==2.1.0", TORCH, True),
        ("===2.1", TORCH, True),
        ("2.4.1", TORCH, True),
        ("==2.1.*", TORCH, True),
        ("2.*", TORCH, False),
        ("2.1.*", TORCH, True),
        ("<2.11", TORCH, True),
        ("<2.11.1", TORCH, False),
        ("<=2.10", TORCH, True),
        ("<=2.11", TORCH, False),
        (">=1.13, <2.5", TORCH, True),
        ("~=2.1", TORCH, False),
        ("~=2.1.0", TORCH, True),
        ("~=2", TORCH, False),
        ("^2.1", TORCH, False),
        ("^1.13", TORCH, True),
        ("^0.4", TORCH, True),
        ("~2.4", TORCH, True),
        (">=2.0", TORCH, False),
        ("!=2.1", TORCH, False),
        ("", TORCH, False),
        ("*", TORCH, False),
        ("<2.0 || >2.12", TORCH, False),
        ("==2.13.0", TORCH, False),
        (">=3.8", PYTHON, False),
        (">=3.7,<3.11", PYTHON, True),
        ("==3.8.*", PYTHON, True),
        ("^3.8", PYTHON, False),
        ("~3.9", PYTHON, True),
    ],
)
def test_excludes(versions: str, needed: tuple[int, ...], wanted: bool) -> None:
    assert excludes(versions, needed) is wanted


def facts(tmp_path: Path, files: dict[str, str], *options: str) -> list[tuple[str, str, int, int]]:
    """Name, path, line and column of the notes on a project with these files and some code."""
    for name, text in {"train.py": CODE, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    report = tmp_path.parent / "report.json"
    done = CliRunner().invoke(
        main, ["migrate", str(tmp_path), "--diff", "--report", str(report), *options]
    )
    assert done.exit_code == 1, done.output
    document = json.loads(report.read_text())
    jsonschema.Draft202012Validator(json_.SCHEMA).validate(document)
    return [
        (n["name"], Path(n["path"]).relative_to(tmp_path).as_posix(), n["line"], n["column"])
        for n in document["notes"]
        if n["kind"] == "project"
    ]


OF_CODE = [("bf16-variable", "train.py", 6, 12), ("xser-checkpoint", "train.py", 10, 5)]


def test_of_the_code_alone(tmp_path: Path) -> None:
    assert facts(tmp_path, {}) == OF_CODE


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (
            "pyproject.toml",
            '[project]\nrequires-python = ">=3.8,<3.11"\ndependencies = ["torch[x] == 2.1 ; a"]\n',
            [("python-pin", 2, 20), ("torch-pin", 3, 18)],
        ),
        (
            "pyproject.toml",
            '[project.optional-dependencies]\ntpu = ["torch~=2.1.0", "torchvision==0.1"]\n',
            [("torch-pin", 2, 9)],
        ),
        (
            "pyproject.toml",
            '[tool.poetry.dependencies]\npython = "~3.9"\ntorch = {version = "1.13.1"}\n',
            [("python-pin", 2, 11), ("torch-pin", 3, 21)],
        ),
        (
            "pyproject.toml",
            '[dependency-groups]\ntest = ["torch<2", {a = "b"}]\n',
            [("torch-pin", 2, 10)],
        ),
        ("pyproject.toml", "[project\n", []),
        ("pyproject.toml", 'project = 3\n[tool.poetry]\ndependencies = ["a"]\n', []),
        (
            "setup.cfg",
            "[options]\npython_requires = <3.10\ninstall_requires =\n    numpy\n    torch==1.9\n",
            [("python-pin", 2, 19), ("torch-pin", 5, 5)],
        ),
        (
            "requirements.txt",
            "transformers>=4.30,<5\ntransformers[torch]>=4\nOptimum_TPU\nvllm-tpu==0.12.0\n",
            [
                ("framework-package", 3, 1),
                ("framework-package", 4, 1),
                ("transformers-pin", 1, 1),
            ],
        ),
        (
            "requirements.txt",
            "sglang[all]>=0.5\nsglang-router\ntorchtune==0.6.1\n",
            [("framework-package", 1, 1), ("framework-package", 3, 1)],
        ),
        (
            "pyproject.toml",
            '[tool.poetry.dependencies]\ntransformers = "~4.30"\noptimum-tpu = "*"\n',
            [("framework-package", 3, 1), ("transformers-pin", 2, 17)],
        ),
        ("setup.cfg", "[options.extras_require]\ntpu =\n    torch<2.3\n", [("torch-pin", 3, 5)]),
        ("setup.cfg", "not a section\n", []),
        ("requirements.txt", "# torch==1.0\ntorch<2.5  # old\n", [("torch-pin", 2, 1)]),
        ("requirements/requirements-tpu.txt", "-r base.txt\nTorch==2.0\n", [("torch-pin", 2, 1)]),
        ("requirements.txt", "torch>=2.11\ntorch-xla==2.1\n", []),
        ("notes.txt", "torch==1.0\n", []),
        ("scripts/run.sh", "export XLA_USE_BF16=1\n", [("bf16-variable", 1, 8)]),
        ("Dockerfile", "ENV XLA_DOWNCAST_BF16 1\n", [("bf16-variable", 1, 5)]),
        ("env.yaml", 'env:\n  - name: XLA_USE_BF16\n    value: "1"\n', [("bf16-variable", 2, 11)]),
        ("run.sh", 'echo "XLA_USE_BF16: $@"\nXLA_USE_BF16=0 python a.py\n', []),
        ("README.md", "For TPUv3+.", []),
        ("old.py", "import torch_xla\n# for TPU v3\nkinds = ['v2-8']\n", [("old-tpu", 3, 11)]),
        ("old.py", "import torch_xla  # é\nx = 1  # é: as on a v3-8\n", []),
        ("zero.py", "import os\nos.environ['XLA_USE_BF16'] = str(0)\n", []),
        ("zero.py", "import os\nos.environ.setdefault('XLA_USE_BF16', '0')\n", []),
        ("one.py", "import os\nos.environ['XLA_USE_BF16'] = str(1)\n", [("bf16-variable", 2, 12)]),
        (
            "get.py",
            "import os\nx = os.environ.get('XLA_USE_BF16', '1')\n",
            [("bf16-variable", 2, 20)],
        ),
        ("README.md", "We used a v3-8.\nAnd a TPU v2.\n", [("old-tpu", 1, 11)]),
        ("README.md", "A TPUv3 of release 1.v3-8x, v4-8, v5e-3\n", [("old-tpu", 1, 3)]),
        ("README.md", "See conv3-64, rev2-8x and v3-9.\n", []),
        ("venv/pyvenv.cfg", "", []),
    ],
)
def test_of_other_files(
    tmp_path: Path, name: str, text: str, found: list[tuple[str, int, int]]
) -> None:
    wanted = [*OF_CODE, *((note, name, line, column) for note, line, column in found)]
    assert facts(tmp_path, {name: text}) == sorted(wanted)


def test_files_that_are_left_out(tmp_path: Path) -> None:
    files = {
        ".venv/requirements.txt": "torch==1.0\n",
        "old/run.sh": "export XLA_USE_BF16=1\n",
        "large.txt": "v3-8 " * 300_000,
        "pyproject.toml": '[tool.xla2tpu]\nexclude = ["old/**"]\n',
    }
    assert facts(tmp_path, files) == OF_CODE


def test_the_top_of_the_project_is_read_for_a_part_of_it(tmp_path: Path) -> None:
    files = {
        "requirements.txt": "torch==2.0\n",
        "setup.cfg": "",
        "mail.txt": "TPU v2",
        "part/a.py": CODE,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = CliRunner().invoke(main, ["migrate", str(tmp_path / "part"), "--diff"])
    assert "requirements.txt:1:1 `torch==2.0` excludes torch 2.11" in done.stderr
    assert "TPU v2" not in done.stderr


def test_nothing_is_said_of_projects_without_torch_xla(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    (tmp_path / "requirements.txt").write_text("torch==2.0\n")
    done = CliRunner().invoke(main, ["migrate", str(tmp_path), "--diff"])
    assert (done.exit_code, "excludes" in done.output) == (0, False)


def test_every_report_has_the_notes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CODE + "    model.double()\n")
    (tmp_path / "requirements.txt").write_text("torch==2.0\n")
    for suffix in ("md", "html"):
        report = tmp_path.parent / f"report.{suffix}"
        done = CliRunner().invoke(
            main,
            [
                "migrate",
                str(tmp_path),
                "--out-dir",
                str(tmp_path.parent / suffix),
                "--report",
                str(report),
            ],
        )
        text = report.read_text()
        for place in ("requirements.txt:1:1", "train.py:12:5", "train.py:10:5"):
            assert place in text
            assert place in done.stdout
        assert "The project" in text
        assert "After the swap" in text
    quiet = CliRunner().invoke(main, ["migrate", str(tmp_path), "--diff", "-q"])
    assert "The project" not in quiet.output
    check = CliRunner().invoke(main, ["check", str(tmp_path), "--output-format", "json"])
    assert json.loads(check.stdout)["notes"] == []


def test_notes_do_not_change_the_exit_status(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch_xla.core.xla_model as xm\n\n\ndef f(x):\n    xm.mark_step()\n    x.double()\n"
    )
    done = CliRunner().invoke(main, ["migrate", str(tmp_path)])
    assert "float64 is emulated" in done.stdout
    assert done.exit_code == 0
