"""`xla2tpu server`."""

from __future__ import annotations

import click

from xla2tpu.commands.output import die


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
    app.make().start_io()
