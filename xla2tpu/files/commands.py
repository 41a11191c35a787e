"""Commands that install, set up or start torch_xla, wherever a shell text stands.

Shell scripts, instructions of container files, steps of CI, lines of notebooks: all of them
hand their shell texts to `Commands`, and take its places once the whole file has been read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from xla2tpu.files import requirements, variables
from xla2tpu.files.places import Place
from xla2tpu.files.shell import Command, Unreadable, Word, body, commands, empties_block
from xla2tpu.model import Applicability, Edit

MENTION = re.compile(
    r"(?<![\w-])torch[_-]xla(?![\w-])|github\.com/pytorch/xla\b|pytorch-xla-env-setup"
    r"|gcr\.io/tpu-pytorch/\S*|[\w.-]*docker\.pkg\.dev/tpu-pytorch\S*"
    r"|storage\.googleapis\.com/(?:pytorch-xla-releases|tpu-pytorch)/\S*|\bxla_(?:dist|spawn)\.py"
)
ENVIRONMENT = """eval "$(python -m torch.tpu.distributed | sed 's/^/export /')\""""
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=")
_READ = re.compile(r"\$\{?([A-Za-z_]\w*)")
_PIP = re.compile(r"(?:.*/)?pip[\d.]*\Z")
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*\Z|\$\{?PYTHON\w*\}?\Z")
_SHELLS = frozenset(("bash", "sh", "zsh", "gcloud", "ssh", "docker", "su", "xpk", "srun"))
# Options of pip and uv that the next word belongs to.
_VALUED = frozenset(
    (
        *("-f", "--find-links", "-i", "--index-url", "--extra-index-url", "--index"),
        *("--default-index", "-r", "--requirement", "-c", "--constraint", "-e", "--editable"),
        *("-t", "--target", "--prefix", "--root", "--src", "--cache-dir", "--log", "--python"),
        *("--progress-bar", "--timeout", "--retries", "--upgrade-strategy", "--no-binary"),
        *("--only-binary", "--platform", "--python-version", "--implementation", "--abi"),
        *("--trusted-host", "--proxy", "--config-settings", "--global-option"),
        *("--group", "--extra"),
    )
)
_FETCHERS = frozenset(("curl", "wget", "gsutil"))
_SAYERS = frozenset(("echo", "printf", "grep", "egrep", "rg", "sed", "pkill"))
_SETUP = re.compile(r"pytorch-xla-env-setup\.py|pytorch/xla/\S*env-setup\.py")
_RUNTIME = re.compile(r"tpu-vm-(?:v4-)?pt-[\w.]+|tpu-vm-pt\S*")
_XLA_DIST = "Run `{}` on each worker, by gcloud compute tpus tpu-vm ssh --worker=all --command."
_TORCHRUN = "torchrun --nnodes=... --nproc_per_node=..."


@dataclass(slots=True)
class _Install:
    """One command that installs, in the environment ``scope``."""

    scope: str
    found: list[Command]
    index: int
    words: list[Word]
    rewritable: bool
    anchor: int | None
    whole: tuple[int, int] | None


