"""What the steps of a manual plan are made with: places, texts of the source, meanings."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from xla2tpu.analysis import Analysis
from xla2tpu.constants import values
from xla2tpu.model import Step
from xla2tpu.sites import Site

_LOADERS = re.compile(r"(?:\A|_)(?:data_?)?(?:loader|iter(?:ator)?|batches)s?\Z|[a-z]Loader\Z")
_AROUND_A_LOADER = frozenset(("enumerate", "tqdm", "iter", "zip"))
DATA_LOADER = "torch.utils.data.DataLoader"


class Steps:
    """Makes the steps of one file."""

    def __init__(self, it: Analysis) -> None:
        self.it, self.tree, self.builder = it, it.tree, it.builder

    def step(
        self, node: cst.CSTNode, stage: str, what: str, target: str, note: str = "",
        devices: int | None = None,
    ) -> Step:  # fmt: skip
        """A step at the place of a node; the parts are those of `Step`."""
        start, lines = self.tree.span(node)[0], self.it.plan.lines
        note = note[:1].upper() + note[1:].removesuffix(".")
        line = lines.index(start)
        return Step(
            stage, self.it.path, line + 1, start - lines.starts[line] + 1, what, target, note,
            devices,
        )  # fmt: skip

    def replaced(self, node: cst.CSTNode, new: str) -> str:
        """The statement of an expression with another in its place, on one line; the new text
        alone where it is no simple statement.
        """
        statement = self.tree.statement(node)
        if not isinstance(statement, cst.BaseSmallStatement):
            return new
        (start, end), (a, b) = self.tree.span(statement), self.tree.span(node)
        return one_line(f"{self.tree.text[start:a]}{new}{self.tree.text[b:end]}")

    def source(self, node: cst.CSTNode) -> str:
        """The text of a node, on one line."""
        return one_line(self.tree.source(node))

    def arguments(self, args: Sequence[cst.Arg]) -> str:
        """Arguments as they are given, without what stands around them."""
        names = ("" if a.keyword is None else f"{a.keyword.value}=" for a in args)
        return ", ".join(
            f"{a.star}{name}{self.source(a.value)}" for a, name in zip(args, names, strict=True)
        )

    def meaning(self, call: cst.Call) -> str:
        """The dotted path of what is called, empty where it is not known."""
        return self.builder.callee(call, self.tree.scope(call)) or ""

    def is_over_loader(self, node: cst.BaseExpression) -> bool:
        """Whether what a loop goes over gives batches, by its meaning or its name."""
        while isinstance(node, cst.Call):
            func = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
            name = func.value if isinstance(func, cst.Name) else ""
            if name not in _AROUND_A_LOADER or not node.args:
                return self.meaning(node) == DATA_LOADER or bool(_LOADERS.search(name))
            node = node.args[0].value
        last = node.attr if isinstance(node, cst.Attribute) else node
        made = [v for v, _ in values(self.tree, node, self.tree.scope(node))]
        if any(isinstance(v, cst.Call) and self.meaning(v) == DATA_LOADER for v in made):
            return True
        return isinstance(last, cst.Name) and _LOADERS.search(last.value) is not None


def title(site: Site) -> str:
    """What a place is, in the words of its rule."""
    words = site.rule.title
    if words[1:2].islower():
        words = words[:1].lower() + words[1:]
    return f"`{site.path.rpartition('.')[2]}`: {words}"


def one_line(text: str) -> str:
    """Code without its line breaks; with comments in it, it stays as it is."""
    if "\n" not in text or "#" in text:
        return text
    text = re.sub(r"([(\[{])[ \t]*\r?\n\s*", r"\1", text)
    text = re.sub(r"\s*\n\s*([)\]}])", r"\1", text)
    return re.sub(r"\s*\n\s*", " ", text)
