"""From the bytes of a file to its findings and, where asked for, its new bytes.

`run_source` is the one way in for the command line, the hook and editors; `run_project` runs it
over many files and lets exports go when all files that import them change in the same run.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from xla2tpu import afterswap, parallelplan
from xla2tpu.analysis import Analysis
from xla2tpu.edits import Conflict, resolved, to_bytes
from xla2tpu.findings import Findings
from xla2tpu.lines import Lines
from xla2tpu.markers import Markers
from xla2tpu.match import settle_dependents
from xla2tpu.model import (
    Applicability,
    Edit,
    FileResult,
    Finding,
    Mode,
    Settings,
    Status,
    Step,
)
from xla2tpu.nodes import paused_gc
from xla2tpu.parsing import BadSyntax, parse
from xla2tpu.plan import Assembly
from xla2tpu.positions import PositionError
from xla2tpu.project import Project, project_of
from xla2tpu.roots import find_root
from xla2tpu.rulemodel import Rule
from xla2tpu.rules import load_rules
from xla2tpu.sites import Site
from xla2tpu.source import Source, UndecodableError, decode

SYNTAX = "XLA000"
FIND_SPEC = "XLA004"
SPMD_PROGRAM = "XLA852"
_REMAIN = "Mend the other uses of torch_xla that depend on it, then run again."


def run_source(
    data: bytes,
    path: str,
    settings: Settings,
    *,
    project: Project | None = None,
    released: frozenset[str] = frozenset(),
    verify: bool = True,
) -> FileResult:
    """Check, fix or migrate one file that is held in memory; nothing is read of it or written.

    ``path`` is where the file stands, for the names of its project. ``released`` are names at
    its top that no other file will import any longer. Never raises for bad source.
    """
    if project is None:
        in_house = load_rules(settings.rule_files).in_house
        project = project_of(settings.root or find_root(path), in_house)
    # Trees are large and short-lived: collecting while they stand costs more than parsing them.
    with paused_gc():
        result = _run_once(data, path, settings, project, released)
    if verify and result.output is not None:
        _verify(result, settings, project, released)
    return result


def _run_once(
    data: bytes, path: str, settings: Settings, project: Project, released: frozenset[str]
) -> FileResult:
    result = FileResult(path, Status.CLEAN, source=data)
    try:
        source = decode(data)
    except UndecodableError as error:
        result.status, result.error = Status.ERROR, str(error)
        return result
    rules = load_rules(settings.rule_files)
    try:
        tree = parse(source.text)
        try:
            run = _Run(data, path, settings, source, tree, rules, project, released)
            run.finish(result)
            if settings.mode is Mode.MIGRATE and run.for_tpu:
                result.notes = afterswap.notes(run)
                result.steps = parallelplan.steps(run)
            run.release()
        except PositionError as error:
            raise BadSyntax(1, 1, str(error)) from error
        finally:
            tree.release()
    except BadSyntax as error:
        result.findings = [_syntax_finding(rules.rules[SYNTAX], source, error)]
        result.status = Status.NEEDS_WORK
    return result


def companion_steps(
    data: bytes, path: str, settings: Settings, project: Project, around: frozenset[str]
) -> list[Step]:
    """The steps in a file that is no SPMD or FSDP program, but works with one.

    Empty where it cannot be read as Python.
    """
    try:
        source = decode(data)
        tree = parse(source.text)
    except (UndecodableError, BadSyntax):
        return []
    try:
        rules = load_rules(settings.rule_files)
        run = Analysis(data, path, settings, source, tree, rules, project, frozenset())
        found = parallelplan.steps(run, around)
        run.release()
    except PositionError:
        return []
    finally:
        tree.release()
    return found


def _syntax_finding(rule: Rule, source: Source, error: BadSyntax) -> Finding:
    lines = Lines(source.text)
    start = lines.starts[min(error.line, len(lines.starts)) - 1] if lines.starts else 0
    at = len(source.text[:start].encode(source.encoding)) + source.lead
    return Finding(
        rule.code, rule.name, error.line, error.column, error.line, error.column, at, at,
        "", False, True, Applicability.MANUAL, rule.effort,
        f"not valid Python 3: {error.message}", rule.advice, "does-not-parse",
    )  # fmt: skip


def _verify(
    result: FileResult, settings: Settings, project: Project, released: frozenset[str]
) -> None:
    """Refuse an output that does not compile, or that a second run would change."""
    assert result.output is not None
    assert result.source is not None
    codes = ", ".join(sorted({f.rule for f in result.findings if f.applied})) or "XLA096"
    problem = None
    if compiles(result.source) and not compiles(result.output):
        problem = "the result does not compile"
    else:
        again = run_source(
            result.output, result.path, settings, project=project, released=released, verify=False
        )
        if again.error is not None:
            problem = again.error
        elif again.output is not None and not _is_cleared(result, again):
            problem = "a second run would change the result"
        elif result.status is Status.DONE and any(
            f.counts and f.applicability is not Applicability.MANUAL for f in again.findings
        ):
            problem = "the result still uses what was rewritten"
    if problem is not None:
        result.output, result.edits = None, ()
        result.status = Status.ERROR
        result.error = f"internal error, nothing written: {problem} ({codes})"
        for finding in result.findings:
            finding.applied = False


def _is_cleared(result: FileResult, again: FileResult) -> bool:
    """Whether what stood against taking a program of SPMD as a whole went in the first run."""
    first, second = (
        any(f.rule == SPMD_PROGRAM and f.applied for f in r.findings) for r in (result, again)
    )
    return second and not first


def compiles(data: bytes) -> bool:
    """Whether Python takes the bytes of a file as a program."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, "<output>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


