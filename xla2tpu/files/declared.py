"""Requirements that a file declares, whatever its format: lists of texts with their places.

A format finds the items; this decides over all of them at once, since the pins of a list have
to move with its torch_xla.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from xla2tpu.files import requirements
from xla2tpu.files.commands import MENTION
from xla2tpu.files.places import Place
from xla2tpu.model import Applicability, Edit

_GENERATED = "Change the file that it is made from, then make it anew."
_SHARED = "Raise it to a release that torch_tpu takes, for all users of the project."


@dataclass(slots=True)
class Item:
    """One requirement: where its text stands, and the edit that takes it away.

    ``scope`` is the list that it stands in, with ``main`` for those that everybody gets.
    ``brackets`` may be wrong in the format, or hold what is no requirement: then ``locked``.
    """

    text: str
    start: int
    end: int
    scope: str = "main"
    gone: Edit | None = None
    anchor: int | None = None
    locked: bool = False
    separator: str | None = None


@dataclass(slots=True)
class Declarations:
    """All requirements of one file.

    ``beside``: another file of the same environment asks for torch_xla.
    """

    items: list[Item] = field(default_factory=list)
    indices: list[Item] = field(default_factory=list)
    floors: list[tuple[Item, str | None]] = field(default_factory=list)
    beside: bool = False

    def places(self) -> list[Place]:
        """What becomes of the items; nothing where none asks for torch_xla or torch_tpu."""
        asking = {i.scope for i in self.items if requirements.asks(i.text)}
        if self.beside:
            asking.add("main")
        if not asking:
            return []
        everywhere = "main" in asking
        found = []
        for item in self.items:
            if everywhere or item.scope in asking or item.scope == "main":
                place = self._place(item, everywhere or item.scope in asking)
                if place is not None:
                    found.append(place)
        found += [self._index(item) for item in self.indices if _wheels(item.text)]
        if everywhere:
            found += [self._floor(item, new) for item, new in self.floors if new is not None]
        return found

    def _shared(self, scope: str) -> bool:
        """Whether jax[tpu] stands in a list too, which needs libtpu from somewhere."""
        return any(
            requirements.name_of(i.text) == "jax" and "tpu" in i.text
            for i in self.items
            if i.scope in (scope, "main")
        )

    def _place(self, item: Item, owned: bool) -> Place | None:
        verdict = requirements.verdict(item.text)
        if verdict is None or (verdict.detector == "runtime-package" and not owned):
            return None
        place = Place(
            verdict.detector, item.start, item.end, verdict.api, group="declared",
            applicability=verdict.applicability, anchor=item.anchor,
        )  # fmt: skip
        names = {requirements.name_of(i.text) for i in self.items}
        if item.locked:
            # A marker would be gone with the next making.
            place.anchor = None
            return place.refuse("generated-file", _GENERATED)
        if verdict.reason is not None:
            return place.refuse(verdict.reason, verdict.advice)
        if verdict.detector == "runtime-package" and self._shared(item.scope):
            place.group = ""
            return place.refuse("shared-dependency")
        if not owned:
            return place.refuse("shared-dependency", _SHARED)
        if verdict.new:
            new = verdict.new
            if verdict.also is not None and verdict.also not in names:
                if item.separator is None:
                    return place.refuse("unsupported-form", "Write torch_tpu, and jax beside it.")
                new += item.separator + verdict.also
            place.edits = (Edit(item.start, item.end, new),)
        elif item.gone is None:
            place.refuse("unsupported-form")
        else:
            place.edits = (item.gone,)
        return place

    def _index(self, item: Item) -> Place:
        place = Place(
            "wheel-index", item.start, item.end, item.text, group="declared", anchor=item.anchor
        )
        if self._shared(item.scope):
            place.group = ""
            return place.refuse("shared-dependency")
        if item.locked:
            return place.refuse("generated-file", _GENERATED)
        if requirements.is_jax_index(item.text):
            place.applicability = Applicability.UNSAFE
        if item.gone is None:
            return place.refuse("unsupported-form")
        place.edits = (item.gone,)
        return place

    def _floor(self, item: Item, new: str) -> Place:
        place = Place(
            "python-floor", item.start, item.end, item.text, group="declared",
            applicability=Applicability.UNSAFE, anchor=item.anchor,
        )  # fmt: skip
        place.edits = (Edit(item.start, item.end, new),)
        return place


def _wheels(url: str) -> bool:
    return requirements.is_libtpu_index(url) or requirements.is_jax_index(url)


def line_at(text: str, at: int) -> tuple[int, int]:
    """Where the line of a place begins, and where it ends behind its newline."""
    start = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
    match = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)?").match(text, at)
    return start, match.end() if match else len(text)


def without_item(text: str, start: int, end: int) -> Edit:
    """The edit that takes one element out of a bracketed list, with its comma."""
    comma = re.compile(r"\s*,").match(text, end)
    first, last = line_at(text, start)[0], line_at(text, comma.end() if comma else end)[1]
    rest = text[comma.end() if comma else end : last].strip()
    if not text[first:start].strip() and (not rest or rest[0] == "#") and last > end:
        return Edit(first, last, "")
    if comma:
        space = re.compile(r"[ \t]*").match(text, comma.end())
        return Edit(start, space.end() if space else comma.end(), "")
    before = re.compile(r",\s*\Z").search(text[:start])
    return Edit(before.start() if before else start, end, "")


def mentions(
    text: str, spans: Iterable[tuple[int, int]], places: Iterable[Place], blocks: bool = False
) -> list[Place]:
    """What names torch_xla in these spans and is no place yet; most of it does no harm."""
    taken = [(p.start, p.end) for p in places]
    found = []
    for start, end in spans:
        match = MENTION.search(text, start, end)
        if match and not any(a < end and start < b for a, b in taken):
            place = Place("file-mention", match.start(), match.end(), match[0], blocks=blocks)
            place.anchor = line_at(text, match.start())[0] if blocks else None
            found.append(place.refuse("unsupported-form"))
    return found
