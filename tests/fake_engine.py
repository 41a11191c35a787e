"""An engine of ten lines for the tests of what stands around it.

`mark_step()` on a line of its own is a safe fix, `optimizer_step` an unsafe one,
`all_gather` is left by hand, `tpu_only` is no reference.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import xla2tpu
from xla2tpu.model import (
    Applicability,
    Edit,
    Effort,
    FileResult,
    Finding,
    Fix,
    Mode,
    Settings,
    Status,
)
from xla2tpu.prefilter import interesting

_PLACE = re.compile(rb"xm\.(mark_step\(\)|optimizer_step|all_gather|tpu_only)")
_KINDS = {
    b"mark_step()": ("XLA101", Applicability.SAFE),
    b"optimizer_step": ("XLA301", Applicability.UNSAFE),
    b"all_gather": ("XLA512", Applicability.MANUAL),
    b"tpu_only": ("XLA801", Applicability.MANUAL),
}


def finding(**changes: Any) -> Finding:
    """A finding with everything filled in."""
    values: dict[str, Any] = {
        "rule": "XLA101",
        "name": "mark-step",
        "line": 1,
        "column": 1,
        "end_line": 1,
        "end_column": 4,
        "start": 0,
        "end": 3,
        "api": "torch_xla.core.xla_model.mark_step",
        "counts": True,
        "blocks": True,
        "applicability": Applicability.SAFE,
        "effort": Effort.TRIVIAL,
        "message": "`mark_step` cuts the lazy graph",
        "advice": "Delete the call.",
    }
    return Finding(**(values | changes))


def run_source(data: bytes, path: str, settings: Settings) -> FileResult:
    """What the real engine promises, for the four names above."""
    if b"\xff" in data:
        return FileResult(path, Status.ERROR, error="cannot be decoded as utf-8")
    if not interesting(data):
        return FileResult(path, Status.CLEAN)
    findings: list[Finding] = []
    output = b""
    position = 0
    for match in _PLACE.finditer(data):
        code, applicability = _KINDS[match[1]]
        applies = (
            settings.mode is not Mode.CHECK
            and applicability is not Applicability.MANUAL
            and (applicability is Applicability.SAFE or settings.unsafe)
        )
        line = data.count(b"\n", 0, match.start()) + 1
        column = match.start() - (data.rfind(b"\n", 0, match.start()) + 1) + 1
        new = b"pass" if applicability is Applicability.SAFE else b"step"
        edits = (Edit(match.start(), match.end(), new.decode()),)
        fixable = applicability is not Applicability.MANUAL
        findings.append(
            finding(
                rule=code,
                name=match[1].decode().replace("_", "-").removesuffix("()"),
                line=line,
                column=column,
                end_line=line,
                end_column=column + match.end() - match.start(),
                start=match.start(),
                end=match.end(),
                applicability=applicability,
                counts=match[1] != b"tpu_only",
                reason=None if fixable else "no-equivalent",
                applied=applies,
                fix=Fix("Rewrite it", applicability, edits)
                if fixable and settings.with_fixes
                else None,
            )
        )
        if applies:
            output += data[position : match.start()] + new
            position = match.end()
    output += data[position:]
    left = [f for f in findings if not f.applied]
    status = Status.DONE
    if left:
        by_hand = any(f.applicability is Applicability.MANUAL for f in left)
        status = Status.NEEDS_WORK if by_hand else Status.READY
    changed = output != data
    held = None
    if settings.mode is Mode.FIX and left and not settings.partial:
        changed, held = False, f"{len(left)} places would be left"
        for item in findings:
            item.applied = False
    return FileResult(
        path,
        status,
        findings,
        mentions_torch_xla=True,
        output=output if changed else None,
        source=data,
        held_back=held,
    )


run_bytes = run_source


def run_project(
    files: list[tuple[str, Settings]], jobs: int, progress: Callable[..., None] | None
) -> list[FileResult]:
    """One after the other; a file that cannot be read is an error."""
    results = []
    for path, settings in files:
        try:
            with open(path, "rb") as file:
                results.append(run_source(file.read(), path, settings))
        except OSError as error:
            results.append(
                FileResult(path, Status.ERROR, error=f"cannot be read: {error.strerror}")
            )
        if progress is not None:
            progress(path)
    return results


def install(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Put this engine in place of the real one."""
    module = sys.modules[__name__]
    for name in ("engine", "batch"):
        monkeypatch.setitem(sys.modules, f"xla2tpu.{name}", module)
        monkeypatch.setattr(xla2tpu, name, module, raising=False)
    return module
