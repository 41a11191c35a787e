#!/usr/bin/env python3
"""Use the HTML report of a large migration as a person does, in Chromium without a screen.

    python scripts/report_page.py [--cache DIR] [--project NAME==VERSION] [--keep FILE]

Migrates a released project (downloaded unless the cache has it), opens the report, and checks: no
script error, no request beyond the page, the filter shows what the JSON report counts, and the page
can be used by the keyboard alone. Prints the size of the page and how long it takes to load and to
filter. Exit status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecosystem import download, unpack

PROJECT = "pytorch-lightning==1.6.5"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 120
# What the page tells of itself; the checks do not go by its own count alone.
STATE = """(() => {
  const inFiles = [...document.querySelectorAll('.file .finding')];
  return JSON.stringify({
    told: document.getElementById('shown').textContent,
    shown: inFiles.filter(f => getComputedStyle(f).display !== 'none').length,
    files: [...document.querySelectorAll('.file')].filter(
      f => getComputedStyle(f).display !== 'none').length,
    open: document.querySelectorAll('.file[open]').length,
    wide: document.documentElement.scrollWidth > innerWidth,
  });
})()"""
FOCUS = """(() => {
  const e = document.activeElement;
  return [e.tagName.toLowerCase(), e.name || e.id || e.value || '', e.value || ''].join(' ');
})()"""
LOAD = "performance.getEntriesByType('navigation')[0].loadEventEnd"
KEYS = {
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    "Space": (" ", 32, " "),
    "ArrowDown": ("ArrowDown", 40, ""),
}


def browser() -> str | None:
    """The Chromium of this machine."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Page:
    """One page in a Chromium that is spoken to through its debugging pipe.

    ``problems`` are script errors and requests for anything but the page itself.
    """

    def __init__(self, program: str, profile: Path) -> None:
        self.problems: list[str] = []
        self._number = 0
        self._session: dict[str, str] = {}
        self._loaded = False
        self._address = "about:blank"
        self._rest = b""
        reading, theirs_out = os.pipe()
        theirs_in, writing = os.pipe()
        # Above 4, so that neither is overwritten when they become 3 and 4.
        ends = [_high(theirs_in), _high(theirs_out)]
        self._read, self._write = reading, writing

        def place() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        options = (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={profile}",
            "--window-size=1280,900", "about:blank",
        )  # fmt: skip
        self._process = subprocess.Popen(
            [program, *options],
            pass_fds=(3, 4),
            preexec_fn=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)

    def __enter__(self) -> Page:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._session = {}
        try:
            self.ask("Browser.close")
            self._process.wait(30)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def ask(self, method: str, **params: Any) -> Any:
        """The result of a command. Raises RuntimeError where the browser refuses, or has gone."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, address: str) -> None:
        """Load a page and wait for it."""
        self._loaded = False
        self._address = address
        self.ask("Page.navigate", url=address)
        end = time.monotonic() + PATIENCE
        while not self._loaded:
            if time.monotonic() > end:
                raise RuntimeError("the page does not load")
            self.value("1")

    def value(self, script: str) -> Any:
        """What a script gives."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str, times: int = 1) -> None:
        """Press a key, as the keyboard does."""
        name, code, text = KEYS[key]
        for _ in range(times):
            about = {"key": name, "code": key, "windowsVirtualKeyCode": code}
            self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
            self.ask("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        """Type a text."""
        for letter in text:
            self.ask("Input.dispatchKeyEvent", type="char", text=letter)

    def tab_to(self, wanted: str) -> None:
        """Press Tab until something has the focus. Raises RuntimeError where it never has."""
        for _ in range(400):
            self.press("Tab")
            if self.value(FOCUS).startswith(wanted):
                return
        raise RuntimeError(f"{wanted} cannot be reached by Tab")

    def state(self) -> dict[str, Any]:
        """What is shown now."""
        found: dict[str, Any] = json.loads(self.value(STATE))
        return found

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 16)
            if not data:
                raise RuntimeError("the browser has ended")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method"), message.get("params") or {})
        return message

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.problems.append(f"script error: {params['exceptionDetails']}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.problems.append(f"console: {params['args']}")
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"log: {params['entry']}")
        elif method == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if address not in (self._address, "about:blank"):
                self.problems.append(f"request: {address}")


def _high(end: int) -> int:
    """The same end of a pipe under a number that is not to be taken."""
    high = fcntl.fcntl(end, fcntl.F_DUPFD, 16)
    os.close(end)
    return high


@dataclass
class Outcome:
    """What was measured; ``failures`` is empty where all checks hold. Times in milliseconds."""

    size: int = 0
    findings: int = 0
    files: int = 0
    load: float = 0.0
    filter: float = 0.0
    open_all: float = 0.0
    failures: list[str] = field(default_factory=list)


def migrated(requirement: str, cache: Path, work: Path) -> tuple[Path, dict[str, Any]]:
    """The page of a project's migration, and the JSON report of the same run."""
    tree = work / "tree"
    unpack(download(requirement, cache), tree)
    page = work / "migration.html"
    command = [sys.executable, "-m", "xla2tpu", "migrate", "--allow-dirty", "--report", str(page)]
    done = subprocess.run(
        [*command, "--output-format", "json", "."], cwd=tree, capture_output=True, text=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return page, report


def use(page: Path, report: dict[str, Any], program: str, work: Path) -> Outcome:
    """Open the page, filter, and go through it by the keyboard."""
    places = Counter(
        (file["path"], finding["rule"]) for file in report["files"] for finding in file["findings"]
    )
    states = Counter(
        (file["path"], finding["rule"], not finding["applied"])
        for file in report["files"]
        for finding in file["findings"]
    )
    rules: Counter[str] = Counter()
    for (_, rule), count in places.items():
        rules[rule] += count
    paths = {path for path, _ in places}
    outcome = Outcome(page.stat().st_size, places.total(), len(paths))

    def expect(what: str, found: object, wanted: object) -> None:
        if found != wanted:
            outcome.failures.append(f"{what}: {found}, not {wanted}")

    with Page(program, work / "profile") as chromium:
        chromium.open(page.as_uri())
        outcome.load = float(chromium.value(LOAD))
        total = places.total()
        state = chromium.state()
        expect("findings at first", state["told"], f"{total} of {total} findings shown")
        expect("the page is wider than its window", state["wide"], False)

        # By the rule that has most places, chosen with the arrow keys.
        rule = max(sorted(rules), key=lambda code: rules[code])
        chromium.tab_to("select rule")
        before = time.perf_counter()
        chromium.press("ArrowDown", sorted(rules).index(rule) + 1)
        outcome.filter = (time.perf_counter() - before) * 1000 / (sorted(rules).index(rule) + 1)
        expect("the chosen rule", chromium.value(FOCUS), f"select rule {rule}")
        state = chromium.state()
        expect(f"told of {rule}", state["told"], f"{rules[rule]} of {total} findings shown")
        expect(f"files with {rule}", state["files"], len({p for p, r in places if r == rule}))

        # And of these, those below one folder.
        folder = Counter(os.path.dirname(p) for p, r in places if r == rule).most_common(1)[0][0]
        chromium.tab_to("input path")
        chromium.type(folder)
        below = sum(n for (p, r), n in places.items() if r == rule and folder in p)
        told = f"{below} of {total} findings shown"
        expect(f"told of {rule} in {folder}", chromium.state()["told"], told)

        # What was rewritten is taken away, and comes back, by the space bar.
        chromium.tab_to("input kind applied")
        chromium.press("Space")
        rest = sum(n for (p, r, s), n in states.items() if r == rule and folder in p and s)
        expect("told without", chromium.state()["told"], f"{rest} of {total} findings shown")
        chromium.press("Space")
        expect("told again", chromium.state()["told"], told)

        # All files that are left are opened, and their findings stand there.
        chromium.tab_to("button open")
        before = time.perf_counter()
        chromium.press("Enter")
        state = chromium.state()
        outcome.open_all = (time.perf_counter() - before) * 1000
        expect("findings in open files", state["shown"], below)
        chromium.press("Enter")
        expect("files open after closing them", chromium.state()["open"], 0)

        # One file is opened by its own heading.
        chromium.tab_to("summary")
        chromium.press("Enter")
        expect("files open by Enter", chromium.state()["open"], 1)
        outcome.failures += chromium.problems
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, help="folder for downloads, kept")
    parser.add_argument("--project", default=PROJECT)
    parser.add_argument("--keep", type=Path, help="where the page is kept")
    options = parser.parse_args()
    program = browser()
    if program is None:
        parser.error("there is no Chromium on this machine (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        cache = options.cache or work / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        page, report = migrated(options.project, cache, work)
        outcome = use(page, report, program, work)
        if options.keep is not None:
            shutil.copy(page, options.keep)
    print(
        f"{options.project}: {outcome.findings} findings in {outcome.files} files, "
        f"{outcome.size / 1e6:.2f} MB; loaded in {outcome.load:.0f} ms, "
        f"filtered in {outcome.filter:.0f} ms, all files opened in {outcome.open_all:.0f} ms"
    )
    for failure in outcome.failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
