"""Other YAML files, told apart by what stands in them: Kubernetes, compose, accelerate.

Of containers the image, the variables and the commands are read, each container as an environment
of its own. In all others torch_xla is only searched for by its name.
"""

from __future__ import annotations

import re

import yaml

from xla2tpu.files import variables
from xla2tpu.files.commands import MENTION
from xla2tpu.files.declared import line_at, mentions
from xla2tpu.files.formats import settled
from xla2tpu.files.places import Place
from xla2tpu.files.yamls import Walk, documents_of, entry_of, inside, is_shared, pairs, settings_of
from xla2tpu.kinds import Kind, kind_of
from xla2tpu.model import Edit

_CONTAINERS = frozenset(("containers", "initContainers", "ephemeralContainers"))
_ACCELERATE = frozenset(
    (
        "compute_environment",
        "num_processes",
        "num_machines",
        "machine_rank",
        "main_training_function",
    )
)
_SERVERS = re.compile(r"vllm|jetstream|maxtext|JAX_PLATFORMS|optimum-tpu|text-generation", re.I)
_THEIRS = "Ask the makers of what the container runs; it is no program of this project."
# In characters. What is larger is data, and takes its parser seconds.
_LARGEST = 500_000
_NO_LAUNCHER = (
    "accelerate has no launcher for TorchTPU: start the script by torchrun, with DDP or FSDP2."
)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(=)(.*)\Z", re.S)


