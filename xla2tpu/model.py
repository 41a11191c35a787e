"""Data that every other module speaks in: edits, fixes, findings, file results, settings.

Nothing here imports the rest of the package, libcst or yaml, so that the command line can
start without them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

# Codes are stable: XLA for what has to do with torch_xla, TPU for what torch_tpu lacks, FWK for
# what other packages do by torch_xla.
FAMILIES = ("XLA", "TPU", "FWK")
CODE = rf"(?:{'|'.join(FAMILIES)})\d{{3}}"


class Applicability(enum.StrEnum):
    """How far a fix may be trusted, as ruff and rustc use the word."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    MANUAL = "manual"


class Effort(enum.StrEnum):
    """What a person has to invest in a place that is left to them."""

    TRIVIAL = "trivial"
    SMALL = "small"
    REDESIGN = "redesign"


class Status(enum.StrEnum):
    """Where one file stands.

    ``clean``: nothing of torch_xla in it. ``done``: it had some and all of it is gone.
    ``ready``: all that is left can be fixed by the tool. ``needs-work``: a person must act.
    ``error``: the file could not be read, decoded, written, or the tool failed on it.
    """

    CLEAN = "clean"
    DONE = "done"
    READY = "ready"
    NEEDS_WORK = "needs-work"
    ERROR = "error"


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace the bytes ``start`` to ``end`` of the original file by ``content``."""

    start: int
    end: int
    content: str


@dataclass(frozen=True, slots=True)
class Fix:
    """What one finding's fix does; its edits bring their imports and helpers along.

    ``helpers`` names those that the ``--helpers-module`` has to hold for it.
    """

    title: str
    applicability: Applicability
    edits: tuple[Edit, ...]
    helpers: tuple[str, ...] = ()


@dataclass(slots=True)
class Finding:
    """One place that has to do with torch_xla.

    ``line`` and ``column`` count from 1, columns in characters; ``start`` and ``end`` are
    byte offsets in the original file. ``counts`` tells a reference (one resolved use of a
    torch_xla name outside import statements) from the rest; ``blocks`` whether the file
    cannot be called done while the place stands. ``reason`` is the stable word for why
    nothing is rewritten, None where there is a fix. ``in_baseline``: it is suppressed because
    the baseline knows it. In a notebook, ``cell`` is the number of the cell, from 1, and lines
    count in it.
    """

    rule: str
    name: str
    line: int
    column: int
    end_line: int
    end_column: int
    start: int
    end: int
    api: str
    counts: bool
    blocks: bool
    applicability: Applicability
    effort: Effort
    message: str
    advice: str
    reason: str | None = None
    applied: bool = False
    suppressed: bool = False
    in_baseline: bool = False
    fix: Fix | None = None
    cell: int | None = None

    @property
    def where(self) -> str:
        """Line and column as people read them, in a notebook behind the cell."""
        cell = "" if self.cell is None else f"cell {self.cell}:"
        return f"{cell}{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Note:
    """Something to know beside the findings; it never changes a status or an exit status.

    ``kind`` is ``after-swap`` or ``project``, ``name`` a stable word. Line and column count from
    1, in the file before the run. ``source`` says where the fact is from.
    """

    kind: str
    name: str
    path: str
    line: int
    column: int
    message: str
    advice: str
    source: str


# The parts of a manual plan, in the order of the work.
STAGES = {
    "convert": "Convert old checkpoints, while torch_xla is still installed",
    "environment": "Take out the variables that switch SPMD on",
    "launch": "Start one process for each device",
    "group": "Set up the process group",
    "mesh": "Make the mesh of ranks",
    "ranks": "Ask for ranks and sizes, and seed, by process",
    "model": "Shard the parameters",
    "activations": "Lay out activations",
    "data": "Load the part of each rank",
    "optimizer": "Build the optimizer behind it, and clip",
    "checkpoint": "Save and load",
    "output": "Do once what now happens in each process",
    "rest": "Replace what is left of SPMD and FSDP",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One place of an SPMD or FSDP program, which has to change together with the others.

    ``stage`` is a word of `STAGES`, ``what`` says what the place is, ``target``
    is code for it, empty where nothing takes its place, and ``note`` what to mind. Line and column
    count from 1, in the file before the run; in a notebook lines count in the ``cell``.
    ``devices``: what a mesh of constant shape needs.
    """

    stage: str
    path: str
    line: int
    column: int
    what: str
    target: str
    note: str = ""
    devices: int | None = None
    cell: int | None = None

    @property
    def where(self) -> str:
        """Line and column as people read them, in a notebook behind the cell."""
        cell = "" if self.cell is None else f"cell {self.cell}:"
        return f"{cell}{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class ManualPlan:
    """What is to be done by hand in one project, ``steps`` in the order of the work.

    ``project`` is its folder, ``imports`` are those that the code of the steps needs, ``notes``
    are about the project as a whole.
    """

    project: str
    notes: tuple[str, ...]
    imports: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(slots=True)
class FileResult:
    """All that is known of one file after a run.

    ``output`` holds the new bytes where something is to be written, else None. ``error`` is
    set for exit status 2. ``held_back`` says why ``check --fix`` left the file alone.
    ``helpers`` are the helpers that go to the ``--helpers-module``. ``edits`` make ``output`` of
    ``source``. ``notes`` and ``steps`` are there for `migrate` alone.
    """

    path: str
    status: Status
    findings: list[Finding] = field(default_factory=list)
    mentions_torch_xla: bool = False
    output: bytes | None = None
    source: bytes | None = None
    error: str | None = None
    held_back: str | None = None
    helpers: tuple[str, ...] = ()
    notes: list[Note] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    edits: tuple[Edit, ...] = ()

    @property
    def references(self) -> int:
        """Resolved uses of torch_xla names outside import statements."""
        return sum(f.counts for f in self.findings)

    def count(self, state: str) -> int:
        """References that are ``applied``, ``suppressed``, ``fixable`` or ``manual``."""
        return sum(f.counts and state_of(f) == state for f in self.findings)


def state_of(finding: Finding) -> str:
    """The one state of a finding: applied, suppressed, manual or fixable."""
    if finding.suppressed:
        return "suppressed"
    if finding.applied:
        return "applied"
    if finding.applicability is Applicability.MANUAL:
        return "manual"
    return "fixable"


class Mode(enum.StrEnum):
    """What a run does with the fixes it finds."""

    CHECK = "check"
    FIX = "fix"
    MIGRATE = "migrate"


@dataclass(frozen=True, slots=True)
class Settings:
    """What one run does, from the command line and the configuration of the file.

    ``partial`` lets ``fix`` leave a file half way. ``per_file_ignores`` maps a glob to code
    prefixes. ``processes`` is ``single`` where the programs never run in several processes.
    ``root`` is the project's folder, from which the names across files are read.
    ``notebook`` marks the cells of a notebook, whose functions no other process can import.
    ``on_tpu`` says that the file runs on the TPU, though its text may not tell.
    """

    mode: Mode = Mode.CHECK
    unsafe: bool = False
    partial: bool = False
    todo: bool = True
    any_hardware: bool = False
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    exclude: tuple[str, ...] = ()
    rule_files: tuple[str, ...] = ()
    helpers_module: str | None = None
    source_version: str | None = None
    device: str = "tpu"
    launcher: str = "spawn"
    processes: str = "several"
    root: str | None = None
    with_fixes: bool = False
    notebook: bool = False
    on_tpu: bool = False
