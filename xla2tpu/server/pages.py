"""The pages of rules, as links and for people who look at a name."""

from __future__ import annotations

import os
import re
import shutil
import tempfile

from xla2tpu.model import Applicability, Finding
from xla2tpu.reasons import REASONS
from xla2tpu.report import rulemarkdown
from xla2tpu.rulemodel import Rule
from xla2tpu.server.document import uri_of

_COMMENT = re.compile(r"\A<!--.*?-->\s*", re.S)
# Links to other pages of the documentation, which are not installed.
_RELATIVE = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")
_CODE = re.compile(r"\bXLA\d{3}\b")


class Pages:
    """Where the pages of rules stand: on the web, or in a folder of our own that is written
    as they are asked for, and that goes with the server.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        self._written: dict[str, tuple[Rule, str]] = {}

    def link(self, rule: Rule, base: str | None) -> str | None:
        """The address of a rule's page; None where it cannot be written."""
        if base is not None:
            return f"{base.rstrip('/')}/{rule.code}.md"
        known = self._written.get(rule.code)
        # The user's own rules may change.
        if known is None or known[0] is not rule:
            try:
                known = rule, self._write(rule)
            except OSError:
                return None
            self._written[rule.code] = known
        return known[1]

    def _write(self, rule: Rule) -> str:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="xla2tpu-rules-")
        path = os.path.join(self._folder, f"{rule.code}.md")
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(page(rule))
        return uri_of(path)

    def close(self) -> None:
        """Take the folder away."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def page(rule: Rule) -> str:
    """All about a rule, in Markdown that stands by itself."""
    return _RELATIVE.sub(r"\1", _COMMENT.sub("", rulemarkdown.page(rule)))


def explanation(finding: Finding, rule: Rule, link: str | None) -> str:
    """What a finding is about, why, and what becomes of it, in Markdown."""
    parts = [f"**{finding.rule}** {finding.name}: {finding.message}", _paragraph(rule.why)]
    if finding.applicability is not Applicability.MANUAL and finding.fix is not None:
        parts.append(f"**Fix** ({finding.applicability}): {finding.fix.title}")
    else:
        reason = REASONS.get(finding.reason or "")
        why = f" ({reason})" if reason else ""
        parts.append(f"**By hand**{why}: {_paragraph(finding.advice)} Effort: {finding.effort}.")
    if link is not None:
        parts.append(f"[All about {finding.rule}]({link})")
    return "\n\n".join(parts)


def code_at(line: str, column: int) -> tuple[str, int, int] | None:
    """The code of a rule that a line spells at a column, and where; columns in characters."""
    for match in _CODE.finditer(line):
        if match.start() <= column <= match.end():
            return match[0], match.start(), match.end()
    return None


def plain(markdown: str) -> str:
    """The same text for clients that do not read Markdown."""
    return re.sub(r"\[([^\]]+)\]\(([^)]*)\)", r"\1: \2", markdown.replace("**", ""))


def _paragraph(text: str) -> str:
    return " ".join(text.split())
