"""Records from the files of processes, and baselines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from xla2tpu.verify.record import Record, RecordError, dumps, loads, read_events


def write(folder: Path, name: str, *events: dict[str, Any]) -> None:
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def test_processes_become_ranks(tmp_path: Path) -> None:
    write(
        tmp_path,
        "1-10",
        {"event": "begin", "python": "3.11.7", "argv": [], "time": 0.0},
        {"event": "torch", "version": "2.13.0", "time": 0.5},
        {"event": "line", "text": "launching", "at": "a.py:1", "time": 1.0},
        {"event": "ran", "at": "a.py:9", "time": 1.0},
        {"event": "ran", "at": "a.py:2", "time": 1.0},
        {"event": "line", "text": "all ended", "at": "a.py:2", "time": 9.0},
    )
    for rank in (0, 1):
        text = f"rank {rank}"
        write(
            tmp_path,
            f"2-2{rank}",
            {"event": "line", "text": text, "at": "a.py:5", "time": 5.0, "rank": rank},
        )
    told = read_events(str(tmp_path))
    texts = {rank: [event["text"] for event in events] for rank, events in told.ranks.items()}
    # The process that starts the others counts as the first rank.
    assert texts == {0: ["launching", "rank 0", "all ended"], 1: ["rank 1"]}
    assert told.versions == {"python": "3.11.7", "torch": "2.13.0"}
    assert told.executed == {"a.py": [2, 9]}


def test_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    whole = json.dumps({"event": "line", "text": "a", "at": None, "time": 1.0})
    (tmp_path / "1-1.jsonl").write_text(f'{whole}\n{{"event": "li', encoding="utf-8")
    assert [e["text"] for e in read_events(str(tmp_path)).ranks[0]] == ["a"]


def test_baseline_round_trip() -> None:
    record = Record(
        "torch_xla",
        0,
        {"torch": "2.9.1"},
        {0: [{"event": "loss", "value": float("inf"), "at": "a.py:1"}], 1: []},
        {"x.pt": {"kind": "values", "values": {"a": 1}}},
        ["--steps", "3"],
        {"a.py": "00"},
        {"a.py": [1, 2]},
        "warning: ü\n",
    )
    assert loads(dumps(record)) == record


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("files", 5, "files"),
        ("files", {"a": "x"}, "files['a']"),
        ("files", {"a": {"kind": "text", "lines": None}}, "files['a']['lines']"),
        ("sources", [], "sources"),
        ("origin", 5, "origin"),
        ("args", "x", "args"),
        ("args", [5], "args[0]"),
        ("status", "x", "status"),
        ("versions", "x", "versions"),
        ("stderr", None, "stderr"),
        ("executed", {"a.py": 1}, "executed['a.py']"),
        ("ranks", [], "ranks"),
        ("ranks", {"0": {}}, "ranks['0']"),
        ("ranks", {"0": [{"event": "loss", "value": "x"}]}, "ranks['0'][0]['value']"),
    ],
)
def test_damaged_baseline_names_the_place(name: str, value: Any, place: str) -> None:
    body = json.loads(dumps(Record("torch_xla", 0, {}, {0: []})))
    body[name] = value
    with pytest.raises(RecordError, match=re.escape(f"baseline: {place} cannot be ")):
        loads(json.dumps(body))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a baseline"),
        ('{"kind": "other"}', "not a baseline"),
        ('{"kind": "xla2tpu-baseline", "version": 99}', "of version 99"),
        ('{"kind": "xla2tpu-baseline", "version": 1, "ranks": {}}', "parts missing"),
        ('{"kind": "xla2tpu-baseline", "version": 1, "ranks": {"x": []}}', "parts missing"),
    ],
)
def test_files_that_are_no_baseline(text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        loads(text)
