"""Code actions, as a client applies them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lsp_client import WHOLE, Client, applied, capabilities, codes, edits_of, served, write

from xla2tpu.model import Mode
from xla2tpu.runner import Request, run

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
UNSAFE = """\
import torch_xla.debug.profiler as xp


def fit(model, batch):
    with xp.StepTrace("train"):
        model(batch)
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


def by_the_command_line(path: Path, **options: Any) -> str:
    """What `check --fix` makes of a file."""
    run(Request(paths=(str(path),), mode=Mode.FIX, **options))
    return path.read_bytes().decode()


def line(number: int) -> dict[str, Any]:
    return {"start": {"line": number, "character": 0}, "end": {"line": number, "character": 200}}


def titled(actions: list[dict[str, Any]], words: str) -> dict[str, Any]:
    (found,) = [a for a in actions if words in a["title"]]
    return found


# -- fix this ----------------------------------------------------------------------------------


def test_fix_this(client: Client, project: Path) -> None:
    client.start(project)
    text = STEP + "        xm.mark_step()\n"
    uri = client.open(write(project / "a.py", text))
    action = titled(client.actions(uri, line(8), "quickfix"), "Remove the step marker (XLA101)")
    assert action["isPreferred"]
    assert "edit" not in action
    assert action["diagnostics"] == client.diagnostics(uri)[1:]
    done = client.resolved(action)
    assert applied(text, edits_of(done, uri)) == STEP
    (change,) = done["edit"]["documentChanges"]
    assert change["textDocument"]["version"] == 1


def test_an_unsafe_fix_says_so(client: Client, project: Path) -> None:
    client.start(project)
    uri = client.open(write(project / "a.py", UNSAFE))
    assert client.actions(uri, WHOLE, "source.fixAll") == []
    action = titled(client.actions(uri, line(4)), "record_function")
    assert "unsafe: to be reviewed" in action["title"]
    assert "isPreferred" not in action
    after = applied(UNSAFE, edits_of(client.resolved(action), uri))
    assert "torch_xla" not in after
    assert after == by_the_command_line(project / "a.py", unsafe=True)


def test_a_client_that_knows_little(client: Client, project: Path) -> None:
    client.start(project, capabilities={})
    uri = client.open(write(project / "a.py", STEP))
    assert codes(client.diagnostics(uri)) == ["XLA101"]
    action = titled(client.actions(uri, line(7)), "Remove the step marker")
    assert set(action["edit"]) == {"changes"}
    assert applied(STEP, edits_of(action, uri)) == by_the_command_line(project / "a.py")


def test_an_action_for_another_text_is_refused(client: Client, project: Path) -> None:
    client.start(project)
    uri = client.open(write(project / "a.py", STEP))
    action = titled(client.actions(uri, line(7)), "Remove the step marker")
    client.change(uri, 2, "\n" + STEP)
    assert client.ask("codeAction/resolve", action)["error"]["code"] == -32801


# -- fix all -----------------------------------------------------------------------------------


def test_fix_all_of_a_rule(client: Client, project: Path) -> None:
    client.start(project)
    text = LEFT + "    xm.mark_step()\n    print(xm.get_ordinal())\n"
    uri = client.open(write(project / "a.py", text))
    action = titled(client.actions(uri, line(5)), "Fix all 2 places of XLA101")
    after = applied(text, edits_of(client.resolved(action), uri))
    assert "mark_step" not in after
    assert "xm.get_ordinal()" in after
    assert after == by_the_command_line(project / "a.py", select=("XLA101",))


@pytest.mark.parametrize("name", ["device.py", "evaluate.py", "train.py"])
@pytest.mark.parametrize("settings", [{}, {"unsafeFixes": True}, {"partial": True}])
def test_fix_all_is_what_the_command_line_does(
    client: Client, project: Path, name: str, settings: dict[str, bool]
) -> None:
    example = Path(__file__).parents[2] / "examples" / "flowers"
    shutil.copytree(example, project, dirs_exist_ok=True)
    client.settings = settings
    client.start(project)
    after = (project / name).read_text()
    uri = client.open(project / name)
    for action in client.actions(uri, WHOLE, "source.fixAll"):
        assert action["kind"] == "source.fixAll.xla2tpu"
        after = applied(after, edits_of(action, uri))
    options = {"unsafe": "unsafeFixes" in settings, "partial": "partial" in settings}
    assert after == by_the_command_line(project / name, **options)


def test_fix_all_that_is_held_back(client: Client, project: Path) -> None:
    client.start(project)
    uri = client.open(write(project / "a.py", LEFT))
    action = titled(client.actions(uri, line(0)), "Fix all in this file")
    assert "edit" not in client.resolved(action)
    message = client.shown.get(timeout=10)
    assert "1 place needs a person first; the setting xla2tpu.partial applies them" in message
    # On saving it must not be said each time.
    assert client.actions(uri, WHOLE, "source.fixAll", triggerKind=2) == []
    assert client.shown.empty()
    assert client.actions(uri, WHOLE, "source.fixAll.xla2tpu", triggerKind=1) == []
    assert "needs a person first" in client.shown.get(timeout=10)


def test_only_the_kinds_that_are_asked_for(client: Client, project: Path) -> None:
    client.start(project)
    uri = client.open(write(project / "a.py", STEP))
    kinds = {
        only: sorted({a["kind"] for a in client.actions(uri, WHOLE, *only)})
        for only in [(), ("quickfix",), ("source",), ("source.organizeImports",), ("refactor",)]
    }
    assert kinds == {
        (): ["quickfix", "source.fixAll.xla2tpu"],
        ("quickfix",): ["quickfix"],
        ("source",): ["source.fixAll.xla2tpu"],
        ("source.organizeImports",): [],
        ("refactor",): [],
    }


