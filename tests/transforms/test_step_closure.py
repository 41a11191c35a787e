"""Step closures become plain calls."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

XM = "import torch_xla.core.xla_model as xm\n"
HEAD = "import functools\n\n"

CALLS = {
    "no arguments": ("fn", "fn()"),
    "empty tuple": ("fn, ()", "fn()"),
    "tuple": ("fn, args=(step, loss)", "fn(step, loss)"),
    "positional": ("fn, (step, loss)", "fn(step, loss)"),
    "list": ("fn, args=[step, loss]", "fn(step, loss)"),
    "one": ("fn, args=(loss,)", "fn(loss)"),
    "one in a list": ("fn, args=[loss]", "fn(loss)"),
    "asynchronous": ("fn, args=(loss,), run_async=True", "fn(loss)"),
    "starred": ("fn, args=(*loss, step)", "fn(*loss, step)"),
    "only starred": ("fn, args=(*loss,)", "fn(*loss)"),
    "value": ("fn, args=loss", "fn(*loss)"),
    "conditional value": ("fn, args=loss or step", "fn(*(loss or step))"),
    "double parentheses": ("fn, args=((step, loss))", "fn(step, loss)"),
    "nested": ("fn, args=((step, loss),)", "fn((step, loss))"),
    "method": ("self.log, args=(step,)", "self.log(step)"),
    "lambda": ("lambda s: print(s), args=(step,)", "(lambda s: print(s))(step)"),
    "lambda without parameters": ("lambda: print(step)", "print(step)"),
    "lambda of a value": ("lambda: step", "(lambda: step)()"),
    "choice": ("fn if loss else print, args=(step,)", "(fn if loss else print)(step)"),
    "call": ("functools.partial(fn, 1), args=(step,)", "functools.partial(fn, 1)(step)"),
    "other order": ("args=(step, loss), closure=fn", "fn(step, loss)"),
    "other order, starred": ("args=[*loss, step], closure=fn", "fn(*loss, step)"),
    "line break in the function": (
        "functools\n    .partial(fn, 1), args=(step,)",
        "(functools\n    .partial(fn, 1))(step)",
    ),
    "lines": ("\n    fn,\n    args=(step, loss),\n", "fn(step, loss)"),
    "lines of the tuple": (
        "\n    fn,\n    args=(\n        step,  # one\n        loss,  # two\n    ),\n",
        "fn(\n    step,  # one\n    loss,  # two\n)",
    ),
    "lines of a string": (
        '\n    fn,\n    args=(\n        step,\n        """a\n        b""",\n    ),\n',
        'fn(\n        step,\n        """a\n        b""",\n    )',
    ),
    "hanging tuple": ("fn, args=(\n    step, loss,\n)", "fn(\n    step, loss,\n)"),
    "comment on the function": (
        "\n    fn,  # which\n    args=(\n        step,\n    ),\n",
        "fn(  # which\n    step,\n)",
    ),
    "comment before a short tuple": (
        "\n    fn,  # which\n    (step, loss),\n",
        "fn(  # which\n    step, loss)",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_statement(name: str) -> None:
    given, expected = CALLS[name]
    check_transformed(
        f"{HEAD}{XM}xm.add_step_closure({given})\n",
        f"{HEAD}{expected}\n",
    )


def test_other_contexts() -> None:
    check_transformed(
        f"import os\n{XM}"
        "step and xm.add_step_closure(fn, args=(loss,))\n"
        "later = lambda: xm.add_step_closure(fn, (loss,))\n"
        "os.sync(); xm.add_step_closure(fn)\n",
        "import os\nstep and fn(loss)\nlater = lambda: fn(loss)\nos.sync(); fn()\n",
    )


def test_fixes_inside() -> None:
    check_transformed(
        "import torch\nimport torch_xla.core.xla_model as xm\n"
        "xm.add_step_closure(lambda x: xm.mark_step(), args=(xm.wait_device_ops(), 2))\n",
        "import torch\n(lambda x: None)(torch.accelerator.synchronize(), 2)\n",
    )


def test_effect_of_a_dropped_argument() -> None:
    result = check_noop(f"{XM}xm.add_step_closure(fn, run_async=ask())\n", todo=False)
    assert [f.reason for f in result.findings if f.counts] == ["argument-side-effects"]
