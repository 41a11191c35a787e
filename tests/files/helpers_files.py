"""Runs the tool over a text of any kind that is held in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xla2tpu.files import run_source
from xla2tpu.model import FileResult, Mode, Settings
from xla2tpu.project import Project

ROOT = "/nowhere"
MIGRATE = Settings(mode=Mode.MIGRATE, unsafe=True, root=ROOT, with_fixes=True)


def run(text: str | bytes, name: str, **settings: Any) -> FileResult:
    """Migrate a text as the file ``name``; ``settings`` replaces what is said otherwise."""
    data = text.encode() if isinstance(text, str) else text
    return run_source(data, f"{ROOT}/{name}", replace(MIGRATE, **settings), project=Project(ROOT))


def migrated(text: str, name: str, **settings: Any) -> str:
    """What becomes of a text; a second run must change nothing."""
    result = run(text, name, **settings)
    assert result.error is None
    if result.output is None:
        return text
    again = run(result.output, name, **settings)
    assert again.output is None
    return result.output.decode()


def told(text: str, name: str, **settings: Any) -> list[tuple[str, str, str | None]]:
    """Rule, name and reason of each finding of a check."""
    result = run(text, name, **({"mode": Mode.CHECK} | settings))
    assert result.error is None
    return [(f.rule, f.api, f.reason) for f in result.findings]
