"""GitLab's Code Quality report: a list of issues, known again by their fingerprints."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from xla2tpu.baseline import marks
from xla2tpu.model import Applicability, Finding
from xla2tpu.report.places import Places
from xla2tpu.runner import Run, is_left


def render(run: Run) -> str:
    """Each place that is left, and each file that could not be handled."""
    issues: list[dict[str, Any]] = []
    for result in run.results:
        path = result.path.replace(os.sep, "/")
        if result.error is not None:
            issues.append(_issue(path, 1, "xla2tpu", result.error, "blocker", result.error))
        places = Places(result)
        for finding, mark in zip(result.findings, marks(result), strict=True):
            if is_left(finding):
                text = f"{finding.rule} {finding.message}"
                level = _severity(finding)
                issues.append(_issue(path, places.of(finding)[0], finding.rule, text, level, mark))
    return json.dumps(issues, indent=2) + "\n"


def _issue(path: str, line: int, check: str, text: str, severity: str, mark: str) -> dict[str, Any]:
    return {
        "description": text,
        "check_name": check,
        "fingerprint": hashlib.sha256(f"{path}\0{mark}".encode()).hexdigest(),
        "severity": severity,
        "location": {"path": path, "lines": {"begin": line}},
    }


def _severity(finding: Finding) -> str:
    if not finding.blocks:
        return "info"
    return "major" if finding.applicability is Applicability.MANUAL else "minor"
