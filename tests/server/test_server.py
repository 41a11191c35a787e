"""The language server as a client sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lsp_client import EVERYTHING, Client, applied, edits_of, served

from xla2tpu.runner import Request, run
from xla2tpu.model import Mode

STEP = """\
import torch
import torch_xla.core.xla_model as xm


def fit(model, batches):
    for batch in batches:
        model(batch).sum().backward()
        xm.mark_step()
"""
LEFT = """\
import torch_xla.core.xla_model as xm


def fit(optimizer):
    xm.optimizer_step(optimizer)
    xm.mark_step()
"""
NOWHERE = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}
WHOLE = {"start": {"line": 0, "character": 0}, "end": {"line": 1000, "character": 0}}


@pytest.fixture
def client() -> Iterator[Client]:
    with served() as it:
        yield it


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that is a project by its mark."""
    (tmp_path / "pyproject.toml").write_text("")
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def codes(diagnostics: list[dict[str, Any]]) -> list[str]:
    return [d["code"] for d in diagnostics]


def by_the_command_line(path: Path, **options: Any) -> str:
    """What `check --fix` makes of a file."""
    run(Request(paths=(str(path),), mode=Mode.FIX, **options))
    return path.read_bytes().decode()


def capabilities(**changes: dict[str, Any]) -> dict[str, Any]:
    return {k: {**EVERYTHING.get(k, {}), **changes.get(k, {})} for k in EVERYTHING}


def test_diagnostics_on_opening(client: Client, project: Path) -> None:
    client.start(project)
    uri = client.open(write(project / "a.py", LEFT))
    by_hand, step = client.diagnostics(uri)[-2:]
    assert (by_hand["code"], step["code"]) == ("XLA501", "XLA101")
    assert step["source"] == "xla2tpu"
    assert step["severity"] == 2
    assert step["range"] == {
        "start": {"line": 5, "character": 4}, "end": {"line": 5, "character": 16}
    }  # fmt: skip