# -- suppress here -----------------------------------------------------------------------------

SUPPRESSED = {
    "at the end of its line": (
        "xm.mark_step()\n",
        "xm.mark_step()  # xla2tpu: ignore[XLA101]\n",
    ),
    "after another comment": (
        "xm.mark_step()  # cut\n",
        "xm.mark_step()  # cut  # xla2tpu: ignore[XLA101]\n",
    ),
    "with other codes": (
        "xm.master_print(xm.get_ordinal())  # xla2tpu: ignore[XLA401]\n",
        "xm.master_print(xm.get_ordinal())  # xla2tpu: ignore[XLA401, XLA302]\n",
    ),
    "in a call over several lines": (
        "xm.master_print(\n    'a',\n    1,\n)\n",
        "xm.master_print(  # xla2tpu: ignore[XLA401]\n    'a',\n    1,\n)\n",
    ),
    "below a string over several lines": (
        "xm.master_print('''a\nb''')\n",
        "xm.master_print('''a\nb''')  # xla2tpu: ignore[XLA401]\n",
    ),
    "below a backslash": (
        "x = \\\n    xm.get_ordinal() + \\\n    1\n",
        "x = \\\n    xm.get_ordinal() + \\\n    1  # xla2tpu: ignore[XLA302]\n",
    ),
    "without a newline at the end": (
        "xm.mark_step()",
        "xm.mark_step()  # xla2tpu: ignore[XLA101]",
    ),
    "with carriage returns": (
        "xm.mark_step()\r\nprint()\r\n",
        "xm.mark_step()  # xla2tpu: ignore[XLA101]\r\nprint()\r\n",
    ),
}


@pytest.mark.parametrize("case", SUPPRESSED)
def test_suppress_here(client: Client, project: Path, case: str) -> None:
    code, expected = SUPPRESSED[case]
    head = "import torch_xla.core.xla_model as xm" + ("\r\n" if "\r" in code else "\n")
    client.settings = {"delay": 0}
    client.start(project)
    uri = client.open(write(project / "a.py", head + code))
    before = client.diagnostics(uri)
    action = titled(client.actions(uri, WHOLE, "quickfix"), "Suppress")
    after = applied(head + code, edits_of(client.resolved(action), uri))
    assert after == head + expected
    client.change(uri, 2, after)
    left = codes(client.diagnostics(uri, 2))
    assert len(left) == len(before) - 1
    assert "XLA095" not in left


def test_where_no_comment_can_stand(client: Client, project: Path) -> None:
    client.start(project)
    text = (
        "import torch_xla.core.xla_model as xm\n"
        "for i in range(xm.get_ordinal() + \\\n        1):\n    pass\n"
    )
    uri = client.open(write(project / "a.py", text))
    action = titled(client.actions(uri, line(1), "quickfix"), "Suppress XLA302 here")
    assert "edit" not in client.resolved(action)
    assert "no comment can suppress XLA302 here" in client.shown.get(timeout=10)


# -- the module of helpers ---------------------------------------------------------------------

# One rank is written in place, two call a helper.
RANK = "import torch_xla.core.xla_model as xm\n\nprint(xm.get_ordinal(), xm.get_ordinal())\n"


def test_helpers_go_to_their_module(client: Client, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.xla2tpu]\nhelpers-module = "pkg.tpu"\n')
    write(project / "pkg" / "__init__.py", "")
    client.start(project)
    path = write(project / "pkg" / "a.py", RANK)
    helpers = project / "pkg" / "tpu.py"
    uri = client.open(path)
    (whole,) = client.actions(uri, WHOLE, "source.fixAll")
    first, _ = (a for a in client.actions(uri, line(2), "quickfix") if "(XLA302)" in a["title"])
    one = client.resolved(first)
    for action in (whole, one):
        _, create, module = action["edit"]["documentChanges"]
        assert (create["kind"], create["uri"]) == ("create", helpers.as_uri())
        assert module["textDocument"] == {"uri": helpers.as_uri(), "version": None}
    assert edits_of(whole, helpers.as_uri()) == edits_of(one, helpers.as_uri())
    assert applied(RANK, edits_of(whole, uri)) == by_the_command_line(path)
    assert applied("", edits_of(whole, helpers.as_uri())) == helpers.read_text()


def test_helpers_that_a_client_cannot_write(client: Client, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.xla2tpu]\nhelpers-module = "tpu"\n')
    few = capabilities(workspace={"workspaceEdit": {"documentChanges": True}})
    client.start(project, capabilities=few)
    uri = client.open(write(project / "a.py", RANK))
    assert client.actions(uri, WHOLE, "source.fixAll") == []
    write(project / "tpu.py", '"""Ours."""\n')
    (action,) = client.actions(uri, WHOLE, "source.fixAll")
    other = (project / "tpu.py").as_uri()
    assert applied('"""Ours."""\n', edits_of(action, other)).startswith('"""Ours."""\n')
    unsaved = '"""Theirs."""\n'
    client.open(project / "tpu.py", unsaved)
    (action,) = client.actions(uri, WHOLE, "source.fixAll")
    after = applied(unsaved, edits_of(action, other))
    assert after.startswith(unsaved)
    assert "def global_rank" in after
