"""Strings, attributes and tests that have to do with torch_xla without being uses of its names."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

from xla2tpu.model import Applicability, Status

STRINGS = {
    "loaded modules": 'import sys\n\nmodule = sys.modules["torch_xla"]\n',
    "among modules": 'import sys\n\nloaded = "torch_xla" in sys.modules\n',
    "hidden module": "import sys\nfrom unittest import mock\n\n"
    'with mock.patch.dict(sys.modules, {"torch_xla": None}):\n    print(1)\n',
    "formatted": "import importlib\n\n\ndef load(name):\n"
    '    return importlib.import_module(f"torch_xla.core.{name}")\n',
    "put together": "import importlib\n\n\ndef load(name):\n"
    '    return importlib.import_module("torch_xla." + name)\n',
    "imported": 'import importlib\n\nxm = importlib.import_module("torch_xla.core.xla_model")\n',
    "patched": "from unittest import mock\n\n\n"
    '@mock.patch("torch_xla.core.xla_model.xla_device")\ndef test_it(fake):\n    print(fake)\n',
}


@pytest.mark.parametrize("form", STRINGS)
def test_name_in_a_string(form: str) -> None:
    result = check_noop(STRINGS[form], todo=False)
    assert [(f.rule, f.reason, f.counts) for f in result.findings] == [
        ("XLA007", "string-reference", True)
    ]
    assert result.status is Status.NEEDS_WORK


def test_text_about_torch_xla_is_no_reference() -> None:
    assert check_noop('"""Runs on torch_xla."""\n\nprint("torch_xla")\n').findings == []


# -- what stays the same finding before and after the rest is migrated ----------------------------

NUMBERED = '{0}def name(i):\n    {1}return f"xla:{{i}}"\n'


def test_numbered_device_is_reported_before_and_after() -> None:
    xm = "import torch_xla.core.xla_model as xm\n\n\n"
    before, after = NUMBERED.format(xm, "xm.mark_step()\n    "), NUMBERED.format("", "")
    first = check_transformed(before, after, todo=False)
    second = check_noop(after, todo=False)
    left = [(f.rule, f.reason, f.blocks) for f in first.findings if not f.applied]
    assert left == [("XLA220", "device-ordinal", True)]
    assert left == [(f.rule, f.reason, f.blocks) for f in second.findings]


# -- is_xla --------------------------------------------------------------------------------------

IS_XLA = {
    "name": ("x.is_xla", 'x.device.type == "tpu"'),
    "call": ("f(x).is_xla", 'f(x).device.type == "tpu"'),
    "sum": ("(x + 1).is_xla", '(x + 1).device.type == "tpu"'),
    "not": ("not x.is_xla", 'not x.device.type == "tpu"'),
    "choice": ("x.cpu() if x.is_xla else x", 'x.cpu() if x.device.type == "tpu" else x'),
}


@pytest.mark.parametrize("form", IS_XLA)
def test_is_xla(form: str) -> None:
    before, after = IS_XLA[form]
    program = "def where(f, x):\n    {1}return {0}\n"
    result = check_transformed(
        f"import torch_xla\n\n\n{program.format(before, 'torch_xla.sync()' + chr(10) + '    ')}",
        program.format(after, ""),
    )
    assert [(f.rule, f.applicability) for f in result.findings] == [
        ("XLA101", Applicability.SAFE),
        ("XLA221", Applicability.UNSAFE),
    ]


# -- the backend ---------------------------------------------------------------------------------

BACKENDS = {
    "positional": 'dist.init_process_group("xla")',
    "keyword": 'dist.init_process_group(backend="xla")',
}


@pytest.mark.parametrize("form", BACKENDS)
def test_backend_is_found_once(form: str) -> None:
    source = f"import torch.distributed as dist\n\n{BACKENDS[form]}\n"
    after = source.replace('"xla"', '"cpu:gloo,tpu:tpu_dist"')
    result = check_transformed(source, after, todo=False)
    assert [(f.rule, f.applied, f.blocks) for f in result.findings] == [("XLA904", True, True)]


def test_backend_of_something_else_is_left_alone() -> None:
    result = check_noop('import lib\n\nlib.Trainer(backend="xla")\n', todo=False)
    assert [(f.rule, f.reason) for f in result.findings] == [("XLA904", "whole-program")]


# -- backends of torch.compile --------------------------------------------------------------------

# What stands in a function of a model and of flags, and the reason where the backend is left.
COMPILED = {
    "argument": ("return torch.compile(m, backend={})", None),
    "method": ("m.compile(backend={}, dynamic=False)", None),
    "partial": ("return functools.partial(torch.compile, backend={})(m)", None),
    "fallback": ("return torch.compile(m, backend=flags.backend or {})", None),
    "optimize": ("return torch._dynamo.optimize({})(m)", None),
    "optimize by name": ("return torch._dynamo.optimize(backend={})(m)", None),
    "name": ("b = {}\n    return torch.compile(m, backend=b)", None),
    "annotated name": ("b: str = {}\n    return torch.compile(m, backend=b)", None),
    "seen by a closure": ("b = {}\n    return lambda: torch.compile(m, backend=b)", None),
    "one of two values": (
        'b = "inductor"\n    if flags.tpu:\n        b = {}\n    return torch.compile(m, backend=b)',
        None,
    ),
    "unread options": ("return torch.compile(m, backend={}, options=None, mode='default')", None),
    "options": ("return torch.compile(m, backend={}, options=flags)", "argument-not-supported"),
    "mode": ("return torch.compile(m, backend={}, mode=flags.mode)", "argument-not-supported"),
    "dynamic": (
        "b = {}\n    return torch.compile(m, backend=b, dynamic=True)",
        "argument-not-supported",
    ),
    "printed": ("b = {}\n    print(b)\n    return torch.compile(m, backend=b)", "user-option"),
    "handed on": ("b = {}\n    return flags(m, b)", "user-option"),
    "unused name": ("b = {}", "user-option"),
    "attribute": ("m.b = {}\n    return torch.compile(m, backend=m.b)", "user-option"),
    "another parameter": ("return torch.compile(m, mode={})", "user-option"),
    "another function": ("return flags.compile_with(m, backend={})", "user-option"),
    "the model": ("return torch.compile({})", "user-option"),
    "condition": ("return torch.compile(m, backend=m if {} else flags)", "user-option"),
    "compared": ("return flags == {}", "user-option"),
    "key": ("return torch.compile(m, **{{{}: flags}})", "user-option"),
}


@pytest.mark.parametrize("form", COMPILED)
def test_backend_of_compile(form: str) -> None:
    body, reason = COMPILED[form]
    program = "import functools\n\nimport torch\n\n\ndef prepare(m, flags):\n    "
    source = f"{program}{body.format(repr('openxla'))}\n"
    if reason is None:
        result = check_transformed(source, f"{program}{body.format(repr('tpu'))}\n", todo=False)
    else:
        result = check_noop(source, todo=False)
    found = [(f.rule, f.reason) for f in result.findings if f.rule == "XLA903"]
    assert found == [("XLA903", reason)]


# -- other packages' tests -----------------------------------------------------------------------


def test_guard_of_another_package_keeps_the_file_from_being_done() -> None:
    result = check_transformed(
        "from transformers.utils import is_torch_xla_available\n"
        "import torch_xla.core.xla_model as xm\n\n"
        "if is_torch_xla_available():\n    xm.mark_step()\n    print(1)\n",
        "from transformers.utils import is_torch_xla_available\n\n"
        "if is_torch_xla_available():\n    print(1)\n",
        todo=False,
    )
    assert result.status is Status.NEEDS_WORK
    assert [(f.rule, f.reason) for f in result.findings if not f.applied] == [
        ("XLA006", "guard-outside-project")
    ]


ENVIRONMENT = {
    "dictionary": ('os.environ.update({"XLA_USE_BF16": "1"})\n', "numerics"),
    "environment of another process": (
        'env = {"PJRT_DEVICE": "TPU", **os.environ}\n',
        "environment",
    ),
    "keyword": ('os.environ.update(PJRT_DEVICE="TPU")\n', "environment"),
    "keyword of dict": ('env = dict(os.environ, XLA_USE_BF16="1")\n', "numerics"),
}


@pytest.mark.parametrize(("use", "reason"), ENVIRONMENT.values(), ids=ENVIRONMENT)
def test_variables_in_dictionaries(use: str, reason: str) -> None:
    result = check_noop(f"import os\n\n{use}", todo=False)
    assert [f.reason for f in result.findings] == [reason]
    check_noop(f"import os\n\n{use.replace('os.environ', 'os.other')}", todo=False)


def test_a_guard_of_another_package_stays_marked_once_the_rest_is_gone() -> None:
    head = (
        "import torch.distributed as dist\nfrom pytorch_lightning.utilities import _TPU_AVAILABLE\n"
    )
    use = "\n\ndef f():\n{0}    return _TPU_AVAILABLE and {1} > 1\n"
    todo = "    # TODO(xla2tpu): XLA006 Take the test out, or test "
    todo += "torch.accelerator.current_accelerator() instead.\n"
    check_transformed(
        f"{head}import torch_xla.core.xla_model as xm\n" + use.format("", "xm.xrt_world_size()"),
        head + use.format(todo, "(dist.get_world_size() if dist.is_initialized() else 1)"),
    )
