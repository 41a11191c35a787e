"""Step markers that go, and those that become a wait."""

from __future__ import annotations

import textwrap

import pytest
from conftest import check_noop, check_transformed

HEAD = "import time\n\nimport torch\n"
XM = "import torch_xla.core.xla_model as xm\n"


def check(before: str, after: str, imports: str = "") -> None:
    """Both in a function with parameters, behind the imports."""
    top = "\n\ndef run(work, flag, n):\n"
    old = textwrap.indent(textwrap.dedent(before), "    ")
    new = textwrap.indent(textwrap.dedent(after), "    ")
    check_transformed(f"{imports}{HEAD}{XM}{top}{old}", f"{imports}{HEAD}{top}{new}")


WAITS = {
    "true": ("xm.mark_step(wait=True)\n", "torch.accelerator.synchronize()\n"),
    "positional": ("xm.mark_step(True)\n", "torch.accelerator.synchronize()\n"),
    "expression": (
        "xm.mark_step(wait=work())\n",
        "if work():\n    torch.accelerator.synchronize()\n",
    ),
    "expression in one line": (
        "if n: xm.mark_step(wait=flag)\n",
        "if n:\n    if flag:\n        torch.accelerator.synchronize()\n",
    ),
    "expression on a shared line": (
        "work(); xm.mark_step(wait=flag)\n",
        "work(); torch.accelerator.synchronize() if flag else None\n",
    ),
    "expression behind a test": (
        "n and xm.mark_step(wait=flag)\n",
        "n and (torch.accelerator.synchronize() if flag else None)\n",
    ),
}
CLOCKS = {
    "next line": (
        "xm.mark_step()\nt = time.time()\n",
        "torch.accelerator.synchronize()\nt = time.time()\n",
    ),
    "inside a call": (
        "xm.mark_step()\nprint(time.perf_counter() - n)\n",
        "torch.accelerator.synchronize()\nprint(time.perf_counter() - n)\n",
    ),
    "same line": (
        "work(); xm.mark_step(); t = time.monotonic()\n",
        "work(); torch.accelerator.synchronize(); t = time.monotonic()\n",
    ),
    "after the test around it": (
        "if flag:\n    xm.mark_step()\nelse:\n    work()\nt = time.time()\n",
        "if flag:\n    torch.accelerator.synchronize()\nelse:\n    work()\nt = time.time()\n",
    ),
    "after try": (
        "try:\n    xm.mark_step()\nfinally:\n    t = time.time()\n",
        "try:\n    torch.accelerator.synchronize()\nfinally:\n    t = time.time()\n",
    ),
    "head of a loop": (
        "xm.mark_step()\nwhile time.time() < n:\n    work()\n",
        "torch.accelerator.synchronize()\nwhile time.time() < n:\n    work()\n",
    ),
    "behind a test": (
        "n and xm.mark_step()\nt = time.time()\n",
        "n and torch.accelerator.synchronize()\nt = time.time()\n",
    ),
}
GONE = {
    "plain": ("work()\nxm.mark_step()\n", "work()\n"),
    "told not to wait": ("work()\nxm.mark_step(wait=False)\n", "work()\n"),
    "end of a loop": (
        "for _ in range(n):\n    work()\n    xm.mark_step()\nprint(time.time())\n",
        "for _ in range(n):\n    work()\nprint(time.time())\n",
    ),
    "before a wait": (
        "xm.mark_step()\nxm.wait_device_ops()\nt = time.time()\n",
        "torch.accelerator.synchronize()\nt = time.time()\n",
    ),
    "twice": (
        "xm.mark_step()\nxm.mark_step()\nt = time.time()\n",
        "torch.accelerator.synchronize()\nt = time.time()\n",
    ),
    "clock in a lambda": (
        "xm.mark_step()\nclock = lambda: time.time()\n",
        "clock = lambda: time.time()\n",
    ),
    "clock in a branch": (
        "xm.mark_step()\nif flag:\n    print(time.time())\n",
        "if flag:\n    print(time.time())\n",
    ),
    "conditional": ("work()\nxm.mark_step() if flag else None\n", "work()\n"),
    "one arm": (
        "xm.mark_step() if flag else work()\n",
        "None if flag else work()\n",
    ),
    "test with an effect": ("work() and xm.mark_step()\n", "work()\n"),
}


@pytest.mark.parametrize("name", WAITS)
def test_wait_argument(name: str) -> None:
    check(*WAITS[name])


@pytest.mark.parametrize("name", CLOCKS)
def test_before_a_clock(name: str) -> None:
    check(*CLOCKS[name])


@pytest.mark.parametrize("name", GONE)
def test_vanishes(name: str) -> None:
    check(*GONE[name])


@pytest.mark.parametrize(
    ("statement", "reading"),
    [
        ("from time import perf_counter as now", "now()"),
        ("from timeit import default_timer", "default_timer()"),
        ("from datetime import datetime", "datetime.now()"),
        ("import datetime as dt", "dt.datetime.now()"),
    ],
)
def test_clocks_are_resolved(statement: str, reading: str) -> None:
    check(
        f"xm.mark_step()\nt = {reading}\n",
        f"torch.accelerator.synchronize()\nt = {reading}\n",
        f"{statement}\n",
    )


def test_clock_of_another_module() -> None:
    check("xm.mark_step()\nt = game.time()\n", "t = game.time()\n", "from engine import game\n")


def test_event() -> None:
    check(
        "end = torch.cuda.Event()\nxm.mark_step()\nend.record()\nxm.mark_step()\nwork.record()\n",
        "end = torch.cuda.Event()\ntorch.accelerator.synchronize()\nend.record()\nwork.record()\n",
    )


def test_effect_of_a_dropped_argument() -> None:
    result = check_noop(f"{XM}xm.mark_step(reset_scope=reset())\n", todo=False)
    assert [f.reason for f in result.findings if f.counts] == ["argument-side-effects"]
