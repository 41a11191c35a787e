"""The byte test: wide, but not so wide that everything is parsed."""

from __future__ import annotations

import pytest

from xla2tpu.prefilter import interesting


@pytest.mark.parametrize(
    "text",
    [
        "import torch_xla",
        "from transformers import is_torch_xla_available",
        "extras = ['torch-xla']",
        'd = torch.device("xla:1")',
        "d = 'xla'",
        "os.environ['PJRT_DEVICE']",
        "XLA_USE_BF16",
        "XLA_DOWNCAST_BF16",
        "XRT_TPU_CONFIG",
        "# xla2tpu: ignore-file",
    ],
)
def test_is_interesting(text: str) -> None:
    assert interesting(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import torch\n",
        "xla = 1",
        "import jax  # xla",
        "relaxed = 'relax'",
        "size = 'xlarge'",
        "from .utils import is_torch_xla_available",
    ],
)
def test_is_not_interesting(text: str) -> None:
    assert not interesting(text.encode())


def test_utf_16_is_not_passed_over() -> None:
    assert interesting("import torch_xla".encode("utf-16"))


GUARDS = {
    "by name": "from transformers import is_torch_xla_available\n",
    "among others": (
        "from transformers.utils import (\n    a,  # (b)\n    is_torch_xla_available,\n)\n"
    ),
    "on a broken line": (
        "from accelerate.utils \\\n    import a, \\\n    is_torch_xla_available as x\n"
    ),
    "through a module": "import transformers\ny = transformers.is_torch_xla_available()\n",
    "through an imported module": (
        "from transformers import utils\ny = utils.is_torch_xla_available()\n"
    ),
}
OTHERS = {
    "its own": "import datasets\nfrom .utils import is_torch_xla_available\n",
    "another name": "from datasets import load\n\n\ndef is_torch_xla_available():\n    pass\n",
    "another import below": (
        "from datasets import (\n    a,\n)\nfrom mine import is_torch_xla_available\n"
    ),
}


@pytest.mark.parametrize("text", GUARDS.values(), ids=GUARDS)
def test_guards_of_other_packages(text: str) -> None:
    assert interesting(text.encode())


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_other_guards(text: str) -> None:
    assert not interesting(text.encode())
