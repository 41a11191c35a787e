"""Notebooks that a client has open: a text for each cell, which are one program to the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lsprotocol import types as lsp

from xla2tpu.model import Finding
from xla2tpu.server.document import Document
from xla2tpu.server.edits import differences, range_of, text_edits
from xla2tpu.server.positions import Unit

# Cells in other languages are not sent; numbers of cells are those of the ones that are.
SYNC = lsp.NotebookDocumentSyncOptions(
    [
        lsp.NotebookDocumentFilterWithNotebook(
            notebook="jupyter-notebook", cells=[lsp.NotebookCellLanguage(language="python")]
        )
    ],
    save=True,
)


@dataclass(frozen=True)
class Notebook(Document):
    """One state of a notebook. ``text`` is a file with its cells of code, and nothing else."""

    cells: tuple[Document, ...] = ()

    def cell(self, finding: Finding) -> Document:
        """The cell that a finding stands in."""
        return self.cells[(finding.cell or 1) - 1]


def notebook(
    uri: str, version: int, path: str, unit: Unit, cells: Sequence[tuple[str, int | None, str]]
) -> Notebook:
    """A notebook from the address, version and text of each cell."""
    document = {
        "cells": [
            {"cell_type": "code", "metadata": {}, "outputs": [], "source": text}
            for _, _, text in cells
        ],
        "metadata": {"kernelspec": {"language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    parts = tuple(Document(address, number, text, unit, None) for address, number, text in cells)
    return Notebook(uri, version, json.dumps(document, ensure_ascii=False), unit, path, parts)


def range_in_cell(document: Notebook, finding: Finding) -> lsp.Range:
    """Where a finding stands in its cell; a single place reaches to the end of its line."""
    cell = document.cell(finding)
    lines = cell.positions.lines
    start = lines.starts[finding.line - 1] + finding.column - 1
    end = lines.starts[finding.end_line - 1] + finding.end_column - 1
    if start == end:
        end = max(end, lines.starts[finding.line - 1] + len(lines.content(finding.line - 1)))
    return range_of(cell, start, end)


def changes(document: Notebook, text: str) -> Iterator[tuple[Document, list[lsp.TextEdit], bool]]:
    """The edits of each cell that is another one in a new text of the file."""
    for cell, after in zip(document.cells, json.loads(text)["cells"], strict=True):
        if cell.text != after["source"]:
            yield cell, text_edits(cell, differences(cell.text, after["source"])), True
