"""The sessions of docs/transcripts, run again by their real clients, print what stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_transcripts import SESSIONS, TRANSCRIPTS, Session, missing

SLOW = {"hooks"}


def test_there_is_one_for_each_use() -> None:
    assert {path.stem for path in TRANSCRIPTS.glob("*.md")} == set(SESSIONS)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in SESSIONS]
)
def test_the_session_goes_as_recorded(name: str, tmp_path: Path) -> None:
    """`python scripts/record_transcripts.py` writes them anew; read the diff."""
    reason = missing(name)
    if reason is not None:
        pytest.skip(reason)
    recorded = (TRANSCRIPTS / f"{name}.md").read_text(encoding="utf-8")
    assert SESSIONS[name](tmp_path) == recorded


def test_what_differs_between_machines_is_written_alike(tmp_path: Path) -> None:
    session = Session(tmp_path, "A title")
    text = f"[main 1234567] {tmp_path}/a  \nfile:///tmp/x-1/XLA101.md)\nindex 1ab..2cd 100644\n"
    assert session.alike(text) == (
        "[main 0123abc] /home/you/a\nfile:///tmp/rules/XLA101.md)\nindex 0123abc..4567def 100644\n"
    )


def test_a_command_that_ends_otherwise_is_no_transcript(tmp_path: Path) -> None:
    session = Session(tmp_path, "A title")
    session.run("echo a", "false", status=1)
    assert "$ false\n[exit status 1]\n```" in "\n".join(session.lines)
    with pytest.raises(RuntimeError, match="status 1"):
        session.run("false")
