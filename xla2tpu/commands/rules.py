"""`xla2tpu rules`."""

from __future__ import annotations

import click

from xla2tpu.commands.output import out
from xla2tpu.commands.ruleset import rules_of
from xla2tpu.report import rulepage


@click.command()
@click.option("--output-format", type=click.Choice(("text", "json")), default="text")
@click.option("--config", metavar="FILE", help="Take the rule files of this configuration.")
def rules(output_format: str, config: str | None) -> None:
    """List all rules."""
    ruleset = rules_of(config)
    out(rulepage.listing_json(ruleset) if output_format == "json" else rulepage.listing(ruleset))
