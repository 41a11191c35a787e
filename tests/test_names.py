"""What a name means: binding forms, scopes, aliases, and what only looks like torch_xla."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

from xla2tpu.model import Applicability, FileResult
from xla2tpu.rules import load_rules

XM = "import torch_xla.core.xla_model as xm\n"


def reasons(result: FileResult) -> list[tuple[str, str | None]]:
    """The code and the reason of each finding."""
    return [(f.rule, f.reason) for f in result.findings]


FORMS = {
    "alias": ("import torch_xla.core.xla_model as xm", "xm.mark_step()"),
    "dotted": ("import torch_xla.core.xla_model", "torch_xla.core.xla_model.mark_step()"),
    "package": ("import torch_xla", "torch_xla.core.xla_model.mark_step()"),
    "renamed package": ("import torch_xla as tx", "tx.sync()"),
    "module from package": ("from torch_xla.core import xla_model", "xla_model.mark_step()"),
    "renamed module": ("from torch_xla.core import xla_model as m", "m.mark_step()"),
    "function": ("from torch_xla.core.xla_model import mark_step", "mark_step()"),
    "renamed function": ("from torch_xla.core.xla_model import mark_step as go", "go()"),
    "package of modules": ("from torch_xla import core", "core.xla_model.mark_step()"),
    "alias of a module": ("import torch_xla\nxm = torch_xla.core.xla_model", "xm.mark_step()"),
    "looked up": (XM.rstrip(), 'getattr(xm, "mark_step")()'),
}


@pytest.mark.parametrize("form", FORMS)
def test_binding_forms(form: str) -> None:
    bound, used = FORMS[form]
    check_transformed(
        f"{bound}\n\n\ndef flush(loss):\n    {used}\n    return loss\n",
        "def flush(loss):\n    return loss\n",
    )


def test_alias_of_a_function() -> None:
    check_transformed(
        f"{XM}cut = xm.mark_step\n\n\ndef flush(loss):\n    cut()\n    return loss\n",
        "cut = lambda *args, **kwargs: None\n\n\ndef flush(loss):\n    cut()\n    return loss\n",
    )


def test_shared_statement_keeps_the_other_names() -> None:
    check_transformed(
        "import torch, torch_xla\n\ntorch_xla.sync()\nprint(torch.ones(1))\n",
        "import torch\n\nprint(torch.ones(1))\n",
    )


OTHERS = {
    "xmanager": "from xmanager import xm\n\nxm.mark_step()\n",
    "xarray": "import xarray as xr\n\nxr.world_size()\n",
    "local string": "xm = 'model'\nprint(xm.mark_step)\n",
    "lightning hook": "class Model:\n    def optimizer_step(self):\n        self.mark_step()\n",
    "habana": "import habana_frameworks.torch.core as htcore\n\nhtcore.mark_step()\n",
    "cuda graphs": "import torch\n\ntorch.compiler.cudagraph_mark_step_begin()\n",
}


@pytest.mark.parametrize("other", OTHERS)
def test_never_by_spelling(other: str) -> None:
    assert check_noop(OTHERS[other]).findings == []


def test_parameter_shadows_the_module() -> None:
    result = check_transformed(
        f"{XM}\n\ndef forward(xm):\n    xm.mark_step()\n\n\nxm.mark_step()\n",
        "def forward(xm):\n    xm.mark_step()\n",
    )
    assert [f.line for f in result.findings] == [8]


def test_two_bindings_are_ambiguous() -> None:
    result = check_noop(
        "import sys\n\n"
        "if sys.argv[1:]:\n    import torch_xla.core.xla_model as xm\n"
        "else:\n    import fake_model as xm\n\nxm.mark_step()\n",
        todo=False,
    )
    assert ("XLA101", "ambiguous-binding") in reasons(result)


# -- an import that is there already serves only where it is certain to have run -----------------

DEVICE = 'torch.device("tpu")'
EXISTING = {
    "later in the module": (
        f"{XM}\ndevice = xm.xla_device()\n\nimport torch\n\nprint(torch.ones(2).to(device))\n",
        f"import torch\n\ndevice = {DEVICE}\n\nimport torch\n\nprint(torch.ones(2).to(device))\n",
    ),
    "later in the module, used in a function": (
        f"{XM}\n\ndef pick():\n    return xm.xla_device()\n\n\nimport torch\n",
        f"def pick():\n    return {DEVICE}\n\n\nimport torch\n",
    ),
    "later in the function": (
        f"{XM}\n\ndef pick():\n    device = xm.xla_device()\n    import torch\n\n"
        "    return torch.zeros(1, device=device)\n",
        'import torch as _torch\n\n\ndef pick():\n    device = _torch.device("tpu")\n'
        "    import torch\n\n    return torch.zeros(1, device=device)\n",
    ),
    "earlier in the function": (
        f"{XM}\n\ndef pick():\n    import torch\n\n    return xm.xla_device(), torch\n",
        f"def pick():\n    import torch\n\n    return {DEVICE}, torch\n",
    ),
    "later in the function around": (
        f"{XM}\n\ndef outer():\n    def inner():\n        return xm.xla_device()\n\n"
        "    import torch\n\n    return inner(), torch\n",
        "import torch as _torch\n\n\ndef outer():\n    def inner():\n"
        '        return _torch.device("tpu")\n\n'
        "    import torch\n\n    return inner(), torch\n",
    ),
    "in a branch": (
        f'{XM}import os\n\nif os.environ.get("FAST"):\n    import torch\n\n'
        "device = xm.xla_device()\n",
        'import torch\nimport os\n\nif os.environ.get("FAST"):\n    import torch\n\n'
        f"device = {DEVICE}\n",
    ),
    "in a branch of the function": (
        f"{XM}\n\ndef pick(fast):\n    if fast:\n        import torch\n\n"
        "        return torch.ones(1)\n    return xm.xla_device()\n",
        "import torch as _torch\n\n\ndef pick(fast):\n    if fast:\n        import torch\n\n"
        '        return torch.ones(1)\n    return _torch.device("tpu")\n',
    ),
    "in a loop": (
        f"{XM}\nfor _ in range(2):\n    import torch\n\nprint(xm.xla_device())\n",
        f"import torch\n\nfor _ in range(2):\n    import torch\n\nprint({DEVICE})\n",
    ),
    "for types": (
        f"{XM}from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import torch\n\n\n"
        'def pick() -> "torch.device":\n    return xm.xla_device()\n',
        "import torch\nfrom typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n    import torch\n\n\n"
        f'def pick() -> "torch.device":\n    return {DEVICE}\n',
    ),
    "in a class": (
        f"{XM}\n\nclass Model:\n    import torch\n\n"
        "    def place(self):\n        return xm.xla_device()\n",
        "import torch\n\n\nclass Model:\n    import torch\n\n"
        f"    def place(self):\n        return {DEVICE}\n",
    ),
}


@pytest.mark.parametrize("place", EXISTING)
def test_existing_import(place: str) -> None:
    check_transformed(*EXISTING[place])


def test_shadowed_module_is_spelled_out() -> None:
    check_transformed(
        f"import torch.distributed as dist\n{XM}\n\n"
        "def rank(dist):\n    return xm.get_ordinal(), dist\n\n\nprint(dist)\n",
        "import torch.distributed as dist\nimport torch.distributed\n\n\n"
        "def rank(dist):\n    return torch.distributed.get_rank()"
        " if torch.distributed.is_initialized() else 0, dist\n\n\nprint(dist)\n",
    )


# -- type parameters -----------------------------------------------------------------------------

TYPED = {
    "function": "def watch[T: xm.RateTracker](tracker: T) -> T:\n    return tracker\n",
    "class": "class Watch[T: xm.RateTracker]:\n    tracker: T\n",
    "alias": "type Watched[T: xm.RateTracker] = list[T]\n",
}


@pytest.mark.parametrize("kind", TYPED)
def test_bound_of_a_type_parameter_is_a_use(kind: str) -> None:
    result = check_transformed(
        f"{XM}\n\n{TYPED[kind]}",
        "import os\nimport time\n\n\n"
        + load_rules().helpers["RateTracker"].code.strip()
        + "\n\n\n"
        + TYPED[kind].replace("xm.", ""),
    )
    assert result.references == 1


# -- imports in a class --------------------------------------------------------------------------

IN_CLASS = """\
class Loop:
    import torch_xla.core.xla_model as xm

    def step(self, optimizer):
        {manual}self.xm.mark_step()
        optimizer.zero_grad()
