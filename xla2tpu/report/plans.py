"""The manual plans of a run, for every form of report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby

from xla2tpu.model import STAGES, ManualPlan, Step
from xla2tpu.runner import Run

INTRODUCTION = (
    "What SPMD and FSDP programs need, in the order of the work. The tool rewrites none of it; "
    "nothing of it was tried on a TPU."
)

# Places of one stage on the terminal.
_MOST = 12


def title(plan: ManualPlan) -> str:
    """The heading of one plan."""
    return f"Plan for SPMD and FSDP in {plan.project.replace(os.sep, '/')}"


def stages(plan: ManualPlan) -> Iterator[tuple[str, list[list[Step]]]]:
    """The stages by title; in each the steps, those together that say the same of one file."""
    for stage, steps in groupby(plan.steps, key=lambda step: step.stage):
        same: dict[tuple[str, ...], list[Step]] = {}
        for step in steps:
            same.setdefault((step.path, step.what, step.target, step.note), []).append(step)
        yield STAGES[stage], list(same.values())


def place(steps: list[Step]) -> str:
    """Path, line and column of the first, and the lines of the others."""
    first = steps[0]
    more = "".join(f", {step.where}" for step in steps[1:])
    return f"{first.path.replace(os.sep, '/')}:{first.where}{more}"


def count(plan: ManualPlan) -> str:
    """How many places a plan has, in words."""
    return f"{len(plan.steps)} place{'s' * (len(plan.steps) != 1)}"


def render(run: Run) -> str:
    """The plans for the terminal; of a stage with many places the first."""
    lines: list[str] = []
    for plan in run.plans:
        lines.append(f"{title(plan)} ({count(plan)}, in the order of the work):")
        lines += (f"  {note}" for note in plan.notes)
        lines += (f"  {line}" for line in plan.imports)
        for number, (heading, groups) in enumerate(stages(plan), 1):
            lines.append(f"  {number}. {heading}")
            told: set[str] = set()
            for steps in groups[:_MOST]:
                first = steps[0]
                lines.append(f"     {place(steps)} {first.what}")
                lines += (f"         {line}" for line in first.target.splitlines())
                if first.note and first.note not in told:
                    told.add(first.note)
                    lines.append(f"       {first.note}.")
            more = sum(map(len, groups[_MOST:]))
            if more:
                places = "place" if more == 1 else "places"
                lines.append(f"     and {more} {places} more: --report FILE has all")
    return "".join(line + "\n" for line in lines)
