"""The context of `torch_xla.compile()` and of its like, where it is a value."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

IMPORT = "import torch_xla\n\n\n"
ENTERED = {
    "chosen": "    with {} if deep else stack:\n        step()\n",
    "a name": "    around = {}\n    with around:\n        step()\n",
    "a chosen name": (
        "    around = {} if deep else stack\n    with stack, around as a:\n        step(a)\n"
    ),
    "on a stack": "    stack.enter_context({})\n    step()\n",
}
MAKERS = ["torch_xla.compile()", "torch_xla.compile(full_graph=True)", "torch_xla.step()"]
ESCAPES = {
    "returned": "    return {}\n",
    "handed on": "    step({})\n",
    "wraps a function": "    wrap = {}\n    return wrap(step)\n",
    "a decorator": "    wrap = {}\n\n    @wrap\n    def inner():\n        step()\n",
    "an attribute": "    stack.around = {}\n",
    "never used": "    around = {}\n",
}
FUNCTION = "def run(step, stack, deep):\n"


@pytest.mark.parametrize("form", ENTERED)
@pytest.mark.parametrize("maker", MAKERS)
def test_entered(form: str, maker: str) -> None:
    body = ENTERED[form]
    check_transformed(
        IMPORT + FUNCTION + body.format(maker),
        f"import contextlib\n\n\n{FUNCTION}{body.format('contextlib.nullcontext()')}",
    )


@pytest.mark.parametrize("form", ESCAPES)
def test_escapes(form: str) -> None:
    result = check_noop(IMPORT + FUNCTION + ESCAPES[form].format(MAKERS[0]), todo=False)
    assert [(f.rule, f.reason) for f in result.findings] == [("XLA107", "value-escapes")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch_xla.compile()(step)", "step"),
        ("torch_xla.compile(full_graph=True)(step)(stack)", "step(stack)"),
        ("torch_xla.compile()(lambda: deep)()", "(lambda: deep)()"),
        ("torch_xla.compile()(step or stack)", "step or stack"),
        ("torch_xla.compile(lambda x: x)(stack)", "(lambda x: x)(stack)"),
        ("torch_xla.compile(step if deep else stack)(1)", "(step if deep else stack)(1)"),
        ("torch_xla.compile(step or stack).__name__", "(step or stack).__name__"),
        ("torch_xla.compile(step, max_different_graphs=1)(stack)", "step(stack)"),
    ],
)
def test_called_at_once(before: str, after: str) -> None:
    program = FUNCTION + "    return {}\n"
    check_transformed(IMPORT + program.format(before), program.format(after))


def test_called_with_more() -> None:
    body = "    return torch_xla.compile()(*step)\n"
    result = check_noop(IMPORT + FUNCTION + body, todo=False)
    assert [(f.rule, f.reason) for f in result.findings] == [("XLA107", "unsupported-form")]


@pytest.mark.parametrize(
    "call",
    [
        "torch_xla.compile(\n        step,  # the whole step\n        full_graph=True,\n    )",
        "torch_xla.compile(\n        # the whole step\n        f=step,\n    )",
    ],
)
def test_comments_of_what_stays(call: str) -> None:
    result = check_noop(IMPORT + FUNCTION + f"    return {call}\n", todo=False)
    assert [(f.rule, f.reason) for f in result.findings] == [("XLA107", "comments")]
