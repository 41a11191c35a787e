"""`xla2tpu server`."""

from __future__ import annotations

import gc

import click

from xla2tpu.commands.output import die
from xla2tpu.rules import load_rules


@click.command()
@click.option("--stdio", is_flag=True, help="The default, and the only way; for clients that ask.")
def server(stdio: bool) -> None:
    """Speak the Language Server Protocol on standard input and output, for editors."""
    try:
        from xla2tpu.server import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        die("the language server needs pygls: python -m pip install 'xla2tpu[lsp]'")
    made = app.make()
    # Modules and rules stay for good: the collector, which stops everything, need not go through
    # them each time (50 ms less of 100 for a long file).
    load_rules()
    gc.collect()
    gc.freeze()
    made.start_io()
