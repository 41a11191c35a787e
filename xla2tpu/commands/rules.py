"""`xla2tpu rules`."""

from __future__ import annotations

import sys

import click

from xla2tpu.commands.output import die, out
from xla2tpu.commands.ruleset import rules_of
from xla2tpu.report import rulepage
from xla2tpu.rulemodel import USER_FAMILY, RuleSet


@click.command()
@click.option("--output-format", type=click.Choice(("text", "json")), default="text")
@click.option("--config", metavar="FILE", help="Take the rule files of this configuration.")
@click.option("--test", is_flag=True, help="Run the examples of the configured rule files.")
def rules(output_format: str, config: str | None, test: bool) -> None:
    """List all rules, or run the examples of your own."""
    ruleset = rules_of(config)
    if test:
        sys.exit(_test(ruleset))
    out(rulepage.listing_json(ruleset) if output_format == "json" else rulepage.listing(ruleset))


def _test(ruleset: RuleSet) -> int:
    """Run the examples of the users' rules; 1 where one does not do what it says."""
    from xla2tpu import exampleruns

    own = [rule for rule in ruleset.rules.values() if rule.family == USER_FAMILY]
    if not own:
        die("no rule files are configured: `rule-files` in the configuration names them")
    files = tuple(dict.fromkeys(rule.path for rule in own))
    wrong = [
        f"{rule.path}: {rule.code}: {problem}\n"
        for rule in own
        for problem in exampleruns.problems(rule, files)
    ]
    count = sum(len(rule.examples) + len(rule.ok) for rule in own)
    out("".join(wrong) + f"{len(own)} rules, {count} examples, {len(wrong)} problems\n")
    return int(bool(wrong))