class _Run(Analysis):
    """One file on its way to a result."""

    # -- what is looked at -------------------------------------------------------------------

    # -- what is done ------------------------------------------------------------------------

    def finish(self, result: FileResult) -> None:
        """Fill in the result: findings, status, and the output where there is one."""
        settings = self.settings
        available = [s for s in self.reported if s.fixable and s not in self.suppressed]
        everything = self._assemble(available)
        for site in available:
            bound = site.change is not None and (site.change.swaps or site.change.with_import)
            if site.fixable and bound and site not in everything.applied:
                site.refuse("uses-remain")
                site.advice = _REMAIN
            if site.rule.code == FIND_SPEC and everything.imports_left:
                # While the import stays, so must the test for it.
                site.refuse("uses-remain")
                site.advice = _REMAIN
        if len(available) != len(fixable := [s for s in available if s.fixable]):
            available, everything = fixable, self._assemble(fixable)
        complete = self._is_complete(everything)
        wanted = available
        if not settings.unsafe:
            wanted = [s for s in available if s.applicability is Applicability.SAFE]
        assembly: Assembly | None = None
        if settings.mode is not Mode.CHECK:
            assembly = everything if len(wanted) == len(available) else self._assemble(wanted)
        result.mentions_torch_xla = self.has_imports or any(s.counts for s in self.sites)
        if assembly is None:
            result.findings = self._found(set())
            result.status = self._status(complete)
            return
        done = self._is_complete(assembly)
        if settings.mode is Mode.FIX and not settings.partial and not done:
            result.held_back = self._held_back(complete, available, wanted)
            result.findings = self._found(set(), written=False)
            result.status = self._status(complete)
            return
        applied = {s for s in assembly.applied if s in set(self.reported) - self.suppressed}
        result.findings = self._found(applied)
        markers = Markers(self).edits(assembly)
        try:
            texts = resolved([*assembly.edits, *markers])
        except Conflict:
            texts = assembly.edits
        edits = to_bytes(texts, self.source.text, self.source.encoding, self.source.lead)
        output = apply_edits(self.data, edits, self.source.encoding)
        if output != self.data:
            result.output, result.edits = output, tuple(edits)
        result.helpers = assembly.helpers if self.builder.naming.helpers_module else ()
        if done:
            result.status = Status.DONE if self._is_ours() else Status.CLEAN
        else:
            result.status = Status.READY if complete else Status.NEEDS_WORK

    def _found(self, applied: set[Site], written: bool = True) -> list[Finding]:
        return Findings(self, Markers(self)).all(applied, written)

    def _is_ours(self) -> bool:
        return self.has_imports or bool(self.sites)

    def _status(self, complete: bool) -> Status:
        blocking = [s for s in self.sites if s.blocks]
        if not blocking and not self.has_imports:
            return Status.DONE if self.sites else Status.CLEAN
        return Status.READY if complete else Status.NEEDS_WORK

    def _is_complete(self, assembly: Assembly) -> bool:
        """Whether nothing that blocks would be left."""
        if assembly.imports_left:
            return False
        return all(s in assembly.applied or not s.blocks for s in self.sites)

    def _assemble(self, sites: list[Site]) -> Assembly:
        try:
            return self.plan.assemble(sites)
        except Conflict:
            return self._assemble_apart(sites)

    def _assemble_apart(self, sites: list[Site]) -> Assembly:
        """Add the sites one by one, and leave those out that clash with the ones before."""
        good: list[Site] = []
        for site in sites:
            try:
                self.plan.assemble([*good, site])
            except Conflict:
                site.refuse("edit-conflict")
            else:
                good.append(site)
        settle_dependents(self.sites)
        return self.plan.assemble([s for s in good if s.fixable])

    def _held_back(self, complete: bool, available: list[Site], wanted: list[Site]) -> str | None:
        unsafe = len(available) - len(wanted)
        left = [s for s in self.sites if s.blocks and (not s.fixable or s in self.suppressed)]
        if complete and unsafe:
            fixes = "fix" if unsafe == 1 else "fixes"
            return f"{unsafe} unsafe {fixes} held back: --unsafe-fixes"
        if not wanted:
            return None
        places = "place needs" if len(left) == 1 else "places need"
        fixes = "fix" if len(wanted) == 1 else "fixes"
        extra = f", {unsafe} unsafe" if unsafe else ""
        return (
            f"{len(wanted)} safe {fixes}{extra} held back: {len(left)} {places} a person first;"
            " --partial applies them"
        )

    # -- findings --------------------------------------------------------------------------------

    # -- markers ---------------------------------------------------------------------------------


def apply_edits(data: bytes, edits: Iterable[Edit], encoding: str = "utf-8") -> bytes:
    """The bytes with the edits made; insertions at one place keep their order."""
    parts: list[bytes] = []
    at = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        parts += [data[at : edit.start], edit.content.encode(encoding)]
        at = edit.end
    return b"".join([*parts, data[at:]])
