"""Every torch_xla name that is in wide use has a rule of its own, with an example."""

from __future__ import annotations

from pathlib import Path

import pytest

from xla2tpu.rules import load_rules
from xla2tpu.sites import modules_of

_LINES = (Path(__file__).parent / "data" / "used_names.tsv").read_text().splitlines()
NAMES = [line.split("\t")[0] for line in _LINES if not line.startswith("#")]


@pytest.mark.parametrize("name", NAMES)
def test_name_has_a_rule_with_an_example(name: str) -> None:
    rules = load_rules()
    if name in modules_of(rules):
        rule = rules.rules["XLA005"]
    else:
        found = rules.lookup(name)
        assert found is not None
        rule = found[0]
    assert rule.code != "XLA099"
    assert rule.examples
