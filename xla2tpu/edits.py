"""Lists of text edits: in order, without conflicts, in characters or in bytes."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from xla2tpu.model import Edit
from xla2tpu.sites import Text


class Conflict(Exception):
    """Two fixes would change the same text; ``code`` is the rule of one of them."""

    def __init__(self, code: str) -> None:
        super().__init__(f"edits of {code} overlap others")
        self.code = code


def resolved(edits: list[Text]) -> list[Text]:
    """Sort the edits; one inside another gives way to it, insertions move to its end."""
    spans = sorted((e for e in edits if e.start != e.end), key=lambda e: (e.start, -e.end))
    merged: list[Text] = []
    for edit in spans:
        if merged and edit.start < merged[-1].end:
            last = merged[-1]
            if edit.end <= last.end:
                continue
            if last.content == "" and edit.content == "":
                merged[-1] = Text(last.start, edit.end, "")
                continue
            raise Conflict("XLA000")
        merged.append(edit)
    points = sorted((e for e in edits if e.start == e.end), key=lambda e: (e.start, e.order))
    starts = [m.start for m in merged]
    inserted: dict[int, int] = {}
    loose: list[Text] = []
    for point in points:
        index = bisect.bisect_left(starts, point.start) - 1
        around = merged[index] if index >= 0 else None
        if around is None or not around.start < point.start < around.end:
            loose.append(point)
        elif point.order < 8:
            # In order: what was put in before, then this, then the replacement itself.
            at = inserted.get(index, 0)
            text = around.content[:at] + point.content + around.content[at:]
            inserted[index] = at + len(point.content)
            merged[index] = Text(around.start, around.end, text)
    return sorted([*merged, *loose], key=lambda e: (e.start, e.end, e.order))


def to_bytes(edits: Iterable[Text], text: str, encoding: str, lead: int) -> list[Edit]:
    """The edits in bytes of the file; ``lead`` is the length of its byte order mark."""
    if text.isascii() and encoding.lower().replace("-", "") in (
        "utf8",
        "ascii",
        "latin1",
        "iso88591",
    ):
        return [Edit(e.start + lead, e.end + lead, e.content) for e in edits]
    table: dict[int, int] = {}
    at = size = 0
    for position in sorted({p for e in edits for p in (e.start, e.end)}):
        size += len(text[at:position].encode(encoding))
        at = position
        table[position] = size + lead
    return [Edit(table[e.start], table[e.end], e.content) for e in edits]