def manifest(text: str) -> list[Place]:
    """The places of a YAML file that is neither a workflow nor an environment of conda."""
    if len(text) > _LARGEST:
        return mentions(text, [(0, len(text))], [])
    documents = documents_of(text)
    if documents is None:
        # Templates are no YAML before they are filled in.
        return mentions(text, [(0, len(text))], [], blocks=True)
    reader = _Reader(text)
    for root in documents:
        reader.document(root)
    places = reader.walk.commands.places()
    return [*places, *mentions(text, reader.walk.others, places)]


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.walk = Walk(text)
        self.found = self.walk.commands.found
        self.containers = 0
        # What aliases lead to, which may be what they stand in, is read once.
        self.searched: set[int] = set()
        self.set: set[int] = set()

    def document(self, root: yaml.Node) -> None:
        """Read one document by its kind."""
        keys = {key for key, _ in pairs(root)}
        if "services" in keys:
            for _, services in [(k, v) for k, v in pairs(root) if k == "services"]:
                for _, service in pairs(services):
                    self.container(service)
        elif keys & {"distributed_type", "fsdp_config"} and keys & _ACCELERATE:
            self.accelerate(root)
        else:
            self.objects(root)

    def scalars(self, node: yaml.Node) -> None:
        """Note all texts below a node, in which torch_xla may only be named."""
        if id(node) in self.searched:
            return
        self.searched.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            self.walk.others.append((node.start_mark.index, node.end_mark.index))
        elif isinstance(node, yaml.MappingNode):
            for _, value in node.value:
                self.scalars(value)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self.scalars(item)

    # -- Kubernetes and compose ------------------------------------------------------------------

    def objects(self, node: yaml.Node) -> None:
        """Find containers, what has variables as they do, and the files of a ConfigMap.

        Objects of operators and values of charts have no `containers`, but the same `env`.
        """
        if id(node) in self.walk.seen:
            return
        self.walk.seen.add(id(node))
        if any(k == "env" and isinstance(v, yaml.SequenceNode) for k, v in pairs(node)):
            self.walk.seen.discard(id(node))
            self.container(node)
            return
        is_map = any(k == "kind" and v.value == "ConfigMap" for k, v in pairs(node))
        for key, value in pairs(node):
            if key in _CONTAINERS and isinstance(value, yaml.SequenceNode):
                for item in value.value:
                    self.container(item)
            elif key == "data" and is_map:
                self.found += settings_of(self.text, value, None)
                for name, file in pairs(value):
                    if not variables.is_variable(name):
                        self.file(name, file)
            else:
                self.objects(value)
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self.objects(item)
        elif isinstance(node, yaml.ScalarNode):
            self.scalars(node)

    def file(self, name: str, node: yaml.Node) -> None:
        """A file that a ConfigMap holds: shell scripts are read, others searched."""
        if kind_of(name) is Kind.SHELL and isinstance(node, yaml.ScalarNode) and node.style == "|":
            self.walk.script(node, f"file {name}", None)
        else:
            self.walk.commands.mentions(node.start_mark.index, node.end_mark.index)

    def container(self, node: yaml.Node) -> None:
        """One container, or one service of compose."""
        if not isinstance(node, yaml.MappingNode) or id(node) in self.walk.seen:
            return
        self.walk.seen.add(id(node))
        self.containers += 1
        scope = f"container {self.containers}"
        # Servers that are no program of the project may read a variable all the same.
        theirs = _SERVERS.search(self.text, node.start_mark.index, node.end_mark.index) is not None
        for key, value in node.value:
            word = str(key.value)
            if word == "image" and isinstance(value, yaml.ScalarNode):
                self.image(value)
            elif word in ("env", "environment"):
                at = len(self.found)
                self.settings(value, (key, node))
                for place in self.found[at:] if theirs else ():
                    place.refuse(place.reason or "shared-dependency", _THEIRS)
            elif word in ("command", "args", "entrypoint"):
                self.command(value, scope)
            else:
                self.objects(value)

    def image(self, node: yaml.ScalarNode) -> None:
        """An image of torch_xla's."""
        if MENTION.search(node.value) or "tpu-pytorch" in node.value:
            span = node.start_mark.index, node.end_mark.index
            place = Place("base-image", *span, node.value, anchor=line_at(self.text, span[0])[0])
            self.found.append(place.refuse("base-image"))

    def command(self, value: yaml.Node, scope: str) -> None:
        """What a container starts: a shell text, or words of which one may be a shell text."""
        nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for node in nodes:
            if not isinstance(node, yaml.ScalarNode):
                self.scalars(node)
            elif node is value or re.search(r"\s", node.value):
                self.walk.script(node, scope, None)
            else:
                start = node.start_mark.index
                line = line_at(self.text, start)[0]
                self.walk.commands.mentions(start, node.end_mark.index, anchor=line)

    # -- variables -------------------------------------------------------------------------------

    def settings(self, value: yaml.Node, owner: tuple[yaml.Node, yaml.MappingNode]) -> None:
        """Variables as a mapping, as ``NAME=value``, or as pairs of name and value."""
        if id(value) in self.set:
            return
        self.set.add(id(value))
        if isinstance(value, yaml.MappingNode):
            self.found += settings_of(self.text, value, owner)
            return
        if not isinstance(value, yaml.SequenceNode):
            return
        read = [self._setting(item) for item in value.value]
        doomed = [
            s for s in read
            if s is not None and s[3] is not None
            and (v := variables.verdict(s[0], s[1])).reason is None and not v.name
        ]  # fmt: skip
        whole = self._whole(value, owner) if len(doomed) == len(read) else None
        for item, setting in zip(value.value, read, strict=True):
            if setting is None:
                self.scalars(item)
                continue
            if id(item) in self.set:
                continue
            self.set.add(id(item))
            name, text, at, span, end = setting
            gone = whole if len(doomed) == len(read) else self._item(item, end)
            if is_shared(self.text, item, value):
                gone = None
            line = line_at(self.text, item.start_mark.index)[0]
            place = Place("file-variable", item.start_mark.index, end, name, anchor=line)
            settled(place, "$" if text is None else text, at, gone, span or (end, end))
            if place.fixable and span is None:
                # It has escapes, or its value comes from elsewhere.
                place.refuse("unsupported-form")
            self.found.append(place)

    def _setting(
        self, item: yaml.Node
    ) -> tuple[str, str | None, tuple[int, int], tuple[int, int] | None, int] | None:
        """Name, value, where both stand and where the setting ends; None for other variables."""
        if isinstance(item, yaml.ScalarNode):
            match, written = _ASSIGNED.match(item.value), inside(self.text, item)
            if match is None or not variables.is_variable(match[1]):
                return None
            if written is None:
                return match[1], None, (0, 0), None, item.end_mark.index
            start = written[0]
            name = (start, start + match.end(1))
            return match[1], match[3], name, (start + match.start(3), written[1]), written[1]
        found = dict(pairs(item))
        named, value = found.get("name"), found.get("value")
        if not isinstance(named, yaml.ScalarNode) or not variables.is_variable(named.value):
            return None
        at = inside(self.text, named)
        last = max((v for v in found.values()), key=lambda n: int(n.start_mark.index))
        end = last.end_mark.index if isinstance(last, yaml.ScalarNode) else named.end_mark.index
        if at is None or not isinstance(value, yaml.ScalarNode):
            return named.value, None, at or (0, 0), None, end
        return named.value, value.value, at, inside(self.text, value), end

    def _item(self, item: yaml.Node, end: int) -> Edit | None:
        """The edit that takes a setting out of a list in block style, with its lines."""
        if isinstance(item, yaml.ScalarNode):
            return entry_of(self.text, item)
        first = line_at(self.text, item.start_mark.index)[0]
        if not re.fullmatch(r"[ \t]*-[ \t]+", self.text[first : item.start_mark.index]):
            return None
        return self._without_comments(first, line_at(self.text, end)[1])

    def _whole(
        self, value: yaml.SequenceNode, owner: tuple[yaml.Node, yaml.MappingNode]
    ) -> Edit | None:
        """The edit for a list all of whose settings go, with its key."""
        key, parent = owner
        first = line_at(self.text, key.start_mark.index)[0]
        if value.flow_style or len(parent.value) == 1 or is_shared(self.text, value, key):
            return None
        if any(is_shared(self.text, item, value) for item in value.value):
            return None
        if self.text[first : key.start_mark.index].strip():
            return None
        last = self._setting(value.value[-1])
        assert last is not None
        return self._without_comments(first, line_at(self.text, last[4])[1])

    def _without_comments(self, start: int, end: int) -> Edit | None:
        """The edit for some lines; None where a comment on a line of its own would go along."""
        lines = self.text[start:end].splitlines()
        return None if any(x.lstrip().startswith("#") for x in lines) else Edit(start, end, "")

    # -- accelerate ------------------------------------------------------------------------------

    def accelerate(self, root: yaml.Node) -> None:
        """A configuration of `accelerate launch` that starts torch_xla."""
        assert isinstance(root, yaml.MappingNode)
        for key, value in root.value:
            if key.value == "distributed_type" and value.value in ("TPU", "XLA"):
                self._launcher(key, value, f"distributed_type: {value.value}")
            elif key.value == "fsdp_config":
                for inner, node in value.value if isinstance(value, yaml.MappingNode) else ():
                    if inner.value == "xla" and str(node.value).lower() == "true":
                        self._launcher(inner, node, "fsdp_config: xla")
            else:
                self.scalars(value)

    def _launcher(self, key: yaml.Node, value: yaml.Node, api: str) -> None:
        start, end = key.start_mark.index, value.end_mark.index
        place = Place("launch-line", start, end, api, anchor=line_at(self.text, start)[0])
        self.found.append(place.refuse("no-equivalent", _NO_LAUNCHER))
