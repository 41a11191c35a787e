"""Statements that vanish, in every shape of a suite."""

from __future__ import annotations

import pytest
from conftest import check_transformed

XM = "import torch_xla.core.xla_model as xm\n"

SHAPES = {
    "last of a block": ("if a:\n    f()\n    xm.mark_step()\n", "if a:\n    f()\n"),
    "alone under a pure test": ("f()\nif a:\n    xm.mark_step()\n", "f()\n"),
    "alone under a call": ("if a():\n    xm.mark_step()\n", "if a():\n    pass\n"),
    "one-line if": ("f()\nif a: xm.mark_step()\n", "f()\n"),
    "one-line for": ("for _ in a: xm.mark_step()\n", "for _ in a: pass\n"),
    "after a semicolon": ("f(); xm.mark_step()\n", "f()\n"),
    "before a semicolon": ("xm.mark_step(); f()\n", "f()\n"),
    "between semicolons": ("f(); xm.mark_step(); g()\n", "f(); g()\n"),
    "else": ("if a:\n    f()\nelse:\n    xm.mark_step()\n", "if a:\n    f()\n"),
    "elif": ("if a:\n    f()\nelif b:\n    xm.mark_step()\n", "if a:\n    f()\n"),
    "body with an else": (
        "if a:\n    xm.mark_step()\nelse:\n    f()\n",
        "if a:\n    pass\nelse:\n    f()\n",
    ),
    "finally": (
        "try:\n    f()\nexcept ValueError:\n    g()\nfinally:\n    xm.mark_step()\n",
        "try:\n    f()\nexcept ValueError:\n    g()\n",
    ),
    "finally alone": (
        "try:\n    f()\nfinally:\n    xm.mark_step()\n",
        "try:\n    f()\nfinally:\n    pass\n",
    ),
    "for else": ("for _ in a:\n    f()\nelse:\n    xm.mark_step()\n", "for _ in a:\n    f()\n"),
    "function": ("def flush():\n    xm.mark_step()\n", "def flush():\n    pass\n"),
    "function with a docstring": (
        'def flush():\n    """Flush."""\n    xm.mark_step()\n',
        'def flush():\n    """Flush."""\n',
    ),
    "and": ("a and xm.mark_step()\nf()\n", "f()\n"),
    "trailing comment": ("f()\nxm.mark_step()  # cut here\n", "f()\n"),
    "comment of its own": ("f()\n# Cut here.\nxm.mark_step()\n", "f()\n# Cut here.\n"),
    "two spaces": ("if a:\n  f()\n  xm.mark_step()\n", "if a:\n  f()\n"),
    "nested": ("f()\nif a:\n    if b:\n        xm.mark_step()\n", "f()\n"),
    "lambda": ("later = lambda: xm.mark_step()\n", "later = lambda: None\n"),
    "callback": ("hooks = [xm.mark_step]\n", "hooks = [lambda *args, **kwargs: None]\n"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_step_marker(shape: str) -> None:
    before, after = SHAPES[shape]
    check_transformed(f"{XM}\n{before}", after)


STEPS = {
    "target after": ("with ctx as s, torch_xla.step(): f(s)\n", "with ctx as s: f(s)\n"),
    "target before": ("with torch_xla.step(), ctx as s: f(s)\n", "with ctx as s: f(s)\n"),
    "target and pass": ("with ctx as s, torch_xla.step(): pass\n", "with ctx as s: pass\n"),
    "one line": ("with torch_xla.step(): f(2)\n", "f(2)\n"),
    "block": ("with torch_xla.step():\n    f(1)\n    f(2)\n", "f(1)\nf(2)\n"),
    "parentheses": (
        "with (\n    ctx as s,\n    torch_xla.step(),\n):\n    f(s)\n",
        "with (\n    ctx as s,\n):\n    f(s)\n",
    ),
}


@pytest.mark.parametrize("shape", STEPS)
def test_step_context(shape: str) -> None:
    before, after = STEPS[shape]
    check_transformed(f"import torch_xla\n\n{before}", after)


def test_compile_as_a_statement_goes() -> None:
    check_transformed(
        "import torch_xla\n\n\ndef f(x):\n    return x\n\n\n"
        "torch_xla.compile(f)\ng = torch_xla.compile(f)\n",
        "def f(x):\n    return x\n\n\ng = f\n",
    )


LAUNCHERS = {
    "launch": "torch_xla.launch(xm.xla_device)",
    "spawn": "xmp.spawn(xm.xla_device, args=())",
    "keyword": "xmp.spawn(fn=xm.xla_device)",
}


@pytest.mark.parametrize("form", LAUNCHERS)
def test_function_for_a_launcher_is_left(form: str) -> None:
    head = f"{XM}import torch_xla\nimport torch_xla.distributed.xla_multiprocessing as xmp\n\n"
    result = check_transformed(
        f"{head}xm.mark_step()\n{LAUNCHERS[form]}\ntorch_xla.launch(*f)\nxmp.spawn(*f)\n",
        f"{head}{LAUNCHERS[form]}\ntorch_xla.launch(*f)\nxmp.spawn(*f)\n",
        todo=False,
    )
    [found] = [f for f in result.findings if f.rule == "XLA201"]
    assert found.reason == "whole-program"


def test_function_as_a_value() -> None:
    check_transformed(
        f"import torch\n{XM}\nhooks = [xm.mark_step, xm.xla_device]\n",
        "import torch\n\nhooks = [lambda *args, **kwargs: None,"
        ' lambda *args, **kwargs: torch.device("tpu")]\n',
    )


def test_argument_of_a_wait_that_converts_nothing() -> None:
    check_transformed(
        f"import torch\n{XM}\n\ndef wait(x):\n    xm._maybe_convert_to_cpu(x, convert=False)\n",
        "import torch\n\n\ndef wait(x):\n    torch.accelerator.synchronize()\n",
    )
