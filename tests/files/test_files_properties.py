"""What holds for every text, however odd: pieces of the formats put together, and cut."""

from __future__ import annotations

import json

import pytest
from helpers_files import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xla2tpu.files.places import apply
from xla2tpu.model import Mode, state_of

PIECES = {
    "requirements.txt": [
        "torch_xla\n", "torch-xla==2.6.0  # a\n", "torch==2.6\n", "torch\n", "numpy<2\n", "libtpu\n",
        "-f https://storage.googleapis.com/libtpu-releases/index.html\n", "# b é\n", "\n",
        "jax[tpu]\n", "torch_xla[pallas]; python_version<'3.9'\n", "-r c.txt\n", "x @ y\n",
        "torch_xla  # xla2tpu: ignore[XLA910]\n", "torchvision==0.1 \\\n", "git+https://github.com/pytorch/xla\n",
    ],
    "a.sh": [
        "export PJRT_DEVICE=TPU\n", "PJRT_DEVICE=TPU python a.py\n", "pip install torch_xla\n",
        "pip install torch==2.0 libtpu && ls\n", "if a; then\n", "fi\n", "else\n", "cat <<E\n", "E\n",
        "# c\n", "echo 'torch_xla'\n", "  export XLA_USE_BF16=1 A=2\n", "python xla_spawn.py --num_cores 8 a\n",
        "gcloud a --command='PJRT_DEVICE=TPU python a'\n", "\\\n", "'", '"', "$(", ")", "; ", "&& ", "| ",
        "docker run -e PJRT_DEVICE=TPU x\n", "unset XRT_TPU_CONFIG\n", "{ ", "}\n", "é\n",
    ],
    "Dockerfile": [
        "FROM python:3.9\n", "FROM gcr.io/tpu-pytorch/xla:a\n", "ENV PJRT_DEVICE=TPU A=1\n", "ENV A b\n",
        "RUN pip install torch_xla \\\n", "  && pip install libtpu\n", "# a\n", "RUN ls\n", "\n",
        "RUN pip install torch==2.0\n", "CMD PJRT_DEVICE=TPU a\n", "ENV PJRT_DEVICE=TPU \\\n", " B=1\n",
        'RUN ["pip", "torch_xla"]\n', "RUN <<E\n", "E\n", "ARG X=torch_xla\n", "ENV XLA_SYNC_WAIT 1\n",
    ],
    ".github/workflows/a.yml": [
        "jobs:\n", "  a:\n", "    steps:\n", "    - run: pip install torch_xla\n", "    env:\n",
        "      PJRT_DEVICE: TPU\n", "      A: b\n", "    - run: |\n", "        export PJRT_DEVICE=TPU\n",
        "        pip install torch==2.0\n", "      python-version: [3.8]\n", "  b:\n", "# c é\n",
        "    container: gcr.io/tpu-pytorch/xla\n", "    - run: 'torch_xla'\n", "        libtpu\n",
    ],
    "pyproject.toml": [
        "[project]\n", "dependencies = [\n", "'torch_xla',\n", '"torch==2.0",\n', "]\n", "# a\n", "libtpu = 1\n",
        'requires-python = ">=3.8"\n', "[tool.poetry.dependencies]\n", 'torch-xla = "^2"\n',
        'torch = {version = "^1"}\n', "[[tool.uv.index]]\n", "[project.optional-dependencies]\n",
        'url = "https://storage.googleapis.com/libtpu-releases/a"\n', "a = ['torch_xla[tpu]']\n", "\n",
    ],
    "setup.cfg": [
        "[options]\n", "install_requires =\n", "    torch_xla\n", "    torch==2.0\n", "# a\n", "    # b\n",
        "python_requires = >=3.8\n", "[options.extras_require]\n", "tpu = torch_xla\n", "    libtpu\n",
    ],
    ".env": [
        "PJRT_DEVICE=TPU\n", "export XLA_SYNC_WAIT='1' # a\n", "XLA_USE_BF16=1\n", "A=torch_xla\n", "# é\n",
        "# TODO(xla2tpu): XLA917 a\n", "XRT_TPU_CONFIG=a  # noqa: XLA917\n",
    ],
    "environment.yml": [
        "dependencies:\n", "  - python=3.8\n", "  - pip:\n", "    - torch_xla\n", "    - torch==2.0\n",
        "    - libtpu\n", "  - pytorch=2\n", "variables:\n", "  PJRT_DEVICE: TPU\n", "  A: b\n", "# a\n",
    ],
    "setup.py": [
        "from setuptools import setup\n", "R = [\n", "    'torch_xla',\n", "    'torch==2.0',  # é\n", "]\n",
        "setup(install_requires=R, python_requires='>=3.8')\n", "import torch_xla.core.xla_model as xm\n",
        "xm.mark_step()\n", "R += ['libtpu']\n", "setup(install_requires=['torch_xla', 'libtpu'])\n",
        "get_ipython().system('pip install torch_xla')\n", "if R:\n", "    get_ipython().magic('env PJRT_DEVICE=TPU')\n",
    ],
}  # fmt: skip
CELLS = [
    "import torch_xla.core.xla_model as xm\n", "import torch\n", "xm.mark_step()\n", "x = xm.xla_device()\n",
    "%time xm.mark_step()\n", "%timeit -n 3 f(x)\n", "!pip install torch_xla\n", "%env PJRT_DEVICE=TPU\n",
    "if x:\n", "    !ls {xm}\n", "    xm.mark_step()\n", "y = !ls\n", "x?\n", "'''\n", "(\n", ")\n", "# é 😀\n",
    "xm.master_print('a')\n", "print(xm.xla_device())", "def f():\n", "    return xm.get_ordinal()\n", "\n",
    "get_ipython().system('pip install torch_xla')\n", "print 'x'\n",
]  # fmt: skip
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
    pieces = data.draw(st.lists(st.sampled_from(PIECES[name]), max_size=12))
    mode, unsafe, partial = _how(data)
    text = "".join(pieces)
    check(text.encode(), name, mode, unsafe, partial)
    check(text.replace("\n", "\r\n").encode(), name, mode, unsafe, partial)


@examples(200)
@given(st.data())
def test_any_notebook(data: st.DataObject) -> None:
    cell = st.tuples(st.sampled_from(MAGICS), st.lists(st.sampled_from(CELLS), max_size=6))
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
