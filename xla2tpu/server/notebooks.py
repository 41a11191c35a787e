"""Notebooks that a client has open: a text for each cell, which are one program to the engine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lsprotocol import types as lsp

from xla2tpu.model import Finding
from xla2tpu.server.document import Document
from xla2tpu.server.edits import differences, range_of, text_edits
from xla2tpu.server.positions import Positions, Unit

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
class Cell(Document):
    """One state of a cell. It is no file, so that a comment about an encoding is none to heed."""

    @property
    def encoding(self) -> str:
        """That of the notebook."""
        return "utf-8"


@dataclass(frozen=True)
class Notebook(Document):
    """One state of a notebook. ``text`` is a file with its cells of code, and nothing else."""

    cells: tuple[Cell, ...] = ()

    def cell(self, finding: Finding) -> Cell:
        """The cell that a finding stands in."""
        return self.cells[(finding.cell or 1) - 1]


class Cells:
    """The texts of the cells of all notebooks, as their clients change them.

    Clients send parts of cells whatever was agreed on for files, and count lines as the protocol
    has it, unlike pygls.
    """

    def __init__(self) -> None:
        self._known: dict[str, Cell] = {}

    def open(self, items: Iterable[lsp.TextDocumentItem], unit: Unit) -> None:
        """Take the cells that come with a notebook, or come into one."""
        for item in items:
            self._known[item.uri] = Cell(item.uri, item.version, item.text, unit, None)

    def change(self, changes: lsp.NotebookDocumentCellChanges, unit: Unit) -> None:
        """Follow one change of a notebook."""
        if changes.structure is not None:
            self.close(changes.structure.did_close or ())
            self.open(changes.structure.did_open or (), unit)
        for content in changes.text_content or ():
            cell = self._known.get(content.document.uri)
            if cell is not None:
                text = _changed(cell.text, content.changes, unit)
                version = content.document.version
                self._known[cell.uri] = Cell(cell.uri, version, text, unit, None)

    def close(self, cells: Iterable[lsp.TextDocumentIdentifier]) -> None:
        """Forget cells."""
        for cell in cells:
            self._known.pop(cell.uri, None)

    def of(self, cells: Iterable[lsp.NotebookCell]) -> tuple[Cell, ...]:
        """The cells of a notebook in their order, without those that were not sent."""
        return tuple(self._known[c.document] for c in cells if c.document in self._known)


def _changed(text: str, changes: Iterable[lsp.TextDocumentContentChangeEvent], unit: Unit) -> str:
    """The text after some changes, each of what the one before has left."""
    for change in changes:
        if isinstance(change, lsp.TextDocumentContentChangePartial):
            positions = Positions(text, text.encode("utf-8", "replace"), "utf-8", unit)
            start, end = (
                positions.char(at.line, at.character)
                for at in (change.range.start, change.range.end)
            )
            text = text[:start] + change.text + text[end:]
        else:
            text = change.text
    return text


def notebook(uri: str, version: int, path: str, unit: Unit, cells: tuple[Cell, ...]) -> Notebook:
    """A notebook from its cells."""
    document = {
        "cells": [
            {"cell_type": "code", "metadata": {}, "outputs": [], "source": cell.text}
            for cell in cells
        ],
        "metadata": {"kernelspec": {"language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return Notebook(uri, version, json.dumps(document, ensure_ascii=False), unit, path, cells)


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
