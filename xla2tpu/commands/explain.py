"""`xla2tpu explain`."""

from __future__ import annotations

import click

from xla2tpu.commands.output import out
from xla2tpu.commands.ruleset import rules_of
from xla2tpu.report import rulepage


@click.command()
@click.argument("code")
@click.option("--config", metavar="FILE", help="Take the rule files of this configuration.")
def explain(code: str, config: str | None) -> None:
    """Print the page of one rule, by its CODE or name."""
    rule = rules_of(config).rule(code)
    if rule is None:
        raise click.UsageError(f"there is no rule {code!r}; `xla2tpu rules` lists them")
    out(rulepage.page(rule))
