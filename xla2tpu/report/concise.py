"""One line for each place that is left: `path:line:column: CODE message [safe fix]`."""

from __future__ import annotations

from xla2tpu.model import Applicability, Finding
from xla2tpu.runner import Run, is_left


def render(run: Run) -> str:
    """The lines, errors among them; empty when nothing is left."""
    lines: list[str] = []
    for result in run.results:
        if result.error is not None:
            lines.append(f"{result.path}: error: {result.error}")
        lines += [
            f"{result.path}:{f.where}: {f.rule} {f.message} [{_tag(f)}]"
            for f in result.findings
            if is_left(f)
        ]
        if result.held_back is not None:
            lines.append(f"{result.path}: left as it is: {result.held_back}")
    return "".join(line + "\n" for line in lines)


def _tag(finding: Finding) -> str:
    if finding.applicability is Applicability.MANUAL:
        return f"manual: {finding.reason}" if finding.reason else "manual"
    return f"{finding.applicability} fix"