@dataclass(slots=True)
class Commands:
    """Collects the shell texts of one file. ``text`` is that of its document."""

    text: str
    found: list[Place] = field(default_factory=list)
    installs: list[_Install] = field(default_factory=list)
    covered: list[tuple[int, int]] = field(default_factory=list)
    asking: set[str] = field(default_factory=set)
    # Environments that get jax[tpu], which needs libtpu from somewhere.
    sharing: set[str] = field(default_factory=set)

    def add(
        self, start: int, end: int, scope: str = "", *, folded: bool = False,
        docker: bool = False, rewritable: bool = True, anchor: int | None = -1,
        whole: tuple[int, int] | None = None, quoted: bool = False, keep: bool = False,
        prefix: str = "",
    ) -> None:  # fmt: skip
        """Read one shell text. ``anchor``: where a marker stands, the line of each command (-1)
        or none. ``whole``: what goes where the text has one command and that goes; with
        ``keep`` and no ``whole`` such a command stays. ``prefix``: a word that stands elsewhere.
        """
        try:
            found, heredocs = commands(self.text, start, end, folded, docker)
        except Unreadable:
            self.mentions(start, end, anchor=None if anchor == -1 else anchor)
            return
        if prefix and found:
            found[0].words.insert(0, Word(start, start, prefix, prefix))
        bounds = whole or ((-1, -1) if keep else None)
        for index, command in enumerate(found):
            here = command.line if anchor == -1 else anchor
            _Part(self, found, index, scope, rewritable, here, bounds, quoted).read()
        self._reads(start, end, anchor)
        for first, last, line in heredocs:
            self.mentions(first, last, anchor=line if anchor == -1 else anchor)
        for command in found:
            here = command.line if anchor == -1 else anchor
            words = body(command)
            blocks = not words or words[0].value not in _SAYERS
            self.mentions(command.start, command.end, anchor=here, blocks=blocks)

    def spaced(
        self, name: str, start: int, end: int, anchor: int | None, whole: tuple[int, int] | None
    ) -> None:
        """The setting of a variable that has a space for a sign: ``NAME value``."""
        if not variables.is_variable(name):
            return
        value = self.text[start:end].split()[1]
        place = Place("file-variable", start, end, name, anchor=anchor)
        verdict = variables.verdict(name, value)
        place.applicability = verdict.applicability
        at = self.text.index(name, start)
        gone = Edit(*whole, "") if whole else None
        renamed = Edit(at, at + len(name), verdict.name) if verdict.name else gone
        if verdict.reason is not None or renamed is None:
            place.refuse(verdict.reason or "unsupported-form", verdict.advice)
        else:
            place.edits = (renamed,)
        self.found.append(place)

    def _reads(self, start: int, end: int, anchor: int | None) -> None:
        """Where the value of a variable is asked for."""
        for match in _READ.finditer(self.text, start, end):
            if not variables.is_variable(match[1]) or self._in_comment(match.start(), start):
                continue
            line = self.text.rfind("\n", 0, match.start()) + 1
            here = max(line, start) if anchor == -1 else anchor
            place = Place("file-variable", match.start(), match.end(), match[1], anchor=here)
            self.found.append(place.refuse("environment"))

    def _in_comment(self, at: int, start: int) -> bool:
        line = self.text[max(start, self.text.rfind("\n", 0, at) + 1) : at]
        return re.search(r"(?:^|\s)#", line) is not None

    def mentions(
        self, start: int, end: int, anchor: int | None = None, blocks: bool = True,
        advice: str | None = None,
    ) -> None:  # fmt: skip
        """Report what names torch_xla and is no place yet, once for each line."""
        said: set[int] = set()
        for match in MENTION.finditer(self.text, start, end):
            line = self.text.rfind("\n", 0, match.start())
            taken = any(a <= match.start() < b for a, b in self.covered)
            taken = taken or any(p.start <= match.start() < p.end for p in self.found)
            if taken or line in said or self._in_comment(match.start(), start):
                continue
            said.add(line)
            place = Place(
                "file-mention", match.start(), match.end(), match[0], blocks=blocks, anchor=anchor
            )
            self.found.append(place.refuse("unsupported-form", advice))

    def places(self) -> list[Place]:
        """All places of the texts that were read."""
        for install in self.installs:
            words = _requirements(install.words)
            if any(requirements.asks(w.value) for w, _ in words):
                self.asking.add(install.scope)
            if any(requirements.name_of(w.value) == "jax" and "tpu" in w.value for w, _ in words):
                self.sharing.add(install.scope)
        for install in self.installs:
            if install.scope in self.asking:
                _Installation(self, install).read()
        # Mentions were looked for before it was known what installs torch_xla.
        taken = [(p.start, p.end) for p in self.found if p.detector != "file-mention"]
        return [
            p for p in self.found
            if p.detector != "file-mention"
            or not any(a <= p.start < b for a, b in (*taken, *self.covered))
        ]  # fmt: skip

    def without(
        self, found: list[Command], index: int, whole: tuple[int, int] | None
    ) -> list[Edit] | None:
        """The edits that take a command away; None where it cannot go by itself."""
        command = found[index]
        words = body(command)
        if not words:
            return None
        alone = command.before == "\n" and command.after == "\n"
        if whole is not None and len(found) == 1:
            return None if whole[0] < 0 else [Edit(*whole, "")]
        if empties_block(found, index):
            return [Edit(words[0].start, command.end, ":")]
        if words[0] is not command.words[0]:
            return None
        if alone:
            start = self.text.rfind("\n", 0, command.start) + 1
            end = self.text.find("\n", command.end)
            end = len(self.text) if end < 0 else end + 1
            rest = self.text[command.end : end].strip()
            if self.text[start : command.start].strip() or (rest and rest[0] != "#"):
                return None
            return [Edit(start, end, "")]
        if command.after in ("&&", ";") and index + 1 < len(found):
            return [Edit(command.start, found[index + 1].start, "")]
        if command.after in ("\n", ")") and command.before in ("&&", ";") and index:
            return [Edit(found[index - 1].end, command.end, "")]
        return None


