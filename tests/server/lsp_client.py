"""A client of the language server for tests: raw JSON-RPC over pipes, in one process with it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("pygls", reason="pygls is not installed: pip install 'xla2tpu[lsp]'")

from xla2tpu.server.app import make

Json = dict[str, Any]
PATIENCE = 60
WHOLE: Json = {"start": {"line": 0, "character": 0}, "end": {"line": 5000, "character": 0}}
EVERYTHING: Json = {
    "general": {"positionEncodings": ["utf-16"]},
    "workspace": {
        "configuration": True,
        "workspaceFolders": True,
        "didChangeConfiguration": {"dynamicRegistration": True},
        "didChangeWatchedFiles": {"dynamicRegistration": True},
        "workspaceEdit": {"documentChanges": True, "resourceOperations": ["create"]},
    },
    "textDocument": {
        "hover": {"contentFormat": ["markdown", "plaintext"]},
        "codeAction": {"dataSupport": True, "resolveSupport": {"properties": ["edit"]}},
        "publishDiagnostics": {"versionSupport": True, "codeDescriptionSupport": True},
    },
    "notebookDocument": {"synchronization": {}},
}


class Client:
    """Speaks to a server over two streams, and answers its questions about settings.

    ``settings`` are those of all files, ``settings_of`` those of a file.
    """

    def __init__(self, to_server: IO[bytes], from_server: IO[bytes]) -> None:
        self._to, self._from = to_server, from_server
        self._id = 0
        self._answers: dict[int, queue.Queue[Json]] = {}
        self._published: dict[str, queue.Queue[Json]] = {}
        self.registered: list[Json] = []
        self.shown: queue.Queue[str] = queue.Queue()
        self.settings: Json | None = None
        self.settings_of: dict[str, Json] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    # -- messages ----------------------------------------------------------------------------

    def _send(self, message: Json) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._to.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._to.flush()

    def _read(self) -> None:
        while True:
            length = 0
            while (line := self._from.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            if not length:
                return
            self._take(json.loads(self._from.read(length)))

    def _take(self, message: Json) -> None:
        method = message.get("method")
        if method is None:
            self._answers.pop(message["id"]).put(message)
        elif method == "workspace/configuration":
            items = message["params"]["items"]
            assert all(item["section"] == "xla2tpu" for item in items)
            found = [self.settings_of.get(item["scopeUri"], self.settings) for item in items]
            self._send({"id": message["id"], "result": found})
        elif method == "client/registerCapability":
            self.registered += message["params"]["registrations"]
            self._send({"id": message["id"], "result": None})
        elif method == "textDocument/publishDiagnostics":
            params = message["params"]
            self._queue(params["uri"]).put(params)
        elif method == "window/showMessage":
            self.shown.put(message["params"]["message"])

    def _queue(self, uri: str) -> queue.Queue[Json]:
        return self._published.setdefault(uri, queue.Queue())

    def notify(self, method: str, params: Json) -> None:
        self._send({"method": method, "params": params})

    def request(self, method: str, params: Json | None) -> Any:
        """The result of a request; an error fails the test."""
        answer = self.ask(method, params)
        assert "error" not in answer, answer
        return answer["result"]

    def ask(self, method: str, params: Json | None) -> Json:
        self._id += 1
        answers = self._answers[self._id] = queue.Queue()
        self._send({"id": self._id, "method": method, "params": params})
        return answers.get(timeout=PATIENCE)

    # -- what an editor does -----------------------------------------------------------------

    def start(self, *folders: Path, capabilities: Json = EVERYTHING, options: Any = None) -> Json:
        """Shake hands; the capabilities of the server."""
        params = {
            "processId": os.getpid(),
            "rootUri": folders[0].as_uri() if folders else None,
            "workspaceFolders": [{"uri": f.as_uri(), "name": f.name} for f in folders],
            "capabilities": capabilities,
            "initializationOptions": options,
        }
        result: Json = self.request("initialize", params)
        self.notify("initialized", {})
        return dict(result["capabilities"])

    def open(self, path: Path | str, text: str | None = None) -> str:
        """Open a file, with unsaved text or as it is on the disk; its address."""
        uri = path if isinstance(path, str) else path.as_uri()
        if text is None:
            assert isinstance(path, Path)
            text = path.read_bytes().decode()
        item = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return uri

    def change(self, uri: str, version: int, text: str) -> None:
        self.notify(
            "textDocument/didChange",
            {"textDocument": {"uri": uri, "version": version}, "contentChanges": [{"text": text}]},
        )

    def diagnostics(self, uri: str, version: int | None = 1) -> list[Json]:
        """Wait for the diagnostics of one version of a file."""
        while True:
            params = self._queue(uri).get(timeout=PATIENCE)
            if params.get("version") == version:
                return list(params["diagnostics"])

    def published(self, uri: str, count: int) -> list[Json]:
        """Wait for so many publications; there must not be more of them."""
        found = [self._queue(uri).get(timeout=PATIENCE) for _ in range(count)]
        assert self.silent(uri)
        return found

    def settled(self, uri: str) -> None:
        """Wait until the server has done all that it was told of a file."""
        self.hover(uri, 0, 0)
        self.actions(uri, WHOLE)

    def touched(self, *paths: Path) -> None:
        """Tell that files have changed on the disk."""
        changes = [{"uri": path.as_uri(), "type": 2} for path in paths]
        self.notify("workspace/didChangeWatchedFiles", {"changes": changes})

    def silent(self, uri: str) -> bool:
        """Whether nothing more was published for a file until now."""
        return self._queue(uri).empty()

    def actions(self, uri: str, span: Json, *only: str, **context: Any) -> list[Json]:
        context = {"diagnostics": [], **({"only": list(only)} if only else {}), **context}
        params = {"textDocument": {"uri": uri}, "range": span, "context": context}
        return list(self.request("textDocument/codeAction", params) or [])

    def resolved(self, action: Json) -> Json:
        return dict(self.request("codeAction/resolve", action))

    def hover(self, uri: str, line: int, character: int) -> Json | None:
        params = {
            "textDocument": {"uri": uri},
            "position": {"line": line, "character": character},
        }
        found: Json | None = self.request("textDocument/hover", params)
        return found

    def stop(self) -> None:
        self.request("shutdown", None)
        self.notify("exit", {})
        self._reader.join(PATIENCE)


def capabilities(**changes: Json) -> Json:
    """Those of a client that knows everything, but for these."""
    return {key: {**known, **changes.get(key, {})} for key, known in EVERYTHING.items()}


def codes(diagnostics: list[Json]) -> list[str]:
    return [d["code"] for d in diagnostics]


def write(path: Path, text: str) -> Path:
    """A file with this text to the byte."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


