"""The places that a project has agreed to live with for now: `--baseline` and `--write-baseline`.

A baseline counts places by file and rule. A count may only fall: with more places than that, the
ones that it does not know are new. Places are known by what stands there, not by their line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

from xla2tpu.lines import Lines
from xla2tpu.model import FileResult, Finding, state_of

VERSION = 1

# For each file, by its path from the baseline's folder: the marks of its places by rule.
Entries = dict[str, dict[str, list[str]]]


class BaselineError(ValueError):
    """A baseline cannot be read; the message names the file and the place in it."""


def marks(result: FileResult) -> list[str]:
    """A mark for each finding of a file that stays the same when lines move.

    Of the rule, the name, and the line's text; places that are alike are numbered.
    """
    lines = Lines((result.source or b"").decode("utf-8", errors="replace"))
    seen: Counter[str] = Counter()
    found = []
    for finding in result.findings:
        if finding.cell is None:
            text = lines.content(finding.line - 1)
        else:
            text = (result.source or b"")[finding.start : finding.end].decode(errors="replace")
        text = " ".join(text.split())
        key = f"{finding.rule}\0{finding.api}\0{text}"
        seen[key] += 1
        digest = hashlib.sha256(f"{key}\0{seen[key]}".encode(errors="surrogateescape"))
        found.append(digest.hexdigest()[:16])
    return found


class Baseline:
    """One baseline file. ``known`` are its entries, empty where it does not exist yet."""

    def __init__(self, file: str) -> None:
        """Raises `BaselineError` for a file that is not a baseline."""
        self.file = file
        self.exists = os.path.lexists(file)
        self.known: Entries = _read(file) if self.exists else {}
        self._current: Entries = {}

    def key(self, path: str) -> str:
        """The path of a file as the baseline has it."""
        start = os.path.dirname(os.path.abspath(self.file))
        return os.path.relpath(os.path.abspath(path), start).replace(os.sep, "/")

    def accept(self, results: Iterable[FileResult]) -> int:
        """Suppress what the baseline knows; the number of places. Takes note of all for `text`."""
        accepted = 0
        for result in results:
            if result.error is not None:
                continue
            by_rule: dict[str, list[tuple[Finding, str]]] = {}
            for finding, mark in zip(result.findings, marks(result), strict=True):
                if state_of(finding) in ("fixable", "manual"):
                    by_rule.setdefault(finding.rule, []).append((finding, mark))
            key = self.key(result.path)
            known = self.known.get(key, {})
            for rule, places in by_rule.items():
                old = Counter(known.get(rule, ()))
                places = sorted(places, key=lambda place: place[1] not in old)
                for finding, _ in places[: old.total()]:
                    finding.suppressed = finding.in_baseline = True
                    accepted += 1
            self._current[key] = {
                rule: sorted(mark for _, mark in places) for rule, places in by_rule.items()
            }
        return accepted

    def text(self) -> str:
        """The baseline after this run: all places at first, later only what is left of the old.

        Files that were not looked at keep their entries, those that are gone lose them.
        """
        entries = dict(self._current) if not self.exists else self._lowered()
        files = {
            path: dict(sorted(rules.items())) for path, rules in sorted(entries.items()) if rules
        }
        return json.dumps({"version": VERSION, "files": files}, indent=1) + "\n"

    def outdated(self) -> int:
        """How many places the baseline still allows that are mended by now."""
        before = sum(len(m) for rules in self.known.values() for m in rules.values())
        after = sum(len(m) for rules in self._lowered().values() for m in rules.values())
        return before - after

    def _lowered(self) -> Entries:
        folder = os.path.dirname(os.path.abspath(self.file))
        lowered: Entries = {}
        for path, rules in self.known.items():
            now = self._current.get(path)
            if now is None:
                if os.path.lexists(os.path.join(folder, path)):
                    lowered[path] = rules
                continue
            lowered[path] = {
                rule: _fewer(old, now.get(rule, [])) for rule, old in rules.items() if rule in now
            }
        return {path: rules for path, rules in lowered.items() if rules}


def _fewer(old: list[str], now: list[str]) -> list[str]:
    """The places that stay in the baseline: no more than before, the known ones first."""
    known = Counter(old)
    return sorted(sorted(now, key=lambda mark: mark not in known)[: len(old)])


def _read(file: str) -> Entries:
    try:
        with open(file, encoding="utf-8") as stream:
            data: Any = json.load(stream)
    except OSError as error:
        raise BaselineError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise BaselineError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise BaselineError(f"{file}: not a baseline of version {VERSION}")
    files = data.get("files")
    if not isinstance(files, dict):
        raise BaselineError(f"{file}: files: must be an object")
    for path, rules in files.items():
        good = isinstance(rules, dict) and all(
            isinstance(places, list) and all(isinstance(mark, str) for mark in places)
            for places in rules.values()
        )
        if not good:
            raise BaselineError(f"{file}: files.{path}: must map rules to lists of marks")
    return files
