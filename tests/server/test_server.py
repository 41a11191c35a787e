"""The language server as a client sees it: diagnostics, settings, names across files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from lsp_client import WHOLE, Client, capabilities, codes, served, write

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


def fit(hidden):
    xm.send(hidden, 1)
    xm.mark_step()
"""


@pytest.fixture
def client() -> Iterator[Client]:
    with served() as it:
        yield it


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that is a project by its mark."""
    (tmp_path / "pyproject.toml").write_text("")
    return tmp_path


# -- diagnostics -------------------------------------------------------------------------------


def test_on_opening(client: Client, project: Path) -> None:
    client.start(project)
    uri = client.open(write(project / "a.py", LEFT))
    by_hand, step = client.diagnostics(uri)
    assert (by_hand["code"], step["code"]) == ("XLA521", "XLA101")
    assert "dist.send and dist.recv" in by_hand["message"]
    assert step["source"] == "xla2tpu"
    assert step["severity"] == 2
    assert step["range"] == {
        "start": {"line": 5, "character": 4},
        "end": {"line": 5, "character": 16},
    }


def test_links_lead_to_the_page_of_the_rule(project: Path) -> None:
    with served() as client:
        client.start(project)
        uri = client.open(write(project / "a.py", STEP))
        (step,) = client.diagnostics(uri)
        page = Path(unquote(urlparse(step["codeDescription"]["href"]).path))
        text = page.read_text()
    assert text.startswith("# XLA101: mark-step")
    assert "torch.accelerator.synchronize()" in text
    assert "](README.md" not in text
    assert not page.exists()


def test_links_to_the_web(client: Client, project: Path) -> None:
    client.settings = {"rulePages": "https://example.org/rules/"}
    client.start(project)
    uri = client.open(write(project / "a.py", STEP))
    (step,) = client.diagnostics(uri)
    assert step["codeDescription"]["href"] == "https://example.org/rules/XLA101.md"


def test_while_typing(client: Client, project: Path) -> None:
    client.settings = {"delay": 300}
    client.start(project)
    uri = client.open(write(project / "a.py", STEP))
    assert codes(client.diagnostics(uri)) == ["XLA101"]
    for version in range(2, 8):
        client.change(uri, version, STEP + "xm.mark_step()\n" * version)
    (published,) = client.published(uri, 1)
    assert published["version"] == 7
    assert codes(published["diagnostics"]) == ["XLA101"] * 8


def test_the_last_ones_stay_while_the_text_does_not_parse(client: Client, project: Path) -> None:
    client.settings = {"delay": 0}
    client.start(project)
    uri = client.open(write(project / "a.py", STEP))
    assert codes(client.diagnostics(uri)) == ["XLA101"]
    client.change(uri, 2, STEP + "def (")
    client.settled(uri)
    assert client.silent(uri)
    assert client.actions(uri, WHOLE) == []
    client.change(uri, 3, STEP + "x = 1\n")
    assert codes(client.diagnostics(uri, 3)) == ["XLA101"]


def test_a_file_that_never_parsed(client: Client, project: Path) -> None:
    client.start(project)
    uri = client.open(write(project / "a.py", "import torch_xla\ndef (:\n"))
    (syntax,) = client.diagnostics(uri)
    assert (syntax["code"], syntax["severity"]) == ("XLA000", 1)
    assert syntax["range"]["start"]["line"] == 1
    client.change(uri, 2, "import torch_xla\ntorch_xla.sync()\n")
    assert codes(client.diagnostics(uri, 2)) == ["XLA101"]


def test_on_saving(client: Client, project: Path) -> None:
    client.settings = {"delay": 60_000}
    client.start(project)
    uri = client.open(write(project / "a.py", STEP))
    client.diagnostics(uri)
    client.change(uri, 2, "x = 1\n")
    client.settled(uri)
    assert client.silent(uri)
    client.notify("textDocument/didSave", {"textDocument": {"uri": uri}})
    assert client.diagnostics(uri, 2) == []


def test_closing_takes_them_away(client: Client, project: Path) -> None:
    client.start(project)
    uri = client.open(write(project / "a.py", STEP))
    client.diagnostics(uri)
    client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    assert client.diagnostics(uri, None) == []


def test_suppressed_places_and_useless_comments(client: Client, project: Path) -> None:
    client.start(project)
    text = STEP.replace("mark_step()", "mark_step()  # xla2tpu: ignore[XLA101, XLA401]")
    uri = client.open(write(project / "a.py", text))
    (useless,) = client.diagnostics(uri)
    assert (useless["code"], useless["severity"]) == ("XLA095", 3)
    assert client.actions(uri, WHOLE, "quickfix") == []


def test_what_is_not_looked_at(client: Client, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.xla2tpu]\nexclude = ["legacy"]\n')
    client.start(project)
    legacy = client.open(write(project / "legacy" / "a.py", STEP))
    assert client.diagnostics(legacy) == []
    other = {"uri": (project / "a.txt").as_uri(), "languageId": "text", "version": 1, "text": STEP}
    client.notify("textDocument/didOpen", {"textDocument": other})
    cell = {**other, "uri": "vscode-notebook-cell:/a.ipynb#1", "languageId": "python"}
    client.notify("textDocument/didOpen", {"textDocument": cell})
    fresh = client.open("untitled:Untitled-1", STEP)
    assert codes(client.diagnostics(fresh)) == ["XLA101"]
    assert client.silent(other["uri"])
    assert client.silent(cell["uri"])


def test_the_loop_answers_while_the_engine_works(client: Client, project: Path) -> None:
    client.start(project)
    uri = client.open(write(project / "a.py", STEP + "        xm.mark_step()\n" * 1500))
    assert client.hover((project / "other.py").as_uri(), 0, 0) is None
    assert client.silent(uri)
    assert len(client.diagnostics(uri)) == 1501


# -- explanations ------------------------------------------------------------------------------


def test_hover_explains(client: Client, project: Path) -> None:
    client.start(project)
    uri = client.open(write(project / "a.py", LEFT))
    found = client.hover(uri, 5, 10)
    assert found is not None
    assert found["contents"]["kind"] == "markdown"
    text = found["contents"]["value"]
    assert text.startswith("**XLA101** mark-step: `torch_xla.core.xla_model.mark_step` cuts")
    assert "**Fix** (safe): Remove the step marker" in text
    assert "XLA101.md)" in text
    by_hand = client.hover(uri, 4, 6)
    assert by_hand is not None
    assert "**By hand** (" in by_hand["contents"]["value"]
    assert client.hover(uri, 1, 0) is None


def test_hover_on_a_code(client: Client, project: Path) -> None:
    plain = capabilities(textDocument={"hover": {"contentFormat": ["plaintext"]}})
    client.start(project, capabilities=plain)
    text = STEP.replace("mark_step()", "mark_step()  # ü😋 xla2tpu: ignore[XLA101]")
    uri = client.open(write(project / "a.py", text))
    line = text.splitlines()[7]
    column = len(line[: line.index("XLA101")].encode("utf-16-le")) // 2
    found = client.hover(uri, 7, column + 1)
    assert found is not None
    assert found["contents"]["kind"] == "plaintext"
    assert found["contents"]["value"].startswith("# XLA101: mark-step")
    assert found["range"]["start"]["character"] == column
    assert found["range"]["end"]["character"] == column + 6


# -- settings ----------------------------------------------------------------------------------


def test_settings_of_the_editor_and_of_the_project(client: Client, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.xla2tpu]\nignore = ["XLA101"]\n')
    client.start(project)
    uri = client.open(write(project / "a.py", LEFT))
    assert codes(client.diagnostics(uri)) == ["XLA521"]
    client.settings = {"ignore": ["xla5"], "select": None}
    client.notify("workspace/didChangeConfiguration", {"settings": None})
    assert codes(client.diagnostics(uri)) == ["XLA101"]
    client.settings = {"enable": False}
    client.notify("workspace/didChangeConfiguration", {"settings": None})
    assert client.diagnostics(uri) == []


def test_settings_that_are_pushed(client: Client, project: Path) -> None:
    few = capabilities(workspace={"configuration": False})
    client.start(project, capabilities=few, options={"xla2tpu": {"select": ["XLA101"]}})
    uri = client.open(write(project / "a.py", LEFT))
    assert codes(client.diagnostics(uri)) == ["XLA101"]
    settings = {"settings": {"xla2tpu": {"select": ["XLA5"]}}}
    client.notify("workspace/didChangeConfiguration", settings)
    assert codes(client.diagnostics(uri)) == ["XLA521"]


def test_settings_of_other_servers(client: Client, project: Path) -> None:
    few = capabilities(workspace={"configuration": False})
    client.start(project, capabilities=few, options={"select": ["XLA101"]})
    uri = client.open(write(project / "a.py", LEFT))
    assert codes(client.diagnostics(uri)) == ["XLA101"]
    client.notify("workspace/didChangeConfiguration", {"settings": {"pylsp": {"plugins": {}}}})
    assert codes(client.diagnostics(uri)) == ["XLA101"]
    client.notify("workspace/didChangeConfiguration", {"settings": {"xla2tpu": []}})
    assert codes(client.diagnostics(uri)) == ["XLA521", "XLA101"]
    assert client.shown.empty()


def test_each_folder_has_its_own_settings(client: Client, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one / "pyproject.toml", '[tool.xla2tpu]\nselect = ["XLA101"]\n')
    write(two / "pyproject.toml", "")
    write(two / "strict.toml", 'ignore = ["XLA1"]\n')
    paths = [write(folder / "a.py", LEFT) for folder in (one, two)]
    client.settings_of[paths[1].as_uri()] = {"configuration": "strict.toml"}
    client.start(one, two)
    uris = [client.open(path) for path in paths]
    assert [codes(client.diagnostics(uri)) for uri in uris] == [["XLA101"], ["XLA521"]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"selct": ["XLA1"]}, "xla2tpu.selct: unknown setting"),
        ({"select": ["E501"]}, "xla2tpu.select: 'E501' is no code prefix"),
        ({"unsafeFixes": 1}, "xla2tpu.unsafeFixes: must be true or false"),
        ({"delay": -1}, "xla2tpu.delay: must be a number of milliseconds"),
        ({"configuration": "no.toml"}, "no.toml: no such file"),
        ({"ignore": ["XLA199"]}, "no rule has a code that starts with XLA199"),
    ],
)
def test_wrong_settings_are_told_once(
    client: Client, project: Path, settings: dict[str, Any], message: str
) -> None:
    client.settings = settings
    client.start(project)
    uri = client.open(write(project / "a.py", LEFT))
    assert message in client.shown.get(timeout=30)
    client.notify("textDocument/didSave", {"textDocument": {"uri": uri}})
    client.settled(uri)
    assert client.shown.empty()


def test_a_wrong_configuration_is_told_and_mended(client: Client, project: Path) -> None:
    mark = write(project / "pyproject.toml", "[tool.xla2tpu]\nselekt = []\n")
    client.start(project)
    uri = client.open(write(project / "a.py", STEP))
    assert "tool.xla2tpu.selekt: unknown key" in client.shown.get(timeout=30)
    assert client.silent(uri)
    mark.write_text("")
    client.touched(mark)
    assert codes(client.diagnostics(uri)) == ["XLA101"]


# -- names across files ------------------------------------------------------------------------

WRAPPER = "import torch_xla.core.xla_model as xm\n"
USER = "from wrapper import xm\n\nxm.mark_step()\n"


def test_names_from_an_unsaved_text(client: Client, project: Path) -> None:
    wrapper = write(project / "wrapper.py", "xm = None\n")
    client.start(project)
    user = client.open(write(project / "user.py", USER))
    assert client.diagnostics(user) == []
    other = client.open(wrapper)
    client.diagnostics(other)
    client.change(other, 2, WRAPPER)
    assert codes(client.diagnostics(user)) == ["XLA101"]
    client.change(other, 3, WRAPPER + "def (")
    client.settled(other)
    assert client.silent(user)
    client.change(other, 4, "xm = None\n")
    assert client.diagnostics(user) == []
    client.change(other, 5, WRAPPER)
    assert codes(client.diagnostics(user)) == ["XLA101"]
    client.notify("textDocument/didClose", {"textDocument": {"uri": other}})
    assert client.diagnostics(user) == []


def test_other_files_are_left_alone_while_their_names_stay(client: Client, project: Path) -> None:
    client.settings = {"delay": 0}
    client.start(project)
    other = client.open(write(project / "wrapper.py", WRAPPER))
    client.diagnostics(other)
    user = client.open(write(project / "user.py", USER))
    client.diagnostics(user)
    client.change(other, 2, WRAPPER + "\n\ndef one():\n    return 1\n")
    client.diagnostics(other, 2)
    client.settled(user)
    assert client.silent(user)


def test_a_new_file_that_is_not_saved(client: Client, project: Path) -> None:
    client.start(project)
    other = client.open(project / "wrapper.py", WRAPPER)
    client.diagnostics(other)
    user = client.open(write(project / "user.py", USER))
    assert codes(client.diagnostics(user)) == ["XLA101"]


def test_an_unsaved_text_that_is_opened_later(client: Client, project: Path) -> None:
    client.start(project)
    write(project / "wrapper.py", "xm = None\n")
    user = client.open(write(project / "user.py", USER))
    assert client.diagnostics(user) == []
    client.open(project / "wrapper.py", WRAPPER)
    assert codes(client.diagnostics(user)) == ["XLA101"]


def test_files_that_change_on_the_disk(client: Client, project: Path) -> None:
    client.start(project)
    user = client.open(write(project / "user.py", USER))
    assert client.diagnostics(user) == []
    globs = [
        w["globPattern"]
        for r in client.registered
        if r["method"] == "workspace/didChangeWatchedFiles"
        for w in r["registerOptions"]["watchers"]
    ]
    assert {"**/*.py", "**/pyproject.toml"} <= set(globs)
    client.touched(write(project / "wrapper.py", WRAPPER))
    assert codes(client.diagnostics(user)) == ["XLA101"]


def test_files_that_change_without_a_word(client: Client, project: Path) -> None:
    client.start(project, capabilities={})
    user = client.open(write(project / "user.py", USER))
    assert client.diagnostics(user) == []
    write(project / "wrapper.py", WRAPPER)
    client.notify("textDocument/didSave", {"textDocument": {"uri": user}})
    assert codes(client.diagnostics(user)) == ["XLA101"]


def test_an_import_that_another_file_takes_stays(client: Client, project: Path) -> None:
    client.start(project)
    write(project / "user.py", "from wrapper import xm\n\nxm.optimizer_step(None)\n")
    text = WRAPPER + "\nxm.mark_step()\n"
    other = client.open(write(project / "wrapper.py", text))
    client.diagnostics(other)
    assert client.actions(other, WHOLE, "source.fixAll") == []
    user = client.open(project / "user.py", "x = 1\n")
    client.diagnostics(user)
    (action,) = client.actions(other, WHOLE, "source.fixAll")
    assert "edit" in action


RULE = """\
code: XLA950
name: acme-sync
title: Our sync
message: "`{api}` is ours"
why: It is gone.
advice: ADVICE
effort: small
apis:
  acme.tpu.sync: "()"