@dataclass(slots=True)
class _Part:
    """One command of a text."""

    it: Commands
    found: list[Command]
    index: int
    scope: str
    rewritable: bool
    anchor: int | None
    whole: tuple[int, int] | None
    quoted: bool

    def read(self) -> None:
        """Find the places of the command."""
        words = self._assignments(body(self.found[self.index]))
        while words and words[0].value in ("sudo", "env", "nohup", "exec", "command", "eval"):
            words = words[1:]
            while words and words[0].value in ("-E", "-H", "-n"):
                words = words[1:]
            words = self._assignments(words, self.found[self.index].words[0])
        if not words:
            return
        program = os.path.basename(words[0].value)
        arguments = words[1:]
        if program == "export" or (program == "unset" and arguments):
            self._exports(words)
        self._options(program, arguments)
        installing = _installing(words)
        if installing is not None:
            install = _Install(
                self.scope, self.found, self.index, installing, self.rewritable, self.anchor,
                self.whole,
            )  # fmt: skip
            self.it.installs.append(install)
            return
        if _uninstalls(words):
            self.it.covered.append((words[0].start, words[-1].end))
            return
        if _sets_up(words):
            self._setup(program, words)
            return
        self._launch(program, words)

    def _place(self, detector: str, start: int, end: int, api: str) -> Place:
        place = Place(detector, start, end, api, anchor=self.anchor)
        self.it.found.append(place)
        return place

    # -- variables -----------------------------------------------------------------------------

    def _assignments(self, words: list[Word], before: Word | None = None) -> list[Word]:
        """Take the assignments at the front; the words behind them."""
        front = 0
        while front < len(words) and _ASSIGNED.match(words[front].raw):
            front += 1
        rest = words[front:]
        for position, word in enumerate(words[:front]):
            if rest or before is not None:
                following = words[position + 1] if position + 1 < len(words) else None
                edit = Edit(word.start, following.start, "") if following else None
                edits = [edit] if edit else None
            else:
                edits = self._gone(words[:front], word)
            self.variable(word, edits)
        return rest

    def _gone(self, among: list[Word], word: Word) -> list[Edit] | None:
        """The edits that take one of several settings of a command away, or the whole command."""
        doomed = [w for w in among if self._goes(w)]
        if len(doomed) == len(among):
            return self.it.without(self.found, self.index, self.whole)
        before = max(
            (w.end for w in self.found[self.index].words if w.end <= word.start), default=None
        )
        if before is not None:
            return [Edit(before, word.end, "")]
        after = next((w.start for w in self.found[self.index].words if w.start >= word.end), None)
        return None if after is None else [Edit(word.start, after, "")]

    def _goes(self, word: Word) -> bool:
        name, _, value = word.value.partition("=")
        if not variables.is_variable(name):
            return False
        verdict = variables.verdict(name, value)
        return verdict.applicability is not Applicability.MANUAL and verdict.name is None

    def _exports(self, words: list[Word]) -> None:
        names = [w for w in words[1:] if not w.value.startswith("-")]
        for word in names:
            if words[0].value == "unset":
                if variables.is_variable(word.value):
                    edits = self._unset(names, word)
                    self._settle(word, word.value, variables.Verdict(Applicability.SAFE), edits)
            else:
                self.variable(word, self._gone(names, word))

    def _unset(self, names: list[Word], word: Word) -> list[Edit] | None:
        if all(variables.is_variable(w.value) for w in names):
            return self.it.without(self.found, self.index, self.whole)
        before = max(w.end for w in self.found[self.index].words if w.end <= word.start)
        return [Edit(before, word.end, "")]

    def variable(self, word: Word, gone: list[Edit] | None, offset: int = 0) -> None:
        """The setting of a variable, ``NAME=value`` or ``NAME``, from ``offset`` of a word on."""
        name, assigned, value = word.value[offset:].partition("=")
        if not variables.is_variable(name):
            return
        verdict = variables.verdict(name, value if assigned and "$" not in value else None)
        if verdict.name is None:
            self._settle(word, name, verdict, gone, offset)
            return
        at = word.raw.find(name)
        start = word.start + at
        edits = [Edit(start, start + len(name), verdict.name)]
        if verdict.value is not None and word.raw[at + len(name) + 1 :] == value != verdict.value:
            edits.append(Edit(start + len(name) + 1, word.end, verdict.value))
        self._settle(word, name, verdict, edits, offset)

    def _settle(
        self, word: Word, name: str, verdict: variables.Verdict, edits: list[Edit] | None,
        offset: int = 0,
    ) -> None:  # fmt: skip
        place = self._place("file-variable", word.start, word.end, name)
        place.applicability = verdict.applicability
        if verdict.reason is not None:
            place.refuse(verdict.reason, verdict.advice)
        elif edits is None or not self.rewritable:
            place.refuse("unsupported-form", verdict.advice)
        else:
            place.edits = tuple(edits)

    # -- options and commands in words ---------------------------------------------------------

    def _options(self, program: str, arguments: list[Word]) -> None:
        """Variables and commands that are handed to other programs."""
        contained = program in ("docker", "podman", "nerdctl")
        previous: Word | None = None
        for word in arguments:
            option = previous.value if previous is not None else ""
            inline = re.match(r"--(?:env|command)=|-e(?=[A-Z])", word.value)
            if option in ("-e", "--env") and contained and previous is not None:
                self.variable(word, self._cut(previous, word))
            elif inline and inline[0] != "--command=" and contained:
                self.variable(word, self._cut(word, word), inline.end())
            elif program in _SHELLS and (option in ("-c", "-lc", "--command") or inline):
                self._inner(word, inline.end() if inline else 0)
            runtime = _RUNTIME.search(word.value)
            if runtime and program == "gcloud":
                at = word.start + max(word.raw.find(runtime[0]), 0)
                place = self._place("base-image", at, at + len(runtime[0]), runtime[0])
                place.refuse(
                    "base-image",
                    "Take the base runtime of the TPU's generation, such as v2-alpha-tpuv6e.",
                )
            previous = word

    def _cut(self, first: Word, last: Word) -> list[Edit]:
        before = max(w.end for w in self.found[self.index].words if w.end <= first.start)
        return [Edit(before, last.end, "")]

    def _inner(self, word: Word, offset: int) -> None:
        """A command line in a word: read where quotes are all that stands around it."""
        head = word.raw[:offset]
        inner = word.raw[offset:]
        quote = inner[:1]
        if quote not in ("'", '"') or inner[-1:] != quote or "\\" in inner or head.count(quote):
            if quote in ("'", '"'):
                self.it.mentions(word.start, word.end, self.anchor)
            return
        start = word.start + offset + 1
        self.it.add(
            start, word.end - 1, self.scope, rewritable=self.rewritable, anchor=self.anchor,
            quoted=True,
        )  # fmt: skip

    # -- setting up and starting ---------------------------------------------------------------

    def _setup(self, program: str, words: list[Word]) -> None:
        place = self._place(
            "setup-script", words[0].start, words[-1].end, "pytorch-xla-env-setup.py"
        )
        place.group = f"{self.scope}:setup"
        if program in _FETCHERS:
            edits = self.it.without(self.found, self.index, self.whole)
        elif _PYTHON.match(words[0].value):
            edits = [Edit(words[0].start, words[-1].end, "pip install torch_tpu")]
        else:
            edits = None
        if edits is None or not self.rewritable:
            place.refuse("unsupported-form")
        else:
            place.edits = tuple(edits)

    def _launch(self, program: str, words: list[Word]) -> None:
        values = [w.value for w in words]
        if program == "accelerate" and "launch" in values and "--tpu" in values:
            at = words[values.index("--tpu")]
            place = self._place("launch-line", words[0].start, at.end, "accelerate launch --tpu")
            place.refuse(
                "no-equivalent",
                "accelerate cannot start TorchTPU: start a port to DDP or FSDP2 by torchrun.",
            )
            return
        module = next((w for w in words if w.value.startswith("torch_xla.distributed.")), None)
        if module is not None and "-m" in values:
            place = self._place("launch-line", words[0].start, module.end, module.value)
            place.refuse("no-equivalent", _XLA_DIST.format(_TORCHRUN))
            return
        script = next((w for w in words if os.path.basename(w.value) == "xla_spawn.py"), None)
        if script is not None and _PYTHON.match(words[0].value):
            self._spawn(words, words.index(script))

    def _spawn(self, words: list[Word], at: int) -> None:
        """``python xla_spawn.py --num_cores 8 run.py ...``, as torchrun starts it."""
        place = self._place("launch-line", words[0].start, words[at].end, "xla_spawn.py")
        rest = words[at + 1 :]
        cores = "1"
        if rest and rest[0].value.startswith("--num_cores="):
            cores, rest = rest[0].value.partition("=")[2], rest[1:]
        elif len(rest) > 1 and rest[0].value == "--num_cores":
            cores, rest = rest[1].raw, rest[2:]
        command = self.found[self.index]
        first = command.words[0]
        line = self.it.text.rfind("\n", 0, first.start) + 1
        indent = self.it.text[line : first.start]
        alone = (
            command.before == "\n" and not indent.strip() and self.it.text[line - 1 : line] in "\n"
        )
        if at != 1 or not rest or rest[0].value.startswith("-") or not alone or self.quoted:
            place.refuse("unsupported-form")
            return
        if not self.rewritable:
            place.refuse("unsupported-form")
            return
        newline = "\r\n" if self.it.text[:line].endswith("\r\n") else "\n"
        place.applicability = Applicability.UNSAFE
        place.edits = (
            Edit(line, line, f"{indent}{ENVIRONMENT}{newline}"),
            Edit(words[0].start, rest[0].start, f"torchrun --nproc_per_node={cores} "),
        )


