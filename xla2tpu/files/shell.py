"""Shell text as commands and words, each with its place.

Not a shell: it tells words, quotes, comments, continued lines, operators and here documents
apart, which is enough to find the commands that install or start something.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_OPERATORS = ("&&", "||", ";;", "|&", ";", "|", "&", "(", ")")
_OPENING = frozenset(("then", "do", "else", "{", "!", "if", "elif", "while", "until", "time"))
_BLOCKS = frozenset(("then", "do", "else", "{"))
_CLOSING = frozenset(("fi", "done", "else", "elif", "}", "esac"))
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)([\w.]+)\1")
_REDIRECT = re.compile(r"\d*(?:>>?|<)&?[ \t]*")


class Unreadable(ValueError):
    """Quotes or brackets of a shell text do not close."""


@dataclass(slots=True)
class Word:
    """One word. ``value`` is its text without quotes and escapes, expansions as they stand."""

    start: int
    end: int
    raw: str
    value: str

    @property
    def plain(self) -> bool:
        """Whether it stands as it is read, but for quotes around all of it."""
        return self.raw.strip("\"'") == self.value

    @property
    def quote(self) -> str:
        """The quotes around all of it, if there are any."""
        first = self.raw[:1]
        return first if first in "\"'" and len(self.raw) > 1 and self.raw[-1] == first else ""


@dataclass(slots=True)
class Command:
    """A simple command: its words, the operators before and after, where its line begins."""

    words: list[Word] = field(default_factory=list)
    before: str = "\n"
    after: str = "\n"
    line: int = 0

    @property
    def start(self) -> int:
        return self.words[0].start

    @property
    def end(self) -> int:
        return self.words[-1].end


def commands(
    text: str, start: int = 0, end: int | None = None, folded: bool = False, docker: bool = False
) -> tuple[list[Command], list[tuple[int, int, int]]]:
    """The commands between two places of a text, in order. Raises `Unreadable`.

    The second list has the here documents: start, end and the line that begins them.
    ``folded``: newlines are spaces. ``docker``: lines of comment may stand in continued lines.
    """
    return _Reader(text, start, len(text) if end is None else end, folded, docker).read()


class _Reader:
    def __init__(self, text: str, start: int, end: int, folded: bool, docker: bool) -> None:
        self.text, self.at, self.end = text, start, end
        self.folded, self.docker = folded, docker
        self.found: list[Command] = []
        self.here = Command()
        self.heredocs: list[str] = []
        self.bodies: list[tuple[int, int, int]] = []

    def read(self) -> tuple[list[Command], list[tuple[int, int, int]]]:
        self.here.line = self.at
        while self.at < self.end:
            self._step()
        self._finish("\n")
        return self.found, self.bodies

    def _step(self) -> None:
        text, at = self.text, self.at
        char = text[at]
        if char in "\r\n":
            self.at += 2 if text.startswith("\r\n", at) else 1
            if not self.folded:
                self._finish("\n")
                self._skip_heredocs()
                self.here.line = self.at
            return
        if char in " \t\f":
            self.at += 1
            return
        continued = re.compile(r"\\[ \t]*(?:\r\n|\n)").match(text, at) if char == "\\" else None
        if continued:
            self.at = continued.end()
            self._skip_comment_lines()
            return
        if char == "#":
            self._skip_line()
            return
        heredoc = _HEREDOC.match(text, at)
        if heredoc and not text.startswith("<<<", at):
            self.heredocs.append(heredoc[2])
            self.at = heredoc.end()
            return
        redirect = _REDIRECT.match(text, at)
        if redirect:
            self.at = redirect.end()
            if self.at < self.end and text[self.at] not in "\r\n;|&":
                self._word()
            return
        for operator in _OPERATORS:
            if text.startswith(operator, at):
                self.at += len(operator)
                self._finish(operator)
                return
        word = self._word()
        self.here.words.append(word)

    def _finish(self, operator: str) -> None:
        line = self.here.line
        if self.here.words:
            self.here.after = operator
            self.found.append(self.here)
            self.here = Command(before=operator, line=line)
        elif operator != "\n" or self.here.before == "\n":
            self.here.before = operator

    def _skip_line(self) -> None:
        while self.at < self.end and self.text[self.at] not in "\r\n":
            self.at += 1

    def _skip_comment_lines(self) -> None:
        comment = re.compile(r"[ \t]*#[^\n]*\n")
        while self.docker and (match := comment.match(self.text, self.at, self.end)):
            self.at = match.end()

    def _skip_heredocs(self) -> None:
        for delimiter in self.heredocs:
            closing = re.compile(rf"^[ \t]*{re.escape(delimiter)}[ \t]*$", re.M)
            match = closing.search(self.text, self.at, self.end)
            if match is None:
                raise Unreadable(f"the here document {delimiter} does not end")
            self.bodies.append((self.at, match.start(), self.here.line))
            self.at = match.end()
        self.heredocs = []

    def _word(self) -> Word:
        start = self.at
        parts: list[str] = []
        while self.at < self.end:
            char = self.text[self.at]
            if char in " \t\f\r\n;|&()":
                break
            if char in "<>":
                # What is meant by `pip install torch>=2.0` is not what the shell does.
                if not self.text.startswith("=", self.at + 1) or self.at == start:
                    break
                parts.append(self.text[self.at : self.at + 2])
                self.at += 2
            elif char in "'\"":
                parts.append(self._quoted(char))
            elif char == "\\":
                continued = re.compile(r"\\(\r\n|\n)").match(self.text, self.at)
                if continued:
                    if self.at != start:
                        break
                    self.at = continued.end()
                    continue
                parts.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char == "`":
                parts.append(self._until("`"))
            elif self.text.startswith(("$(", "${"), self.at):
                parts.append(self._expansion())
            else:
                parts.append(char)
                self.at += 1
        self.at = min(self.at, self.end)
        if self.at == start:
            self.at += 1
        return Word(start, self.at, self.text[start : self.at], "".join(parts))

    def _until(self, closing: str) -> str:
        found = self.text.find(closing, self.at + 1, self.end)
        if found < 0:
            raise Unreadable(f"{closing} does not close")
        start, self.at = self.at, found + 1
        return self.text[start : self.at]

    def _quoted(self, quote: str) -> str:
        if quote == "'":
            return self._until("'")[1:-1]
        parts: list[str] = []
        self.at += 1
        while self.at < self.end:
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return "".join(parts)
            if char == "\\":
                escaped = self.text[self.at + 1 : self.at + 2]
                parts.append(escaped if escaped in '"\\$`' else char + escaped)
                self.at += 2
            elif self.text.startswith(("$(", "${"), self.at):
                parts.append(self._expansion())
            else:
                parts.append(char)
                self.at += 1
        raise Unreadable("a quote does not close")

    def _expansion(self) -> str:
        start = self.at
        opening = self.text[self.at + 1]
        closing = ")" if opening == "(" else "}"
        self.at += 2
        depth = 1
        while self.at < self.end:
            char = self.text[self.at]
            if char in "'\"":
                self._quoted(char)
                continue
            if char == "\\":
                self.at += 2
                continue
            depth += (char == opening) - (char == closing)
            self.at += 1
            if depth == 0:
                return self.text[start : self.at]
        raise Unreadable(f"{opening} does not close")


def body(command: Command) -> list[Word]:
    """The words of a command behind the words of the shell's own grammar."""
    words = command.words
    while words and words[0].raw in _OPENING:
        words = words[1:]
    return words


def empties_block(found: list[Command], index: int) -> bool:
    """Whether a block of the shell's grammar would be empty without this command."""
    command = found[index]
    first = command.words[0].raw in _BLOCKS
    opened = first or (index > 0 and found[index - 1].words[-1].raw in _BLOCKS)
    closed = index + 1 < len(found) and found[index + 1].words[0].raw in _CLOSING
    return opened and closed
