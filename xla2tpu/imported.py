"""Modules that programs of torch_xla import, and that run on the TPU with them: for `migrate`.

A model or a loss in a file of its own need not name torch_xla, so no file but those that import
it tells that its operators will run on the TPU. What such files call without a kernel there is
told in the report; the files stay as they are.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from xla2tpu import discover, missingops
from xla2tpu.config import Configs
from xla2tpu.exports import import_lines
from xla2tpu.kinds import Kind, kind_of
from xla2tpu.model import FileResult, Finding, Mode, Note, Settings
from xla2tpu.project import Project, project_of
from xla2tpu.rules import load_rules


def operators(
    results: Sequence[FileResult], settings: Mapping[str, Settings], configs: Configs
) -> list[Note]:
    """A note for each operator without a kernel in a file that others import, of each file.

    ``settings`` are those of the files of the run, by path. Raises `ConfigError`.
    """
    found: list[Note] = []
    own = {os.path.realpath(r.path) for r in results if r.mentions_torch_xla}
    seen = set(own)
    queue = [
        (result.path, result.path, result.source or b"", settings[result.path])
        for result in results
        if result.mentions_torch_xla
        and kind_of(result.path) is Kind.PYTHON
        and settings[result.path].root is not None
    ]
    # Breadth first: of several importers the nearest is named.
    for program, path, data, given in queue:
        assert given.root is not None
        project = project_of(given.root, load_rules(given.rule_files).in_house)
        for file in _imported(project, path, data):
            real = os.path.realpath(file)
            if real in seen:
                continue
            seen.add(real)
            text = project.read(file)
            if text is None or discover.excluded(file, configs):
                continue
            found += _notes(text, discover.shown(file), program, given, project)
            queue.append((program, file, text, given))
    return found


def _imported(project: Project, path: str, data: bytes) -> Iterator[str]:
    """The files of the project that a file imports; `import_lines` reads widely."""
    for module, names in import_lines(data):
        inner = [f"{module}{'' if module.endswith('.') else '.'}{n}" for n, _ in names if n]
        for dotted in (module, *inner):
            file = project.module_file(dotted, path)
            if file is not None and file.endswith(".py"):
                yield file


def _notes(
    data: bytes, path: str, program: str, given: Settings, project: Project
) -> Iterator[Note]:
    if not _may_call(data, given.rule_files):
        return
    from xla2tpu.engine import run_source

    settings = replace(given, mode=Mode.CHECK, on_tpu=True)
    kept: dict[str, list[Finding]] = {}
    for finding in run_source(data, path, settings, project=project, verify=False).findings:
        if finding.name in missingops.rule_names(given.rule_files) and not finding.suppressed:
            kept.setdefault(finding.api, []).append(finding)
    for places in kept.values():
        first, others = places[0], len(places) - 1
        more = f", also at {others} more place{'s'[: others != 1]} below" if others else ""
        yield Note(
            "project", "missing-operator", path, first.line, first.column,
            f"{first.message}{more}; {program} leads to this file",
            first.advice, "the kernels of torch_tpu, read from its libraries",
        )  # fmt: skip


def _may_call(data: bytes, rule_files: tuple[str, ...]) -> bool:
    return b"torch" in data and _spelled(rule_files).search(data) is not None


@functools.cache
def _spelled(rule_files: tuple[str, ...]) -> re.Pattern[bytes]:
    """Such a name behind a dot or in an import: `range` alone is Python's own."""
    words = "|".join(map(re.escape, sorted(missingops.last_names(rule_files))))
    before = rb"(?:\.|^[ \t]+|\bimport\b[^\n]*?\b)"
    return re.compile(before + rb"(?:" + words.encode() + rb")\b", re.M)
