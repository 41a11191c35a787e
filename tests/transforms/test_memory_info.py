"""Memory figures by key."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

HEAD = "import torch\n"
XM = "import torch_xla.core.xla_model as xm\n"
INFO = "torch.accelerator.get_memory_info()"

FIGURES = {
    'x = xm.get_memory_info(d)["bytes_limit"]': f"x = {INFO}[1]",
    'x = xm.get_memory_info()["bytes_used"]': f"x = {INFO}[1] - {INFO}[0]",
    "x = xm.get_memory_info(d)['bytes_used'] / 2": f"x = ({INFO}[1] - {INFO}[0]) / 2",
    'x = xm.get_memory_info(d)["kb_total"]': f"x = {INFO}[1] // 1024",
    'x = xm.get_memory_info(d)["kb_free"] * 1024': f"x = ({INFO}[0] // 1024) * 1024",
    'x = 1 - xm.get_memory_info(d)["bytes_used"]': f"x = 1 - ({INFO}[1] - {INFO}[0])",
    'x = xm.get_memory_info(d)["peak_bytes_used"]': "x = torch.accelerator.max_memory_allocated()",
    "x = f\"{xm.get_memory_info(d)['kb_free']:>9}\"": f'x = f"{{{INFO}[0] // 1024:>9}}"',
}
OTHERS = {
    "x = xm.get_memory_info(d)": "value-escapes",
    "x = xm.get_memory_info(d)[key]": "unsupported-form",
    'x = xm.get_memory_info(d)["unknown"]': "unsupported-form",
    'xm.get_memory_info(d)["kb_free"] = 1': "unsupported-form",
    'del xm.get_memory_info(d)["kb_free"]': "unsupported-form",
    'x = xm.get_memory_info(find())["kb_free"]': "argument-side-effects",
}


@pytest.mark.parametrize("statement", FIGURES)
def test_figure(statement: str) -> None:
    check_transformed(f"{HEAD}{XM}\n{statement}\n", f"{HEAD}\n{FIGURES[statement]}\n")


@pytest.mark.parametrize("statement", OTHERS)
def test_other_use(statement: str) -> None:
    result = check_noop(f"{XM}\n{statement}\n", todo=False)
    assert [f.reason for f in result.findings if f.counts] == [OTHERS[statement]]
