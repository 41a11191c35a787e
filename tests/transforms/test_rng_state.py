"""Seeds carry over, stored states of the generator do not."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

HEAD = "import os\nimport pickle\n\nimport torch\n"
XM = "import torch_xla.core.xla_model as xm\n"

SEEDS = [
    "seed",
    "0",
    "args.seed",
    "int(args.seed) + rank",
    "config['train']['seed']",
    "config.get('seed', 3)",
    "seeds[rank]",
    "int(os.environ['RUN'])",
    "torch.initial_seed()",
]
STATES = [
    "state['xla']",
    "states['xm_seed']",
    "ckpt.get('xla')",
    "args.rng_state",
    "torch.load('x')",
    "pickle.load(file)",
    "stored",
    "int(stored)",
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("device", ["", ", device=device"])
def test_seed(seed: str, device: str) -> None:
    body = "\n\ndef start(seed, args, config, seeds, rank, device):\n"
    check_transformed(
        f"{HEAD}{XM}{body}    xm.set_rng_state({seed}{device})\n",
        f"{HEAD}{body}    torch.tpu.manual_seed({seed})\n",
    )


@pytest.mark.parametrize("state", STATES)
def test_stored_state(state: str) -> None:
    source = f"{HEAD}{XM}\nfirst = torch.load('y')\nstored = first\nxm.set_rng_state({state})\n"
    result = check_noop(source, todo=False)
    assert [f.reason for f in result.findings if f.counts] == ["file-format"]


def test_file_that_reads_the_state() -> None:
    source = (
        f"{XM}\n\ndef get():\n    return xm.get_rng_state()\n\n\n"
        "def put(seed):\n    xm.set_rng_state(seed)\n"
    )
    result = check_noop(source, todo=False)
    assert [f.reason for f in result.findings if f.counts] == ["file-format"] * 2


def test_constant_beside_a_stored_state() -> None:
    check_transformed(
        f"import torch\n{XM}\nxm.set_rng_state(42)\nsaved = xm.get_rng_state()\n",
        f"import torch\n{XM}\ntorch.tpu.manual_seed(42)\nsaved = xm.get_rng_state()\n",
        todo=False,
    )


def test_state_that_is_not_used() -> None:
    check_transformed(
        f"import os\n{XM}\nxm.get_rng_state()\nos.sync()\n", "import os\n\nos.sync()\n"
    )
