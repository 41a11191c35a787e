"""Files that declare requirements: pyproject.toml, setup.py, setup.cfg, conda's environments."""

from __future__ import annotations

import pytest
from helpers_files import migrated, run, told

from xla2tpu.files.declared import without_item
from xla2tpu.model import Mode, Status

PROJECT = '[project]\nname = "x"\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('dependencies = ["torch_xla"]', 'dependencies = ["torch_tpu"]'),
        ("dependencies = ['a', 'torch-xla>=2']", "dependencies = ['a', 'torch-tpu>=0.2.0']"),
        (
            'dependencies = [\n  "libtpu",  # a\n  # b\n  "torch_xla",\n]',
            'dependencies = [\n  # b\n  "torch_tpu",\n]',
        ),
        ('dependencies = ["torch_xla", "libtpu"]', 'dependencies = ["torch_tpu"]'),
        ('dependencies = ["torch_xla[pallas]"]', 'dependencies = ["torch_tpu", "jax"]'),
        (
            'requires-python = ">=3.8, <4"\ndependencies = ["torch_xla"]',
            'requires-python = ">=3.11, <4"\ndependencies = ["torch_tpu"]',
        ),
        (
            'requires-python = ">=3.12"\ndependencies = ["torch_xla"]',
            'requires-python = ">=3.12"\ndependencies = ["torch_tpu"]',
        ),
        (
            'requires-python = ">=3.8"\noptional-dependencies.tpu = ["torch_xla"]',
            'requires-python = ">=3.8"\noptional-dependencies.tpu = ["torch_tpu"]',
        ),
        (
            '[dependency-groups]\na = [{include-group = "b"}, "torch_xla"]',
            '[dependency-groups]\na = [{include-group = "b"}, "torch_tpu"]',
        ),
        (
            '[tool.poetry.dependencies]\npython = "^3.9"\ntorch = "^1.13"\ntorch-xla = "^2.0"',
            '[tool.poetry.dependencies]\npython = ">=3.11"\ntorch = ">=2.11"\n'
            'torch-tpu = ">=0.2.0"',
        ),
        (
            '[tool.poetry.group.tpu.dependencies]\ntorch_xla = "*"\nlibtpu = "*"',
            '[tool.poetry.group.tpu.dependencies]\ntorch_tpu = "*"',
        ),
    ],
)
def test_pyproject(before: str, after: str) -> None:
    assert migrated(f"{PROJECT}{before}\n", "pyproject.toml") == f"{PROJECT}{after}\n"
    crlf = f"{PROJECT}{before}\n".replace("\n", "\r\n")
    assert migrated(crlf, "pyproject.toml") == f"{PROJECT}{after}\n".replace("\n", "\r\n")


def test_a_pin_for_all_is_not_raised_for_an_extra() -> None:
    text = (
        f'{PROJECT}dependencies = ["torch<2.7"]\n'
        '[project.optional-dependencies]\ntpu = ["torch_xla"]\ngpu = ["torch==2.0"]\n'
    )
    assert told(text, "pyproject.toml") == [
        ("XLA911", "torch", "shared-dependency"),
        ("XLA910", "torch-xla", "goes-together"),
    ]


def test_mentions_in_settings_do_not_block() -> None:
    text = f'{PROJECT}keywords = ["torch_xla"]\n[tool.x]\n"torch_xla" = 1  # torch_xla\n'
    result = run(text, "pyproject.toml")
    assert [(f.rule, f.line, f.blocks) for f in result.findings] == [
        ("XLA919", 3, False),
        ("XLA919", 5, False),
    ]
    assert result.output is None
    assert result.status is Status.DONE


def test_poetry_tables_that_say_more_are_left() -> None:
    head = "[tool.poetry.dependencies]\n"
    for entry in ('{url = "https://x.org/torch_xla.whl"}', '{version = "^2", extras = ["a"]}'):
        assert told(f"{head}torch-xla = {entry}\n", "pyproject.toml") == [
            ("XLA910", "torch-xla", "unsupported-form")
        ]