"""


def test_import_in_a_class_goes_with_its_last_use() -> None:
    result = check_transformed(
        IN_CLASS.format(manual=""),
        "class Loop:\n    def step(self, optimizer):\n        optimizer.zero_grad()\n",
    )
    assert result.references == 1


def test_import_in_a_class_stays_with_a_use() -> None:
    manual = "self.xm.optimizer_step(optimizer, groups=g)\n        "
    before = IN_CLASS.format(manual=manual)
    result = check_transformed(
        before, before.replace("        self.xm.mark_step()\n", ""), todo=False
    )
    assert [(f.rule, f.applied) for f in result.findings] == [("XLA501", False), ("XLA101", True)]


def test_import_in_a_class_through_cls() -> None:
    check_transformed(
        "class Loop:\n    import torch_xla.core.xla_model as xm\n\n"
        "    @classmethod\n    def step(cls):\n        cls.xm.mark_step()\n        print(cls)\n",
        "class Loop:\n    @classmethod\n    def step(cls):\n        print(cls)\n",
    )


# -- patched names -------------------------------------------------------------------------------


def test_assigned_name_is_left_alone() -> None:
    result = check_transformed(
        f"import torch\n{XM}\nxm.mark_step = print\nxm.mark_step()\nprint(xm.xla_device())\n",
        f"import torch\n{XM}\nxm.mark_step = print\nxm.mark_step()\nprint({DEVICE})\n",
        todo=False,
    )
    assert reasons(result) == [
        ("XLA101", "store-or-delete"),
        ("XLA101", "store-or-delete"),
        ("XLA201", None),
    ]


def test_name_patched_by_a_string_is_left_alone() -> None:
    before = f"""\
