"""What holds for every text, however odd: pieces of the formats put together, and cut."""

from __future__ import annotations

import json

import pytest
from helpers_files import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xla2tpu.files.places import apply
from xla2tpu.model import Mode, state_of

# One piece a line; those without a newline stand in PARTS.
PIECES = {
    "requirements.txt": """\
torch_xla
torch-xla==2.6.0  # a
torch==2.6
torch
numpy<2
libtpu
-f https://storage.googleapis.com/libtpu-releases/index.html
# b é

jax[tpu]
torch_xla[pallas]; python_version<'3.9'
-r c.txt
x @ y
torch_xla  # xla2tpu: ignore[XLA910]
torchvision==0.1 \\
git+https://github.com/pytorch/xla
""",
    "a.sh": """\
export PJRT_DEVICE=TPU
PJRT_DEVICE=TPU python a.py
pip install torch_xla
pip install torch==2.0 libtpu && ls
if a; then
fi
else
cat <<E
E
# c
echo 'torch_xla'
  export XLA_USE_BF16=1 A=2
python xla_spawn.py --num_cores 8 a
gcloud a --command='PJRT_DEVICE=TPU python a'
\\
docker run -e PJRT_DEVICE=TPU x
unset XRT_TPU_CONFIG
}
é
""",
    "Dockerfile": """\
FROM python:3.9
FROM gcr.io/tpu-pytorch/xla:a
ENV PJRT_DEVICE=TPU A=1
ENV A b
RUN pip install torch_xla \\
  && pip install libtpu
# a
RUN ls

RUN pip install torch==2.0
CMD PJRT_DEVICE=TPU a
ENV PJRT_DEVICE=TPU \\
 B=1
RUN ["pip", "torch_xla"]
RUN <<E
E
ARG X=torch_xla
ENV XLA_SYNC_WAIT 1
""",
    ".github/workflows/a.yml": """\
jobs:
  a:
    steps:
    - run: pip install torch_xla
    env:
      PJRT_DEVICE: TPU
      A: b
    - run: |
        export PJRT_DEVICE=TPU
        pip install torch==2.0
      python-version: [3.8]
  b:
# c é
    container: gcr.io/tpu-pytorch/xla
    - run: 'torch_xla'
        libtpu
""",
    "pyproject.toml": """\
[project]
dependencies = [
'torch_xla',
"torch==2.0",
]
# a
libtpu = 1
requires-python = ">=3.8"
[tool.poetry.dependencies]
torch-xla = "^2"
torch = {version = "^1"}
[[tool.uv.index]]
[project.optional-dependencies]
url = "https://storage.googleapis.com/libtpu-releases/a"
a = ['torch_xla[tpu]']

""",
    "setup.cfg": """\
[options]
install_requires =
    torch_xla
    torch==2.0
# a
    # b
python_requires = >=3.8
[options.extras_require]
tpu = torch_xla
    libtpu
""",
    ".env": """\
PJRT_DEVICE=TPU
export XLA_SYNC_WAIT='1' # a
XLA_USE_BF16=1
A=torch_xla
# é
# TODO(xla2tpu): XLA917 a
XRT_TPU_CONFIG=a  # noqa: XLA917
""",
    "environment.yml": """\
dependencies:
  - python=3.8
  - pip:
    - torch_xla
    - torch==2.0
    - libtpu
  - pytorch=2
variables:
  PJRT_DEVICE: TPU
  A: b
# a
""",
    "tox.ini": """\
[testenv]
[testenv:tpu]
deps =
    torch_xla
    torch==2.0  # é
    tpu: libtpu
    -r a.txt
    -f https://storage.googleapis.com/libtpu-releases/a
setenv =
    PJRT_DEVICE = TPU
    XLA_SYNC_WAIT=1
# a
commands =
    pip install torch_xla
    python a.py \\
basepython = python3.8
deps = torch_xla
setenv = PJRT_DEVICE=TPU
""",
    "Pipfile": """\
[packages]
torch-xla = "==2.1"
torch_xla = {version = "*", extras = ["tpu"]}
torch = "==2.0"  # é
libtpu = "*"
[dev-packages]
numpy = {version = "<2"}
[requires]
python_version = "3.8"
python_full_version = "3.8.1"
[[source]]
url = "https://storage.googleapis.com/libtpu-releases/a"
name = "a"

""",
    "job.yaml": """\
    env:
    - name: PJRT_DEVICE
      value: TPU
      value: '1'  # é
      valueFrom: {a: b}
    - name: A
    - name: XLA_SYNC_WAIT
    - {name: PJRT_DEVICE, value: "TPU"}
    # a
    command: [bash, -c, "pip install torch_xla"]
    args:
    - pip install torch_xla torch==2.0
    - |
      export PJRT_DEVICE=TPU
      pip install libtpu
    image: gcr.io/tpu-pytorch/xla:a
  - image: b
---
""",
    "compose.yaml": """\
    environment:
      PJRT_DEVICE: TPU
      XLA_USE_SPMD: '1'  # é
      A: b
    - PJRT_DEVICE=TPU
    - XLA_SYNC_WAIT=1
    - "USE_TORCH_XLA=1"
    - A=b
    # a
    command: pip install torch_xla
    command: >-
      PJRT_DEVICE=TPU python a.py
    entrypoint: [python, -m, torch_xla.a]
  b:
    image: c
""",
    "setup.py": """\
from setuptools import setup
R = [
    'torch_xla',
    'torch==2.0',  # é
]
setup(install_requires=R, python_requires='>=3.8')
import torch_xla.core.xla_model as xm
xm.mark_step()
R += ['libtpu']
setup(install_requires=['torch_xla', 'libtpu'])
get_ipython().system('pip install torch_xla')
if R:
    get_ipython().magic('env PJRT_DEVICE=TPU')
""",
}
CELLS = """\
import torch_xla.core.xla_model as xm
import torch
xm.mark_step()
x = xm.xla_device()
%time xm.mark_step()
%timeit -n 3 f(x)
!pip install torch_xla
%env PJRT_DEVICE=TPU
if x:
    !ls {xm}
    xm.mark_step()
y = !ls
x?
'''
(
)
# é 😀
xm.master_print('a')
def f():
    return xm.get_ordinal()

get_ipython().system('pip install torch_xla')
print 'x'
"""
# What a text of a kind begins with, without which it is of another.
HEADS = {
    "job.yaml": "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: a\n",
    "compose.yaml": "services:\n  a:\n    image: b\n",
}
PARTS = {"a.sh": ["'", '"', "$(", ")", "; ", "&& ", "| ", "{ "]}
PARTS_OF_CELLS = ["print(xm.xla_device())"]
MAGICS = [
    "",
    "",
    "",
    "%%time\n",
    "%%bash\n",
    "%%writefile a.py\n",
    "%%writefile a.sh\n",
    "%%wandb\n",
]
MODES = [Mode.CHECK, Mode.FIX, Mode.MIGRATE]


