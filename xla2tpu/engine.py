"""From the bytes of a file to its findings and, where asked for, its new bytes.

`run_source` is the one way in for the command line, the hook and editors; `run_project` runs it
over many files and lets exports go when all files that import them change in the same run.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import os
import re
from collections.abc import Iterable
from dataclasses import replace

import libcst as cst

from xla2tpu import comments as comments_
from xla2tpu.changes import Builder
from xla2tpu.environment import other_hardware
from xla2tpu.importsites import ImportSites
from xla2tpu.lines import Lines
from xla2tpu.literals import Literals
from xla2tpu.match import Matcher, settle_dependents
from xla2tpu.model import (
    Applicability,
    Edit,
    FileResult,
    Finding,
    Fix,
    Mode,
    Settings,
    Status,
)
from xla2tpu.names import Names, is_torch_xla
from xla2tpu.naming import Naming
from xla2tpu.plan import Assembly, Conflict, Plan, to_bytes
from xla2tpu.project import OTHER_HARDWARE, Project, find_root, project_of
from xla2tpu.reasons import REASONS
from xla2tpu.rules import Rule, RuleSet, load_rules
from xla2tpu.sites import References, Site, Text, modules_of
from xla2tpu.source import Source, UndecodableError, decode
from xla2tpu.tree import PositionError, Tree, paused_gc

SYNTAX, HARDWARE, UNUSED_SUPPRESSION, STALE_MARKER = "XLA000", "XLA090", "XLA095", "XLA096"
FIND_SPEC = "XLA004"
_DEEP = 180
_LONG_LINE = 5_000
_MANY_LINES = 100_000
_NOT_BRACKETS = bytes(c for c in range(256) if c not in b"()[]{}")


@functools.cache
def _modules(rules_key: tuple[str, ...]) -> frozenset[str]:
    return modules_of(load_rules(rules_key))


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
        project = project_of(settings.root or find_root(path))
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
        tree = _parse(source.text)
        try:
            run = _Run(data, path, settings, source, tree, rules, project, released)
            run.finish(result)
            run.release()
        except PositionError as error:
            raise _BadSyntax(1, 1, str(error)) from error
        finally:
            tree.release()
    except _BadSyntax as error:
        result.findings = [_syntax_finding(rules.rules[SYNTAX], source, error)]
        result.status = Status.NEEDS_WORK
    return result


class _BadSyntax(Exception):
    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(message)
        self.line, self.column, self.message = line, column, message


def _parse(text: str) -> Tree:
    """Parse with libcst; sources too deep for it are refused as CPython refuses them."""
    lines = text.split("\n")
    long = len(lines) > _MANY_LINES or max(map(len, lines)) > _LONG_LINE
    if long or _deepest_bracket(text) > _DEEP:
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise _BadSyntax(error.lineno or 1, error.offset or 1, error.msg) from error
        except (RecursionError, MemoryError, ValueError) as error:
            raise _BadSyntax(1, 1, "too deeply nested to be parsed") from error
    try:
        tree = Tree(text, _parsable(text))
    except cst.ParserSyntaxError as error:
        message = re.sub(r"^parser error: error at \d+:\d+: ", "", error.message)
        raise _BadSyntax(error.raw_line, error.raw_column + 1, message) from error
    except (ValueError, RecursionError) as error:
        raise _BadSyntax(1, 1, str(error)) from error
    return tree


def _deepest_bracket(text: str) -> int:
    """How deep brackets nest at the most, those in strings and comments counted too."""
    depth = deepest = 0
    for bracket in text.encode("utf-8", "replace").translate(None, _NOT_BRACKETS):
        if bracket in b"([{":
            depth += 1
            if depth > deepest:
                deepest = depth
        else:
            depth -= 1
    return deepest


def _parsable(text: str) -> str:
    """The text for the parser, character by character: it wants line feeds and no form feeds."""
    text = re.sub(r"\r(?!\n)", "\n", text)
    # A form feed at the start of a line resets the indentation: put it at the end of the last.
    text = re.sub(r"(\r?\n)\f", lambda m: " " * len(m[1]) + "\n", text)
    return text.replace("\f", " ")


def _syntax_finding(rule: Rule, source: Source, error: _BadSyntax) -> Finding:
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
    if _compiles(result.source) and not _compiles(result.output):
        problem = "the result does not compile"
    else:
        again = run_source(
            result.output, result.path, settings, project=project, released=released, verify=False
        )
        if again.error is not None:
            problem = again.error
        elif again.output is not None:
            problem = "a second run would change the result"
    if problem is not None:
        result.output = None
        result.status = Status.ERROR
        result.error = f"internal error, nothing written: {problem} ({codes})"
        for finding in result.findings:
            finding.applied = False


def _compiles(data: bytes) -> bool:
    try:
        compile(data, "<output>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


class _Run:
    """One file with everything that is known of it."""

    def __init__(
        self,
        data: bytes,
        path: str,
        settings: Settings,
        source: Source,
        tree: Tree,
        rules: RuleSet,
        project: Project,
        released: frozenset[str],
    ) -> None:
        self.data, self.path, self.settings, self.source = data, path, settings, source
        self.tree, self.rules, self.project = tree, rules, project
        self.real = os.path.abspath(path)
        self.released = released
        project.hints()
        modules = _modules(settings.rule_files)
        self.names = Names(
            tree,
            lambda p: project.canonical(p, self.real),
            lambda p: (hit := rules.lookup(p)) is not None and hit[1].path == p,
            lambda p: project.module_of(p, self.real) is not None,
            modules.__contains__,
        )
        naming = Naming(tree, self.names, rules)
        self.builder = Builder(tree, self.names, rules, naming, settings, source.newline)
        references = References(tree, self.names, rules, modules).collect()
        matcher = Matcher(tree, self.names, rules, self.builder, modules)
        self.sites = matcher.sites(references)
        self.plan = Plan(
            tree, self.builder, self.sites, self._is_pinned,
            os.path.basename(path) == "__init__.py",
        )  # fmt: skip
        self.has_imports = any(g.torch_xla for g in self.plan.groups) or any(
            True for star, _ in tree.stars if _star_of_xla(star)
        )
        uses = self.has_imports or bool(references)
        self.sites += ImportSites(
            tree, rules, self.plan.groups, self._is_pinned,
            os.path.basename(path) == "__init__.py",
        ).sites()  # fmt: skip
        self.sites += Literals(tree, rules, self.builder, uses).sites()
        self._keep_registration()
        matcher.build(self.sites)
        self.hardware = self._other_hardware() if uses else None
        if self.hardware is not None and not settings.any_hardware:
            self._refuse_hardware(self.hardware)
        settle_dependents(self.sites)
        self.plan.sites = self.sites
        self.comments = comments_.read(source.text)
        self.suppressed = {s for s in self.sites if self._is_suppressed(s)}
        self.reported = [s for s in self.sites if self._is_selected(s.rule.code)]

    # -- what is looked at -------------------------------------------------------------------

    def _is_pinned(self, name: str) -> bool:
        if name in self.released or (not self.settings.root and not os.path.exists(self.real)):
            return False
        importers = self.project.importers(self.real)
        return bool(importers.get(name))

    def _keep_registration(self) -> None:
        """The import that registers the xla backend stays as long as the backend is named."""
        if not any(s.reason == "whole-program" and s.context == "string" for s in self.sites):
            return
        for site in self.sites:
            if site.context != "import" or not site.fixable:
                continue
            swapped = site.change is not None and site.change.swaps
            if not swapped and "_backend" in self.tree.source(site.node):
                site.refuse("whole-program")

    def _other_hardware(self) -> str | None:
        for binding in self.tree.bindings:
            path = binding.path or ""
            for package, vendor in OTHER_HARDWARE.items():
                if path == package or path.startswith(f"{package}."):
                    return vendor
        for node, _ in self.tree.strings:
            if not isinstance(node, cst.SimpleString) or node.evaluated_value != "PJRT_DEVICE":
                continue
            for text in self._settings_of(node):
                if other_hardware("PJRT_DEVICE", text):
                    return text.upper()
        return self.project.other_hardware(self.real)

    def _settings_of(self, node: cst.CSTNode) -> list[str]:
        """The texts that an environment variable is set to at the place of its name."""
        parent = self.tree.parent(node)
        if isinstance(parent, cst.Arg):
            call = self.tree.parent(parent)
            values = [a.value for a in call.args[1:2]] if isinstance(call, cst.Call) else []
        else:
            statement = self.tree.statement(node)
            values = [statement.value] if isinstance(statement, cst.Assign) else []
        texts = [v.evaluated_value for v in values if isinstance(v, cst.SimpleString)]
        return [t for t in texts if isinstance(t, str)]

    def _refuse_hardware(self, vendor: str) -> None:
        for site in self.sites:
            site.follows = []
            site.refuse("other-hardware")
        rule = self.rules.rules[HARDWARE]
        first = min((s for s in self.sites), key=lambda s: self.tree.span(s.node), default=None)
        node: cst.CSTNode = first.node if first is not None else self.tree.module.body[0]
        site = Site(rule, vendor, node, node, self.tree.root, "file", counts=False)
        site.refuse("other-hardware")
        self.sites.append(site)

    def _is_selected(self, code: str) -> bool:
        settings = self.settings
        if settings.select and not code.startswith(settings.select):
            return False
        if settings.ignore and code.startswith(settings.ignore):
            return False
        relative = os.path.relpath(self.real, settings.root) if settings.root else self.path
        for pattern, codes in settings.per_file_ignores:
            if code.startswith(codes) and (
                fnmatch.fnmatch(relative, pattern)
                or fnmatch.fnmatch(os.path.basename(relative), pattern)
            ):
                return False
        return True

    def _is_suppressed(self, site: Site) -> bool:
        start, end = self.tree.span(site.node)
        lines = self.plan.lines
        first, last = lines.index(start) + 1, lines.index(max(start, end - 1)) + 1
        statement = self.tree.statement(site.node)
        if isinstance(statement, cst.BaseSmallStatement):
            a, b = self.tree.span(statement)
            first, last = lines.index(a) + 1, lines.index(max(a, b - 1)) + 1
        return self.comments.suppress(site.rule.code, range(first, last + 1))

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
            if site.rule.code == FIND_SPEC and everything.imports_left:
                # While the import stays, so must the test for it.
                site.refuse("uses-remain")
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
            result.findings = self._findings(set())
            result.status = self._status(complete)
            return
        done = self._is_complete(assembly)
        if settings.mode is Mode.FIX and not settings.partial and not done:
            result.held_back = self._held_back(complete, available, wanted)
            result.findings = self._findings(set())
            result.status = self._status(complete)
            return
        applied = {s for s in assembly.applied if s in set(self.reported) - self.suppressed}
        result.findings = self._findings(applied)
        markers = self._marker_edits(assembly)
        try:
            texts = self.plan.resolved([*assembly.edits, *markers])
        except Conflict:
            texts = assembly.edits
        edits = to_bytes(texts, self.source.text, self.source.encoding, self.source.lead)
        output = apply_edits(self.data, edits, self.source.encoding)
        if output != self.data:
            result.output = output
        result.helpers = assembly.helpers if settings.helpers_module else ()
        if done:
            result.status = Status.DONE if self._is_ours() else Status.CLEAN
        else:
            result.status = Status.READY if complete else Status.NEEDS_WORK

    def release(self) -> None:
        """Cut the cycles between the parts, so that the tree goes without a collection."""
        for part in (self.names, self.builder.naming, self.builder, self.plan, self):
            vars(part).clear()

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

    def _findings(self, applied: set[Site]) -> list[Finding]:
        found = [self._finding(s, s in applied) for s in self.reported]
        found.extend(self._unused_suppressions())
        if self.settings.mode is Mode.CHECK or not applied:
            found.extend(self._stale_markers())
        return sorted(found, key=lambda f: (f.start, f.end, f.rule))

    def _finding(self, site: Site, applied: bool) -> Finding:
        rule = site.rule
        suppressed = site in self.suppressed
        fix = None
        title = site.fix_title or rule.fix_title or f"Rewrite {rule.name}"
        if site.fixable and not suppressed and self.settings.with_fixes:
            fix = self._fix(site, title)
        elif site.fixable and not suppressed:
            fix = Fix(title, site.applicability, ())
        message = (site.message or rule.message).replace("{api}", site.path)
        if site.reason is not None and site.case is None and site.reason in REASONS:
            message = f"{message} ({REASONS[site.reason]})"
        start, end = self.tree.span(site.node)
        return self._at(
            rule, start, end, site.path, site.counts, site.blocks, site.applicability, message,
            site.advice or rule.advice, site.reason, applied, suppressed, fix,
            site.effort or rule.effort,
        )  # fmt: skip

    def _at(
        self, rule: Rule, start: int, end: int, api: str, counts: bool, blocks: bool,
        applicability: Applicability, message: str, advice: str, reason: str | None,
        applied: bool, suppressed: bool, fix: Fix | None, effort: object,
    ) -> Finding:  # fmt: skip
        lines = self.plan.lines
        first, last = lines.index(start), lines.index(end)
        span = to_bytes(
            [Text(start, end, "")], self.source.text, self.source.encoding, self.source.lead
        )[0]
        return Finding(
            rule.code, rule.name, first + 1, start - lines.starts[first] + 1,
            last + 1, end - lines.starts[last] + 1, span.start, span.end,
            api, counts, blocks, applicability, effort, message, advice,  # type: ignore[arg-type]
            reason, applied, suppressed, fix,
        )  # fmt: skip

    def _fix(self, site: Site, title: str) -> Fix:
        """The fix of one finding alone, with all that depends on the same place."""
        together = {site}
        while True:
            more = {f for s in together for f in s.follows}
            more |= {s for s in self.sites if s.fixable and any(f in together for f in s.follows)}
            if more <= together:
                break
            together |= more
        try:
            assembly = self.plan.assemble(together - self.suppressed)
        except Conflict:
            return Fix(title, site.applicability, ())
        edits = to_bytes(assembly.edits, self.source.text, self.source.encoding, self.source.lead)
        return Fix(title, site.applicability, tuple(edits))

    def _unused_suppressions(self) -> list[Finding]:
        rule = self.rules.rules.get(UNUSED_SUPPRESSION)
        if rule is None or not self._is_selected(rule.code):
            return []
        found = []
        every = [*self.comments.suppressions]
        if self.comments.whole_file is not None and not self.comments.whole_file.used:
            every.append(self.comments.whole_file)
        for suppression in every:
            for code in suppression.codes:
                if code in suppression.used or (
                    suppression.used and suppression is self.comments.whole_file
                ):
                    continue
                start = self.plan.lines.starts[suppression.line - 1] + suppression.column
                end = self.plan.lines.starts[suppression.line - 1] + len(
                    self.plan.lines.content(suppression.line - 1)
                )
                found.append(
                    self._at(
                        rule, start, end, code, False, False, Applicability.MANUAL,
                        rule.message.replace("{api}", code), rule.advice, None, False, False,
                        None, rule.effort,
                    )
                )  # fmt: skip
        return found

    # -- markers ---------------------------------------------------------------------------------

    def _desired_markers(self, assembly: Assembly | None) -> dict[int, list[tuple[str, str]]]:
        """The line (from 1) that each marker stands above, with code and advice."""
        desired: dict[int, list[tuple[str, str]]] = {}
        if self.hardware is not None and not self.settings.any_hardware:
            return desired
        applied = assembly.applied if assembly is not None else set()
        left = [
            s for s in self.reported
            if s not in applied and s not in self.suppressed and not s.fixable and s.blocks
        ]  # fmt: skip
        for site in sorted(left, key=lambda s: self.tree.span(s.node)):
            line = self._marked_line(site.node)
            entry = (site.rule.code, site.advice or site.rule.advice)
            if entry[0] not in [c for c, _ in desired.setdefault(line, [])]:
                desired[line].append(entry)
        return desired

    def _marked_line(self, node: cst.CSTNode) -> int:
        lines = self.plan.lines
        here: cst.CSTNode | None = node
        while here is not None:
            alone = isinstance(here, (cst.SimpleStatementLine, cst.Decorator, cst.ExceptHandler))
            if alone or isinstance(here, cst.BaseCompoundStatement):
                break
            here = self.tree.parent(here)
        return lines.index(self.tree.span(here if here is not None else node)[0]) + 1

    def _marker_edits(self, assembly: Assembly) -> list[Text]:
        """Edits that bring the markers in line with what is left after the fixes."""
        lines = self.plan.lines
        migrate = self.settings.mode is Mode.MIGRATE
        desired = self._desired_markers(assembly)
        present: dict[int, list[tuple[int, str]]] = {}
        for line, code in self.comments.markers.items():
            below = line + 1
            while below in self.comments.markers:
                below += 1
            present.setdefault(below, []).append((line, code))
        edits: list[Text] = []
        for below, markers in present.items():
            wanted = [c for c, _ in desired.get(below, [])]
            for line, code in markers:
                if code in wanted:
                    wanted.remove(code)
                    continue
                start = lines.starts[line - 1]
                edits.append(Text(start, lines.end(start), ""))
        if not (migrate and self.settings.todo):
            return edits if not migrate else []
        for line, entries in desired.items():
            have = [c for _, c in present.get(line, [])]
            start = lines.starts[line - 1]
            indent = self.plan.indent_at(start, self._statement_on(line))
            block = self._block_at(start, assembly)
            if block is not None:
                index, opening = block
                lines_ = "".join(
                    comments_.marker(indent + self.builder.unit, code, _short(advice))
                    + self.source.newline
                    for code, advice in entries
                    if code not in have
                )
                head, newline, rest = opening.content.partition(self.source.newline)
                content = f"{head}{newline}{lines_}{rest}"
                assembly.edits[index] = replace(opening, content=content)
                continue
            for code, advice in entries:
                if code not in have:
                    text = comments_.marker(indent, code, _short(advice)) + self.source.newline
                    edits.append(Text(start, start, text, 3))
        return edits

    def _block_at(self, line_start: int, assembly: Assembly) -> tuple[int, Text] | None:
        """The edit that puts a block around the statement of a line: markers go inside it."""
        for index, edit in enumerate(assembly.edits):
            if edit.start >= line_start and not self.source.text[line_start : edit.start].strip():
                head = edit.content.partition(self.source.newline)[0]
                if edit.content != head and head.endswith(":"):
                    return index, edit
        return None

    def _statement_on(self, line: int) -> cst.CSTNode:
        for site in self.reported:
            if self._marked_line(site.node) == line:
                return site.node
        return self.tree.module

    def _stale_markers(self) -> list[Finding]:
        rule = self.rules.rules.get(STALE_MARKER)
        if rule is None or not self.comments.markers or not self._is_selected(rule.code):
            return []
        desired = self._desired_markers(None)
        fixable = {self._marked_line(s.node): s for s in self.reported}
        found = []
        lines = self.plan.lines
        for line, code in self.comments.markers.items():
            below = line + 1
            while below in self.comments.markers:
                below += 1
            if code in [c for c, _ in desired.get(below, [])]:
                continue
            if below in fixable and fixable[below].rule.code == code:
                continue
            start = lines.starts[line - 1]
            text = Text(start, lines.end(start), "")
            edits = to_bytes([text], self.source.text, self.source.encoding, self.source.lead)
            fix = Fix(rule.fix_title or rule.title, Applicability.SAFE, tuple(edits))
            indent = len(lines.indent(start))
            found.append(
                self._at(
                    rule, start + indent, start + len(lines.content(line - 1)), code, False, False,
                    Applicability.SAFE, rule.message.replace("{api}", code), rule.advice, None,
                    self.settings.mode is not Mode.CHECK, False, fix, rule.effort,
                )
            )  # fmt: skip
        return found


def _short(advice: str) -> str:
    """The advice on one line."""
    return " ".join(advice.split())


def _star_of_xla(star: cst.ImportFrom) -> bool:
    module: cst.CSTNode | None = star.module
    while isinstance(module, cst.Attribute):
        module = module.value
    return not star.relative and isinstance(module, cst.Name) and is_torch_xla(module.value)


def apply_edits(data: bytes, edits: Iterable[Edit], encoding: str = "utf-8") -> bytes:
    """The bytes with the edits made; insertions at one place keep their order."""
    parts: list[bytes] = []
    at = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        parts += [data[at : edit.start], edit.content.encode(encoding)]
        at = edit.end
    return b"".join([*parts, data[at:]])
