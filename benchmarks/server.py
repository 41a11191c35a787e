#!/usr/bin/env python3
"""Measure how long the language server takes for the diagnostics of a file of 2,000 lines.

    python benchmarks/server.py [--repeat N] [--lines N]

A client types into the file, and waits for the diagnostics of each text; see README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from xla2tpu.server.app import make

TARGET = 250
HEAD = "import torch\nimport torch_xla.core.xla_model as xm\nimport torch_xla.runtime as xr\n\n\n"
TRAINING = '''\
def train_{i}(model, batches, optimizer, device=None):
    """Train for one epoch, and give the mean loss."""
    device = device or {device}
    total = 0.0
    for index, (images, labels) in enumerate(batches):
        images, labels = images.to(device), labels.to(device)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        {step}
        optimizer.zero_grad()
        if index % 10 == 0:
            {mark}
            total += loss.item()
            {say}(f"step {{index}}: {{total / (index + 1):.3f}}")
    return total, {size}


'''
WITH = {
    "device": "xm.xla_device()",
    "step": "xm.optimizer_step(optimizer)",
    "mark": "xm.mark_step()",
    "say": "xm.master_print",
    "size": "xr.world_size()",
}
WITHOUT = {
    "device": "torch.device('cpu')",
    "step": "optimizer.step()",
    "mark": "torch.cpu.synchronize()",
    "say": "print",
    "size": "len(batches)",
}


def source(lines: int, every: int) -> str:
    """A file of functions that train; each so-manieth has torch_xla in it."""
    text = HEAD
    number = 0
    while text.count("\n") < lines:
        text += TRAINING.format(i=number, **(WITHOUT if number % every else WITH))
        number += 1
    return text


class Client:
    """Speaks to a server in a thread of this process."""

    def __init__(self) -> None:
        server_in, to_server = os.pipe()
        from_server, server_out = os.pipe()
        self.to, self.back = os.fdopen(to_server, "wb"), os.fdopen(from_server, "rb")
        streams = os.fdopen(server_in, "rb"), os.fdopen(server_out, "wb")
        self.thread = threading.Thread(target=self._serve, args=streams, daemon=True)
        self.thread.start()

    def _serve(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        make().start_io(stdin, stdout)

    def send(self, method: str, params: Any, **more: int) -> None:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self.to.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.to.flush()

    def receive(self) -> dict[str, Any]:
        length = 0
        while (line := self.back.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            if name == b"Content-Length":
                length = int(value)
        message: dict[str, Any] = json.loads(self.back.read(length))
        return message

    def diagnostics(self, version: int) -> int:
        """Wait for the diagnostics of one version; how many they are."""
        while True:
            params = self.receive().get("params") or {}
            if params.get("version") == version:
                return len(params["diagnostics"])


def measure(text: str, repeat: int) -> tuple[int, list[float], list[float]]:
    """Findings, and the milliseconds of each change, on the clock and of the processor."""
    client = Client()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(text)
        (Path(folder) / "pyproject.toml").touch()
        settings = {"delay": 0}
        start = {"processId": None, "rootUri": None, "capabilities": {}}
        client.send("initialize", {**start, "initializationOptions": settings}, id=1)
        client.receive()
        client.send("initialized", {})
        document = {"uri": path.as_uri(), "version": 1}
        opened = {**document, "languageId": "python", "text": text}
        client.send("textDocument/didOpen", {"textDocument": opened})
        found = client.diagnostics(1)
        clock, processor = [], []
        for version in range(2, repeat + 2):
            changed = text + "#" * version + "\n"
            before = time.perf_counter(), time.process_time()
            client.send(
                "textDocument/didChange",
                {
                    "textDocument": {**document, "version": version},
                    "contentChanges": [{"text": changed}],
                },
            )
            assert client.diagnostics(version) == found
            clock.append((time.perf_counter() - before[0]) * 1000)
            processor.append((time.process_time() - before[1]) * 1000)
        client.send("shutdown", None, id=2)
        client.receive()
        client.send("exit", None)
        client.thread.join(30)
    return found, clock, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=15, help="changes for each file")
    parser.add_argument("--lines", type=int, default=2000)
    options = parser.parse_args()
    for name, every in (("a function in ten uses torch_xla", 10), ("each function does", 1)):
        found, clock, processor = measure(source(options.lines, every), options.repeat)
        median = statistics.median(processor)
        verdict = "reached" if median < TARGET else "missed"
        print(
            f"{options.lines} lines, {name}: {found} diagnostics, "
            f"{median:.0f} ms of the processor ({min(processor):.0f} to {max(processor):.0f}), "
            f"{statistics.median(clock):.0f} ms on the clock; target {TARGET} ms: {verdict}"
        )


if __name__ == "__main__":
    main()
