"""Devices: which form of the device is written, device strings, and counts of devices."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

from xla2tpu.model import Applicability

HEAD = "import torch\n"
XM = "import torch_xla.core.xla_model as xm\n"
PLAIN = 'torch.device("tpu")'
INDEXED = 'torch.device("tpu", torch.accelerator.current_device_index())'

NEED_INDEX = {
    "attribute": "def f():\n    return {0}.index\n",
    "name": "def f():\n    dev = {0}\n    return dev.index\n",
    "annotated name": "def f():\n    dev: torch.device = {0}\n    return dev.index\n",
    "first of a tuple": "def f():\n    dev, rank = {0}, 0\n    return dev.index, rank\n",
    "second of a tuple": "def f(x):\n    rank, dev = 0, {0}\n    return x.device == dev, rank\n",
    "walrus": "def f(x):\n    if (dev := {0}) is not None:\n        return x.device == dev\n",
    "default of or": "def f(given=None):\n    dev = given or {0}\n    return dev.index\n",
    "conditional": "def f(a):\n    dev = {0} if a else None\n    return dev.index\n",
    "loop": "def f():\n    for dev in [{0}]:\n        print(dev.index)\n",
    "comprehension": "def f():\n    return [dev.index for dev in [{0}]]\n",
    "compared": "def f(x):\n    return x.device == {0}\n",
    "compared, first": "def f(x):\n    return {0} != x.device\n",
    "membership": 'def f(x):\n    return x.device in ({0}, torch.device("cpu"))\n',
    "key": "def f(x):\n    return {{{0}: x}}\n",
    "subscript": "def f(x):\n    dev = {0}\n    return x[dev]\n",
    "hash": "def f():\n    dev = {0}\n    return hash(dev)\n",
    "set": "def f():\n    dev = {0}\n    return set((dev, dev)), {{dev: 1}}\n",
    "text taken apart": 'def f():\n    return str({0}).split(":")[1]\n',
    "text of a name": 'def f():\n    dev = {0}\n    return str(dev).partition(":")\n',
    "attribute of self": "class T:\n    def __init__(self):\n        self.dev = {0}\n\n"
    "    def f(self):\n        return self.dev.index\n",
}


@pytest.mark.parametrize("use", NEED_INDEX)
def test_indexed_form(use: str) -> None:
    program = NEED_INDEX[use]
    result = check_transformed(
        f"{HEAD}{XM}\n\n{program.format('xm.xla_device()')}",
        f"{HEAD}\n\n{program.format(INDEXED)}",
    )
    assert [f.applicability for f in result.findings] == [Applicability.SAFE]


NEED_NONE = {
    "placing": "def f(x):\n    return x.to({0})\n",
    "name": "def f(x):\n    dev = {0}\n    return x.to(dev)\n",
    "type": "def f():\n    return {0}.type\n",
    "none": "def f():\n    dev = {0}\n    return dev is None\n",
    "other name of the tuple": "def f():\n    dev, x = {0}, g()\n    return x.index\n",
    "another function": "def f():\n    dev = {0}\n    return dev\n\n\n"
    "def g(dev):\n    return dev.index\n",
}


@pytest.mark.parametrize("use", NEED_NONE)
def test_plain_form(use: str) -> None:
    program = NEED_NONE[use]
    result = check_transformed(
        f"{HEAD}{XM}\n\n{program.format('xm.xla_device()')}",
        f"{HEAD}\n\n{program.format(PLAIN)}",
    )
    assert [f.applicability for f in result.findings] == [Applicability.SAFE]


# -- when a file is imported, no runtime may be asked --------------------------------------------

AT_IMPORT = {
    "module": ("dev = {0}\nprint(dev.index)\n", "dev = {0}\nprint(dev)\n"),
    "default": (
        "def f(x, dev={0}):\n    return {{dev: x}}\n",
        "def f(x, dev={0}):\n    return x.to(dev)\n",
    ),
    "class": (
        "class T:\n    dev = {0}\n\n    def f(self):\n        return self.dev.index\n",
        "class T:\n    dev = {0}\n\n    def f(self, x):\n        return x.to(self.dev)\n",
    ),
}


@pytest.mark.parametrize("place", AT_IMPORT)
def test_indexed_form_is_unsafe_when_imported(place: str) -> None:
    program, _ = AT_IMPORT[place]
    result = check_transformed(
        f"{HEAD}{XM}\n\n{program.format('xm.xla_device()')}",
        f"{HEAD}\n\n{program.format(INDEXED)}",
    )
    assert [f.applicability for f in result.findings] == [Applicability.UNSAFE]


@pytest.mark.parametrize("place", AT_IMPORT)
def test_plain_form_is_safe_when_imported(place: str) -> None:
    _, program = AT_IMPORT[place]
    result = check_transformed(
        f"{HEAD}{XM}\n\n{program.format('xm.xla_device()')}",
        f"{HEAD}\n\n{program.format(PLAIN)}",
    )
    assert [f.applicability for f in result.findings] == [Applicability.SAFE]


# -- device strings ------------------------------------------------------------------------------

POSITIONS = {
    "device": 'torch.device("{0}")\n',
    "to": 'x = torch.ones(2).to("{0}", non_blocking=True)\n',
    "keyword": 'x = torch.ones(2, device="{0}")\n',
    "map": 'x = torch.load("model.pt", map_location="{0}")\n',
    "choice": 'x = torch.ones(2).to("{0}" if len("a") else "cpu")\n',
}


@pytest.mark.parametrize("position", POSITIONS)
def test_string_in_a_device_position(position: str) -> None:
    text = POSITIONS[position]
    result = check_transformed(f"{HEAD}{text.format('xla')}", f"{HEAD}{text.format('tpu')}")
    assert [f.applicability for f in result.findings] == [Applicability.SAFE]
    check_transformed(f"{HEAD}{text.format('xla:0')}", f"{HEAD}{text.format('tpu')}")


@pytest.mark.parametrize("position", POSITIONS)
def test_ordinal_in_a_device_position(position: str) -> None:
    result = check_noop(f"{HEAD}{POSITIONS[position].format('xla:1')}", todo=False)
    assert [(f.rule, f.reason) for f in result.findings] == [("XLA220", "device-ordinal")]


@pytest.mark.parametrize("ordinal", ["xla:0", "xla:1"])
def test_comparison_with_an_ordinal(ordinal: str) -> None:
    before = f"""\
{HEAD}{XM}

