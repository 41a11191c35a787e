"""The engine for open files: findings, fixes, and the names of projects with unsaved texts in them.

Everything here runs in one thread: the engine pauses the collector and raises the recursion limit
for the process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from xla2tpu import batch, discover
from xla2tpu.analysis import forget_rules
from xla2tpu.config import Configs
from xla2tpu.engine import SYNTAX
from xla2tpu.helpersmodule import file_of, updated
from xla2tpu.inhouse import InHouse
from xla2tpu.model import FileResult, Finding, Mode, Settings, Status, state_of
from xla2tpu.prefilter import interesting, silent
from xla2tpu.project import Project, forget
from xla2tpu.reparse import Memory, remembering
from xla2tpu.roots import find_root
from xla2tpu.rulemodel import Rule
from xla2tpu.rules import load_rules
from xla2tpu.runner import check_codes, check_rule_files, settings_for
from xla2tpu.server.document import Document
from xla2tpu.server.options import Options
from xla2tpu.server.suppressing import suppressing

# Fewer than in a run on the command line: each holds the names of a whole project.
_PROJECTS = 8
# Files that a person goes back and forth between; the nodes of a long one take some 30 MB.
_MEMORIES = 4


@dataclass
class Names:
    """The names of a project, and of each open file the text that they hold for, with what
    others see in it.
    """

    project: Project
    seen: dict[str, tuple[bytes, object]] = field(default_factory=dict)

    def hold_for(self, path: str, data: bytes) -> bool:
        """Whether the names are the same with this text of a file."""
        known = self.seen.get(path)
        before = known[0] if known else self.project.read(path) or b""
        if before == data:
            return True
        interface = self.project.interface(data)
        if interface != (known[1] if known else self.project.interface(before)):
            return False
        self.seen[path] = data, interface
        return True


@dataclass(frozen=True)
class Checked:
    """What is known of one state of a file.

    ``rules`` are all by their codes. ``parses`` is False where the findings, if any, say only that
    the text is not valid. ``names`` are those that the file was read with.
    """

    document: Document
    options: Options
    rules: dict[str, Rule] = field(default_factory=dict, repr=False)
    findings: tuple[Finding, ...] = ()
    parses: bool = True
    error: str | None = None
    names: Names | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Changed:
    """New texts: that of the file, and those of other files that go with it, None for new ones.

    ``refused`` says why there are none.
    """

    text: str | None = None
    others: tuple[tuple[str, bytes | None, bytes], ...] = ()
    refused: str | None = None


class Analyser:
    """Answers for open files. All that look at a file raise `config.ConfigError`."""

    def __init__(self) -> None:
        # The texts of open files as they are, as they last were valid, and as others saw them.
        self._open: dict[str, bytes] = {}
        self._texts: dict[str, bytes] = {}
        self._told: dict[str, bytes] = {}
        self._names: dict[tuple[str, InHouse], Names] = {}
        self._memories: dict[str, Memory] = {}
        self._stamps: dict[tuple[str, ...], tuple[tuple[int, int] | None, ...]] = {}

    # -- what changes ------------------------------------------------------------------------

    def forget_files(self) -> None:
        """Files on the disk have changed: read them anew."""
        self._names.clear()
        forget()

    def take(self, document: Document) -> None:
        """Note the text of a file that is open. This may be called from other threads."""
        if document.path is not None and document.data is not None:
            self._open[document.path] = document.data

    def close(self, path: str) -> bool:
        """What is on the disk counts again; whether that is another text."""
        self._open.pop(path, None)
        self._memories.pop(path, None)
        self._told.pop(path, None)
        data = self._texts.pop(path, None)
        if data is None or _on_disk(path) == data:
            return False
        self.forget_files()
        return True

    # -- answers -----------------------------------------------------------------------------

    def check(self, document: Document, options: Options, with_fixes: bool = False) -> Checked:
        """The findings of a file, with the fix of each where asked for."""
        settings = self._settings(document, options, Mode.CHECK, with_fixes)
        if settings is None:
            return Checked(document, options)
        rules = load_rules(settings.rule_files).rules
        if document.data is None:
            error = f"the text cannot be saved as {document.encoding}, which it declares"
            return Checked(document, options, rules, parses=False, error=error)
        names = self._names_for(document, settings)
        if with_fixes:
            # What may be written comes of the whole text.
            result = self._run(document, settings, names)
        else:
            with remembering(self._memory(document)):
                result = self._run(document, settings, names)
        parses = result.error is None and not any(f.rule == SYNTAX for f in result.findings)
        if parses and document.path is not None:
            self._texts[document.path] = document.data
        findings = tuple(f for f in result.findings if state_of(f) != "suppressed")
        return Checked(document, options, rules, findings, parses, result.error, names)

    def spreads(self, checked: Checked) -> bool:
        """Whether other files of the project may see other names, now that a text parses."""
        path, data = checked.document.path, checked.document.data
        if path is None or data is None or checked.names is None or not checked.parses:
            return False
        is_new = path not in self._told
        before = self._told.get(path, _on_disk(path))
        self._told[path] = data
        return before != data and (is_new or not checked.names.hold_for(path, data))

    def fix_all(
        self, document: Document, options: Options, only: str | None = None, unsafe: bool = False
    ) -> Changed:
        """What `check --fix` makes of a file; ``only`` one rule's places, as `--select` does."""
        settings = self._settings(document, options, Mode.FIX)
        if settings is None or document.data is None:
            return Changed(refused="the file is excluded, or its text cannot be saved")
        if only is not None:
            settings = replace(
                settings, select=(only,), partial=True, unsafe=settings.unsafe or unsafe
            )
        result = self._run(document, settings, self._names_for(document, settings))
        if result.error is not None or result.output is None:
            return Changed(refused=result.error or result.held_back)
        others, refused = self._helpers(settings, result.helpers)
        if refused is not None:
            return Changed(refused=refused)
        return Changed(result.output.decode(document.encoding), others)

    def helpers_of(self, document: Document, options: Options, names: tuple[str, ...]) -> Changed:
        """The module of helpers with those that one fix calls."""
        settings = self._settings(document, options, Mode.CHECK)
        if settings is None:
            return Changed()
        others, refused = self._helpers(settings, names)
        return Changed(others=others, refused=refused)

    def suppress(self, document: Document, options: Options, finding: Finding) -> Changed:
        """The text with a comment that suppresses one finding, where a comment can do that."""
        settings = self._settings(document, options, Mode.CHECK)
        if settings is not None and document.data is not None:
            names = self._names_for(document, settings)
            before = _left(self._run(document, settings, names), finding.rule)
            for text in suppressing(document.text, finding):
                with_comment = replace(document, text=text)
                if _left(self._run(with_comment, settings, names), finding.rule) < before:
                    return Changed(text)
        return Changed(refused=f"no comment can suppress {finding.rule} here")

    # -- how ---------------------------------------------------------------------------------

    def _run(self, document: Document, settings: Settings, names: Names) -> FileResult:
        """The engine's result for a file that may matter, as a run over files decides it."""
        data, path = document.data, _name(document)
        assert data is not None
        matters = interesting(data) or names.project.in_house.mentioned(data)
        matters = matters or (silent(data) and names.project.is_on_tpu())
        if not matters and not names.project.leads_somewhere(data, path):
            return FileResult(path, Status.CLEAN)
        return batch.run_bytes(data, path, settings, project=names.project)

    def _memory(self, document: Document) -> Memory:
        """The last valid text of a file, with its nodes; the one asked for last stands last."""
        path = _name(document)
        memory = self._memories.pop(path, None) or Memory()
        self._memories[path] = memory
        while len(self._memories) > _MEMORIES:
            del self._memories[next(iter(self._memories))]
        return memory

    def _settings(
        self, document: Document, options: Options, mode: Mode, with_fixes: bool = False
    ) -> Settings | None:
        """The settings of a file, read anew each time; None where it is excluded."""
        path = _name(document)
        configs = Configs(options.configuration)
        if document.path is not None and discover.excluded(path, configs):
            return None
        config = configs.of(path)
        self._refresh(config.rule_files)
        root = None if document.path is None else configs.root(path, None)
        settings = settings_for(path, config, options.request(mode, with_fixes), root)
        check_codes({settings})
        return settings

    def _refresh(self, rule_files: tuple[str, ...]) -> None:
        """Look into the user's own rules, anew where one of their files has changed."""
        if not rule_files:
            return
        stamps = tuple(map(_stamp, rule_files))
        if self._stamps.get(rule_files) == stamps:
            return
        forget_rules()
        self._names.clear()
        check_rule_files({rule_files})
        self._stamps[rule_files] = stamps

    def _names_for(self, document: Document, settings: Settings) -> Names:
        """The names of a file's project, read anew where an open file has changed them.

        Of the file itself the text before counts: it seldom imports from itself, and `spreads`
        tells when it has to be looked at again.
        """
        if document.path is not None and document.data is not None:
            self._texts.setdefault(document.path, document.data)
        root = settings.root or find_root(_name(document))
        key = root, load_rules(settings.rule_files).in_house
        texts = {p: d for p, d in self._texts.items() if p.startswith(os.path.join(root, ""))}
        names = self._names.pop(key, None)
        if names is None or not all(names.hold_for(path, data) for path, data in texts.items()):
            names = Names(Project(root, texts, key[1]))
            for path, data in texts.items():
                names.project.note(path, data)
            for path, data in texts.items():
                names.seen[path] = data, names.project.interface(data)
        # The one that was asked for last stands last.
        self._names[key] = names
        while len(self._names) > _PROJECTS:
            del self._names[next(iter(self._names))]
        return names

    def _helpers(
        self, settings: Settings, wanted: tuple[str, ...]
    ) -> tuple[tuple[tuple[str, bytes | None, bytes], ...], str | None]:
        """The module of helpers, before and after, and why it cannot be written."""
        if not wanted or settings.helpers_module is None:
            return (), None
        path = os.path.abspath(file_of(settings.root or os.getcwd(), settings.helpers_module))
        data = self._open.get(path, _on_disk(path))
        try:
            output = updated(data or b"", list(wanted), load_rules(settings.rule_files))
        except (SyntaxError, ValueError) as error:
            return (), f"{path}: {error}"
        return ((path, data, output),) if output != data else (), None


def _name(document: Document) -> str:
    """What the engine calls a file."""
    return "-" if document.path is None else document.path


def _left(result: FileResult, code: str) -> int:
    """How many places of a rule are left, and comments that suppress nothing."""
    return sum(
        f.rule in (code, "XLA095", SYNTAX) and state_of(f) != "suppressed" for f in result.findings
    )


def _stamp(file: str) -> tuple[int, int] | None:
    """What tells that a file has changed."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _on_disk(path: str) -> bytes | None:
    """The bytes of a file, None where there is none to read."""
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError:
        return None
