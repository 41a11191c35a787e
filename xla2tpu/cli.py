"""The command line. A command is imported when it is called: start-up is felt in hooks."""

from __future__ import annotations

from importlib import import_module

import click

from xla2tpu import __version__

_COMMANDS = ("check", "migrate", "verify", "emulate", "rules", "explain", "query", "server")


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(f"xla2tpu.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="xla2tpu")
def main() -> None:
    """Move PyTorch/XLA code (torch_xla) to TorchTPU (torch_tpu, device "tpu")."""
