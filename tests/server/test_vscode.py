"""The extension for VS Code fits the server, and its own tests pass."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pygls", reason="pygls is not installed: pip install 'xla2tpu[lsp]'")

from xla2tpu import __version__
from xla2tpu.server.actions import FIX_ALL
from xla2tpu.server.options import Options, parse

FOLDER = Path(__file__).parents[2] / "editors" / "vscode"
MANIFEST = json.loads((FOLDER / "package.json").read_text())


def test_its_settings_are_those_of_the_server() -> None:
    properties = MANIFEST["contributes"]["configuration"]["properties"]
    defaults = {name.removeprefix("xla2tpu."): p["default"] for name, p in properties.items()}
    del defaults["trace.server"]
    assert defaults.pop("command") == []
    assert parse({**defaults, "command": [], "trace": {"server": "off"}}) == (Options(), [])
    # All that the server knows can be set.
    _, (problem,) = parse({"unknown": 1})
    assert set(problem.partition("known are ")[2].split(", ")) == set(defaults)


def test_it_goes_with_this_release() -> None:
    assert MANIFEST["version"] == __version__
    assert f"'{FIX_ALL}'" in (FOLDER / "extension.js").read_text()
    lock = (FOLDER / "package-lock.json").read_text()
    assert '"resolved"' not in lock  # it names packages, and not where one machine had them from


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on this machine")
def test_its_own_tests() -> None:
    done = subprocess.run(
        ["node", "--test", "--test-reporter=tap"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "# pass 5" in done.stdout
    for script in FOLDER.glob("*.js"):
        subprocess.run(["node", "--check", script], check=True)
