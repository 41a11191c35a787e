"""`xla2tpu emulate`."""

from __future__ import annotations

import click

from xla2tpu.emulator.launch import run
from xla2tpu.emulator.settings import DEVICE_COUNTS


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module.")
@click.option(
    "--devices",
    type=click.Choice([str(count) for count in DEVICE_COUNTS]),
    default="1",
    show_default=True,
    help="How many devices the host has; a process uses one.",
)
@click.option(
    "--allow-missing-ops", is_flag=True, help="Run operators that torch_tpu has no kernel for."
)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def emulate(
    module: bool, devices: str, allow_missing_ops: bool, script: str, args: tuple[str, ...]
) -> None:
    """Run SCRIPT, a TorchTPU program, on the CPU, as if there were a TPU.

    Needs torch: pip install 'xla2tpu[emulate]'. Steps aside where there is a TPU.
    """
    run(
        [script, *args],
        module=module,
        devices=int(devices),
        allow_missing_ops=allow_missing_ops,
    )
