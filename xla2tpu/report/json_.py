"""The report for programs. `docs/json-report.md` describes it, `SCHEMA` is its JSON schema."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Any

from xla2tpu import __version__
from xla2tpu.model import (
    CODE,
    STAGES,
    Applicability,
    Effort,
    FileResult,
    Finding,
    Fix,
    ManualPlan,
    Note,
    Status,
)
from xla2tpu.reasons import REASONS
from xla2tpu.report.summary import Summary, summarize
from xla2tpu.runner import Run

VERSION = 1


def render(run: Run) -> str:
    """The report as indented JSON in ASCII, so that it survives any terminal and pipe."""
    return json.dumps(document(run), indent=2) + "\n"


def document(run: Run) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "version": VERSION,
        "tool_version": __version__,
        "summary": summarize(run)._asdict(),
        "files": [_file(result) for result in run.results],
        "notes": [_note(note) for note in run.remarks],
        "plans": [_plan(plan) for plan in run.plans],
    }


def _file(result: FileResult) -> dict[str, Any]:
    path = result.path.replace(os.sep, "/")
    return {
        "path": path,
        "status": str(result.status),
        "references": result.references,
        **{state: result.count(state) for state in _STATES},
        "error": result.error,
        "held_back": result.held_back,
        "findings": [_finding(finding, path) for finding in result.findings],
    }


def _finding(finding: Finding, path: str) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "name": finding.name,
        "path": path,
        "cell": finding.cell,
        "line": finding.line,
        "column": finding.column,
        "end_line": finding.end_line,
        "end_column": finding.end_column,
        "api": finding.api,
        "counts": finding.counts,
        "blocks": finding.blocks,
        "applicability": str(finding.applicability),
        "reason": finding.reason,
        "effort": str(finding.effort),
        "applied": finding.applied,
        "suppressed": finding.suppressed,
        "in_baseline": finding.in_baseline,
        "message": finding.message,
        "advice": finding.advice,
        "fix": None if finding.fix is None else _fix(finding.fix),
    }


def _note(note: Note) -> dict[str, Any]:
    return {**asdict(note), "path": note.path.replace(os.sep, "/")}


def _plan(plan: ManualPlan) -> dict[str, Any]:
    return {
        "project": plan.project.replace(os.sep, "/"),
        "notes": list(plan.notes),
        "imports": list(plan.imports),
        "steps": [{**asdict(s), "path": s.path.replace(os.sep, "/")} for s in plan.steps],
    }


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "title": fix.title,
        "applicability": str(fix.applicability),
        "edits": [{"start": e.start, "end": e.end, "content": e.content} for e in fix.edits],
    }


_STATES = ("applied", "fixable", "manual", "suppressed")
_COUNT = {"type": "integer", "minimum": 0}
_POSITION = {"type": "integer", "minimum": 1}
_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_TEXT_OR_NULL = {"type": ["string", "null"]}


def _object(**properties: Any) -> dict[str, Any]:
    """The schema of an object that has exactly these members."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _schema() -> dict[str, Any]:
    edit = _object(start=_COUNT, end=_COUNT, content=_TEXT)
    fix = _object(
        title=_TEXT,
        applicability={"enum": [str(a) for a in Applicability]},
        edits=_list(edit),
    )
    finding = _object(
        rule={"type": "string", "pattern": f"^{CODE}$".replace(r"\d", "[0-9]")},
        name=_TEXT,
        path=_TEXT,
        cell={"anyOf": [_POSITION, {"type": "null"}]},
        line=_POSITION,
        column=_POSITION,
        end_line=_POSITION,
        end_column=_POSITION,
        api=_TEXT,
        counts=_FLAG,
        blocks=_FLAG,
        applicability={"enum": [str(a) for a in Applicability]},
        reason={"enum": [*REASONS, None]},
        effort={"enum": [str(e) for e in Effort]},
        applied=_FLAG,
        suppressed=_FLAG,
        in_baseline=_FLAG,
        message=_TEXT,
        advice=_TEXT,
        fix={"anyOf": [fix, {"type": "null"}]},
    )
    file = _object(
        path=_TEXT,
        status={"enum": [str(s) for s in Status]},
        references=_COUNT,
        **dict.fromkeys(_STATES, _COUNT),
        error=_TEXT_OR_NULL,
        held_back=_TEXT_OR_NULL,
        findings=_list(finding),
    )
    note = _object(
        kind={"enum": ["after-swap", "project"]},
        name=_TEXT,
        path=_TEXT,
        line=_POSITION,
        column=_POSITION,
        message=_TEXT,
        advice=_TEXT,
        source=_TEXT,
    )
    step = _object(
        stage={"enum": list(STAGES)},
        path=_TEXT,
        line=_POSITION,
        column=_POSITION,
        what=_TEXT,
        target=_TEXT,
        note=_TEXT,
        devices={"anyOf": [_POSITION, {"type": "null"}]},
        cell={"anyOf": [_POSITION, {"type": "null"}]},
    )
    plan = _object(project=_TEXT, notes=_list(_TEXT), imports=_list(_TEXT), steps=_list(step))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of xla2tpu",
        **_object(
            version={"const": VERSION},
            tool_version=_TEXT,
            summary=_object(**dict.fromkeys(Summary._fields, _COUNT)),
            files=_list(file),
            notes=_list(note),
            plans=_list(plan),
        ),
    }


SCHEMA = _schema()
