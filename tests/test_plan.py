"""How edits are put together: markers, alignment, ways of writing, and the fix of one finding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import check_transformed

from xla2tpu import engine
from xla2tpu.model import Fix, Mode, Settings

XM = "import torch_xla.core.xla_model as xm\n"
STEP = (
    "# TODO(xla2tpu): XLA501 Average in groups made with dist.new_group;"
    " torch_xla divided by the world size."
)
ORDINAL = '# TODO(xla2tpu): XLA201 Use torch.device("tpu"); one process drives one TPU.'

# -- markers -------------------------------------------------------------------------------------


def test_marker_stands_above_the_statement() -> None:
    check_transformed(
        f"{XM}\n\ndef train(optimizer):\n    # Update.\n    xm.optimizer_step(\n"
        "        optimizer, groups=g,\n    )\n    xm.mark_step()\n",
        f"{XM}\n\ndef train(optimizer):\n    # Update.\n    {STEP}\n    xm.optimizer_step(\n"
        "        optimizer, groups=g,\n    )\n",
    )


def test_one_marker_for_a_line() -> None:
    check_transformed(
        f"{XM}\nxm.optimizer_step(a, groups=g); xm.optimizer_step(b, groups=g)\n",
        f"{XM}\n{STEP}\nxm.optimizer_step(a, groups=g); xm.optimizer_step(b, groups=g)\n",
    )


def test_markers_of_two_rules() -> None:
    check_transformed(
        f"{XM}\nxm.optimizer_step(pick(xm.xla_device(2)), groups=g)\n",
        f"{XM}\n{STEP}\n{ORDINAL}\nxm.optimizer_step(pick(xm.xla_device(2)), groups=g)\n",
    )


def test_marker_on_a_test() -> None:
    check_transformed(
        f"{XM}\nif xm.xla_device(2):\n    xm.mark_step()\nelse:\n    print(1)\n",
        f"{XM}\n{ORDINAL}\nif xm.xla_device(2):\n    pass\nelse:\n    print(1)\n",
    )


def test_marker_inside_a_statement_that_becomes_a_block() -> None:
    check_transformed(
        f"import torch.distributed as dist\n{XM}\n\n"
        'def log(loss):\n    xm.master_print("on", xm.xla_device(n=2), loss)\n    return loss\n',
        f"import torch.distributed as dist\n{XM}\n\ndef log(loss):\n"
        "    if (dist.get_rank() if dist.is_initialized() else 0) == 0:\n"
        f'        {ORDINAL}\n        print("on", xm.xla_device(n=2), loss)\n    return loss\n',
    )


def test_markers_inside_two_blocks() -> None:
    check_transformed(
        f"import torch.distributed as dist\n{XM}\n\n"
        "def log(loss):\n  xm.master_print(xm.xla_device(n=2), local=True)\n"
        "  xm.master_print(xm.xla_device(n=3), local=True)\n",
        f"import torch.distributed as dist\n{XM}\n\ndef log(loss):\n"
        "  if dist.get_node_local_rank(fallback_rank=0) == 0:\n"
        f"    {ORDINAL}\n    print(xm.xla_device(n=2))\n"
        "  if dist.get_node_local_rank(fallback_rank=0) == 0:\n"
        f"    {ORDINAL}\n    print(xm.xla_device(n=3))\n",
    )


def test_marker_of_a_mended_place_goes() -> None:
    check_transformed(
        f"{XM}\n{STEP}\n{ORDINAL}\nxm.optimizer_step(optimizer, groups=g)\n{STEP}\nprint(1)\n",
        f"{XM}\n{STEP}\nxm.optimizer_step(optimizer, groups=g)\nprint(1)\n",
    )


# -- alignment -----------------------------------------------------------------------------------

ALIGNED = {
    "argument before": (
        "model = Model(xm.xla_device(), first=1,\n              second=2)\n",
        'model = Model(torch.device("tpu"), first=1,\n              second=2)\n',
    ),
    "longer name before": (
        "y = xm._maybe_convert_to_cpu(pick(1,\n                                  2))\n",
        "y = tree_map_only(torch.Tensor, lambda t: t.cpu(), pick(1,\n"
        "                                                        2))\n",
    ),
    "statement that moves in": (
        'xm.master_print("one",\n                "two")\n',
        "if (dist.get_rank() if dist.is_initialized() else 0) == 0:\n"
        '    print("one",\n          "two")\n',
    ),
    "bracket at the end of the line": (
        'xm.master_print(\n    "one",\n    "two",\n)\n',
        "if (dist.get_rank() if dist.is_initialized() else 0) == 0:\n"
        '    print(\n        "one",\n        "two",\n    )\n',
    ),
    "text over lines": (
        'xm.master_print("""one\n    two""")\n',
        "if (dist.get_rank() if dist.is_initialized() else 0) == 0:\n"
        '    print("""one\n    two""")\n',
    ),
}


@pytest.mark.parametrize("form", ALIGNED)
def test_continued_lines_move_along(form: str) -> None:
    before, after = ALIGNED[form]
    head = "import torch\nimport torch.distributed as dist\n"
    pytree = "from torch.utils._pytree import tree_map_only\n"
    check_transformed(f"{head}{pytree}{XM}\n{before}", f"{head}{pytree}\n{after}")


# -- ways of writing -----------------------------------------------------------------------------


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_newlines(newline: bytes) -> None:
    before = (
        b"import torch_xla.core.xla_model as xm\n\ndef f():\n    xm.mark_step()\n    return 1\n"
    )
    check_transformed(
        before.replace(b"\n", newline),
        b"def f():\n    return 1\n".replace(b"\n", newline),
    )


def test_only_carriage_returns_with_a_new_import() -> None:
    check_transformed(
        b"import torch_xla.core.xla_model as xm\r\rdef f():\r    return xm.xla_device()\r",
        b'import torch\r\rdef f():\r    return torch.device("tpu")\r',
    )


def test_form_feeds() -> None:
    check_transformed(
        b"import torch_xla.core.xla_model as xm\nimport os\n\x0c\nclass A:\n"
        b"    def f(self):\n        xm.mark_step()\n        return 1\n\x0c\n"
        b"\x0cdef g():\n    xm.mark_step()\n    return os\n",
        b"import os\n\x0c\nclass A:\n    def f(self):\n        return 1\n\x0c\n"
        b"\x0cdef g():\n    return os\n",
    )


# -- the fix of one finding ----------------------------------------------------------------------


def fixes(source: str) -> list[Fix | None]:
    """The fixes of a check, with their edits."""
    settings = Settings(mode=Mode.CHECK, root=".", with_fixes=True)
    return [f.fix for f in engine.run_source(source.encode(), "x.py", settings).findings]


def applied(source: str, fix: Fix | None) -> str:
    """The source with one fix made, as an editor makes it."""
    assert fix is not None
    return engine.apply_edits(source.encode(), fix.edits).decode()


def test_single_fixes_bring_what_they_need() -> None:
    source = f"{XM}\ndevice = xm.xla_device()\nxm.mark_step()\n"
    device, step = fixes(source)
    assert applied(source, device) == (
        f'import torch\n{XM}\ndevice = torch.device("tpu")\nxm.mark_step()\n'
    )
    assert applied(source, step) == f"{XM}\ndevice = xm.xla_device()\n"


def test_single_fix_of_the_last_use_takes_the_import() -> None:
    source = f"import torch\n{XM}\ndevice = xm.xla_device()\n"
    [fix] = fixes(source)
    assert applied(source, fix) == 'import torch\n\ndevice = torch.device("tpu")\n'


def test_single_fix_brings_its_helper() -> None:
    source = "import torch.distributed as dist\n" + XM + "\nf = xm.get_ordinal\n"
    [fix] = fixes(source)
    assert applied(source, fix) == (
        "import torch.distributed as dist\n\n\ndef global_rank():\n"
        '    """Rank among all processes, 0 without a process group."""\n'
        "    return dist.get_rank() if dist.is_initialized() else 0\n\n\nf = global_rank\n"
    )


def test_fixes_one_after_the_other_end_as_all_at_once() -> None:
    source = f"{XM}\ndevice = xm.xla_device()\nxm.mark_step()\nprint(device)\n"
    step = source
    while found := fixes(step):
        step = applied(step, found[0])
    settings = Settings(mode=Mode.FIX, root=".")
    result = engine.run_source(source.encode(), "x.py", replace(settings, unsafe=True))
    assert result.output == step.encode()
