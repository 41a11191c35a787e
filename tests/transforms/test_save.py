"""Saving a CPU copy on the right process, and how far that may be trusted."""

from __future__ import annotations

import pytest
from conftest import check_transformed

from xla2tpu.model import Applicability

HEAD = (
    "import torch\nimport torch.distributed as dist\n"
    "from torch.utils._pytree import tree_map_only\n"
)
XM = "import torch_xla.core.xla_model as xm\n"
HELPER = '''\


def save_cpu(data, file_or_path, master_only=True, global_master=False):
    """Save a CPU copy of data on the first process of each host (or of the job, or on all)."""
    if global_master:
        rank = dist.get_rank() if dist.is_initialized() else 0
    else:
        rank = dist.get_node_local_rank(fallback_rank=0)
    if not master_only or rank == 0:
        torch.save(tree_map_only(torch.Tensor, lambda t: t.cpu(), data), file_or_path)
'''
FRAME = "\n\ndef keep(net, opt, path):\n    {0}({1})\n"

SAFE = {
    "state": "net.state_dict(), path",
    "states": '{"net": net.state_dict(), "opt": opt.state_dict(), "epoch": 3}, path',
    "list": "[net.state_dict(), 3], path",
}
UNSAFE = {
    "module": "net, path",
    "module in a dict": '{"net": net, "epoch": 3}, path',
    "unknown": "collect(net), path",
}


@pytest.mark.parametrize("form", [*SAFE, *UNSAFE])
def test_data(form: str) -> None:
    arguments = SAFE.get(form) or UNSAFE[form]
    result = check_transformed(
        f"{HEAD}{XM}{FRAME.format('xm.save', arguments)}",
        f"{HEAD}{HELPER}{FRAME.format('save_cpu', arguments)}",
    )
    expected = Applicability.SAFE if form in SAFE else Applicability.UNSAFE
    assert [f.applicability for f in result.findings] == [expected]


WHO = {
    "all": ("net.state_dict(), path, False", "net.state_dict(), path, master_only=False"),
    "job": (
        "net.state_dict(), path, global_master=True",
        "net.state_dict(), path, global_master=True",
    ),
    "both": (
        "net.state_dict(), path, True, True",
        "net.state_dict(), path, master_only=True, global_master=True",
    ),
}


@pytest.mark.parametrize("who", WHO)
def test_who_writes(who: str) -> None:
    before, after = WHO[who]
    check_transformed(
        f"{HEAD}{XM}{FRAME.format('xm.save', before)}",
        f"{HEAD}{HELPER}{FRAME.format('save_cpu', after)}",
    )


def test_as_a_value() -> None:
    frame = "\n\ndef keep(model, path):\n    model.save_pretrained(path, save_function={0})\n"
    check_transformed(
        f"{HEAD}{XM}{frame.format('xm.save')}", f"{HEAD}{HELPER}{frame.format('save_cpu')}"
    )