class _Installation:
    """What becomes of the arguments of one installing command."""

    def __init__(self, it: Commands, install: _Install) -> None:
        self.it, self.install = it, install
        self.command = install.found[install.index]
        self.group = f"{install.scope}:install"

    def read(self) -> None:
        """Find the places, where the environment is one that gets torch_xla."""
        words = self.install.words
        wanted = _requirements(words)
        names = [requirements.name_of(w.value) for w, _ in wanted]
        shared = self.install.scope in self.it.sharing
        nightly = any(w.value == "--pre" for w in words)
        left = 0
        made: list[tuple[Place, Word, str]] = []
        for word, editable in wanted:
            verdict = _verdict(word)
            if verdict is None or editable:
                left += 1
                continue
            place = Place(
                verdict.detector, word.start, word.end, verdict.api,
                applicability=verdict.applicability, anchor=self.install.anchor, group=self.group,
            )  # fmt: skip
            self.it.found.append(place)
            if verdict.reason is not None:
                place.refuse(verdict.reason, verdict.advice)
            elif verdict.detector == "runtime-package" and shared:
                place.refuse("shared-dependency").group = ""
            elif nightly and verdict.detector == "pin":
                place.refuse("unsupported-form", "Take releases, not nightly builds, of torch.")
            elif not self.install.rewritable:
                place.refuse("unsupported-form")
            else:
                also = verdict.also if verdict.also not in names else None
                new = f"{verdict.new} {also}" if also else verdict.new
                if nightly:
                    place.applicability = Applicability.UNSAFE
                made.append((place, word, new))
                left += bool(verdict.new)
            left += not place.fixable
        indices = self._indices(words, shared)
        if not left and made:
            whole = self.it.without(self.install.found, self.install.index, self.install.whole)
            for place, _, _ in made:
                if whole is None:
                    # What is installed beside it can be mended all the same.
                    place.refuse("unsupported-form").group = ""
                else:
                    place.edits = tuple(whole)
            return
        for place, word, new in made:
            place.edits = (self._replaced(word, new),)
        for place, edit in indices:
            place.edits = (edit,)

    def _replaced(self, word: Word, new: str) -> Edit:
        if new:
            quote = word.quote if ";" in new or "<" in new or ">" in new else ""
            return Edit(word.start, word.end, f"{quote}{new}{quote}")
        before = max(w.end for w in self.command.words if w.end <= word.start)
        return Edit(before, word.end, "")

    def _indices(self, words: list[Word], shared: bool) -> list[tuple[Place, Edit]]:
        """Addresses of wheels that only torch_xla needed."""
        made = []
        for position, word in enumerate(words):
            option, assigned, value = word.value.partition("=")
            if option in ("-f", "--find-links", "--extra-index-url", "-i", "--index-url"):
                last = word if assigned else (words[position + 1 : position + 2] or [word])[0]
                url = value if assigned else last.value
            elif word.value.startswith("-fhttp"):
                last, url = word, word.value[2:]
            else:
                continue
            jax = requirements.is_jax_index(url)
            if not jax and not requirements.is_libtpu_index(url):
                continue
            place = Place(
                "wheel-index", word.start, last.end, url, anchor=self.install.anchor,
                group="" if shared else self.group,
            )  # fmt: skip
            if jax:
                place.applicability = Applicability.UNSAFE
            self.it.found.append(place)
            before = max(w.end for w in self.command.words if w.end <= word.start)
            if shared:
                place.refuse("shared-dependency")
            elif not self.install.rewritable:
                place.refuse("unsupported-form")
            else:
                made.append((place, Edit(before, last.end, "")))
        return made


