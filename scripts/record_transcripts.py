#!/usr/bin/env python3
"""Record what happens when the tool is used by its real clients, as docs/transcripts/*.md.

    python scripts/record_transcripts.py [NAME]...

Each session starts in an empty folder with a project that ships with this repository, and runs the
real thing: git and pre-commit from PyPI, the command line, Neovim without a screen, a client of the
Language Server Protocol. Paths, hashes and times are written alike for every machine, so that
tests/test_transcripts.py can run the sessions again and compare. `hooks` needs the network, for the
environment that pre-commit makes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRANSCRIPTS = ROOT / "docs" / "transcripts"
FLOWERS = ROOT / "examples" / "flowers"
SEGMENTATION = ROOT / "fixtures" / "programs" / "segmentation_src_2021" / "before"
LUA = Path(__file__).with_name("transcript.lua")
HOME = "/home/you"
PATIENCE = 600
HOOKS = """\
repos:
  - repo: ../xla2tpu
    rev: v0.1.0
    hooks:
      - id: xla2tpu
"""
# What differs between machines and runs, and what stands for it.
ALIKE = (
    (re.compile(r"(?<=\[main )[0-9a-f]{7,}(?=\])"), "0123abc"),
    (re.compile(r"^index [0-9a-f]+\.\.[0-9a-f]+", re.M), "index 0123abc..4567def"),
    # The pages of rules stand in a folder that the server makes.
    (re.compile(r"file://[^\s\"()]*/(?=[A-Z]+\d+\.md)"), "file:///tmp/rules/"),
)


class Session:
    """A terminal in a folder of its own, and what was written about it."""

    def __init__(self, scratch: Path, title: str) -> None:
        self.scratch, self.folder = scratch, scratch
        self.lines = [f"# {title}", "", "<!-- made by scripts/record_transcripts.py -->", ""]
        scripts = scratch / "bin"
        scripts.mkdir()
        # The hooks must find the package that pre-commit has installed, and not this checkout.
        for name, module, path in (("xla2tpu", "xla2tpu", ROOT), ("pre-commit", "pre_commit", "")):
            script = scripts / name
            command = f'PYTHONPATH="{path}" exec "{sys.executable}" -m {module} "$@"'
            script.write_text(f"#!/bin/sh\n{command}\n")
            script.chmod(0o755)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PRE_COMMIT"))},
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(scratch),
            "XDG_CONFIG_HOME": str(scratch / "config"),
            "XDG_STATE_HOME": str(scratch / "state"),
            "XDG_DATA_HOME": str(scratch / "data"),
            "PRE_COMMIT_HOME": os.environ.get("PRE_COMMIT_HOME", str(scratch / "pre-commit")),
            "PRE_COMMIT_COLOR": "never",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_PAGER": "cat",
            "COLUMNS": "100",
            "LC_ALL": "C.UTF-8",
        }
        self.quiet("git config --global user.name You; git config --global user.email you@there")
        self.quiet("git config --global init.defaultBranch main")
        self.quiet("git config --global advice.detachedHead false")

    def quiet(self, command: str) -> str:
        """Run what a person has done before; it must not fail."""
        done = self._shell(command)
        if done.returncode:
            raise RuntimeError(f"{command}\n{done.stdout}")
        return done.stdout

    def project(self, name: str, source: Path) -> None:
        """Start work in a copy of a project, as a git repository with one commit."""
        self.folder = self.scratch / name
        shutil.copytree(source, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.quiet("git init -q && git add -A && git commit -qm start")

    def say(self, text: str) -> None:
        """A paragraph between what was run."""
        self.lines += [text, ""]

    def run(self, *commands: str, status: int = 0) -> None:
        """Run commands and note what they print; the last one ends with ``status``."""
        self.lines.append("```console")
        for command in commands:
            done = self._shell(command)
            self.lines.append(f"$ {command}")
            self.lines += self.alike(done.stdout).splitlines()
            wanted = status if command is commands[-1] else 0
            if done.returncode != wanted:
                raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout}")
            if wanted:
                self.lines.append(f"[exit status {wanted}]")
        self.lines += ["```", ""]

    def show(self, language: str, text: str) -> None:
        """Note what another client saw."""
        self.lines += [f"```{language}", *self.alike(text).splitlines(), "```", ""]

    def alike(self, text: str) -> str:
        """The text without what differs between machines and runs."""
        text = text.replace(str(self.scratch), HOME)
        for pattern, word in ALIKE:
            text = pattern.sub(word, text)
        return re.sub(r"[ \t]+$", "", text, flags=re.M)

    def _shell(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


# -- the sessions ------------------------------------------------------------------------------


def hooks(scratch: Path) -> str:
    """pre-commit: a commit that brings torch_xla into a project is stopped, and mended."""
    session = Session(scratch, "As hooks of pre-commit")
    _repository_of_hooks(session)
    session.project("flowers", FLOWERS)
    config = session.folder / ".pre-commit-config.yaml"
    config.write_text(HOOKS)
    session.say(
        "A project (`examples/flowers`) takes in the hook that reports. `../xla2tpu` is a clone of "
        "this repository, with a tag."
    )
    session.run("cat .pre-commit-config.yaml", "pre-commit install")
    session.run("git add .pre-commit-config.yaml", "git commit -m 'Use the hook'")
    session.say("Somebody changes a file in which torch_xla is used, and commits: this is stopped.")
    _replace(session.folder / "device.py", "Print once,", "Print one time,")
    session.run("git commit -am 'Plainer words'", status=1)
    session.say("With the other hook the file is mended, as all its fixes are safe.")
    config.write_text(HOOKS.replace("id: xla2tpu", "id: xla2tpu-fix"))
    session.run("git diff .pre-commit-config.yaml", "git commit -am 'Plainer words'", status=1)
    session.say("The person reads what was changed, and commits that.")
    session.run("git diff device.py", "git commit -am 'Plainer words, and no torch_xla'")
    session.say(
        "A file that safe fixes do not bring off torch_xla entirely is left as it is. The unsafe "
        "ones are for a person to decide on."
    )
    _replace(session.folder / "evaluate.py", "time.time()", "time.perf_counter()")
    session.run("git commit -am 'A better clock'", status=1)
    session.run("xla2tpu check --fix --unsafe-fixes evaluate.py", "git diff evaluate.py")
    session.run("git commit -am 'A better clock, and no torch_xla'")
    return _text(session)


def migration(scratch: Path) -> str:
    """The command line: a project in one go."""
    session = Session(scratch, "Once, on a whole project")
    session.project("segmentation", SEGMENTATION)
    session.say("The project is `fixtures/programs/segmentation_src_2021`. What there is, by rule:")
    session.run("git ls-files", "xla2tpu check . --statistics", status=1)
    session.say("What would become of it; nothing is written:")
    session.run("xla2tpu migrate --diff .", status=1)
    session.say("It is written, with a report:")
    session.run("xla2tpu migrate . --report migration.html", status=1)
    session.run("git status --short", "git diff --stat")
    session.say("What is left to a person, which the code says as well:")
    session.run("xla2tpu check .", status=1)
    session.run("grep -rn -A2 'TODO(xla2tpu)' src")
    session.say("The place is mended by hand, and the next run takes the comment away.")
    session.run("sed -i 's/met.metrics_report()/\"\"/' src/seg/device.py")
    session.run("xla2tpu migrate --allow-dirty .", "tail -n 8 src/seg/device.py", "xla2tpu check .")
    return _text(session)


def editor(scratch: Path) -> str:
    """Neovim: diagnostics, hover, code actions, all fixes, and the file that was written."""
    session = Session(scratch, "In an editor")
    session.project("flowers", FLOWERS)
    session.say(
        "Neovim without a screen, with `xla2tpu server` as a client of its own language client "
        "(`vim.lsp`), opens a file of `examples/flowers`."
    )
    path = session.folder / "device.py"
    line, column = _place(path.read_text(), "xm.master_print")
    session.show("text", _in_neovim(session, path, line, column))
    session.say("What was written is what the command line makes of the file:")
    session.run(
        "git diff --stat",
        "cp device.py written.py && git checkout -q device.py",
        "xla2tpu check --fix device.py",
        "cmp device.py written.py",
    )
    return _text(session)


def protocol(scratch: Path) -> str:
    """The Language Server Protocol: what another editor would send and get."""
    session = Session(scratch, "Between an editor and the server")
    session.project("flowers", FLOWERS)
    session.say(
        "Messages to (`-->`) and from (`<--`) `xla2tpu server`, one a paragraph; what the "
        "protocol wraps around them (`jsonrpc`, `id`) is left out. The text is that of the editor, "
        "not saved."
    )
    path = session.folder / "evaluate.py"
    text = "# größe 😋\nimport torch_xla.core.xla_model as xm\n\nprint('😋'); xm.mark_step()\n"
    document = {"uri": path.as_uri(), "version": 1}
    told: list[str] = []
    with _Wire(session, told) as wire:
        wire.ask("initialize", {"processId": None, "rootUri": None, "capabilities": {}}, brief=True)
        wire.tell("initialized", {})
        opened = {**document, "languageId": "python", "text": text}
        wire.tell("textDocument/didOpen", {"textDocument": opened})
        published = wire.wait("textDocument/publishDiagnostics")
        span = published["diagnostics"][0]["range"]
        named = {"textDocument": {"uri": document["uri"]}}
        context = {"diagnostics": [], "only": ["source.fixAll.xla2tpu"]}
        wire.ask("textDocument/codeAction", {**named, "range": span, "context": context})
        wire.ask("shutdown", None)
        wire.tell("exit", None)
    session.show("text", "\n\n".join(told))
    return _text(session)


SESSIONS: dict[str, Callable[[Path], str]] = {
    f.__name__: f for f in (hooks, migration, editor, protocol)
}


def missing(name: str) -> str | None:
    """Why a session cannot be had here: which client there is not."""
    if shutil.which("git") is None:
        return "git is not installed"
    if name == "hooks" and importlib.util.find_spec("pre_commit") is None:
        return "pre-commit is not installed"
    if name in ("editor", "protocol") and importlib.util.find_spec("pygls") is None:
        return "pygls is not installed: pip install 'xla2tpu[lsp]'"
    if name == "editor" and shutil.which("nvim") is None:
        return "there is no nvim on this machine (Debian: apt-get install neovim)"
    return None


# -- their parts -------------------------------------------------------------------------------


def _text(session: Session) -> str:
    return "\n".join(session.lines).rstrip() + "\n"


def _repository_of_hooks(session: Session) -> None:
    """A clone of this checkout as it is, with a tag."""
    ignored = shutil.ignore_patterns(
        ".*cache", "__pycache__", ".git", ".venv", "*.egg-info", "node_modules", "fixtures"
    )
    session.folder = session.scratch / "xla2tpu"
    shutil.copytree(ROOT, session.folder, ignore=ignored)
    session.quiet("git init -q && git add -A && git commit -qm hooks && git tag v0.1.0")


def _replace(path: Path, old: str, new: str) -> None:
    """What a person types. Raises ValueError where there is nothing to type over."""
    text = path.read_text()
    if old not in text:
        raise ValueError(f"{path}: there is no {old!r}")
    path.write_text(text.replace(old, new))


def _place(text: str, code: str) -> tuple[int, int]:
    """Line and column of the first such code, from 1."""
    before = text[: text.index(code)]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _in_neovim(session: Session, path: Path, line: int, column: int) -> str:
    """What was seen in Neovim, which leaves the file fixed. Raises RuntimeError."""
    seen, plan = session.scratch / "seen.txt", session.scratch / "plan.json"
    words = {
        "command": ["xla2tpu", "server"],
        "root": str(path.parent),
        "line": line,
        "column": column,
        "seen": str(seen),
    }
    plan.write_text(json.dumps(words))
    done = subprocess.run(
        ["nvim", "--headless", "--clean", "-n", str(path), "-c", f"luafile {LUA}"],
        env={**session.environment, "XLA2TPU_PLAN": str(plan)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return seen.read_text()


class _Wire:
    """A client that speaks to the server over pipes, and writes down what goes by."""

    def __init__(self, session: Session, told: list[str]) -> None:
        self.session, self.told = session, told
        self.number = 0

    def __enter__(self) -> _Wire:
        self.process = subprocess.Popen(
            [str(self.session.scratch / "bin" / "xla2tpu"), "server"],
            env=self.session.environment,
            cwd=self.session.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

    def tell(self, method: str, params: Any) -> None:
        """Send what has no answer."""
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: Any, brief: bool = False) -> Any:
        """Send what has an answer, and wait for it; ``brief``: it is not written down in full."""
        self.number += 1
        self._send({"method": method, "params": params, "id": self.number})
        result = self._receive(lambda message: message.get("id") == self.number)["result"]
        if brief:
            info = result["serverInfo"]["name"]
            self._note("<--", method, {"serverInfo": {"name": info}, "capabilities": "..."})
        else:
            self._note("<--", method, result)
        return result

    def wait(self, method: str) -> Any:
        """Wait for what the server tells of itself."""
        params = self._receive(lambda message: message.get("method") == method)["params"]
        self._note("<--", method, params)
        return params

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()
        self._note("-->", message["method"], message["params"])

    def _receive(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert self.process.stdout is not None
        while True:
            length = 0
            while (line := self.process.stdout.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                if name == b"Content-Length":
                    length = int(value)
            if not length:
                raise RuntimeError("the server has ended")
            message: dict[str, Any] = json.loads(self.process.stdout.read(length))
            if wanted(message):
                return message

    def _note(self, arrow: str, method: str, content: Any) -> None:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        # A position on one line.
        text = re.sub(r"\{\s+\"line\": (\d+),\s+\"character\": (\d+)\s+\}", r"{\1:\2}", text)
        self.told.append(f"{arrow} {method} {text}")


def main() -> int:
    names = sys.argv[1:] or list(SESSIONS)
    TRANSCRIPTS.mkdir(exist_ok=True)
    for name in names:
        reason = missing(name)
        if reason is not None:
            print(f"{name}: not recorded, {reason}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            text = SESSIONS[name](Path(scratch).resolve())
        (TRANSCRIPTS / f"{name}.md").write_text(text)
        print(f"{name}: {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
