"""`tox.ini`: what its environments install, set and run."""

from __future__ import annotations

import re

from xla2tpu.files import requirements, variables
from xla2tpu.files.commands import Commands
from xla2tpu.files.declared import Declarations, Item, line_at, mentions
from xla2tpu.files.formats import settled
from xla2tpu.files.places import Place
from xla2tpu.model import Edit

_SECTION = re.compile(r"\[([^\]\r\n]+)\]")
_OPTION = re.compile(r"([^\s=:][^=:\r\n]*?)[ \t]*[=:][ \t]*")
# Only in environments with these factors.
_FACTORS = re.compile(r"[\w{},.!-]+:[ \t]+(?!//)")
_SETTING = re.compile(r"([A-Za-z_]\w*)([ \t]*=[ \t]*)")
_INDEX = re.compile(r"(?:-f|--find-links|--extra-index-url|-i|--index-url)(?:\s+|=)(\S+)")
_OLD = re.compile(r"python3\.(?:[0-9]|10)\Z")
_COMMANDS = frozenset(("commands", "commands_pre", "commands_post", "install_command"))


def tox_ini(text: str) -> list[Place]:
    """The places of the file; each section is an environment of its own."""
    reader = _Reader(text)
    reader.read()
    reader.run_commands()
    places = reader.declared.places() + reader.settings + reader.commands.places()
    asking = {i.scope for i in reader.declared.items if requirements.asks(i.text)}
    asking |= reader.commands.asking
    places += [place for scope, place in reader.pythons if scope in asking]
    return [*places, *mentions(text, reader.spans, places)]


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.declared = Declarations()
        self.commands = Commands(text)
        self.settings: list[Place] = []
        self.pythons: list[tuple[str, Place]] = []
        self.spans: list[tuple[int, int]] = []
        # Where the commands of an option stand, which may go over several lines.
        self.running: list[tuple[str, int, int]] = []

    def read(self) -> None:
        """Read the file line by line."""
        section = option = ""
        for match in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n|\Z)", self.text):
            line = match[0].rstrip()
            if not line.strip() or line.lstrip()[0] in "#;":
                continue
            start = match.start()
            header = _SECTION.match(line)
            if header:
                section, option = header[1].strip(), ""
                continue
            at, alone = start + len(line) - len(line.lstrip()), True
            if not line[0].isspace():
                key = _OPTION.match(line)
                option = key[1].strip() if key else ""
                at, alone = start + (key.end() if key else 0), False
            end = start + len(line)
            if at < end:
                self.line(section, option, at, end, match.span() if alone else None)

    def line(
        self, section: str, option: str, at: int, end: int, whole: tuple[int, int] | None
    ) -> None:
        """One line of a value; ``whole`` is all of it where the key stands on another."""
        text = self.text
        if not section.startswith("testenv"):
            self.spans.append((at, end))
            return
        factors = _FACTORS.match(text, at, end)
        start = factors.end() if factors else at
        gone = Edit(*whole, "") if whole else None
        anchor = line_at(text, at)[0]
        if option in _COMMANDS:
            if self.running and self.running[-1][0] == section and whole and not factors:
                self.running[-1] = (section, self.running[-1][1], end)
            else:
                self.running.append((section, start, end))
            return
        self.spans.append((start, end))
        if option == "deps":
            self.requirement(section, start, end, gone, anchor)
        elif option in ("setenv", "set_env"):
            self.setting(start, end, gone, anchor)
        elif option in ("basepython", "base_python") and _OLD.fullmatch(text[start:end]):
            place = Place("python-floor", start, end, text[start:end], anchor=anchor)
            self.pythons.append((section, place.refuse("python-floor")))

    def requirement(
        self, section: str, start: int, end: int, gone: Edit | None, anchor: int
    ) -> None:
        """One line of what an environment installs."""
        value = re.sub(r"\s#.*", "", self.text[start:end]).rstrip()
        index = _INDEX.match(value)
        last = start + len(value)
        if index:
            self.declared.indices.append(
                Item(index[1], start, last, section, gone=gone, anchor=anchor)
            )
        elif not value.startswith("-"):
            between = self.text[line_at(self.text, start)[0] : start]
            separator = f"{self.newline}{between}" if gone else None
            self.declared.items.append(
                Item(value, start, last, section, gone, anchor, separator=separator)
            )

    def setting(self, start: int, end: int, gone: Edit | None, anchor: int) -> None:
        """One variable that an environment sets."""
        match = _SETTING.match(self.text, start, end)
        if match is None or not variables.is_variable(match[1]):
            return
        place = Place("file-variable", start, end, match[1], anchor=anchor)
        value = self.text[match.end() : end]
        # What tox puts into braces is not known.
        known = "$" if "{" in value else value
        self.settings.append(settled(place, known, match.span(1), gone, (match.end(), end)))

    def run_commands(self) -> None:
        """Read the commands, which are no shell's, but words all the same."""
        for section, start, end in self.running:
            self.commands.add(start, end, section, keep=True)
