"""SARIF 2.1.0 (OASIS), for code scanning: results with their fixes, and the rules they are of."""

from __future__ import annotations

import io
import json
import os
import pathlib
import tokenize
import urllib.parse
from typing import Any

from xla2tpu import __version__
from xla2tpu.baseline import marks
from xla2tpu.lines import Lines
from xla2tpu.model import Applicability, Edit, FileResult, Finding, state_of
from xla2tpu.report.places import Places
from xla2tpu.rulemodel import Rule, RuleSet
from xla2tpu.runner import Run

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def render(run: Run, rules: RuleSet) -> str:
    """The log of one run. Applied places are left out, suppressed ones are marked so."""
    used = sorted({f.rule for r in run.results for f in r.findings if state_of(f) != "applied"})
    index = {code: at for at, code in enumerate(used)}
    notifications = [
        {"level": "error", "message": {"text": r.error}, "locations": [_location(_artifact(r))]}
        for r in run.errors
    ]
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "xla2tpu",
                        "version": __version__,
                        "rules": [_rule(rules.rules[code]) for code in used],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": not notifications,
                        "toolExecutionNotifications": notifications,
                    }
                ],
                "columnKind": "unicodeCodePoints",
                "results": [result for file in run.results for result in _results(file, index)],
            }
        ],
    }
    return json.dumps(log, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": " ".join(rule.why.split())},
        "help": {"text": " ".join(rule.advice.split())},
        "properties": {"tags": ["torch_xla", rule.family]},
    }


def _artifact(result: FileResult) -> dict[str, Any]:
    """Where a file is: relative to the working folder, or as a file URI outside of it."""
    if os.path.isabs(result.path):
        return {"uri": pathlib.Path(result.path).as_uri()}
    return {"uri": urllib.parse.quote(result.path.replace(os.sep, "/"))}


def _location(artifact: dict[str, Any], region: dict[str, Any] | None = None) -> dict[str, Any]:
    place = {"artifactLocation": artifact}
    return {"physicalLocation": place if region is None else {**place, "region": region}}


def _results(file: FileResult, index: dict[str, int]) -> list[dict[str, Any]]:
    artifact = _artifact(file)
    regions = _Regions(file.source or b"")
    places = Places(file)
    found = []
    for finding, mark in zip(file.findings, marks(file), strict=True):
        if state_of(finding) == "applied":
            continue
        line, column, end_line, end_column = places.of(finding)
        region = {
            "startLine": line,
            "startColumn": column,
            "endLine": end_line,
            "endColumn": end_column,
        }
        result: dict[str, Any] = {
            "ruleId": finding.rule,
            "ruleIndex": index[finding.rule],
            "level": _level(finding),
            "message": {"text": f"{finding.message}. {finding.advice}"},
            "locations": [_location(artifact, region)],
            "partialFingerprints": {"xla2tpu/v1": mark},
            "properties": {
                "applicability": str(finding.applicability),
                "effort": str(finding.effort),
                "api": finding.api,
            },
        }
        if finding.reason is not None:
            result["properties"]["reason"] = finding.reason
        if finding.suppressed:
            kind = "external" if finding.in_baseline else "inSource"
            result["suppressions"] = [{"kind": kind}]
        if finding.fix is not None and finding.fix.edits:
            changes = {
                "artifactLocation": artifact,
                "replacements": [regions.replacement(e) for e in finding.fix.edits],
            }
            text = {"text": finding.fix.title}
            result["fixes"] = [{"description": text, "artifactChanges": [changes]}]
        found.append(result)
    return found


def _level(finding: Finding) -> str:
    if not finding.blocks:
        return "note"
    return "error" if finding.applicability is Applicability.MANUAL else "warning"


class _Regions:
    """Turns byte spans of a source into SARIF's lines and columns."""

    def __init__(self, source: bytes) -> None:
        # Columns are those of the text without its byte order mark.
        self.lead = 3 if source.startswith(b"\xef\xbb\xbf") else 0
        self.source = source[self.lead :]
        try:
            self.encoding = tokenize.detect_encoding(io.BytesIO(source).readline)[0]
        except (SyntaxError, UnicodeDecodeError, LookupError):
            self.encoding = "utf-8"
        self.encoding = self.encoding.replace("-sig", "")
        self.lines = Lines(self.source.decode(self.encoding, errors="replace"))

    def replacement(self, edit: Edit) -> dict[str, Any]:
        first, column = self._place(edit.start)
        last, end = self._place(edit.end)
        region = {"startLine": first, "startColumn": column, "endLine": last, "endColumn": end}
        return {"deletedRegion": region, "insertedContent": {"text": edit.content}}

    def _place(self, offset: int) -> tuple[int, int]:
        at = len(self.source[: offset - self.lead].decode(self.encoding, errors="replace"))
        line = self.lines.index(at)
        return line + 1, at - self.lines.starts[line] + 1
