"""YAML files: conda environments, and the workflows of GitHub and GitLab.

`yaml` composes them, and its marks tell where each scalar stands. Only block style is edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from xla2tpu.files import variables
from xla2tpu.files.commands import MENTION, Commands
from xla2tpu.files.declared import Declarations, Item, line_at, mentions
from xla2tpu.files.formats import OLD_PYTHON, settled
from xla2tpu.files.places import Place
from xla2tpu.model import Edit

_SCRIPTS = frozenset(("run", "script", "before_script", "after_script"))
_VARIABLES = frozenset(("env", "variables"))
_OLD = re.compile(r"3\.(?:[0-9]|10)(?![0-9])")
_CONDA_PYTHON = re.compile(r"(?:[\w-]+::)?python\s*==?\s*3\.(?:[0-9]|10)(?![0-9])[.*\w]*(?:=\S+)?")
_CONDA_TORCH = re.compile(r"(?:[\w-]+::)?(?:pytorch|torchvision|torchaudio)\s*==?\s*\S+")
_MATRIX = "The job for TPUs needs Python 3.11 or newer: drop the older ones from it."


def documents_of(text: str) -> list[yaml.Node] | None:
    # The scanner of libyaml counts otherwise where a text is not ASCII.
    try:
        return [d for d in yaml.compose_all(text, yaml.SafeLoader) if d is not None]
    except yaml.YAMLError:
        return None


def _unread(text: str) -> list[Place]:
    found = mentions(text, [(0, len(text))], [])
    for place in found:
        place.refuse("does-not-parse", "Mend the file, then run again.").blocks = True
    return found


def inside(text: str, node: yaml.ScalarNode) -> tuple[int, int] | None:
    """Where the text of a scalar stands that is written as it is read; None for others."""
    start, end = node.start_mark.index, node.end_mark.index
    if node.style in ("'", '"'):
        start, end = start + 1, end - 1
    return (start, end) if text[start:end] == node.value else None


def is_shared(text: str, node: yaml.Node, above: yaml.Node) -> bool:
    """Whether a node stands elsewhere than below ``above``, or others may refer to it."""
    start = node.start_mark.index
    return bool(start < above.start_mark.index) or text.startswith(("&", "!"), start)


def entry_of(text: str, node: yaml.Node) -> Edit | None:
    """The edit that takes an item of a block list away, with its line."""
    start, _ = line_at(text, node.start_mark.index)
    if not re.fullmatch(r"[ \t]*-[ \t]+", text[start : node.start_mark.index]):
        return None
    end = line_at(text, max(node.end_mark.index - 1, node.start_mark.index))[1]
    return Edit(start, end, "")


# -- conda ---------------------------------------------------------------------------------------


def conda(text: str) -> list[Place]:
    """The places of an environment of conda."""
    documents = documents_of(text)
    if documents is None:
        return _unread(text)
    declared = Declarations()
    packages: list[yaml.ScalarNode] = []
    settings: list[Place] = []
    spans = []
    for root in documents:
        for key, value in pairs(root):
            if key == "dependencies" and isinstance(value, yaml.SequenceNode):
                for node in value.value:
                    if isinstance(node, yaml.ScalarNode):
                        packages.append(node)
                    for inner, listed in pairs(node):
                        if inner == "pip" and isinstance(listed, yaml.SequenceNode):
                            _pip(text, declared, listed)
            elif key in _VARIABLES:
                settings += settings_of(text, value, None)
    for node in packages:
        span = inside(text, node)
        if span is None:
            continue
        spans.append(span)
        if _CONDA_PYTHON.fullmatch(node.value):
            item = Item(node.value, *span, anchor=line_at(text, span[0])[0])
            sign = re.split(r"3", node.value)[0]
            declared.floors.append((item, f"{sign}3.11"))
    places = declared.places()
    if places:
        places += _conda_torch(text, packages)
    return [*places, *settings, *mentions(text, spans, places)]


def _pip(text: str, declared: Declarations, listed: yaml.SequenceNode) -> None:
    for node in listed.value:
        span = inside(text, node) if isinstance(node, yaml.ScalarNode) else None
        if span is None:
            continue
        gone = entry_of(text, node)
        anchor = line_at(text, span[0])[0]
        option = re.match(r"(?:-f|--find-links|--extra-index-url)[\s=]+(\S+)", node.value)
        if option:
            declared.indices.append(Item(option[1], *span, gone=gone, anchor=anchor))
        elif not node.value.startswith("-"):
            between = text[line_at(text, span[0])[0] : node.start_mark.index]
            newline = "\r\n" if "\r\n" in text else "\n"
            # In quotes there is no room for a second item.
            separator = f"{newline}{between}" if gone and not node.style else None
            declared.items.append(
                Item(node.value, *span, gone=gone, anchor=anchor, separator=separator)
            )


def _conda_torch(text: str, packages: list[yaml.ScalarNode]) -> Iterator[Place]:
    for node in packages:
        span = inside(text, node)
        if span and _CONDA_TORCH.fullmatch(node.value):
            place = Place("pin", *span, node.value, blocks=False, anchor=line_at(text, span[0])[0])
            yield place.refuse(
                "unsupported-form", "Leave torch to pip, which torch_tpu brings along."
            )


def pairs(node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield str(key.value), value


# -- continuous integration ----------------------------------------------------------------------


def ci(text: str) -> list[Place]:
    """The places of a workflow: its scripts, its variables, its images and Python releases."""
    documents = documents_of(text)
    if documents is None:
        return _unread(text)
    walk = Walk(text)
    for root in documents:
        walk.visit(root, ())
    places = walk.commands.places()
    for scope, place in walk.pythons:
        if scope in walk.commands.asking:
            places.append(place)
    return [*places, *mentions(text, walk.others, places)]


class Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.commands = Commands(text)
        self.pythons: list[tuple[str, Place]] = []
        self.others: list[tuple[int, int]] = []
        self.seen: set[int] = set()

    def visit(self, node: yaml.Node, path: tuple[str, ...]) -> None:
        """Look at a node and all below it; what an alias leads to is looked at once."""
        if id(node) in self.seen:
            return
        self.seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._pair(node, key, value, (*path, str(key.value)))
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self.visit(item, path)
        else:
            self.others.append((node.start_mark.index, node.end_mark.index))

    def _pair(
        self, parent: yaml.MappingNode, key: yaml.Node, value: yaml.Node, path: tuple[str, ...]
    ) -> None:  # fmt: skip
        word = path[-1]
        scope = " ".join(path[:2] if path[0] == "jobs" else path[:1])
        if word in _SCRIPTS and not isinstance(value, yaml.MappingNode):
            nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for node in nodes:
                if isinstance(node, yaml.ScalarNode):
                    entry = entry_of(self.text, node) if len(nodes) > 1 else None
                    self.script(node, scope, entry)
                else:
                    self.visit(node, path)
        elif word in _VARIABLES and isinstance(value, yaml.MappingNode):
            self.commands.found += settings_of(self.text, value, (key, parent))
        elif word in ("image", "container") and isinstance(value, yaml.ScalarNode):
            span = (value.start_mark.index, value.end_mark.index)
            anchor = line_at(self.text, span[0])[0]
            if OLD_PYTHON.match(value.value):
                place = Place("python-floor", *span, value.value, anchor=anchor)
                self.pythons.append((scope, place.refuse("python-floor")))
            elif MENTION.search(value.value) or "tpu-pytorch" in value.value:
                place = Place("base-image", *span, value.value, anchor=anchor)
                self.commands.found.append(place.refuse("base-image"))
        elif word == "python-version":
            nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for node in nodes:
                if isinstance(node, yaml.ScalarNode) and _OLD.match(node.value):
                    span = (node.start_mark.index, node.end_mark.index)
                    place = Place("python-floor", *span, node.value, blocks=False)
                    self.pythons.append((scope, place.refuse("python-floor", _MATRIX)))
        else:
            self.visit(value, path)

    def script(self, node: yaml.ScalarNode, scope: str, entry: Edit | None) -> None:
        text = self.text
        start, end = node.start_mark.index, node.end_mark.index
        whole = (entry.start, entry.end) if entry is not None else None
        line = line_at(text, start)[0]
        if node.style == "|":
            header = line_at(text, start)[1]
            self.commands.add(header, end, scope, whole=whole, keep=True)
        elif node.style == ">":
            header = line_at(text, start)[1]
            self.commands.add(header, end, scope, folded=True, anchor=line, whole=whole, keep=True)
        elif inside(text, node) is not None:
            quoted = node.style is not None and node.style in "'\""
            self.commands.add(
                *(inside(text, node) or (0, 0)), scope, anchor=line, whole=whole,
                quoted=True, keep=True, rewritable=not quoted or '"' not in node.value,
            )  # fmt: skip
        else:
            self.commands.mentions(start, end, anchor=line)


def settings_of(
    text: str, value: yaml.Node, owner: tuple[yaml.Node, yaml.MappingNode] | None
) -> list[Place]:
    """The variables of a mapping; one that is left empty goes with its key."""
    pairs = value.value if isinstance(value, yaml.MappingNode) else []
    ours = [
        (k, v) for k, v in pairs
        if isinstance(v, yaml.ScalarNode) and variables.is_variable(str(k.value))
    ]  # fmt: skip
    doomed = [
        (k, v) for k, v in ours
        if (verdict := variables.verdict(k.value, v.value)).reason is None and not verdict.name
    ]  # fmt: skip
    places = []
    for key, node in ours:
        start, end = key.start_mark.index, node.end_mark.index
        first, last = line_at(text, start)[0], line_at(text, end)[1]
        alone = not text[first:start].strip() and key.start_mark.line == node.end_mark.line
        gone = Edit(first, last, "") if alone else None
        if len(doomed) == len(pairs) and gone is not None:
            gone = _with_key(text, value, owner)
        if is_shared(text, node, key):
            gone = None
        place = Place("file-variable", start, end, str(key.value), anchor=first if alone else None)
        span = inside(text, node)
        at = span or (end, end)
        place = settled(place, node.value, (start, key.end_mark.index), gone, at)
        places.append(place)
    return places


def _with_key(
    text: str, value: yaml.Node, owner: tuple[yaml.Node, yaml.MappingNode] | None
) -> Edit | None:
    """The edit for a mapping all of whose entries go."""
    if owner is None or len(owner[1].value) == 1:
        return None
    key = owner[0]
    first, _ = line_at(text, key.start_mark.index)
    if is_shared(text, value, key) or text[first : key.start_mark.index].strip():
        return None
    last = value.value[-1][1].end_mark.index
    return Edit(first, line_at(text, last)[1], "")
