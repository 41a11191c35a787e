"""Printing on the first process: behind a rank test, or by a helper on all of them."""

from __future__ import annotations

import pytest
from conftest import check_transformed

from xla2tpu.rules import load_rules

HEAD = "import torch.distributed as dist\n"
XM = "import torch_xla.core.xla_model as xm\n"
GLOBAL = "(dist.get_rank() if dist.is_initialized() else 0) == 0"
LOCAL = "dist.get_node_local_rank(fallback_rank=0) == 0"
HELPER = '''\


def master_print(*args, fd=None, local=False, flush=False):
    """Print on the first process of the job, or of each host with local=True."""
    if local:
        rank = dist.get_node_local_rank(fallback_rank=0)
    else:
        rank = dist.get_rank() if dist.is_initialized() else 0
    if rank == 0:
        print(*args, file=fd, flush=flush)
'''

# What only reads may be left out on the other processes.
READ = {
    "names": '"loss", loss',
    "nothing": "",
    "item": '"loss", loss.item()',
    "format": '"{:.2f} of {}".format(loss, len(rows))',
    "f-string": 'f"{loss:.2f} of {len(rows)}"',
    "percent": '"%d of %d" % (loss, 3)',
    "builtins": "str(loss), round(loss, 2), sorted(rows)",
    "flush": '"loss", loss, flush=True',
    "starred": "*rows",
}


@pytest.mark.parametrize("form", READ)
def test_behind_a_rank_test(form: str) -> None:
    arguments = READ[form]
    check_transformed(
        f"{HEAD}{XM}\n\ndef log(loss, rows):\n    xm.master_print({arguments})\n",
        f"{HEAD}\n\ndef log(loss, rows):\n    if {GLOBAL}:\n        print({arguments})\n",
    )


def test_stream_and_local() -> None:
    check_transformed(
        f"import sys\n\n{HEAD}{XM}\n\n"
        "def log(loss):\n    xm.master_print(loss, fd=sys.stderr, local=True)\n",
        f"import sys\n\n{HEAD}\n\n"
        f"def log(loss):\n    if {LOCAL}:\n        print(loss, file=sys.stderr)\n",
    )


def test_rank_queries_are_rewritten_in_place() -> None:
    check_transformed(
        f"{HEAD}{XM}\n\ndef log(step):\n    xm.master_print(step, xm.xrt_world_size())\n",
        f"{HEAD}\n\ndef log(step):\n    if {GLOBAL}:\n"
        "        print(step, dist.get_world_size() if dist.is_initialized() else 1)\n",
    )


def test_rate_of_a_tracker() -> None:
    check_transformed(
        f"import os\nimport time\n\n{HEAD}{XM}\n\ndef log(n):\n    tracker = xm.RateTracker()\n"
        '    tracker.add(n)\n    xm.master_print(f"rate {tracker.rate()}")\n',
        f"import os\nimport time\n\n{HEAD}\n\n"
        + load_rules().helpers["RateTracker"].code.strip()
        + "\n\n\ndef log(n):\n    tracker = RateTracker()\n    tracker.add(n)\n"
        f'    if {GLOBAL}:\n        print(f"rate {{tracker.rate()}}")\n',
    )


# What changes something, or may wait for the other processes, runs on all of them.
CHANGE = {
    "walrus": '"n", n := len(rows)',
    "next": '"batch", next(rows)',
    "pop": '"top", rows.pop()',
    "function of the file": "shorten(rows)",
    "function in an f-string": 'f"{shorten(rows)}"',
    "collective": "dist.all_reduce(rows)",
    "function that is handed in": "fn()",
    "function of the file in a lambda's call": "(lambda: shorten(rows))()",
}


@pytest.mark.parametrize("form", CHANGE)
def test_on_all_processes(form: str) -> None:
    arguments = CHANGE[form]
    frame = "\n\ndef shorten(rows):\n    return rows\n\n\ndef log(rows, fn):\n    {0}({1})\n"
    check_transformed(
        f"{HEAD}{XM}{frame.format('xm.master_print', arguments)}",
        f"{HEAD}{HELPER}{frame.format('master_print', arguments)}",
    )


@pytest.mark.parametrize(
    "call", ['xm.all_reduce("sum", loss, groups=pairs)', "xm.mesh_reduce(tag(), loss, max)"]
)
def test_collective_of_torch_xla_runs_on_all(call: str) -> None:
    check_transformed(
        f'{HEAD}{XM}\n\ndef log(loss):\n    xm.master_print("loss", {call})\n',
        f'{HEAD}{XM}{HELPER}\n\ndef log(loss):\n    master_print("loss", {call})\n',
        todo=False,
    )


def test_await_runs_on_all() -> None:
    frame = "\n\nasync def log(rows):\n    {0}(await rows)\n"
    check_transformed(
        f"{HEAD}{XM}{frame.format('xm.master_print')}",
        f"{HEAD}{HELPER}{frame.format('master_print')}",
    )


def test_local_decided_at_run_time() -> None:
    frame = "\n\ndef log(loss, each):\n    {0}(loss, local=each)\n"
    check_transformed(
        f"{HEAD}{XM}{frame.format('xm.master_print')}",
        f"{HEAD}{HELPER}{frame.format('master_print')}",
    )


@pytest.mark.parametrize(
    ("version", "test"), [("1.7", LOCAL), ("1.8", GLOBAL), ("2.9", GLOBAL), (None, GLOBAL)]
)
def test_default_by_release(version: str | None, test: str) -> None:
    check_transformed(
        f"{HEAD}{XM}\n\ndef log(loss):\n    xm.master_print(loss)\n",
        f"{HEAD}\n\ndef log(loss):\n    if {test}:\n        print(loss)\n",
        source_version=version,
    )


def test_helper_by_release() -> None:
    frame = "\n\ndef log(rows):\n    {0}(rows.pop(){1})\n"
    check_transformed(
        f"{HEAD}{XM}{frame.format('xm.master_print', '')}",
        f"{HEAD}{HELPER}{frame.format('master_print', ', local=True')}",
        source_version="1.7",
    )


def test_as_an_expression() -> None:
    check_transformed(
        f"{HEAD}{XM}\nshow = lambda text: xm.master_print(text)\n",
        f"{HEAD}\nshow = lambda text: print(text)"
        " if (dist.get_rank() if dist.is_initialized() else 0) == 0 else None\n",
    )