def first(x):
    dev = xm.xla_device()
    return str(dev) == "{ordinal}", str(x.device) == "{ordinal}"
"""
    after = f"""\
{HEAD}

def first(x):
    dev = torch.device("tpu")
    return str(dev) == "{ordinal}", str(x.device) == "{ordinal}"
"""
    result = check_transformed(before, after, todo=False)
    assert [(f.rule, f.reason) for f in result.findings] == [
        ("XLA201", None),
        ("XLA220", "device-ordinal"),
        ("XLA220", "device-ordinal"),
    ]


def test_start_of_the_text_of_a_device() -> None:
    before = f"""\
{HEAD}{XM}

def check():
    return str(xm.xla_device()).startswith("xla")
"""
    check_transformed(
        before, before.replace(XM, "").replace("xm.xla_device()", PLAIN).replace('"xla"', '"tpu"')
    )


def test_start_with_a_colon_is_reported() -> None:
    result = check_noop(
        f'{HEAD}\n\ndef check(x):\n    return str(x.device).startswith("xla:")\n', todo=False
    )
    assert [(f.rule, f.reason) for f in result.findings] == [("XLA220", "device-ordinal")]


TESTS = {
    "equal": ('device.type == "xla"', 'device.type == "tpu"'),
    "text": ('str(device) == "xla"', 'str(device) == "tpu"'),
    "among others": ('device.type in ("cuda", "xla")', 'device.type in ("cuda", "tpu")'),
    "with tpu": ('device.type in ("xla", "tpu")', 'device.type in ("tpu",)'),
    "after tpu": ('device.type in ("tpu", "xla")', 'device.type in ("tpu",)'),
    "three": ('device.type in ("cuda", "xla", "tpu")', 'device.type in ("cuda", "tpu")'),
    "list": ('device.type in ["xla", "tpu"]', 'device.type in ["tpu"]'),
    "set": ('device.type in {"tpu", "xla"}', 'device.type in {"tpu"}'),
    "not in": ('device.type not in ("xla", "tpu")', 'device.type not in ("tpu",)'),
}


@pytest.mark.parametrize("form", TESTS)
def test_of_a_device_type(form: str) -> None:
    before, after = TESTS[form]
    frame = "import torch\n\n\ndef pick(device: torch.device):\n    return {0}\n"
    result = check_transformed(frame.format(before), frame.format(after))
    assert [f.applicability for f in result.findings] == [Applicability.SAFE]


def test_of_what_may_be_no_device() -> None:
    program = 'def pick(x):\n    return x.type == "{0}"\n'
    result = check_transformed(
        f"import torch_xla\n\n\n{program.format('xla')}", program.format("tpu")
    )
    assert [(f.rule, f.applicability) for f in result.findings] == [
        ("XLA001", Applicability.SAFE),
        ("XLA220", Applicability.UNSAFE),
    ]
    result = check_noop(program.format("xla"), todo=False)
    assert [f.reason for f in result.findings] == ["device-test"]


# -- counts --------------------------------------------------------------------------------------


def test_attribute_of_a_number() -> None:
    check_transformed(
        "import torch_xla.runtime as xr\n\nprint(xr.addressable_device_count().real)\n",
        "print((1).real)\n",
    )


SPMD = {
    "use_spmd": "xr.use_spmd()",
    "mesh": "mesh = xs.Mesh(ids, (8,))",
}


@pytest.mark.parametrize("mark", SPMD)
def test_counts_under_a_single_controller(mark: str) -> None:
    bound = "import torch_xla.runtime as xr\n"
    if mark == "mesh":
        bound += "import torch_xla.distributed.spmd as xs\n"
    result = check_noop(
        f"{bound}\n{SPMD[mark]}\nn = xr.global_runtime_device_count()\n"
        "m = xr.addressable_runtime_device_count()\nk = xr.local_device_count()\n",
        todo=False,
    )
    assert {f.reason for f in result.findings} == {"single-controller"}
    assert result.references == result.count("manual") == 4


def test_counts_with_a_process_for_each_device() -> None:
    result = check_transformed(
        "import torch_xla.runtime as xr\n\nn = xr.global_runtime_device_count()\n",
        "import torch.distributed as dist\n\n"
        "n = dist.get_world_size() if dist.is_initialized() else 1\n",
    )
    assert [f.applicability for f in result.findings] == [Applicability.UNSAFE]


def test_a_test_of_the_device_stays_fixable_after_the_safe_fixes() -> None:
    """The run with safe fixes takes the import; nothing else tells where the device comes from."""
    test = 'if x.device.type == "xla":\n    f()\n'
    middle = f"import torch\nmodel.to({PLAIN})\n{test}"
    check_transformed(
        f"{HEAD}{XM}model.to(xm.xla_device())\n{test}", middle, unsafe=False, todo=False
    )
    check_transformed(middle, middle.replace('"xla"', '"tpu"'))


SEARCHED = {
    "assertEqual": "self.assertEqual(t.device, {0})\n",
    "assertIn": "self.assertIn({0}, devices)\n",
    "assert_equal": "assert_equal({0}, t.device)\n",
    "list under a name": "devs = [{0}]\nok = t.device in devs\n",
    "index of a list": "devs = [{0}, other]\nat = devs.index(t.device)\n",
}


@pytest.mark.parametrize("use", SEARCHED.values(), ids=SEARCHED)
def test_a_device_that_others_are_held_against_is_indexed(use: str) -> None:
    before = HEAD + XM + use.format("xm.xla_device()")
    check_transformed(before, HEAD + use.format(INDEXED))


def test_the_device_of_a_call_that_stays_is_kept() -> None:
    check_noop(f'{XM}xm.xla_device_hw("xla:0", 3)\n', todo=False)