def test_what_is_no_toml_stays() -> None:
    (finding,) = run("dependencies = [torch_xla\n", "pyproject.toml").findings
    assert (finding.rule, finding.reason, finding.blocks) == ("XLA919", "does-not-parse", True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[a, b]", "[b]"),
        ("[b, a]", "[b]"),
        ("[a]", "[]"),
        ("[b, a,]", "[b, ]"),
        ("[\n    a,\n    b,\n]", "[\n    b,\n]"),
        ("[\n    b,\n    a  # c\n]", "[\n    b,\n]"),
        ("[\n    a, b,\n]", "[\n    b,\n]"),
    ],
)
def test_without_item(before: str, after: str) -> None:
    at = before.index("a")
    edit = without_item(before, at, at + 1)
    assert before[: edit.start] + edit.content + before[edit.end :] == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("setup(install_requires=['torch_xla'])", "setup(install_requires=['torch_tpu'])"),
        (
            "REQ = [\n    'libtpu',\n    'torch_xla~=2.0',  # a\n]\nsetup(install_requires=REQ)",
            "REQ = [\n    'torch_tpu>=0.2.0',  # a\n]\nsetup(install_requires=REQ)",
        ),
        (
            "EXTRAS = {'é': ['torch_xla', 'torch==2.0']}\n"
            "setup(extras_require=EXTRAS, python_requires='>=3.8')",
            "EXTRAS = {'é': ['torch_tpu', 'torch>=2.11']}\n"
            "setup(extras_require=EXTRAS, python_requires='>=3.8')",
        ),
        (
            "setup(install_requires=['a'] + ['torch_xla'], python_requires='>=3.8')",
            "setup(install_requires=['a'] + ['torch_tpu'], python_requires='>=3.11')",
        ),
    ],
)
def test_setup_py(before: str, after: str) -> None:
    head = "import setuptools\nfrom setuptools import setup\n\n"
    assert migrated(f"{head}{before}\n", "setup.py") == f"{head}{after}\n"


def test_setup_py_with_code_of_torch_xla() -> None:
    text = (
        "import torch_xla.core.xla_model as xm\nfrom setuptools import setup\n\n"
        "xm.mark_step()\nsetup(install_requires=['torch_xla', 'torch @ https://x.org/t.whl'])\n"
    )
    after = migrated(text, "setup.py")
    assert "mark_step" not in after
    assert after.count("# TODO(xla2tpu): XLA91") == 2
    held = run(text, "setup.py", mode=Mode.FIX)
    assert held.output is None
    assert held.held_back == (
        "1 safe fix held back: 2 places need a person first; --partial applies them"
    )


def test_setup_cfg() -> None:
    before = (
        "[options]\npython_requires = >=3.8\ninstall_requires =\n    # a\n    torch_xla\n"
        "    libtpu\n[options.extras_require]\ntpu = torch_xla[tpu]>=2\n[tool]\nx = torch_xla\n"
    )
    after = (
        "[options]\npython_requires = >=3.11\ninstall_requires =\n    # a\n    torch_tpu\n"
        "[options.extras_require]\ntpu = torch_tpu>=0.2.0\n[tool]\nx = torch_xla\n"
    )
    assert migrated(before, "setup.cfg") == after


def test_conda() -> None:
    before = (
        "name: a\ndependencies:\n  - python=3.9.*\n  - pytorch=2.0  # b\n  - pip:\n"
        "    - 'torch_xla[tpu]==2.0'\n    - libtpu-nightly\n    - torch_xla[pallas]\n"
        "variables:\n  PJRT_DEVICE: TPU\n  A: b\n"
    )
    after = (
        "name: a\ndependencies:\n  - python=3.11\n  - pytorch=2.0  # b\n  - pip:\n"
        "    - 'torch_tpu>=0.2.0'\n    - torch_tpu\n    - jax\nvariables:\n  A: b\n"
    )
    assert migrated(before, "environment.yml") == after


def test_lock_files_are_made_anew() -> None:
    text = '[[package]]\nname = "torch-xla"\nversion = "2"\n'
    assert told(text, "uv.lock") == [("XLA919", "torch-xla", "generated-file")]
    assert migrated(text, "uv.lock") == text
    assert told(text.replace("torch-xla", "torch"), "uv.lock") == []
