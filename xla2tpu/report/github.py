"""Workflow commands of GitHub Actions: each place that is left becomes an annotation."""

from __future__ import annotations

import os

from xla2tpu.model import Finding
from xla2tpu.runner import Run, is_left


def render(run: Run) -> str:
    """One command a line; places that keep a file from being done are errors, others warnings."""
    lines: list[str] = []
    for result in run.results:
        path = result.path.replace(os.sep, "/")
        if result.error is not None:
            title = _property("xla2tpu")
            lines.append(f"::error title={title},file={_property(path)}::{_data(result.error)}")
        lines += [_annotation(path, f) for f in result.findings if is_left(f)]
    return "".join(line + "\n" for line in lines)


def _annotation(path: str, finding: Finding) -> str:
    level = "error" if finding.blocks else "warning"
    title = f"xla2tpu {finding.rule} ({finding.name})"
    where = f"file={_property(path)}"
    text = f"{finding.rule} {finding.message}"
    if finding.cell is not None:
        # Lines of the file would be those of its JSON.
        text = f"{finding.where}: {text}"
    else:
        where += f",line={finding.line},endLine={finding.end_line}"
        # GitHub takes columns only for places on one line.
        if finding.line == finding.end_line:
            where += f",col={finding.column},endColumn={finding.end_column}"
    if finding.reason is not None:
        text += f". {finding.advice} ({finding.reason})"
    return f"::{level} title={_property(title)},{where}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
