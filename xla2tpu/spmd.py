"""Programs of SPMD that are rewritten as one unit: one process for each device, all or nothing.

The file is a script whose one function trains a model on batches that are sharded over a mesh of
one dimension. Either nothing else is sharded (data parallel), or FSDPv2 wraps the model, with a
policy over one class. `docs/spmd.md` states the forms. What is not known leads to an `Obstacle`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xla2tpu.changes import Builder
from xla2tpu.model import Applicability
from xla2tpu.rules import Rule
from xla2tpu.sites import Change, Site
from xla2tpu.spmdcode import Obstacle
from xla2tpu.spmdprogram import Program
from xla2tpu.spmdrewrite import Rewrite

USE, MESH, MARK, SPEC, FSDP, POLICY = (
    "XLA801", "XLA803", "XLA804", "XLA806", "XLA816", "XLA813",
)  # fmt: skip
LOADER, COUNT, STEP = "XLA503", "XLA305", "XLA501"
_PARTS = frozenset({USE, MESH, MARK, SPEC, FSDP, POLICY, LOADER, COUNT, STEP})
# What the rules of other names make of them is right in each process of a unit.
_OTHERS = frozenset(
    {"XLA101", "XLA102", "XLA103", "XLA201", "XLA220", "XLA401", "XLA402", "XLA622", "XLA624"}
)  # fmt: skip
DETECTOR = "spmd-program"


@dataclass(eq=False)
class Unit:
    """A program that can be rewritten: its own site, the others, and what becomes of these."""

    site: Site
    parts: list[Site]
    changes: dict[Site, Change] = field(default_factory=dict)


def decide(sites: list[Site], builder: Builder, taken: Callable[[str], bool]) -> None:
    """Find out whether the file is such a program, before the changes of its sites are made.

    Sites are given other cases where it is one; where it is not, the message of the first one tells
    what stands against it.
    """
    uses = [s for s in sites if s.counts and s.rule.code == USE]
    rule = next((r for r in builder.rules.rules.values() if r.detector == DETECTOR), None)
    if not uses or rule is None:
        return
    try:
        unit = _decided(sites, uses, rule, builder, taken)
    except Obstacle as obstacle:
        line = builder.tree.text.count("\n", 0, builder.tree.span(obstacle.node)[0]) + 1
        message = uses[0].message or uses[0].rule.message
        uses[0].message = f"{message}; not rewritten as one unit: line {line}: {obstacle.why}"
        return
    builder.memory[Unit] = unit


def _decided(
    sites: list[Site], uses: list[Site], rule: Rule, builder: Builder, taken: Callable[[str], bool]
) -> Unit:
    for site in sites:
        known = site.rule.code in _PARTS or (site.rule.code in _OTHERS and site.reason is None)
        if site.blocks and site.context != "import" and not known and site.node is not None:
            raise Obstacle(site.node, f"`{site.path}` is not part of a known form")
    program = Program(sites, builder, taken)
    program.check()
    site = Site(
        rule, program.main.name.value, program.started, program.started, builder.tree.root,
        "statement", counts=False, blocks=False, applicability=Applicability.UNSAFE,
    )  # fmt: skip
    parts = [s for s in sites if s.counts and s.rule.code in _PARTS]
    unit = Unit(site, parts)
    Rewrite(program, builder).rewrite(site, unit.changes)
    for part in parts:
        if part.rule.code == LOADER and part.reason == "single-controller":
            part.case, part.reason = part.rule.cases[0], None
            part.advice = part.effort = None
        if part in unit.changes:
            part.reason, part.case, part.change = None, None, unit.changes[part]
        part.applicability = Applicability.UNSAFE
    return unit


def mend(sites: list[Site], builder: Builder) -> None:
    """Tie the sites of a unit together once the changes are made; nothing, where one has none."""
    unit = builder.memory.get(Unit)
    if not isinstance(unit, Unit):
        return
    blocking = [s for s in sites if s.blocks and s.context != "import"]
    if any(not s.fixable or s.change is None or s in builder.suppressed for s in blocking):
        for part in unit.parts:
            part.follows = []
            part.refuse("single-controller")
        return
    sites.append(unit.site)
    unit.site.follows = blocking
    for part in unit.parts:
        part.applicability = Applicability.UNSAFE
        part.follows = [*part.follows, unit.site]
