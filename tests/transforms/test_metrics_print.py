"""Statements that only show the metrics report go; a report that is used stays."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

from xla2tpu import engine
from xla2tpu.model import Mode, Settings

IMPORTS = "import logging\nimport sys\n"
XLA = "import torch_xla.core.xla_model as xm\nimport torch_xla.debug.metrics as met\n"
LOG = "log = logging.getLogger(sys.argv[0])\nchannel = logging.getLogger()\n"

SHOWN = [
    "print(met.metrics_report())",
    "print(met.metrics_report(), flush=True, file=sys.stderr)",
    "print(met.short_metrics_report(metric_names=['CompileTime']))",
    "print('Metrics:', met.metrics_report())",
    "print(f'{met.metrics_report()}')",
    "print(f'Metrics: {met.metrics_report()}', flush=True)",
    "print('Metrics: ' + met.metrics_report())",
    "print('Metrics: %s' % met.metrics_report())",
    "print(met.metrics_report(), met.short_metrics_report())",
    "sys.stderr.write(met.metrics_report())",
    "log.info('metrics %s', met.metrics_report())",
    "channel.debug(met.metrics_report())",
    "logging.log(logging.INFO, met.metrics_report())",
    "xm.master_print(met.metrics_report())",
    "xm.master_print(met.metrics_report(), local=True, flush=True)",
    "if flag: xm.master_print(met.metrics_report(), fd=sys.stderr)",
    "flag and print(met.metrics_report())",
]
USED = [
    "x = met.metrics_report()",
    "print(met.metrics_report(), step)",
    "print(f'{step}: {met.metrics_report()}')",
    "print(met.metrics_report(), file=out)",
    "print(met.metrics_report(), end=step())",
    "print(*met.metrics_report())",
    "print(met.metrics_report().splitlines()[0])",
    "out.write(met.metrics_report())",
    "out.info(met.metrics_report())",
    "x = print(met.metrics_report())",
    "show(met.metrics_report())",
    "assert 'aten::' in met.metrics_report()",
]


@pytest.mark.parametrize("statement", SHOWN)
def test_goes(statement: str) -> None:
    body = f"\n\ndef end(flag):\n    {statement}\n    return flag\n"
    check_transformed(
        f"{IMPORTS}{XLA}{LOG}{body}", f"{IMPORTS}{LOG}\n\ndef end(flag):\n    return flag\n"
    )


@pytest.mark.parametrize("statement", USED)
def test_stays(statement: str) -> None:
    source = f"import torch_xla.debug.metrics as met\n\n{statement}\n"
    result = check_noop(source, todo=False)
    assert [f.reason for f in result.findings if f.counts] == ["no-equivalent"]


def test_print_of_the_users_own() -> None:
    check_noop("from rich import print\n\nprint('x')\n")
    own = "def print(x):\n    out(x)\n\n\nprint(met.metrics_report())\n"
    check_noop(f"import torch_xla.debug.metrics as met\n\n\n{own}", todo=False)


def test_shared_line() -> None:
    check_transformed(
        f"{XLA}a(); print(met.metrics_report()); b()\n",
        "a(); b()\n",
    )


def test_only_statement() -> None:
    check_transformed(
        f"{XLA}\n\ndef end():\n    xm.master_print(met.metrics_report())\n",
        "def end():\n    pass\n",
    )


def test_safe_fixes_keep_the_report() -> None:
    source = b"import torch_xla.core.xla_model as xm\nimport torch_xla.debug.metrics as met\n"
    source += b"xm.master_print(met.metrics_report())\n"
    result = engine.run_source(source, "example.py", Settings(mode=Mode.MIGRATE, todo=False))
    assert result.output is not None
    assert b"print(met.metrics_report())" in result.output
    assert b"xm" not in result.output
