"""A comparison as text for people, and as data for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xla2tpu.verify.compare import Comparison, Difference, Row
from xla2tpu.verify.record import Record

VERSION = 1
# So many losses are listed in full; of more, the first and the last ones.
_LISTED = 40
_NAMES = {
    "torch_xla": "torch_xla on the CPU",
    "emulated": "TorchTPU on the emulated device",
    "reference": "plain PyTorch on the CPU, a reference",
}
_DIFFERENCES = 5


def text(found: Comparison, original: Record, migrated: Record, baseline: str | None) -> str:
    """The report for a terminal; ``baseline`` is the file that the original's record is from."""
    return "".join(line + "\n" for line in _lines(found, original, migrated, baseline))


def _lines(
    found: Comparison, original: Record, migrated: Record, baseline: str | None
) -> Iterator[str]:
    yield f"original: {_run(original)}" + (f", recorded in {baseline}" if baseline else "")
    yield f"migrated: {_run(migrated)}"
    if found.losses:
        yield ""
        yield from _losses(found.losses, len(migrated.ranks) > 1)
    yield ""
    for part in found.parts:
        wrong = len(part.differences)
        if part.compared or wrong:
            state = "agree" if not wrong else f"{wrong} {'differs' if wrong == 1 else 'differ'}"
            yield f"{part.name + ':':15} {part.compared} compared, {state}"
            for difference in part.differences[:_DIFFERENCES]:
                yield f"  {_difference(difference)}"
            if wrong > _DIFFERENCES:
                yield f"  and {wrong - _DIFFERENCES} more"
    for note in found.notes:
        yield f"note: {note}"
    for end in found.open_ends:
        yield f"not comparable: {end}"
    if migrated.error is not None and migrated.status != original.status:
        yield ""
        yield "the end of the migrated program's standard error:"
        yield from (f"  {line}" for line in migrated.stderr.rstrip().splitlines()[-12:])
    yield ""
    yield verdict(found)


def verdict(found: Comparison) -> str:
    """What came out, in one line."""
    if found.first is not None:
        name, difference = found.first
        return f"differs: first in {name}: {_difference(difference)}"
    if found.verdict == "same":
        return "same: the migrated program did what the original did"
    if found.open_ends:
        return "not comparable as a whole; what could be compared agrees"
    return "not comparable: the program printed nothing, trained nothing and wrote no files"


def _run(record: Record) -> str:
    names = {"torch_xla": "torch_xla", "torch": "torch", "python": "Python"}
    versions = [f"{names[k]} {record.versions[k]}" for k in names if k in record.versions]
    ranks = len(record.ranks)
    processes = "" if ranks < 2 else f", {ranks} processes"
    return f"{_NAMES[record.origin]} ({', '.join(versions)}){processes}"


def _losses(rows: list[Row], several: bool) -> Iterator[str]:
    heading = "mean of ranks" if several else "migrated"
    yield f"{'loss':>6} {'original':>14} {heading:>14} {'difference':>12}  at"
    shown = rows if len(rows) <= _LISTED else [*rows[: _LISTED // 2], None, *rows[-_LISTED // 2 :]]
    for row in shown:
        if row is None:
            yield f"{'...':>6}"
            continue
        mark = "" if row.agree else "  differs"
        gap = row.migrated - row.original
        yield (
            f"{row.number:6} {row.original:14.7g} {row.migrated:14.7g} {gap:12.2g}"
            f"  {row.at or ''}{mark}"
        )


def _difference(difference: Difference) -> str:
    places = [
        f"{name} {at}"
        for name, at in (("migrated", difference.migrated), ("original", difference.original))
        if at is not None
    ]
    return difference.what + (f" [{', '.join(places)}]" if places else "")


def data(
    found: Comparison, original: Record, migrated: Record, baseline: str | None
) -> dict[str, Any]:
    """The report as JSON has it."""
    first = found.first
    return {
        "version": VERSION,
        "verdict": found.verdict,
        "baseline": baseline,
        "runs": {
            name: {
                "origin": record.origin,
                "status": record.status,
                "versions": record.versions,
                "processes": len(record.ranks),
                "stderr": record.stderr,
            }
            for name, record in (("original", original), ("migrated", migrated))
        },
        "first": None if first is None else {"part": first[0], **first[1]._asdict()},
        "parts": [
            {
                "name": part.name,
                "compared": part.compared,
                "differences": [d._asdict() for d in part.differences],
            }
            for part in found.parts
        ],
        "losses": [row._asdict() for row in found.losses],
        "open_ends": found.open_ends,
        "notes": found.notes,
    }