@contextlib.contextmanager
def served() -> Iterator[Client]:
    """A client of a server in a thread; both are gone afterwards."""
    server_in, to_server = os.pipe()
    from_server, server_out = os.pipe()

    def serve() -> None:
        with os.fdopen(server_in, "rb") as stdin, os.fdopen(server_out, "wb") as stdout:
            make().start_io(stdin, stdout)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with os.fdopen(to_server, "wb") as sending, os.fdopen(from_server, "rb") as receiving:
        client = Client(sending, receiving)
        yield client
        client.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def edits_of(action: Json, uri: str) -> list[Json]:
    """The text edits of an action for one file."""
    edit = action["edit"]
    if "changes" in edit:
        return list(edit["changes"].get(uri, []))
    return [
        e
        for change in edit["documentChanges"]
        if change.get("textDocument", {}).get("uri") == uri
        for e in change["edits"]
    ]


def applied(text: str, edits: list[Json], encoding: str = "utf-16") -> str:
    """The text with edits made as the protocol says, by another way than the server's."""
    codec, size = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}[
        encoding
    ]
    data = text.encode(codec)
    feed, back = "\n".encode(codec), "\r".encode(codec)

    def at(place: Json) -> int:
        start = 0
        for _ in range(place["line"]):
            start = _after_newline(data, start, feed, back, size)
        return start + int(place["character"]) * size

    spans = [(at(e["range"]["start"]), at(e["range"]["end"]), e["newText"]) for e in edits]
    for (_, end, _), (start, _, _) in itertools.pairwise(spans):
        assert end <= start, "edits overlap, or are not in order"
    for start, end, new in reversed(spans):
        assert start <= end <= len(data)
        data = data[:start] + new.encode(codec) + data[end:]
    return data.decode(codec)


def _after_newline(data: bytes, start: int, feed: bytes, back: bytes, size: int) -> int:
    for at in range(start, len(data), size):
        unit = data[at : at + size]
        if unit == feed:
            return at + size
        if unit == back:
            following = data[at + size : at + 2 * size]
            return at + (2 if following == feed else 1) * size
    raise AssertionError("there is no such line")
