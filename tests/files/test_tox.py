"""tox.ini and Pipfile."""

from __future__ import annotations

import pytest
from helpers_files import migrated, run, told

from xla2tpu.model import Mode

TOX = """\
[tox]
envlist = py311, tpu

[testenv]
deps =
    pytest
    torch==1.13  # not beside torch_xla
commands = pytest {posargs}

[testenv:tpu]
basepython = python3.12
deps =
    # for the pods
    -r requirements.txt
    torch_xla[tpu]==2.1  # pinned
    torch==2.1
    tpu: libtpu-nightly
    -f https://storage.googleapis.com/libtpu-releases/index.html
setenv =
    PJRT_DEVICE = TPU
    XLA_PERSISTENT_CACHE_PATH={envdir}/cache
    A=b
commands =
    pip install torch_xla
    pytest {posargs}
"""


def test_tox() -> None:
    after = (
        TOX.replace("torch_xla[tpu]==2.1", "torch_tpu>=0.2.0")
        .replace("    torch==2.1\n", "    torch>=2.11\n")
        .replace("    tpu: libtpu-nightly\n", "")
        .replace("    -f https://storage.googleapis.com/libtpu-releases/index.html\n", "")
        .replace("    PJRT_DEVICE = TPU\n", "")
        .replace("XLA_PERSISTENT_CACHE_PATH", "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT")
        .replace("install torch_xla", "install torch_tpu")
    )
    assert migrated(TOX, "tox.ini") == after
    assert migrated(TOX.replace("\n", "\r\n"), "tox.ini") == after.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("deps = libtpu\n    torch_xla\n", ("XLA912", "libtpu", "unsupported-form")),
        ("basepython = python3.8\ndeps = torch_xla\n", ("XLA914", "python3.8", "python-floor")),
        ("setenv = PJRT_DEVICE=TPU\n", ("XLA917", "PJRT_DEVICE", "unsupported-form")),
        ("setenv =\n  XLA_USE_BF16=1\n", ("XLA917", "XLA_USE_BF16", "numerics")),
        ("setenv =\n  PJRT_DEVICE={env:X}\n", ("XLA917", "PJRT_DEVICE", "environment")),
        ("commands =\n  python -m torch_xla.a\n", ("XLA919", "torch_xla", "unsupported-form")),
        ("passenv = A\ndescription = of torch_xla\n", ("XLA919", "torch_xla", "unsupported-form")),
    ],
)  # fmt: skip
def test_tox_by_hand(body: str, expected: tuple[str, str, str]) -> None:
    found = told(f"[testenv]\n{body}", "tox.ini")
    assert expected in found


def test_no_torch_xla_in_tox() -> None:
    assert told("[testenv]\nbasepython = python3.8\ndeps = torch==1.13\n", "tox.ini") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '[packages]\ntorch = "==2.1.0"\ntorch-xla = "==2.1.0"  # a\nlibtpu = "*"\n',
            '[packages]\ntorch = ">=2.11"\ntorch-tpu = ">=0.2.0"  # a\n',
        ),
        (
            '[packages]\ntorch_xla = "*"\n\n[requires]\npython_version = "3.9"\n',
            '[packages]\ntorch_tpu = "*"\n\n[requires]\npython_version = "3.11"\n',
        ),
        (
            '[packages]\ntorch-xla = {version = "~=2.1", extras = ["tpu"]}\n',
            '[packages]\ntorch-tpu = {version = ">=0.2.0"}\n',
        ),
        (
            '[packages]\ntorch-xla = {extras = ["tpu"], version = "*", index = "a"}\n',
            '[packages]\ntorch-xla = {extras = ["tpu"], version = "*", index = "a"}\n',
        ),
        (
            '[dev-packages]\ntorch-xla = "*"\n\n[requires]\npython_version = "3.9"\n',
            '[dev-packages]\ntorch-tpu = "*"\n\n[requires]\npython_version = "3.9"\n',
        ),
        (
            '[[source]]\nurl = "https://pypi.org/simple"\n\n[[source]]\n'
            'url = "https://storage.googleapis.com/libtpu-releases/index.html"\nname = "b"\n\n'
            '[packages]\ntorch-xla = "*"\n',
            '[[source]]\nurl = "https://pypi.org/simple"\n\n[packages]\ntorch-tpu = "*"\n',
        ),
    ],
)
def test_pipfile(before: str, after: str) -> None:
    assert migrated(before, "Pipfile", todo=False) == after


def test_poetry_s_extras() -> None:
    text = (
        "[tool.poetry.dependencies]\n"
        'torch-xla = {version = "^2.1", optional = true, extras = ["tpu"]}\n'
    )
    assert migrated(text, "pyproject.toml") == (
        '[tool.poetry.dependencies]\ntorch-tpu = {version = ">=0.2.0", optional = true}\n'
    )
    pallas = text.replace('"tpu"', '"pallas"')
    (found,) = run(pallas, "pyproject.toml", mode=Mode.CHECK).findings
    assert found.reason == "unsupported-form"


def test_conda_with_channels_and_builds() -> None:
    text = "dependencies:\n  - conda-forge::python=3.9.13=h1_cpython\n  - pip:\n    - torch_xla\n"
    assert migrated(text, "environment.yml") == (
        "dependencies:\n  - conda-forge::python=3.11\n  - pip:\n    - torch_tpu\n"
    )
