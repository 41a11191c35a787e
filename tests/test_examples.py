"""Each example of each rule: before becomes after, after gives no finding, a second run nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xla2tpu import exampleruns
from xla2tpu.rulemodel import Example, Rule
from xla2tpu.rules import load_rules

_RULES = load_rules().rules.values()
_EXAMPLES = [
    pytest.param(example, id=f"{rule.code}-{rule.name}-{index}")
    for rule in _RULES
    for index, example in enumerate(rule.examples)
]


@pytest.mark.parametrize("example", _EXAMPLES)
def test_example(example: Example) -> None:
    assert exampleruns.of_example(example) == []


@pytest.mark.parametrize("rule", [pytest.param(r, id=r.code) for r in _RULES if r.ok])
def test_ok(rule: Rule) -> None:
    assert exampleruns.problems(replace(rule, examples=())) == []


def test_a_wrong_example_is_told() -> None:
    rule = load_rules().rules["XLA101"]
    wrong = Example("import torch_xla\n\ntorch_xla.sync()\n", "pass\n")
    assert exampleruns.of_example(wrong) == ["before: becomes\n\ninstead of\npass\n"]
    left = Example("import torch_xla\n\ntorch_xla.nothing()\n", left=2)
    told = exampleruns.of_example(left)
    assert len(told) == 2
    assert all("findings, not 2" in line for line in told)
    broken = replace(rule, examples=(wrong,), ok=("import torch_xla\n\ntorch_xla.sync()\n",))
    assert [line.partition(":")[0] for line in exampleruns.problems(broken)] == [
        "examples[0]",
        "ok[0]",
    ]
