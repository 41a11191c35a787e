"""What one run of a program did, as data: read from its processes, kept as a baseline."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from types import NoneType
from typing import Any, NamedTuple

VERSION = 1
KIND = "xla2tpu-baseline"

Event = dict[str, Any]


class RecordError(Exception):
    """A baseline that cannot be read or is not one; the message says why."""


@dataclass
class Record:
    """One run. ``origin`` says what ran: ``torch_xla``, ``emulated`` or ``reference``.

    ``status`` is the exit status, None after the time limit. ``ranks`` has the events of each
    rank in the order of time, as `recorder` gives them; ``files`` what the program wrote, by
    names relative to its folder. ``sources`` are digests of the program's files and ``args`` its
    arguments, by which an old baseline is told. ``executed`` has the lines of each file that were
    run, where that was asked for. ``stderr`` is the end of standard error.
    """

    origin: str
    status: int | None
    versions: dict[str, str]
    ranks: dict[int, list[Event]]
    files: dict[str, Any] = field(default_factory=dict)
    args: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    executed: dict[str, list[int]] = field(default_factory=dict)
    stderr: str = ""

    def of_kind(self, rank: int, kind: str) -> list[Event]:
        """The events of one rank that are of one kind."""
        return [event for event in self.ranks.get(rank, []) if event["event"] == kind]

    @property
    def error(self) -> Event | None:
        """The exception that ended the program, if one did."""
        for rank in sorted(self.ranks):
            for event in self.of_kind(rank, "error"):
                return event
        return None


class Events(NamedTuple):
    """What the processes of a run told: events by rank, versions, and lines that were run."""

    ranks: dict[int, list[Event]]
    versions: dict[str, str]
    executed: dict[str, list[int]]


def read_events(folder: str) -> Events:
    """The events of all processes of a run.

    A process without a rank, such as one that starts the others, counts as rank 0.
    """
    ranks: dict[int, list[tuple[float, int, Event]]] = {}
    versions: dict[str, str] = {}
    executed: dict[str, set[int]] = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".jsonl"):
            continue
        events = _lines(os.path.join(folder, name))
        own = next((e["rank"] for e in events if "rank" in e), 0)
        rank = own
        for number, event in enumerate(events):
            rank = event.pop("rank", rank)
            when = event.pop("time", 0.0)
            if event["event"] == "begin":
                versions["python"] = event["python"]
            elif event["event"] in ("torch", "torch_xla"):
                versions[event["event"]] = event["version"]
            elif event["event"] == "ran":
                file, _, line = event["at"].rpartition(":")
                executed.setdefault(file, set()).add(int(line))
            else:
                ranks.setdefault(rank, []).append((when, number, event))
    ordered = {
        rank: [event for _, _, event in sorted(events, key=lambda e: e[:2])]
        for rank, events in sorted(ranks.items())
    }
    return Events(ordered, versions, {file: sorted(executed[file]) for file in sorted(executed)})


def _lines(path: str) -> list[Event]:
    events = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                events.append(json.loads(line))
            except ValueError:
                # The process was ended while it wrote this one.
                break
    return events


def dumps(record: Record) -> str:
    """A record as the text of a baseline file: one event a line, so that differences show."""
    body = asdict(record)
    ranks = body.pop("ranks")
    body = {"kind": KIND, "version": VERSION, **body}
    head = "{\n" + ",\n".join(f' "{key}": {_compact(value)}' for key, value in body.items())
    parts = []
    for rank, events in ranks.items():
        listing = ",\n".join(_compact(event) for event in events)
        parts.append(f' "{rank}": [\n{listing}\n ]')
    return head + ',\n "ranks": {\n' + ",\n".join(parts) + "\n }\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


_PLACES: dict[str, tuple[type, ...]] = {
    "origin": (str,),
    "status": (int, NoneType),
    "versions": (dict,),
    "ranks": (dict,),
    "files": (dict,),
    "args": (list,),
    "sources": (dict,),
    "executed": (dict,),
    "stderr": (str,),
}
_ENTRIES: dict[str, tuple[type, ...]] = {
    "versions": (str,),
    "ranks": (list,),
    "files": (dict,),
    "args": (str,),
    "sources": (str,),
    "executed": (list,),
}
# What must stand in a file of each kind, and in each kind of event.
_CONTENTS: dict[str, dict[str, tuple[type, ...]]] = {
    "values": {"values": (dict,)},
    "text": {"lines": (list,)},
    "bytes": {"sha256": (str,), "unread": (str,)},
    "line": {"text": (str,), "at": (str, NoneType)},
    "loss": {"value": (float, int), "at": (str, NoneType)},
    "step": {"optimizer": (str,), "parameters": (list,), "at": (str, NoneType)},
    "draw": {"what": (str,), "at": (str, NoneType)},
    "open": {"why": (str,), "at": (str, NoneType)},
    "error": {"type": (str,), "text": (str,), "at": (str, NoneType)},
}


def _check_types(body: dict[str, Any]) -> None:
    """Raise `RecordError` with the place of what is not as `dumps` writes it."""
    for name, value in body.items():
        _check_type(name, value, _PLACES.get(name, (object,)))
        inner = value.items() if isinstance(value, dict) else enumerate(value or ())
        for key, entry in inner if name in _ENTRIES else ():
            _check_type(f"{name}[{key!r}]", entry, _ENTRIES[name])
            if name == "files":
                _check_contents(f"{name}[{key!r}]", entry, "kind")
            for number, event in enumerate(entry) if name == "ranks" else ():
                _check_contents(f"{name}[{key!r}][{number}]", event, "event")


def _check_contents(place: str, value: Any, kind: str) -> None:
    _check_type(place, value, (dict,))
    _check_type(f"{place}[{kind!r}]", value.get(kind), (str,))
    for name, types in _CONTENTS.get(value[kind], {}).items():
        _check_type(f"{place}[{name!r}]", value.get(name), types)


def _check_type(place: str, value: Any, types: tuple[type, ...]) -> None:
    if not isinstance(value, types):
        found = "null" if value is None else type(value).__name__
        raise RecordError(f"a damaged baseline: {place} cannot be {found}")


def loads(text: str) -> Record:
    """The record of a baseline file. Raises `RecordError`."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("kind") != KIND:
        raise RecordError("not a baseline that `xla2tpu verify --save-baseline` wrote")
    if body.get("version") != VERSION:
        raise RecordError(
            f"a baseline of version {body.get('version')}; this xla2tpu reads version {VERSION}: "
            "record it again"
        )
    del body["kind"], body["version"]
    _check_types(body)
    try:
        body["ranks"] = {int(rank): events for rank, events in body["ranks"].items()}
        return Record(**body)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise RecordError(f"a baseline with parts missing: {error}") from error
