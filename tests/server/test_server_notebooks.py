"""Notebooks in an editor: diagnostics, explanations and fixes of each cell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lsp_client import WHOLE, Client, Json, applied, codes, edits_of, served

from xla2tpu.files import run_source
from xla2tpu.model import Mode, Settings

FIRST = "import torch\nimport torch_xla.core.xla_model as xm"
SECOND = "%%time\n# größe 😋\nprint('😋'); xm.mark_step()\nx = xm.xla_device()"
THIRD = "!pip install torch_xla"
BROKEN = "print 'torch_xla'"


@pytest.fixture
def client() -> Iterator[Client]:
    with served() as it:
        yield it


class Notebook:
    """A notebook that the client has open, with a text for each cell."""

    def __init__(self, client: Client, path: Path, *cells: str) -> None:
        self.client, self.path, self.uri = client, path, path.as_uri()
        self.cells = [f"vscode-notebook-cell:{path}#{index}" for index in range(len(cells))]
        self.texts = dict(zip(self.cells, cells, strict=True))
        self.version = 1
        client.notify(
            "notebookDocument/didOpen",
            {
                "notebookDocument": {
                    "uri": self.uri,
                    "notebookType": "jupyter-notebook",
                    "version": 1,
                    "cells": [{"kind": 2, "document": uri} for uri in self.cells],
                },
                "cellTextDocuments": [self._item(uri) for uri in self.cells],
            },
        )

    def _item(self, uri: str) -> Json:
        return {"uri": uri, "languageId": "python", "version": 1, "text": self.texts[uri]}

    def change(self, cells: Json) -> None:
        self.version += 1
        name = {"uri": self.uri, "version": self.version}
        change = {"cells": cells}
        self.client.notify(
            "notebookDocument/didChange", {"notebookDocument": name, "change": change}
        )

    def type(self, index: int, text: str) -> None:
        uri = self.cells[index]
        self.texts[uri] = text
        document = {"uri": uri, "version": self.version + 1}
        self.change({"textContent": [{"document": document, "changes": [{"text": text}]}]})

    def found(self, index: int, version: int | None = 1) -> list[Json]:
        return self.client.diagnostics(self.cells[index], version)

    def after(self, action: Json) -> list[str]:
        """The cells with an action's edits."""
        return [
            applied(self.texts[uri], edits) if (edits := edits_of(action, uri)) else self.texts[uri]
            for uri in self.cells
        ]


