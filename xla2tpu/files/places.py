"""The places of a file that is not read as Python, and what a run does with them.

A `Document` is a text with places, and with programs in it that the engine runs over. All
positions are characters of its text; `locate` and `file_edits` bring them to the file.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from xla2tpu import comments as comments_
from xla2tpu.lines import Lines
from xla2tpu.model import (
    Applicability,
    Edit,
    FileResult,
    Finding,
    Fix,
    Mode,
    Settings,
    Status,
    Step,
    state_of,
)
from xla2tpu.project import Project
from xla2tpu.rulemodel import Rule
from xla2tpu.rules import load_rules

# What stands in for the text of a place in a program that the engine reads. No source has it.
FILLER = "\x7f"
_SYNTAX, _UNUSED_SUPPRESSION, _STALE_MARKER = "XLA000", "XLA095", "XLA096"
_OTHER_HARDWARE = re.compile(
    r"(?<![\w-])(?:torch[-_]neuronx?|neuronx?[-_](?:cc|distributed)|libneuronxla|optimum[-_]neuron"
    r"|tt[-_](?:torch|xla)|(?:torch|pjrt)[-_]plugin[-_]tt|torchacc)(?![\w-])"
    r"|PJRT_DEVICE[\"']?\s*(?:[=:, ]|[\"']?value[\"']?:)\s*[\"']?(?:NEURON|CUDA|GPU|ROCM|XPU)\b",
    re.I,
)
_OWN_MARKER = re.compile(r"# TODO\(xla2tpu\): XLA91\d")
_ORDER = (Status.CLEAN, Status.DONE, Status.READY, Status.NEEDS_WORK, Status.ERROR)


@dataclass(slots=True, eq=False)
class Place:
    """One place: the detector of its rule, where it stands, and the edits of its fix.

    Places of one ``group`` are mended together or not at all. ``anchor`` is where the statement
    begins above which a marker may stand, None where none may.
    """

    detector: str
    start: int
    end: int
    api: str
    edits: tuple[Edit, ...] = ()
    applicability: Applicability = Applicability.SAFE
    reason: str | None = None
    message: str | None = None
    advice: str | None = None
    blocks: bool = True
    group: str = ""
    anchor: int | None = None

    @property
    def fixable(self) -> bool:
        """Whether there is a fix at all."""
        return self.applicability is not Applicability.MANUAL

    def refuse(self, reason: str, advice: str | None = None) -> Place:
        """Leave the place to a person, for this reason; returns itself."""
        self.applicability, self.edits, self.reason = Applicability.MANUAL, (), reason
        self.advice = advice or self.advice
        return self


@dataclass(slots=True)
class Program:
    """A program inside a document, which the engine runs over as over a file of its own.

    ``run`` does that; ``spans`` brings its bytes to characters of the document, and ``edits``
    its edits, or None for those that cannot be told there.
    """

    run: Callable[[Settings], FileResult]
    span: Callable[[int, int], tuple[int, int]]
    edits: Callable[[Iterable[Edit]], list[Edit] | None]


@dataclass(slots=True)
class Document:
    """A text, its places and its programs."""

    data: bytes
    text: str
    encoding: str = "utf-8"
    lead: int = 0
    places: list[Place] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    # Files with a grammar of their own for comments leave the unused ones to the engine.
    plain: bool = True
    # Where programs stand whose comments are not those of the document.
    foreign: list[tuple[int, int]] = field(default_factory=list)

    def newline(self) -> str:
        """The newline that the text uses first."""
        found = re.search(r"\r\n|\r|\n", self.text)
        return found[0] if found else "\n"

    def locate(self, start: int, end: int) -> tuple[int, int, int, int, int | None]:
        """Line, column, last line, end column, all from 1, and the cell of a notebook."""
        lines = Lines(self.text)
        first, last = lines.index(start), lines.index(end)
        return (
            first + 1, start - lines.starts[first] + 1,
            last + 1, end - lines.starts[last] + 1, None,
        )  # fmt: skip

    def offset(self, at: int) -> int:
        """The byte of the file where a character stands."""
        return len(self.text[:at].encode(self.encoding)) + self.lead

    def file_edits(self, edits: Iterable[Edit]) -> tuple[Edit, ...]:
        """Edits of the text as edits of the bytes of the file."""
        return tuple(Edit(self.offset(e.start), self.offset(e.end), e.content) for e in edits)


def decode(data: bytes) -> tuple[str, str, int]:
    """The text of a file around the code, its encoding and the length of its byte order mark.

    What is not UTF-8 is read byte by byte: all that is looked for is ASCII.
    """
    lead = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    try:
        return data[lead:].decode(), "utf-8", lead
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1", 0


def masked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """``text`` with fillers, as many bytes long, in place of the spans and of our own markers."""
    spans = [*spans, *((m.start() + 2, m.end()) for m in _OWN_MARKER.finditer(text))]
    parts, at = [], 0
    for start, end in sorted(spans):
        if start >= at:
            parts += [text[at:start], FILLER * len(text[start:end].encode())]
            at = end
    return "".join([*parts, text[at:]])


def apply(data: bytes, edits: Iterable[Edit], encoding: str) -> bytes:
    """The bytes with the edits made; insertions at one place keep their order."""
    parts, at = [], 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        parts += [data[at : edit.start], edit.content.encode(encoding)]
        at = edit.end
    return b"".join([*parts, data[at:]])


class Work:
    """One document on its way to a result."""

    def __init__(self, document: Document, path: str, settings: Settings, project: Project) -> None:
        rules = load_rules(settings.rule_files)
        self.doc, self.path, self.settings, self.rules = document, path, settings, rules
        self.by_detector = {r.detector: r for r in rules.rules.values() if r.detector}
        self.by_detector["invalid-syntax"] = rules.rules[_SYNTAX]
        self.lines = Lines(document.text)
        self.fixes: dict[str, tuple[Edit, ...]] = {}
        self.comments = comments_.read_lines(document.text)
        self.places = sorted(document.places, key=lambda p: (p.start, p.end))
        if self.places and not settings.any_hardware and self._other_hardware(project):
            for place in self.places:
                place.refuse("other-hardware")
                place.anchor = None
        self._share()
        self.suppressed = {p for p in self.places if self._is_suppressed(p)}
        self._settle()

    def _share(self) -> None:
        """Put places into a group that one and the same edit takes away, as settings of a line."""
        known: dict[tuple[Edit, ...], Place] = {}
        for place in self.places:
            first = known.setdefault(place.edits, place)
            if place.edits and first is not place and not (first.group or place.group):
                first.group = f"same {place.edits[0].start}"
            if place.edits and first.group.startswith("same "):
                place.group = place.group or first.group

    def _other_hardware(self, project: Project) -> bool:
        """Whether the file, or the code beside it, is for other hardware than TPUs."""
        if _OTHER_HARDWARE.search(self.doc.text) is not None:
            return True
        return project.other_hardware(os.path.abspath(self.path)) is not None

    def rule(self, place: Place) -> Rule:
        """The rule that speaks about a place."""
        return self.by_detector[place.detector]

    def selected(self, code: str) -> bool:
        """Whether the run is to report a rule."""
        select, ignore = self.settings.select, self.settings.ignore
        return not (select and not code.startswith(select)) and not (
            ignore and code.startswith(ignore)
        )

    def _is_suppressed(self, place: Place) -> bool:
        first = self.lines.index(place.start if place.anchor is None else place.anchor) + 1
        last = self.lines.index(max(place.start, place.end - 1)) + 1
        return self.comments.suppress(self.rule(place).code, range(min(first, last), last + 1))

    def _settle(self) -> None:
        """What goes together is as safe as the least of it, and stays where one of it stays."""
        groups: dict[str, list[Place]] = {}
        for place in self.places:
            if place.group and place.blocks:
                groups.setdefault(place.group, []).append(place)
        for group in groups.values():
            stays = any(not p.fixable or p in self.suppressed for p in group) or not all(
                self.selected(self.rule(p).code) for p in group
            )
            for place in group:
                if stays:
                    if place.fixable:
                        place.refuse("goes-together")
                elif any(p.applicability is Applicability.UNSAFE for p in group):
                    place.applicability = Applicability.UNSAFE

    # -- what is done --------------------------------------------------------------------------

    def result(self) -> FileResult:
        """Findings, status and, where asked for, the new bytes."""
        mode = self.settings.mode
        result = FileResult(self.path, Status.CLEAN, source=self.doc.data)
        inner = [p.run(replace(self.settings, partial=True)) for p in self.doc.programs]
        for broken in (r for r in inner if r.error is not None):
            result.status, result.error = Status.ERROR, broken.error
            return result
        moved = self._moved(inner)
        if moved is None:
            result.status = Status.ERROR
            result.error = "internal error, nothing written: an edit has no place in the file"
            return result
        for place in self.places:
            if any(_overlap(e, m) for e in place.edits for m in moved):
                place.refuse("edit-conflict")
        self._settle()
        available = [
            p for p in self.places
            if p.fixable and p not in self.suppressed and self.selected(self.rule(p).code)
        ]  # fmt: skip
        wanted = [
            p for p in available if self.settings.unsafe or p.applicability is Applicability.SAFE
        ]
        done = mode is not Mode.CHECK and self._status(set(wanted), inner) in (
            Status.DONE,
            Status.CLEAN,
        )
        if mode is Mode.CHECK or (mode is Mode.FIX and not self.settings.partial and not done):
            if mode is Mode.FIX:
                result.held_back = self._held_back(available, wanted, inner)
                still = replace(self.settings, mode=Mode.CHECK)
                inner = [p.run(still) for p in self.doc.programs]
            result.findings = self._findings(set(), inner, written=False)
            result.status = self._status(set(), inner, checked=set(available))
        else:
            applied = set(wanted)
            result.findings = self._findings(applied, inner, written=True)
            edits = [e for p in wanted for e in p.edits]
            edits += [*moved, *self._marker_edits(applied)]
            made = self.doc.file_edits(_merged(edits))
            output = apply(self.doc.data, made, self.doc.encoding)
            if output != self.doc.data:
                result.output, result.edits = output, made
            result.status = self._status(applied, inner, checked=set(available))
        result.mentions_torch_xla = any(p.blocks for p in self.places) or any(
            r.mentions_torch_xla for r in inner
        )
        result.steps = list(self._steps(inner))
        result.helpers = tuple(dict.fromkeys(h for r in inner for h in r.helpers))
        return result

    def _steps(self, inner: list[FileResult]) -> Iterator[Step]:
        """The steps of the programs, at their places in the document."""
        for program, result in zip(self.doc.programs, inner, strict=True):
            text = (result.source or b"").decode(errors="replace")
            lines = Lines(text)
            for step in result.steps:
                at = len(text[: lines.starts[step.line - 1] + step.column - 1].encode())
                start = program.span(at, at)[0]
                line, column, _, _, cell = self.doc.locate(start, start)
                yield replace(step, path=self.path, line=line, column=column, cell=cell)

    def _moved(self, inner: list[FileResult]) -> list[Edit] | None:
        """The edits of the programs as edits of the document; None if one has no place there."""
        moved: list[Edit] = []
        for program, result in zip(self.doc.programs, inner, strict=True):
            if any(FILLER in e.content for e in result.edits):
                return None
            edits = program.edits(result.edits)
            if edits is None:
                return None
            moved += edits
        return moved

    def _status(
        self, applied: set[Place], inner: list[FileResult], checked: set[Place] | None = None
    ) -> Status:
        blocking = [p for p in self.places if p.blocks and p not in applied]
        own = Status.DONE if self.places else Status.CLEAN
        if blocking:
            fixable = checked is not None and all(p in checked for p in blocking)
            own = Status.READY if fixable else Status.NEEDS_WORK
        return max([own, *(r.status for r in inner)], key=_ORDER.index)

    def _held_back(
        self, available: list[Place], wanted: list[Place], inner: list[FileResult]
    ) -> str | None:
        found = [f for r in inner for f in r.findings if not f.suppressed]
        safe = len(wanted) + sum(f.applied for f in found)
        unsafe = len(available) - len(wanted)
        unsafe += sum(state_of(f) == "fixable" for f in found)
        left = sum(p.blocks and (not p.fixable or p in self.suppressed) for p in self.places)
        left += sum(f.blocks and state_of(f) == "manual" for f in found)
        if not left and unsafe:
            return f"{unsafe} unsafe {'fix' if unsafe == 1 else 'fixes'} held back: --unsafe-fixes"
        if not safe:
            return None
        places = "place needs" if left == 1 else "places need"
        fixes = "fix" if safe == 1 else "fixes"
        extra = f", {unsafe} unsafe" if unsafe else ""
        return (
            f"{safe} safe {fixes}{extra} held back: {left} {places} a person first;"
            " --partial applies them"
        )

    # -- findings ------------------------------------------------------------------------------

    def _findings(
        self, applied: set[Place], inner: list[FileResult], written: bool
    ) -> list[Finding]:
        found = [
            self._finding(p, p in applied) for p in self.places if self.selected(self.rule(p).code)
        ]
        used = {s.line for s in self.comments.suppressions if s.used}
        for program, result in zip(self.doc.programs, inner, strict=True):
            for finding in result.findings:
                if finding.rule == _UNUSED_SUPPRESSION and not self.doc.plain:
                    line = self.lines.index(program.span(finding.start, finding.end)[0]) + 1
                    if line in used:
                        continue
                found.append(self._outer(finding, program))
        if self.doc.plain:
            found += self._unused_suppressions()
        found += self._stale_markers(applied, written)
        return sorted(found, key=lambda f: (f.start, f.end, f.rule))

    def _finding(self, place: Place, applied: bool) -> Finding:
        rule = self.rule(place)
        suppressed = place in self.suppressed
        fix = None
        if place.fixable and not suppressed:
            title = rule.fix_title or rule.title
            fix = Fix(title, place.applicability, self._together(place))
        message = (place.message or rule.message).replace("{api}", place.api)
        return self._at(
            rule, place.start, place.end, place.api, place.blocks, place.applicability, message,
            place.advice or rule.advice, place.reason, applied, suppressed, fix,
        )  # fmt: skip

    def _together(self, place: Place) -> tuple[Edit, ...]:
        """The edits of a fix: those of its group, which are the same for all of it."""
        if not self.settings.with_fixes:
            return ()
        if not place.group:
            return self.doc.file_edits(_merged(place.edits))
        if place.group not in self.fixes:
            edits = [e for p in self.places if p.group == place.group for e in p.edits]
            self.fixes[place.group] = self.doc.file_edits(_merged(edits))
        return self.fixes[place.group]

    def _at(
        self, rule: Rule, start: int, end: int, api: str, blocks: bool,
        applicability: Applicability, message: str, advice: str, reason: str | None,
        applied: bool, suppressed: bool, fix: Fix | None,
    ) -> Finding:  # fmt: skip
        line, column, end_line, end_column, cell = self.doc.locate(start, end)
        return Finding(
            rule.code, rule.name, line, column, end_line, end_column,
            self.doc.offset(start), self.doc.offset(end),
            api, False, blocks, applicability, rule.effort, message, advice,
            reason, applied, suppressed, False, fix, cell,
        )  # fmt: skip

    def _outer(self, finding: Finding, program: Program) -> Finding:
        """A finding of a program as one of the file."""
        start, end = program.span(finding.start, finding.end)
        line, column, end_line, end_column, cell = self.doc.locate(start, end)
        fix = finding.fix
        if fix is not None and fix.edits:
            moved = program.edits(fix.edits)
            edits = () if moved is None else self.doc.file_edits(_merged(moved))
            fix = replace(fix, edits=edits)
        return replace(
            finding, line=line, column=column, end_line=end_line, end_column=end_column,
            start=self.doc.offset(start), end=self.doc.offset(end), fix=fix, cell=cell,
        )  # fmt: skip

    def _unused_suppressions(self) -> list[Finding]:
        rule = self.rules.rules[_UNUSED_SUPPRESSION]
        found = []
        if not self.selected(rule.code):
            return []
        for said in self.comments.suppressions:
            for code in said.codes:
                if code in said.used or not self.selected(code):
                    continue
                start = self.lines.starts[said.line - 1] + said.column
                end = self.lines.starts[said.line - 1] + len(self.lines.content(said.line - 1))
                found.append(
                    self._at(
                        rule, start, end, code, False, Applicability.MANUAL,
                        rule.message.replace("{api}", code), rule.advice, None, False, False, None,
                    )
                )  # fmt: skip
        return found

    # -- markers -------------------------------------------------------------------------------

    def _desired(self, applied: set[Place]) -> dict[int, list[tuple[str, str]]]:
        """The line (from 1) that each marker stands above, with code and advice."""
        desired: dict[int, list[tuple[str, str]]] = {}
        for place in self.places:
            rule = self.rule(place)
            left = place.blocks and not place.fixable and place not in self.suppressed
            if not left or place in applied or place.anchor is None:
                continue
            if not self.selected(rule.code):
                continue
            entries = desired.setdefault(self.lines.index(place.anchor) + 1, [])
            if rule.code not in [code for code, _ in entries]:
                entries.append((rule.code, " ".join((place.advice or rule.advice).split())))
        return desired

    def _markers(self) -> dict[int, list[tuple[int, str]]]:
        """Our markers that stand above each line: their own lines and codes."""
        present: dict[int, list[tuple[int, str]]] = {}
        markers = self.comments.markers
        for line, code in markers.items():
            start = self.lines.starts[line - 1]
            if not self.doc.plain and not code.startswith("XLA91"):
                continue
            if any(a <= start < b for a, b in self.doc.foreign):
                continue
            below = line + 1
            while below in markers:
                below += 1
            present.setdefault(below, []).append((line, code))
        return present

    def _stale(self, desired: dict[int, list[tuple[str, str]]]) -> list[tuple[int, str]]:
        stale = []
        for below, markers in self._markers().items():
            wanted = [code for code, _ in desired.get(below, [])]
            # Of two with one code, that right above the place is its own.
            for line, code in reversed(markers):
                if code in wanted:
                    wanted.remove(code)
                elif self.selected(code):
                    stale.append((line, code))
        return stale

    def _stale_markers(self, applied: set[Place], written: bool) -> list[Finding]:
        rule = self.rules.rules[_STALE_MARKER]
        if applied or not self.selected(rule.code):
            return []
        fixable = {
            (self.lines.index(p.anchor) + 1, self.rule(p).code)
            for p in self.places
            if p.fixable and p.anchor is not None
        }
        gone = written and (self.settings.mode is Mode.FIX or self.settings.todo)
        found = []
        for line, code in self._stale(self._desired(set())):
            below = line + 1
            while below in self.comments.markers:
                below += 1
            if (below, code) in fixable:
                continue
            start = self.lines.starts[line - 1]
            edits = self.doc.file_edits([Edit(start, self.lines.end(start), "")])
            fix = Fix(rule.fix_title or rule.title, Applicability.SAFE, edits)
            found.append(
                self._at(
                    rule, start, start + len(self.lines.content(line - 1)), code, False,
                    Applicability.SAFE, rule.message.replace("{api}", code), rule.advice, None,
                    gone, False, fix,
                )
            )  # fmt: skip
        return found

    def _marker_edits(self, applied: set[Place]) -> list[Edit]:
        migrate = self.settings.mode is Mode.MIGRATE
        if migrate and not self.settings.todo:
            return []
        desired = self._desired(applied)
        edits = []
        for line, _ in self._stale(desired):
            start = self.lines.starts[line - 1]
            edits.append(Edit(start, self.lines.end(start), ""))
        if not migrate:
            return edits
        present = self._markers()
        for line, entries in desired.items():
            have = [code for _, code in present.get(line, [])]
            start = self.lines.starts[line - 1]
            indent = self.lines.indent(start)
            for code, advice in entries:
                if code not in have:
                    text = comments_.marker(indent, code, advice) + self.doc.newline()
                    edits.append(Edit(start, start, text))
        return edits


def _overlap(one: Edit, other: Edit) -> bool:
    return one.start < other.end and other.start < one.end


def _merged(edits: Iterable[Edit]) -> list[Edit]:
    """Edits in order: the same one once, and one inside another gives way to it."""
    merged: list[Edit] = []
    ends: list[int] = []
    for edit in sorted(dict.fromkeys(edits), key=lambda e: (e.start, e.start != e.end, -e.end)):
        if edit.start != edit.end and bisect.bisect_right(ends, edit.start) < len(ends):
            if edit.content or merged[-1].content:
                continue
            if edit.end > merged[-1].end:
                merged[-1] = replace(merged[-1], end=edit.end)
                ends[-1] = edit.end
            continue
        merged.append(edit)
        if edit.start != edit.end:
            ends.append(edit.end)
    return merged