from unittest import mock

import torch
{XM}

def test_flush():
    with mock.patch("torch_xla.core.xla_model.mark_step") as mark:
        xm.mark_step()
        mark.assert_called_once()
    print(xm.xla_device())
"""
    result = check_transformed(before, before.replace("xm.xla_device()", DEVICE), todo=False)
    assert reasons(result) == [
        ("XLA007", "string-reference"),
        ("XLA101", "store-or-delete"),
        ("XLA201", None),
    ]


# -- star imports, and classes as a whole --------------------------------------------------------


def test_star_import_claims_only_names_that_rules_know() -> None:
    result = check_noop(
        "from torch_xla.core.xla_model import *\nfrom os.path import *\nfrom helpers import *\n\n"
        'foo(1)\nprint(join("a", "b"))\nmark_step()\n',
        todo=False,
    )
    assert [(f.rule, f.line, f.reason) for f in result.findings] == [
        ("XLA002", 1, "star-import"),
        ("XLA101", 7, "star-import"),
    ]


CLASS_USES = """\
{head}def rate(tracker: {at}RateTracker) -> float:
    assert isinstance(tracker, {at}RateTracker)
    return tracker.rate()


print(rate({at}RateTracker()))
"""


def test_uses_of_a_class_change_together() -> None:
    check_transformed(
        CLASS_USES.format(head=f"{XM}\n\n", at="xm."),
        "import os\nimport time\n\n\n"
        + load_rules().helpers["RateTracker"].code.strip()
        + "\n\n\n"
        + CLASS_USES.format(head="", at=""),
    )


def test_uses_of_a_class_stay_together() -> None:
    head = f"{XM}\n\nclass Meter(xm.RateTracker):\n    pass\n\n\n"
    result = check_noop(CLASS_USES.format(head=head, at="xm."), todo=False)
    assert reasons(result) == [("XLA408", "subclass")] * 4


def test_annotation_in_quotes_without_an_import() -> None:
    result = check_noop(
        'def speed(tracker: "torch_xla.core.xla_model.RateTracker"):\n    return tracker.rate()\n',
        todo=False,
    )
    assert reasons(result) == [("XLA007", "annotation")]


GUARDED = """\
from utils import is_torch_available

if is_torch_available():
    import torch
    import torch_xla.core.xla_model as xm


def f():
    return xm.get_ordinal(), xm.xla_device()
"""


def test_a_torch_that_may_be_missing_stays_so() -> None:
    check_transformed(
        GUARDED,
        GUARDED.replace(
            "import torch_xla.core.xla_model as xm", "import torch.distributed as dist"
        ).replace(
            "xm.get_ordinal(), xm.xla_device()",
            'dist.get_rank() if dist.is_initialized() else 0, torch.device("tpu")',
        ),
    )


def test_a_probe_in_a_file_without_torch() -> None:
    check_transformed(
        "def probe():\n    try:\n        import torch_xla.core.xla_model as xm\n"
        "        xm.xla_device()\n        return True\n    except RuntimeError:\n"
        "        return False\n",
        "def probe():\n    import torch\n"
        "    return (torch.accelerator.current_accelerator(check_available=True) or "
        'torch.device("cpu")).type == "tpu"\n',
    )


def test_an_alias_of_an_alias() -> None:
    check_transformed(
        f"{XM}mark = xm.mark_step\nflush = mark\nflush()\n",
        "mark = lambda *args, **kwargs: None\nflush = mark\nflush()\n",
    )


def test_an_alias_of_a_module_is_no_manual_work() -> None:
    result = check_transformed(f"{XM}ym = xm\nym.mark_step()\nprint(1)\n", "print(1)\n")
    assert [f.applicability for f in result.findings] == [Applicability.SAFE] * 2
    assert [f.reason for f in result.findings] == [None, None]


PATTERNS = {
    "value": "xm.get_ordinal",
    "constant": "xm.REDUCE_SUM",
    "in a mapping": '{"a": xm.REDUCE_MAX}',
    "in alternatives": "1 | xm.REDUCE_MAX",
    "in a sequence": "[xm.get_ordinal, *_]",
    "class": "xm.RateTracker()",
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_patterns_are_left(pattern: str) -> None:
    """A name without a dot would be bound there."""
    source = f"{XM}\nmatch kind:\n    case {pattern}:\n        f()\n"
    result = check_noop(source, todo=False)
    assert [f.reason for f in result.findings] == ["unsupported-form"]
