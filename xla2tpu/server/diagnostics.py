"""Findings as a client shows them."""

from __future__ import annotations

from lsprotocol import types as lsp

from xla2tpu.engine import SYNTAX
from xla2tpu.model import Applicability, Finding
from xla2tpu.server.document import Document
from xla2tpu.server.edits import range_of
from xla2tpu.server.notebooks import Notebook, range_in_cell

SOURCE = "xla2tpu"


def diagnostic(document: Document, finding: Finding, link: str | None) -> lsp.Diagnostic:
    """One finding; what is left to a person says what to do."""
    message = finding.message
    if finding.applicability is Applicability.MANUAL:
        message += "\n" + " ".join(finding.advice.split())
    return lsp.Diagnostic(
        range=finding_range(document, finding),
        message=message,
        severity=_severity(finding),
        code=finding.rule,
        code_description=None if link is None else lsp.CodeDescription(link),
        source=SOURCE,
    )


def finding_range(document: Document, finding: Finding) -> lsp.Range:
    """Where a finding stands; a single place reaches to the end of its line."""
    if isinstance(document, Notebook):
        return range_in_cell(document, finding)
    positions = document.positions
    start, end = positions.char_at(finding.start), positions.char_at(finding.end)
    if start == end:
        line = positions.lines.index(start)
        end = max(end, positions.lines.starts[line] + len(positions.lines.content(line)))
    return range_of(document, start, end)


def _severity(finding: Finding) -> lsp.DiagnosticSeverity:
    if finding.rule == SYNTAX:
        return lsp.DiagnosticSeverity.Error
    if finding.blocks:
        return lsp.DiagnosticSeverity.Warning
    return lsp.DiagnosticSeverity.Information
