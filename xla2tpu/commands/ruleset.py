"""The rules as the working folder's configuration has them."""

from __future__ import annotations

import os

from xla2tpu.commands.output import die
from xla2tpu.config import ConfigError, Configs
from xla2tpu.rulemodel import RuleError, RuleSet
from xla2tpu.rules import load_rules


def rules_of(config: str | None) -> RuleSet:
    """All rules with those of the configuration file, by default the one that is found."""
    try:
        rule_files = Configs(config).of(os.path.join(os.getcwd(), "-")).rule_files
        if rule_files:
            from xla2tpu.rulecheck import user_problems

            problems = user_problems(rule_files)
            if problems:
                die("\n".join(problems))
        return load_rules(rule_files)
    except (ConfigError, RuleError, OSError) as error:
        die(str(error))
