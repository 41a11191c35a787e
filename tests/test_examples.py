"""Each example of each rule: before becomes after, after gives no finding, a second run nothing."""

from __future__ import annotations

import pytest

from xla2tpu.engine import run_source
from xla2tpu.model import FileResult, Mode, Settings
from xla2tpu.rules import Example, load_rules

_RULES = load_rules().rules.values()
_EXAMPLES = [
    pytest.param(example, id=f"{rule.code}-{rule.name}-{index}")
    for rule in _RULES
    for index, example in enumerate(rule.examples)
]
_OK = [
    pytest.param(source, id=f"{rule.code}-{rule.name}-ok{index}")
    for rule in _RULES
    for index, source in enumerate(rule.ok)
]


def _settings(example: Example | None, mode: Mode) -> Settings:
    options = dict(example.settings) if example is not None else {}
    return Settings(
        mode=mode,
        unsafe=bool(example is not None and example.unsafe),
        partial=True,
        todo=False,
        device=options.get("device", "tpu"),
        processes=options.get("processes", "several"),
        source_version=options.get("source-version"),
        root="/nowhere",
    )


def _left(result: FileResult) -> list[str]:
    return [f"{f.rule} {f.api} {f.reason}" for f in result.findings if not f.applied]


def _run(source: str, settings: Settings) -> FileResult:
    result = run_source(source.encode(), "/nowhere/example.py", settings)
    assert result.error is None, result.error
    return result


@pytest.mark.parametrize("example", _EXAMPLES)
def test_example(example: Example) -> None:
    after = example.before if example.after is None else example.after
    result = _run(example.before, _settings(example, Mode.FIX))
    output = (result.output or example.before.encode()).decode()
    assert output == after
    assert len(_left(result)) == (example.left or 0), _left(result)
    again = _run(after, _settings(example, Mode.FIX))
    assert again.output is None
    assert len(_left(again)) == (example.left or 0), _left(again)


@pytest.mark.parametrize("source", _OK)
def test_ok(source: str) -> None:
    result = _run(source, _settings(None, Mode.CHECK))
    assert [f.rule for f in result.findings] == []
