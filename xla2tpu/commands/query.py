"""`xla2tpu query`."""

from __future__ import annotations

import sys

import click

from xla2tpu.commands.output import out
from xla2tpu.commands.ruleset import rules_of
from xla2tpu.report import rulepage


@click.command()
@click.argument("name")
@click.option("--output-format", type=click.Choice(("text", "json")), default="text")
@click.option("--config", metavar="FILE", help="Take the rule files of this configuration.")
def query(name: str, output_format: str, config: str | None) -> None:
    """Say what becomes of a torch_xla NAME, such as xm.mark_step."""
    say = rulepage.answer_json if output_format == "json" else rulepage.answer
    text, known = say(rules_of(config), name)
    out(text)
    sys.exit(0 if known else 1)