def saved(cells: list[str]) -> bytes:
    every: list[dict[str, Any]] = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": text} for text in cells
    ]
    return json.dumps({"cells": every, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


@pytest.fixture
def notebook(client: Client, tmp_path: Path) -> Notebook:
    (tmp_path / "pyproject.toml").write_text("")
    capabilities = client.start(tmp_path)
    (selector,) = capabilities["notebookDocumentSync"]["notebookSelector"]
    assert selector == {"notebook": "jupyter-notebook", "cells": [{"language": "python"}]}
    return Notebook(client, tmp_path / "a.ipynb", FIRST, SECOND, THIRD)


def test_each_cell_has_its_diagnostics(notebook: Notebook) -> None:
    assert notebook.found(0) == []
    step, device = notebook.found(1)
    assert (step["code"], device["code"]) == ("XLA101", "XLA201")
    assert step["range"] == {
        "start": {"line": 2, "character": 13},
        "end": {"line": 2, "character": 25},
    }
    assert device["range"]["start"] == {"line": 3, "character": 4}
    (install,) = notebook.found(2)
    assert install["range"] == {
        "start": {"line": 0, "character": 13},
        "end": {"line": 0, "character": 22},
    }


def test_they_are_those_of_the_command_line(notebook: Notebook) -> None:
    settings = Settings(mode=Mode.CHECK, root=str(notebook.path.parent))
    result = run_source(saved(list(notebook.texts.values())), str(notebook.path), settings)
    seen = [
        (index + 1, d["range"]["start"]["line"] + 1, d["code"])
        for index in range(3)
        for d in notebook.found(index)
    ]
    assert seen == [(f.cell, f.line, f.rule) for f in result.findings]


def test_typing_in_one_cell(notebook: Notebook) -> None:
    assert codes(notebook.found(1)) == ["XLA101", "XLA201"]
    notebook.type(1, "xm.mark_step()")
    assert codes(notebook.found(1, 2)) == ["XLA101"]
    notebook.type(0, BROKEN)
    # The import is gone, so that the name in the next cell means nothing.
    assert codes(notebook.found(0, 3)) == ["XLA000"]
    assert codes(notebook.found(1, 2)) == []


def test_clients_send_what_they_typed(notebook: Notebook) -> None:
    """Parts of a cell, one after another, with lines and columns as the protocol counts them."""
    assert codes(notebook.found(1)) == ["XLA101", "XLA201"]
    at = [{"line": 0, "character": 0}, {"line": 0, "character": 6}]
    first = {"range": {"start": at[0], "end": at[1]}, "text": "# a\f\u2028b 😋"}
    at = [{"line": 0, "character": 9}, {"line": 2, "character": 13}]
    second = {"range": {"start": at[0], "end": at[1]}, "text": "\n"}
    document = {"uri": notebook.cells[1], "version": 2}
    notebook.change({"textContent": [{"document": document, "changes": [first, second]}]})
    # "# a\f\u2028b 😋", then what stood behind the semicolon.
    step, device = notebook.found(1, 2)
    assert (step["code"], device["code"]) == ("XLA101", "XLA201")
    assert step["range"]["start"] == {"line": 1, "character": 0}
    assert device["range"]["start"] == {"line": 2, "character": 4}


def test_a_cell_has_no_encoding_of_its_own(notebook: Notebook) -> None:
    notebook.type(1, "# coding: ascii\nprint('😋'); xm.mark_step()")
    (step,) = notebook.found(1, 2)
    assert step["range"]["start"] == {"line": 1, "character": 13}


def test_cells_come_and_go(notebook: Notebook, client: Client) -> None:
    assert codes(notebook.found(2)) == ["XLA910"]
    gone = notebook.cells[2]
    structure = {
        "array": {"start": 2, "deleteCount": 1, "cells": []},
        "didClose": [{"uri": gone}],
    }
    notebook.change({"structure": structure})
    assert client.diagnostics(gone, None) == []
    client.notify(
        "notebookDocument/didClose",
        {
            "notebookDocument": {"uri": notebook.uri},
            "cellTextDocuments": [{"uri": uri} for uri in notebook.cells[:2]],
        },
    )
    assert client.diagnostics(notebook.cells[1], None) == []


def test_hover(notebook: Notebook, client: Client) -> None:
    shown = client.hover(notebook.cells[1], 3, 6)
    assert shown is not None
    assert "XLA201" in shown["contents"]["value"]
    assert client.hover(notebook.cells[0], 0, 2) is None


def test_one_fix(notebook: Notebook, client: Client) -> None:
    notebook.found(1)
    line = {"start": {"line": 3, "character": 4}, "end": {"line": 3, "character": 4}}
    actions = client.actions(notebook.cells[1], line, "quickfix")
    assert [a["title"] for a in actions] == ["xla2tpu: Use the tpu device (XLA201)"]
    first, second, third = notebook.after(client.resolved(actions[0]))
    assert (first, third) == (FIRST, THIRD)
    assert second == SECOND.replace("xm.xla_device()", "torch.device('tpu')")
    assert client.actions(notebook.cells[0], WHOLE, "quickfix") == []


def test_all_fixes(notebook: Notebook, client: Client) -> None:
    notebook.found(1)
    (action,) = client.actions(notebook.cells[0], WHOLE, "source.fixAll.xla2tpu")
    if "edit" not in action:
        action = client.resolved(action)
    settings = Settings(mode=Mode.FIX, root=str(notebook.path.parent))
    result = run_source(saved(list(notebook.texts.values())), str(notebook.path), settings)
    assert result.output is not None
    wanted = [cell["source"] for cell in json.loads(result.output)["cells"]]
    assert notebook.after(action) == wanted
    assert wanted == [
        "import torch",
        "%%time\n# größe 😋\nprint('😋')\nx = torch.device('tpu')",
        "!pip install torch_tpu",
    ]