def examples(number: int) -> settings:
    """The same texts in every run, so that a failure is a change of the code."""
    return settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def pieces_of(name: str) -> list[str]:
    """The pieces of a kind of file."""
    return PIECES[name].splitlines(keepends=True) + PARTS.get(name, [])


def check(data: bytes, name: str, mode: Mode, unsafe: bool, partial: bool) -> None:
    """Nothing fails; what changes is what the edits say; a second run changes nothing."""
    how = {"mode": mode, "unsafe": unsafe, "partial": partial}
    result = run(data, name, **how)
    assert result.error is None, data.decode()
    for finding in result.findings:
        assert 0 <= finding.start <= finding.end <= len(data)
        assert data[finding.start : finding.end].decode() is not None
        fixed = finding.fix is not None and not finding.applied
        assert not fixed or state_of(finding) in ("fixable", "applied")
    if result.output is None:
        return
    assert mode is not Mode.CHECK
    assert apply(data, result.edits, "utf-8") == result.output
    again = run(result.output, name, **how)
    assert (again.error, again.output) == (None, None)


@pytest.mark.parametrize("name", PIECES)
@examples(150)
@given(st.data())
def test_any_text(name: str, data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.sampled_from(pieces_of(name)), max_size=12))
    mode, unsafe, partial = _how(data)
    text = HEADS.get(name, "") + "".join(pieces)
    check(text.encode(), name, mode, unsafe, partial)
    check(text.replace("\n", "\r\n").encode(), name, mode, unsafe, partial)


@examples(200)
@given(st.data())
def test_any_notebook(data: st.DataObject) -> None:
    cell = st.tuples(
        st.sampled_from(MAGICS),
        st.lists(st.sampled_from(CELLS.splitlines(keepends=True) + PARTS_OF_CELLS), max_size=6),
    )
    cells = ["".join([magic, *lines]) for magic, lines in data.draw(st.lists(cell, max_size=5))]
    how = data.draw(st.sampled_from([{"indent": 1}, {"ensure_ascii": False}, {}]))
    document = {
        "cells": [
            {"cell_type": "code", "source": c.splitlines(keepends=True) if i % 3 else c}
            for i, c in enumerate(cells)
        ]
    }
    check(json.dumps(document, **how).encode(), "a.ipynb", *_how(data))


def _how(data: st.DataObject) -> tuple[Mode, bool, bool]:
    mode = data.draw(st.sampled_from(MODES))
    return mode, data.draw(st.booleans()), data.draw(st.booleans())