cases:
  - reason: no-equivalent
examples:
  - before: |
      import acme.tpu
      acme.tpu.sync()
    left: 1
"""


def test_rules_of_the_user(client: Client, project: Path) -> None:
    rule = write(project / "house.yaml", RULE.replace("ADVICE", "Delete it."))
    (project / "pyproject.toml").write_text('[tool.xla2tpu]\nrule-files = ["house.yaml"]\n')
    client.start(project)
    uri = client.open(write(project / "a.py", "from acme.tpu import sync\nsync()\n"))
    (ours,) = client.diagnostics(uri)
    assert (ours["code"], "Delete it." in ours["message"]) == ("XLA950", True)
    page = Path(unquote(urlparse(ours["codeDescription"]["href"]).path))
    assert "Our sync" in page.read_text()
    rule.write_text(RULE.replace("ADVICE", "Keep it."))
    client.touched(rule)
    (ours,) = client.diagnostics(uri)
    assert "Keep it." in ours["message"]
    assert "Keep it." in page.read_text()
    rule.write_text("code: XLA950\n")
    client.touched(rule)
    assert "house.yaml: XLA950" in client.shown.get(timeout=30)


# -- the command -------------------------------------------------------------------------------


def test_the_command(project: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "xla2tpu", "server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        client = Client(process.stdin, process.stdout)
        assert client.start(project)["positionEncoding"] == "utf-16"
        uri = client.open(write(project / "a.py", STEP))
        assert codes(client.diagnostics(uri)) == ["XLA101"]
        client.stop()
        assert process.wait(30) == 0


def test_the_command_ends_with_its_client(project: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "xla2tpu", "server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        client = Client(process.stdin, process.stdout)
        client.start(project)
        client.diagnostics(client.open(write(project / "a.py", STEP)))
        process.stdin.close()
        process.wait(30)


def test_the_command_without_its_extra() -> None:
    code = "import sys; sys.modules['pygls'] = None; from xla2tpu.cli import main; main(['server'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'xla2tpu[lsp]'" in done.stderr
