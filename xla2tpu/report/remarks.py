"""The notes of a run beside its findings, for every form of report."""

from __future__ import annotations

import os
from collections.abc import Iterator

from xla2tpu.model import Note
from xla2tpu.runner import Run

TITLES = {"project": "The project", "after-swap": "After the swap"}
INTRODUCTIONS = {
    "project": "What other files say that does not go with TorchTPU; the tool does not change it.",
    "after-swap": "What the new device alone does not give. Nothing of it was tried on a TPU.",
}


def by_kind(run: Run) -> Iterator[tuple[str, list[Note]]]:
    """The kinds that there are notes of, and those."""
    for kind in TITLES:
        found = [note for note in run.remarks if note.kind == kind]
        if found:
            yield kind, found


def place(note: Note) -> str:
    """Path, line and column."""
    return f"{note.path.replace(os.sep, '/')}:{note.line}:{note.column}"


def render(run: Run) -> str:
    """A few lines for the terminal: each sort of note once, with its first place."""
    lines = []
    for kind, notes in by_kind(run):
        lines.append(f"{TITLES[kind]}:")
        first: dict[str, list[Note]] = {}
        for note in notes:
            first.setdefault(note.name, []).append(note)
        for same in first.values():
            more = f" ({len(same) - 1} more such)" if len(same) > 1 else ""
            lines.append(f"  {place(same[0])} {same[0].message}. {same[0].advice}{more}")
    return "".join(line + "\n" for line in lines)
