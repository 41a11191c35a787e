"""Runs the examples of rules, as tests do and as `xla2tpu rules --test` does for users' rules."""

from __future__ import annotations

from xla2tpu.files import run_source
from xla2tpu.model import FileResult, Mode, Settings
from xla2tpu.project import Project
from xla2tpu.rulemodel import Example, Rule
from xla2tpu.rules import load_rules

# No file stands there: the examples are decided by themselves.
_ROOT = "/nowhere"


def problems(rule: Rule, rule_files: tuple[str, ...] = ()) -> list[str]:
    """One line for each example of a rule that does not do what it says, with its key."""
    found = []
    for index, example in enumerate(rule.examples):
        found += [f"examples[{index}]: {text}" for text in of_example(example, rule_files)]
    for index, source in enumerate(rule.ok):
        result = _run(source, _settings(None, Mode.CHECK, rule_files))
        if result.error is not None:
            found.append(f"ok[{index}]: {result.error}")
        found += [f"ok[{index}]: gives {text}" for text in _left(result)]
    return found


def of_example(example: Example, rule_files: tuple[str, ...] = ()) -> list[str]:
    """What is wrong with one example: before becomes after, and after stays."""
    after = example.before if example.after is None else example.after
    found = []
    for key, source, mode in (
        ("before", example.before, Mode.FIX),
        ("after", after, Mode.FIX),
        ("after", after, Mode.CHECK),
    ):
        result = _run(source, _settings(example, mode, rule_files), example.filename)
        if result.error is not None:
            return [f"{key}: {result.error}"]
        output = source if result.output is None else result.output.decode()
        if output != after:
            found.append(f"{key}: becomes\n{output}\ninstead of\n{after}")
        left = _left(result)
        if len(left) != (example.left or 0):
            told = "".join(f"\n  {line}" for line in left)
            found.append(f"{key}: leaves {len(left)} findings, not {example.left or 0}{told}")
    return list(dict.fromkeys(found))


def _run(source: str, settings: Settings, filename: str | None = None) -> FileResult:
    in_house = load_rules(settings.rule_files).in_house
    project = Project(_ROOT, in_house=in_house)
    return run_source(
        source.encode(), f"{_ROOT}/{filename or 'example.py'}", settings, project=project
    )


def _left(result: FileResult) -> list[str]:
    return [f"{f.rule} {f.api} {f.reason or ''}".rstrip() for f in result.findings if not f.applied]


def _settings(example: Example | None, mode: Mode, rule_files: tuple[str, ...]) -> Settings:
    options = dict(example.settings) if example is not None else {}
    return Settings(
        mode=mode,
        unsafe=example is not None and example.unsafe,
        partial=True,
        todo=False,
        any_hardware=options.get("any-hardware") == "True",
        rule_files=rule_files,
        helpers_module=options.get("helpers-module"),
        device=options.get("device", "tpu"),
        launcher=options.get("launcher", "spawn"),
        processes=options.get("processes", "several"),
        source_version=options.get("source-version"),
        root=_ROOT,
    )
