"""What the steps of a manual plan are made with: places, texts of the source, meanings."""

from __future__ import annotations

import re

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
        return " ".join(f"{self.tree.text[start:a]}{new}{self.tree.text[b:end]}".split())

    def source(self, node: cst.CSTNode) -> str:
        return " ".join(self.tree.source(node).split())

    def meaning(self, call: cst.Call) -> str:
        return self.builder.callee(call, self.tree.scope(call)) or ""

    def is_over_loader(self, node: cst.BaseExpression) -> bool:
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
    return f"`{site.path.rpartition('.')[2]}`: {site.rule.title[:1].lower()}{site.rule.title[1:]}"
