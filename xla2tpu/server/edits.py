"""Changes of texts as a client applies them."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable

from lsprotocol import types as lsp

from xla2tpu.lines import Lines
from xla2tpu.server.document import Document

# Characters from and to, and what is to stand there.
Replacement = tuple[int, int, str]


def differences(old: str, new: str) -> list[Replacement]:
    """The changed lines, so that marks and cursors elsewhere stay where they are."""
    before, after = _split(old), _split(new)
    starts = [0]
    for line in before:
        starts.append(starts[-1] + len(line))
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [
        (starts[a], starts[b], "".join(after[c:d]))
        for tag, a, b, c, d in matcher.get_opcodes()
        if tag != "equal"
    ]


def _split(text: str) -> list[str]:
    """The lines with their newlines; nothing else ends one."""
    starts = [*Lines(text).starts, len(text)]
    return [text[a:b] for a, b in itertools.pairwise(starts) if a < b]


def text_edits(document: Document, replacements: Iterable[Replacement]) -> list[lsp.TextEdit]:
    """The changes of a document, in their order."""
    return [
        lsp.TextEdit(range_of(document, start, end), content)
        for start, end, content in replacements
    ]


def range_of(document: Document, start: int, end: int) -> lsp.Range:
    """The range between two characters."""
    place = document.positions.place
    return lsp.Range(lsp.Position(*place(start)), lsp.Position(*place(end)))


class Edits:
    """Makes the edits of a workspace, as far as the client can take them."""

    def __init__(self, capabilities: lsp.ClientCapabilities) -> None:
        workspace = capabilities.workspace
        edit = workspace.workspace_edit if workspace else None
        self.versioned = bool(edit and edit.document_changes)
        operations = (edit.resource_operations if edit else None) or ()
        self.creates = self.versioned and lsp.ResourceOperationKind.Create in operations

    def of(
        self,
        changes: Iterable[tuple[Document, list[lsp.TextEdit], bool]],
    ) -> lsp.WorkspaceEdit:
        """One edit of several files: each with its edits, and whether it is there already."""
        parts = list(changes)
        if not self.versioned:
            return lsp.WorkspaceEdit(changes={d.uri: edits for d, edits, _ in parts})
        found: list[lsp.TextDocumentEdit | lsp.CreateFile | lsp.RenameFile | lsp.DeleteFile] = []
        for document, edits, there in parts:
            if not there:
                found.append(lsp.CreateFile(uri=document.uri))
            name = lsp.OptionalVersionedTextDocumentIdentifier(document.uri, document.version)
            found.append(lsp.TextDocumentEdit(name, edits))
        return lsp.WorkspaceEdit(document_changes=found)
