"""The device in its contexts: values, statements, probes, ordinals and the portable form."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

HEAD = "import torch\n"
XM = "import torch_xla.core.xla_model as xm\n"
PORTABLE = 'torch.accelerator.current_accelerator() or torch.device("cpu")'
AVAILABLE = (
    "(torch.accelerator.current_accelerator(check_available=True)"
    ' or torch.device("cpu")).type == "tpu"'
)

FORMS = {
    "xm": (XM, "xm.xla_device()"),
    "none": (XM, "xm.xla_device(None)"),
    "zero": (XM, "xm.xla_device(n=0)"),
    "kind": (XM, 'xm.xla_device(devkind="TPU")'),
    "package": ("import torch_xla\n", "torch_xla.device()"),
    "runtime": ("import torch_xla.runtime as xr\n", "xr.xla_device()"),
}


@pytest.mark.parametrize("form", FORMS)
def test_value(form: str) -> None:
    bound, call = FORMS[form]
    check_transformed(
        f"{HEAD}{bound}\ndevice = {call}\n", f'{HEAD}\ndevice = torch.device("tpu")\n'
    )


@pytest.mark.parametrize("argument", ["1", "n=1", "rank", 'devkind="GPU"'])
def test_ordinal_is_left(argument: str) -> None:
    result = check_noop(f"{XM}\nrank = 0\ndevice = xm.xla_device({argument})\n", todo=False)
    assert [(f.rule, f.reason) for f in result.findings] == [("XLA201", "device-ordinal")]


def test_statement_goes() -> None:
    check_transformed(f"{XM}\nxm.xla_device()\nprint(1)\n", "print(1)\n")


PROBES = {
    "import outside": (XM, ""),
    "import inside": ("", "        import torch_xla.core.xla_model as xm\n\n"),
}


@pytest.mark.parametrize("form", PROBES)
def test_probe_becomes_an_availability_test(form: str) -> None:
    outside, inside = PROBES[form]
    check_transformed(
        f"{HEAD}{outside}\n\ndef has_tpu():\n    try:\n{inside}        xm.xla_device()\n"
        "        return True\n    except (ImportError, RuntimeError):\n        return False\n",
        f"{HEAD}\n\ndef has_tpu():\n    return {AVAILABLE}\n",
    )


def test_probe_of_another_shape_is_left() -> None:
    result = check_noop(
        f"{XM}\n\ndef has_tpu():\n    try:\n        xm.xla_device()\n"
        "    except RuntimeError as error:\n        print(error)\n        raise\n",
        todo=False,
    )
    assert [(f.rule, f.reason) for f in result.findings] == [("XLA201", "unsupported-form")]


# -- device = accelerator ------------------------------------------------------------------------

PLACES = {
    "value": ("device = xm.xla_device()", f"device = {PORTABLE}"),
    "attribute": ("kind = xm.xla_device().type", f"kind = ({PORTABLE}).type"),
    "argument": ("x.to(xm.xla_device())", f"x.to({PORTABLE})"),
    "string": ('x.to("xla")', f"x.to({PORTABLE})"),
    "keyword": ('torch.ones(2, device="xla")', f"torch.ones(2, device={PORTABLE})"),
    "device of a string": ('device = torch.device("xla")', f"device = {PORTABLE}"),
    "test": ('y = torch.device("cpu").type == "xla"', 'y = torch.device("cpu").type == "tpu"'),
    "autocast": (
        'with torch.autocast("xla"): pass',
        'with torch.autocast("tpu", dtype=torch.bfloat16): pass',
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_portable_form(place: str) -> None:
    before, after = PLACES[place]
    check_transformed(
        f"{HEAD}{XM}\nxm.mark_step()\nx = torch.ones(1)\n{before}\n",
        f"{HEAD}\nx = torch.ones(1)\n{after}\n",
        device="accelerator",
    )
