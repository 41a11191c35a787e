"""Programs of SPMD that are rewritten as one unit: one process for each device, all or nothing.

The file is a script whose one function trains a model on batches that are sharded over a mesh of
one dimension. Either nothing else is sharded (data parallel), or FSDPv2 wraps the model, with a
policy over one class. `docs/spmd.md` states the forms. What is not known leads to an `Obstacle`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.lines import Lines
from xla2tpu.model import Applicability
from xla2tpu.rulemodel import Rule
from xla2tpu.sites import Change, Site
from xla2tpu.spmdprogram import Program
from xla2tpu.spmdrewrite import Rewrite
from xla2tpu.spmdsamples import Obstacle

USE, MESH, MARK, SPEC, FSDP, POLICY = (
    "XLA801", "XLA803", "XLA804", "XLA806", "XLA816", "XLA813",
)  # fmt: skip
LOADER, COUNT, STEP = "XLA503", "XLA305", "XLA501"
_PARTS = frozenset({USE, MESH, MARK, SPEC, FSDP, POLICY, LOADER, COUNT, STEP})
# What the rules of other names make of them is right in each process of a unit.
_OTHERS = frozenset({"XLA101", "XLA102", "XLA201", "XLA220", "XLA401", "XLA402", "XLA622"})
# Safe by themselves, but the program would be no known one after them.
_RANKED = frozenset({"XLA401", "XLA402"})
DETECTOR = "spmd-program"


@dataclass(eq=False)
class Unit:
    """A program that can be rewritten: its own site, the others, and what becomes of these."""

    site: Site
    parts: list[Site]
    changes: dict[Site, Change]


def decide(sites: list[Site], builder: Builder, taken: Callable[[str], bool]) -> None:
    """Find out whether the file is such a program, before the changes of its sites are made.

    Sites are given other cases where it is one; where it is not, the message of the first one tells
    what stands against it.
    """
    sites = sorted(sites, key=lambda s: builder.tree.span(s.node))
    uses = [s for s in sites if s.counts and s.rule.code == USE]
    rule = next((r for r in builder.rules.rules.values() if r.detector == DETECTOR), None)
    if not uses or rule is None:
        return
    try:
        unit = _decided(sites, uses, rule, builder, taken)
    except Obstacle as obstacle:
        _tell(uses[0], obstacle.node, obstacle.why, builder)
        return
    builder.memory[Unit] = unit


def _tell(site: Site, node: cst.CSTNode, why: str, builder: Builder) -> None:
    """Say in the message of a site what stands against a unit, and where."""
    line = Lines(builder.tree.text).index(builder.tree.span(node)[0]) + 1
    site.message = f"{site.rule.message}; not rewritten as one unit: line {line}: {why}"


def _decided(
    sites: list[Site], uses: list[Site], rule: Rule, builder: Builder, taken: Callable[[str], bool]
) -> Unit:
    program = Program(sites, builder, taken)
    program.start()
    for other in sites:
        # A call that is only deleted is none that could do harm.
        gone = other.case is not None and other.case.action == "delete"
        known = other.rule.code in _PARTS or (
            (other.rule.code in _OTHERS or gone) and not other.reason
        )
        if other.blocks and other.context != "import" and not known:
            raise Obstacle(other.node, f"`{other.path}` is not part of a known form")
    program.check()
    site = Site(
        rule, program.main.name.value, program.started, program.started, builder.tree.root,
        "statement", counts=False, blocks=False, applicability=Applicability.UNSAFE,
    )  # fmt: skip
    changes: dict[Site, Change] = {}
    Rewrite(program, builder).rewrite(site, changes)
    parts = [s for s in sites if s.counts and (s.rule.code in _PARTS or s in changes)]
    unit = Unit(site, parts, changes)
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
    left = [s for s in blocking if not s.fixable or s.change is None or s in builder.suppressed]
    if left:
        switch = next(s for s in unit.parts if s.rule.code == USE)
        _tell(switch, left[0].node, f"`{left[0].path}` is left", builder)
        for part in unit.parts:
            part.follows = []
            part.refuse("single-controller")
        return
    for site in blocking:
        if site.rule.code in _RANKED:
            site.applicability = Applicability.UNSAFE
    sites.append(unit.site)
    unit.site.follows = blocking
    for part in unit.parts:
        part.applicability = Applicability.UNSAFE
        part.follows = [*part.follows, unit.site]
