"""Places in texts that are not ASCII, in all ways in which clients count them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsp_client import Client, applied, capabilities, codes, edits_of, served

from xla2tpu.server.document import Document
from xla2tpu.server.edits import differences, text_edits
from xla2tpu.server.positions import Positions

UNITS: tuple[Literal["utf-8", "utf-16", "utf-32"], ...] = ("utf-8", "utf-16", "utf-32")
# Of one to four bytes, of one and two units, newlines, and what only Python takes for one.
TEXTS = st.text(st.sampled_from("ab#ü€😋\n\r\f\v\u2028\x85\x1c"), max_size=40)
# Everything stands behind something that is counted in several ways.
WIDE = (
    "\ufeff# ü😋\r\nimport torch_xla.core.xla_model as xm\r\n\f\r\n"
    "é = '😋\u2028\x0b'; xm.mark_step(); print('😋', xm.get_ordinal())  # 😋\r\n"
)
RANK = "dist.get_rank() if dist.is_initialized() else 0"


@pytest.fixture
def client() -> Iterator[Client]:
    with served() as it:
        yield it


@given(TEXTS, st.sampled_from(UNITS))
def test_places_there_and_back(text: str, unit: Literal["utf-8", "utf-16", "utf-32"]) -> None:
    positions = Positions(text, text.encode(), "utf-8", unit)
    for char in range(len(text) + 1):
        assert positions.char_at(len(text[:char].encode())) == char
        if text[char - 1 : char + 1] != "\r\n":  # a place that no client can name
            assert positions.char(*positions.place(char)) == char


@given(TEXTS, TEXTS, st.sampled_from(UNITS))
def test_differences(old: str, new: str, unit: Literal["utf-8", "utf-16", "utf-32"]) -> None:
    document = Document("file:///a.py", 1, old, unit, "/a.py")
    edits = [
        {
            "range": {
                "start": {"line": e.range.start.line, "character": e.range.start.character},
                "end": {"line": e.range.end.line, "character": e.range.end.character},
            },
            "newText": e.new_text,
        }
        for e in text_edits(document, differences(old, new))
    ]
    assert applied(old, edits, unit) == new


def test_places_beyond_the_text() -> None:
    positions = Positions("ü😋\nb", "ü😋\nb".encode(), "utf-8", "utf-16")
    assert positions.char(0, 99) == 2
    assert positions.char(0, 2) == 1  # in the middle of a character
    assert positions.char(9, 0) == 4


@pytest.mark.parametrize("offered", [("utf-8",), ("utf-32", "utf-16"), ("utf-16",), ()])
def test_the_encoding_that_is_offered(
    client: Client, tmp_path: Path, offered: tuple[str, ...]
) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(WIDE.encode())
    given_ = capabilities()
    given_["general"] = {"positionEncodings": list(offered)} if offered else {}
    unit = offered[0] if offered else "utf-16"
    assert client.start(tmp_path, capabilities=given_)["positionEncoding"] == unit
    uri = client.open(path)
    step, rank = client.diagnostics(uri)
    codec, size = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}[
        unit
    ]
    third = WIDE.split("\r\n")[3]

    def column(words: str) -> int:
        return len(third[: third.index(words)].encode(codec)) // size

    assert step["range"] == {
        "start": {"line": 3, "character": column("xm.mark")},
        "end": {"line": 3, "character": column("();") },
    }  # fmt: skip
    assert rank["range"]["start"]["character"] == column("xm.get")
    hover = client.hover(uri, 3, column("get_ordinal"))
    assert hover is not None
    assert hover["range"] == rank["range"]
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 4, "character": 0}}
    (action,) = client.actions(uri, whole, "source.fixAll")
    after = applied(WIDE, edits_of(action, uri), unit)
    assert "xla" not in after
    mended = f"print('😋', {RANK})  # 😋\r\n"
    assert after.endswith(f"\r\né = '😋\u2028\x0b'; {mended}")
    (one,) = [a for a in client.actions(uri, rank["range"]) if "(XLA302)" in a["title"]]
    alone = applied(WIDE, edits_of(client.resolved(one), uri), unit)
    assert alone.endswith(f"\r\né = '😋\u2028\x0b'; xm.mark_step(); {mended}")


def test_a_file_in_another_encoding(client: Client, tmp_path: Path) -> None:
    text = "# coding: latin-1\nimport torch_xla\nx = 'é'; torch_xla.sync()\n"
    (tmp_path / "a.py").write_bytes(text.encode("latin-1"))
    client.start(tmp_path)
    uri = client.open(tmp_path / "a.py", text)
    (step,) = client.diagnostics(uri)
    assert step["range"]["start"] == {"line": 2, "character": 9}
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 9, "character": 0}}
    (action,) = client.actions(uri, whole, "source.fixAll")
    assert applied(text, edits_of(action, uri)) == "# coding: latin-1\nx = 'é'\n"
    client.change(uri, 2, text + "y = '€'\n")
    assert "cannot be saved as iso-8859-1" in client.shown.get(timeout=30)
    client.change(uri, 3, text + "y = 1\n")
    assert codes(client.diagnostics(uri, 3)) == ["XLA101"]


def test_half_a_character(client: Client, tmp_path: Path) -> None:
    client.start(tmp_path)
    uri = client.open(tmp_path / "a.py", "import torch_xla\ntorch_xla.sync()  # \ud83d\n")
    assert "cannot be saved as utf-8" in client.shown.get(timeout=30)
    assert client.hover(uri, 1, 12) is None
