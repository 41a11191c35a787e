"""Findings from sites: positions, messages, and the fix of each by itself."""

from __future__ import annotations

import functools

from xla2tpu.analysis import Analysis
from xla2tpu.edits import Conflict, to_bytes
from xla2tpu.markers import Markers
from xla2tpu.model import FAMILIES, Applicability, Effort, Finding, Fix, Mode
from xla2tpu.reasons import REASONS
from xla2tpu.rulemodel import Rule
from xla2tpu.sites import Site, Text

_UNUSED_SUPPRESSION, _STALE_MARKER = "XLA095", "XLA096"


class Findings:
    """Makes the findings of one file."""

    def __init__(self, analysis: Analysis, markers: Markers) -> None:
        self.it, self.markers = analysis, markers

    def all(self, applied: set[Site], written: bool = True) -> list[Finding]:
        """In the order of the source. ``written``: the new text is what the run leaves."""
        found = [self.finding(s, s in applied) for s in self.it.reported]
        found.extend(self._unused_suppressions())
        found.extend(self._misspelt())
        if self.it.settings.mode is Mode.CHECK or not applied:
            found.extend(self._stale_markers(written))
        return sorted(found, key=lambda f: (f.start, f.end, f.rule))

    def finding(self, site: Site, applied: bool) -> Finding:
        rule = site.rule
        suppressed = site in self.it.suppressed
        fix = None
        title = site.fix_title or rule.fix_title or f"Rewrite {rule.name}"
        if site.fixable and not suppressed and self.it.settings.with_fixes:
            fix = self._fix(site, title)
        elif site.fixable and not suppressed:
            fix = Fix(title, site.applicability, ())
        message = (site.message or rule.message).replace("{api}", site.path)
        # The message about an operator or another package says its reason itself.
        given = site.case is not None or site.context in ("op", "framework")
        if site.reason is not None and not given and site.reason in REASONS:
            message = f"{message} ({REASONS[site.reason]})"
        start, end = self.it.tree.span(site.node)
        return self._at(
            rule, start, end, site.path, site.counts, site.blocks, site.applicability, message,
            site.advice or rule.advice, site.reason, applied, suppressed, fix,
            site.effort or rule.effort,
        )  # fmt: skip

    def _at(
        self, rule: Rule, start: int, end: int, api: str, counts: bool, blocks: bool,
        applicability: Applicability, message: str, advice: str, reason: str | None,
        applied: bool, suppressed: bool, fix: Fix | None, effort: Effort,
    ) -> Finding:  # fmt: skip
        lines = self.it.plan.lines
        first, last = lines.index(start), lines.index(end)
        span = to_bytes(
            [Text(start, end, "")],
            self.it.source.text,
            self.it.source.encoding,
            self.it.source.lead,
        )[0]
        return Finding(
            rule.code, rule.name, first + 1, start - lines.starts[first] + 1,
            last + 1, end - lines.starts[last] + 1, span.start, span.end,
            api, counts, blocks, applicability, effort, message, advice,
            reason, applied, suppressed, False, fix,
        )  # fmt: skip

    def _fix(self, site: Site, title: str) -> Fix | None:
        """The fix of one finding alone, with all that depends on the same place."""
        together = {site} | self._sharing_a_name(site)
        while True:
            more = {f for s in together for f in s.follows}
            more |= {d for s in together for d in self._dependents.get(s, ()) if d.fixable}
            if more <= together:
                break
            together |= more
        try:
            assembly = self.it.plan.assemble(together - self.it.suppressed)
        except Conflict:
            return Fix(title, site.applicability, ())
        edits = to_bytes(
            assembly.edits, self.it.source.text, self.it.source.encoding, self.it.source.lead
        )
        if not edits and not site.follows:
            return None  # it is right only together with the other uses of a name
        helpers = assembly.helpers if self.it.settings.helpers_module else ()
        return Fix(title, site.applicability, tuple(edits), tuple(helpers))

    def _sharing_a_name(self, site: Site) -> set[Site]:
        """Where a helper takes the name of an import, all uses of that name are mended at once."""
        naming, rules = self.it.builder.naming, self.it.rules
        helpers = site.change.helpers if site.change is not None else []
        names = {naming.helper(rules.helpers[h]) for h in helpers}
        return {s for s in self.it.sites if s.fixable and s.root and s.root.value in names}

    @functools.cached_property
    def _dependents(self) -> dict[Site, list[Site]]:
        """For each site: those that are mended only together with it."""
        found: dict[Site, list[Site]] = {}
        for site in self.it.sites:
            for maker in site.follows:
                found.setdefault(maker, []).append(site)
        return found

    def _unused_suppressions(self) -> list[Finding]:
        rule = self.it.rules.rules.get(_UNUSED_SUPPRESSION)
        if rule is None or not self.it.is_selected(rule.code):
            return []
        found = []
        every = [*self.it.comments.suppressions]
        if self.it.comments.whole_file is not None and not self.it.comments.whole_file.used:
            every.append(self.it.comments.whole_file)
        for suppression in every:
            # That of a whole file names all families, and is one comment.
            codes = suppression.codes[: 1 if suppression.codes == FAMILIES else None]
            for code in codes:
                if code in suppression.used or (
                    suppression.used and suppression is self.it.comments.whole_file
                ):
                    continue
                start = self.it.plan.lines.starts[suppression.line - 1] + suppression.column
                end = self.it.plan.lines.starts[suppression.line - 1] + len(
                    self.it.plan.lines.content(suppression.line - 1)
                )
                found.append(
                    self._at(
                        rule, start, end, code, False, False, Applicability.MANUAL,
                        rule.message.replace("{api}", code), rule.advice, None, False, False,
                        None, rule.effort,
                    )
                )  # fmt: skip
        return found

    def _misspelt(self) -> list[Finding]:
        """Comments to the tool that it cannot read, and that suppress nothing."""
        rule = self.it.rules.rules.get(_UNUSED_SUPPRESSION)
        if rule is None or not self.it.is_selected(rule.code):
            return []
        lines, found = self.it.plan.lines, []
        for line, column, text in self.it.comments.misspelt:
            start = lines.starts[line - 1] + column
            found.append(
                self._at(
                    rule, start, start + len(text), text, False, False, Applicability.MANUAL,
                    f"`{text}` suppresses nothing: it names no code of a rule",
                    "Write `# xla2tpu: ignore[XLA101]` or `# xla2tpu: ignore-file`.",
                    None, False, False, None, rule.effort,
                )
            )  # fmt: skip
        return found

    def _stale_markers(self, written: bool) -> list[Finding]:
        rule = self.it.rules.rules.get(_STALE_MARKER)
        if rule is None or not self.it.comments.markers or not self.it.is_selected(rule.code):
            return []
        desired = self.markers.desired(None)
        fixable = {self.markers.marked_line(s.node): s for s in self.it.reported}
        found = []
        lines = self.it.plan.lines
        mode = self.it.settings.mode
        applied = written and (mode is Mode.FIX or (mode is Mode.MIGRATE and self.it.settings.todo))
        for line, code in self.it.comments.markers.items():
            below = line + 1
            while below in self.it.comments.markers:
                below += 1
            if code in [c for c, _ in desired.get(below, [])] or not self.it.is_selected(code):
                continue
            if below in fixable and fixable[below].rule.code == code:
                continue
            start = lines.starts[line - 1]
            text = Text(start, lines.end(start), "")
            edits = to_bytes(
                [text], self.it.source.text, self.it.source.encoding, self.it.source.lead
            )
            fix = Fix(rule.fix_title or rule.title, Applicability.SAFE, tuple(edits))
            indent = len(lines.indent(start))
            found.append(
                self._at(
                    rule, start + indent, start + len(lines.content(line - 1)), code, False, False,
                    Applicability.SAFE, rule.message.replace("{api}", code), rule.advice, None,
                    applied, False, fix, rule.effort,
                )
            )  # fmt: skip
        return found
