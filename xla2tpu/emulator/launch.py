"""`python -m xla2tpu.emulator`: the program in a Python of its own, whose environment says so."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

from xla2tpu import emulator
from xla2tpu.emulator.settings import DEVICE_COUNTS

INSTALL = "xla2tpu emulate: needs torch 2.11 or newer, {}; pip install 'xla2tpu[emulate]'"
OLDEST = (2, 11)


def run(
    arguments: Sequence[str], *, module: bool, devices: int = 1, allow_missing_ops: bool = False
) -> NoReturn:
    """Run a script, or with ``module`` a module, with its arguments, in the place of this process.

    The program is started by Python itself, so that `__main__`, `sys.argv`, the path and what
    multiprocessing makes of them are what they are without the emulator. Ends the process.
    """
    _check_torch()
    if not emulator.step_aside():
        emulator.prepare(devices=devices, allow_missing_ops=allow_missing_ops)
        print(f"xla2tpu: emulating {devices} TPU device(s) on the CPU", file=sys.stderr)
    command = [sys.executable, *_interpreter_flags(), *(["-m"] if module else []), *arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "nt":  # there `exec` gives the terminal back before the program has ended
        sys.exit(subprocess.run(command, check=False).returncode)
    os.execv(command[0], command)


def _check_torch() -> None:
    try:
        installed = version("torch")
    except PackageNotFoundError:
        sys.exit(INSTALL.format("which is not installed"))
    if tuple(map(int, installed.split(".")[:2])) < OLDEST:
        sys.exit(INSTALL.format(f"not {installed}"))


def _interpreter_flags() -> list[str]:
    """The options of this Python, without those that hide the environment from it."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [flag for flag in flags if flag not in ("-I", "-E")]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(
        prog="python -m xla2tpu.emulator",
        description="Run a TorchTPU program on the CPU.",
    )
    parser.add_argument("--devices", type=int, default=1, choices=DEVICE_COUNTS, help="of the host")
    parser.add_argument(
        "--allow-missing-ops",
        action="store_true",
        help="run operators that torch_tpu has no kernel for",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE [ARGS]")
    what.add_argument("script", nargs="?", metavar="SCRIPT")
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS")
    given = parser.parse_args(arguments)
    run(
        given.module or [given.script, *given.args],
        module=bool(given.module),
        devices=given.devices,
        allow_missing_ops=given.allow_missing_ops,
    )
