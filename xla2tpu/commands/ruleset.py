"""The rules as the working folder's configuration has them."""

from __future__ import annotations

import os

from xla2tpu.commands.output import die
from xla2tpu.config import ConfigError, Configs
from xla2tpu.rules import RuleError, RuleSet, load_rules


def rules_of(config: str | None) -> RuleSet:
    """All rules with those of the configuration file, by default the one that is found."""
    try:
        return load_rules(Configs(config).of(os.path.join(os.getcwd(), "-")).rule_files)
    except (ConfigError, RuleError, OSError) as error:
        die(str(error))