def _verdict(word: Word) -> requirements.Verdict | None:
    """What becomes of an argument; a version that a variable gives is not known."""
    value = word.value
    if "$" not in value or "://" in value:
        return requirements.verdict(value, pinned=False)
    name = requirements.name_of(value)
    if name == requirements.TORCH_XLA and not value.startswith("$"):
        head = re.match(r"[\w.-]+(\[[\w,. -]*\])?", value)
        return requirements.verdict(head[0] if head else value, pinned=False)
    if name in requirements.COMPANIONS:
        return requirements.Verdict("pin", name, Applicability.UNSAFE, name)
    return None


def _installing(words: list[Word]) -> list[Word] | None:
    """The arguments of a command that installs packages of Python; None for other commands."""
    values = [w.value for w in words]
    if _PYTHON.match(values[0]) and values[1:3] == ["-m", "pip"]:
        rest = words[3:]
    elif _PIP.match(values[0]):
        rest = words[1:]
    elif os.path.basename(values[0]) == "uv" and values[1:2] == ["pip"]:
        rest = words[2:]
    elif os.path.basename(values[0]) == "uv" and values[1:2] == ["add"]:
        return words[2:]
    else:
        return None
    for position, word in enumerate(rest):
        if word.value == "install":
            return rest[position + 1 :]
        if not word.value.startswith("-"):
            return None
    return None


def _sets_up(words: list[Word]) -> bool:
    """Whether a command fetches or runs torch_xla's old script for Colab and Kaggle."""
    values = [w.value for w in words]
    named = any(_SETUP.search(v) for v in values)
    return named or ("--version" in values and any(v.endswith("env-setup.py") for v in values))


def _uninstalls(words: list[Word]) -> bool:
    values = [w.value for w in words]
    pip = any(_PIP.match(v) for v in values[:3])
    return pip and any(v in ("uninstall", "show", "download", "freeze", "list") for v in values)


def _requirements(words: list[Word]) -> list[tuple[Word, bool]]:
    """The arguments that are requirements, and whether each is an editable folder."""
    found = []
    option = ""
    for word in words:
        if option in _VALUED:
            if option in ("-e", "--editable"):
                found.append((word, True))
            option = ""
        elif word.value.startswith("-"):
            option = word.value
        else:
            found.append((word, False))
    return found
