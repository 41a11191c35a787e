"""Code actions: fix this, fix all of a rule, fix all, suppress here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lsprotocol import types as lsp

from xla2tpu.engine import apply_edits, compiles
from xla2tpu.model import Applicability, Finding
from xla2tpu.server.analyser import Analyser, Changed, Checked
from xla2tpu.server.diagnostics import finding_range
from xla2tpu.server.document import Document, uri_of
from xla2tpu.server.edits import Edits, differences, text_edits
from xla2tpu.server.notebooks import Notebook
from xla2tpu.server.notebooks import changes as changes_of

FIX_ALL = "source.fixAll.xla2tpu"
KINDS: list[lsp.CodeActionKind | str] = [lsp.CodeActionKind.QuickFix, FIX_ALL]


def wants(only: Sequence[lsp.CodeActionKind | str] | None, kind: str) -> bool:
    """Whether a request for some kinds, or for all, is one for this kind."""
    return only is None or any(
        kind == wanted or kind.startswith(f"{wanted}.") or wanted == "" for wanted in only
    )


class Actions:
    """The code actions for one state of a file, whose findings have their fixes.

    ``open_files`` are the texts that the client has of other files, ``shown`` makes of a finding
    the diagnostic that was sent for it.
    """

    def __init__(
        self,
        checked: Checked,
        analyser: Analyser,
        edits: Edits,
        open_files: dict[str, Document],
        shown: Callable[[Finding], lsp.Diagnostic],
    ) -> None:
        self.checked, self.analyser, self.edits = checked, analyser, edits
        self.document, self.options = checked.document, checked.options
        self.open_files, self.shown = open_files, shown

    # -- what there is -----------------------------------------------------------------------

    def quick_fixes(self, span: lsp.Range, uri: str) -> Iterator[lsp.CodeAction]:
        """The actions for the findings in a range of a file or cell, without their edits."""
        all_of: set[str] = set()
        suppressed: set[tuple[str, int]] = set()
        here = [
            (index, finding)
            for index, finding in enumerate(self.checked.findings)
            if self._stands_in(finding, uri)
            and _touches(finding_range(self.document, finding), span)
        ]
        for index, finding in here:
            fix = finding.fix
            if fix is None:
                continue
            safe = finding.applicability is Applicability.SAFE
            if fix.edits:
                unsafe = "" if safe else ", unsafe: to be reviewed"
                title = f"{fix.title} ({finding.rule}{unsafe})"
                yield self._action(title, "fix", index, preferred=safe)
            count = self._of_rule(finding, with_unsafe=not safe)
            if count > 1 and finding.rule not in all_of:
                all_of.add(finding.rule)
                unsafe = "" if safe else ", unsafe ones too"
                title = f"Fix all {count} places of {finding.rule} in this file{unsafe}"
                yield self._action(title, "fix-rule", index)
        if isinstance(self.document, Notebook):
            return  # a comment goes into the text of a file, which the client does not have
        for index, finding in here:
            at = finding.rule, finding.line
            # What the tool says of a file as a whole is not about a place.
            if at not in suppressed and not self.checked.rules[finding.rule].tools:
                suppressed.add(at)
                yield self._action(f"Suppress {finding.rule} here", "suppress", index)

    def _stands_in(self, finding: Finding, uri: str) -> bool:
        """Whether a finding is one of a file, or of a cell of a notebook."""
        document = self.document
        return not isinstance(document, Notebook) or document.cell(finding).uri == uri

    def fix_all(self) -> lsp.CodeAction | None:
        """The action for the whole file, without its edit; None where nothing can be fixed."""
        unsafe = self.options.unsafe_fixes
        if any(
            f.fix is not None and (unsafe or f.applicability is Applicability.SAFE)
            for f in self.checked.findings
        ):
            return self._action("Fix all in this file", "fix-all", None)
        return None

    def _of_rule(self, finding: Finding, with_unsafe: bool) -> int:
        """How many places of the same rule would be fixed together."""
        unsafe = with_unsafe or self.options.unsafe_fixes
        return sum(
            f.rule == finding.rule
            and f.fix is not None
            and (unsafe or f.applicability is Applicability.SAFE)
            for f in self.checked.findings
        )

    def _action(
        self, title: str, what: str, index: int | None, preferred: bool = False
    ) -> lsp.CodeAction:
        finding = None if index is None else self.checked.findings[index]
        return lsp.CodeAction(
            title=f"xla2tpu: {title}",
            kind=FIX_ALL if finding is None else lsp.CodeActionKind.QuickFix,
            diagnostics=None if finding is None else [self.shown(finding)],
            is_preferred=preferred or None,
            data={
                "uri": self.document.uri,
                "version": self.document.version,
                "do": what,
                "index": index,
            },
        )

    # -- what they do ------------------------------------------------------------------------

    def edit(self, data: dict[str, Any]) -> lsp.WorkspaceEdit | str:
        """What an action changes, or why it does not."""
        index = data["index"]
        finding = None if index is None else self.checked.findings[index]
        if finding is None:
            return self._texts(self.analyser.fix_all(self.document, self.options))
        if data["do"] == "fix":
            return self._fix(finding)
        if data["do"] == "fix-rule":
            unsafe = finding.applicability is not Applicability.SAFE
            changed = self.analyser.fix_all(self.document, self.options, finding.rule, unsafe)
            return self._texts(changed)
        return self._texts(self.analyser.suppress(self.document, self.options, finding))

    def _fix(self, finding: Finding) -> lsp.WorkspaceEdit | str:
        assert finding.fix is not None
        assert self.document.data is not None
        changes = sorted(finding.fix.edits, key=lambda e: (e.start, e.end))
        result = apply_edits(self.document.data, changes, self.document.encoding)
        if isinstance(self.document, Notebook):
            helpers = self.analyser.helpers_of(self.document, self.options, finding.fix.helpers)
            return self._together(list(changes_of(self.document, result.decode())), helpers)
        if compiles(self.document.data) and not compiles(result):
            return "internal error, nothing changed: the result does not compile"
        char_at = self.document.positions.char_at
        edits = text_edits(
            self.document, ((char_at(e.start), char_at(e.end), e.content) for e in changes)
        )
        helpers = self.analyser.helpers_of(self.document, self.options, finding.fix.helpers)
        return self._together([(self.document, edits, True)], helpers)

    def _texts(self, changed: Changed) -> lsp.WorkspaceEdit | str:
        if changed.text is None:
            return _in_settings(changed.refused or "there is nothing to change")
        if isinstance(self.document, Notebook):
            return self._together(list(changes_of(self.document, changed.text)), changed)
        edits = text_edits(self.document, differences(self.document.text, changed.text))
        return self._together([(self.document, edits, True)], changed)

    def _together(
        self, parts: list[tuple[Document, list[lsp.TextEdit], bool]], changed: Changed
    ) -> lsp.WorkspaceEdit | str:
        """The edits of the file, or its cells, with those of other files that go with them."""
        if changed.refused is not None:
            return changed.refused
        for path, before, after in changed.others:
            if before is None and not self.edits.creates:
                return f"{path} has to be there: this editor cannot make files"
            text = (before or b"").decode()
            other = next((d for d in self.open_files.values() if d.path == path), None)
            if other is None:
                other = Document(uri_of(path), None, text, self.document.unit, path)
            changes = text_edits(other, differences(other.text, after.decode()))
            parts.append((other, changes, before is not None))
        return self.edits.of(parts)


def _touches(one: lsp.Range, other: lsp.Range) -> bool:
    return one.start <= other.end and other.start <= one.end


def _in_settings(reason: str) -> str:
    """A reason of the command line, with settings for its options."""
    for option, setting in (("--partial", "partial"), ("--unsafe-fixes", "unsafeFixes")):
        reason = reason.replace(option, f"the setting xla2tpu.{setting}")
    return reason
