"""What takes a loader's place: the plain loader, the wrapper, or an iterator of the wrapper."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from xla2tpu import syntax
from xla2tpu.batches import Loop
from xla2tpu.changes import Builder
from xla2tpu.flow import stays
from xla2tpu.loaderuses import Held, Use, Uses, deletable
from xla2tpu.nodes import descendants
from xla2tpu.sites import Change, Cut, Site
from xla2tpu.template import Piece, Slice

_WRAPPER = "DeviceLoader"
_WIDTH = 88

PLAIN, WRAPPED, ITERATOR = "plain", "wrapped", "iterator"


@dataclass(eq=False)
class Value:
    """A loader that yields batches: its site, the plain loader and the device."""

    site: Site
    loader: cst.BaseExpression
    device: cst.BaseExpression
    held: Held | None = None
    form: str = WRAPPED
    moved: list[tuple[Loop, list[str]]] = field(default_factory=list)


class Changes:
    """Makes the changes that the decisions for one file come down to."""

    def __init__(self, builder: Builder, uses: Uses) -> None:
        self.builder, self.tree, self.uses = builder, builder.tree, uses

    def plain(self, value: Value) -> Change | str:
        """The plain loader in place of the wrapper, under its own name where that is certain."""
        site, held, loader = value.site, value.held, value.loader
        if held is None:
            return self.replaced(site, [self._slice(loader, site)])
        assert isinstance(held.target, cst.Name)
        since = self.tree.span(held.statement)[1]
        same = isinstance(loader, cst.Name) and loader.value == held.target.value
        certain = same or stays(self.tree, loader, site.scope, since)
        if not isinstance(loader, cst.Name):
            certain = certain and self.uses.follows(held)
        if not certain or not (same or deletable(held)):
            change = self.replaced(site, [self._slice(loader, site)])
            if isinstance(change, Change):
                change.cuts += self._inner_cuts(held)
            return change
        change = Change(deletes=[held.statement], replaced=[site.expression])
        change.uses |= self.names(loader)
        name = self.tree.source(loader)
        for use in held.uses:
            if use.kind == "delete":
                if not same:
                    change.deletes.append(self.tree.statement(use.node))
            elif not same:
                change.cuts.append(Cut(*self.tree.span(use.node), (name,), use.node))
        change.cuts += self._inner_cuts(held)
        return change

    def _inner_cuts(self, held: Held) -> list[Cut]:
        """What takes ``._loader`` out of ``loader._loader.sampler``."""
        found = []
        for use in held.uses:
            attribute = self.tree.parent(use.node)
            if use.kind == "inner" and attribute is not None:
                start, end = self.tree.span(use.node)[1], self.tree.span(attribute)[1]
                found.append(Cut(start, end, ("",), use.node))
        return found

    def stripped(self, use: Use, loader: cst.BaseExpression | None) -> Change:
        """``para._loader``, the plain loader: by its name, or as what the wrapper keeps."""
        attribute = self.tree.parent(use.node)
        assert attribute is not None
        if loader is not None:
            cut = Cut(*self.tree.span(attribute), (self.tree.source(loader),))
            return Change(cuts=[cut], replaced=[attribute], uses=self.names(loader))
        end = self.tree.span(attribute)[1]
        return Change(cuts=[Cut(self.tree.span(use.node)[1], end, ("._loader",))])

    def replaced(self, site: Site, pieces: list[Piece]) -> Change | str:
        """The pieces in place of the site's expression, with the wrapper where they name it."""
        template = ""
        extra: dict[str, Piece] = {}
        for index, piece in enumerate(pieces):
            if isinstance(piece, Slice):
                extra[f"item{index}"] = piece
                template += f"{{item{index}}}"
            else:
                template += piece
        helpers = [_WRAPPER] if _WRAPPER in template else []
        change = self.builder.replace(site, template, helpers=helpers, extra=extra)
        if isinstance(change, Change):
            for piece in extra.values():
                change.uses |= self.names(piece.node) if isinstance(piece, Slice) else set()
        return change

    def wrapped(self, loader: cst.BaseExpression, device: cst.BaseExpression) -> list[Piece]:
        """The wrapper of a loader, for a device."""
        return [f"{_WRAPPER}(", Slice(loader), ", ", Slice(device), ")"]

    def iterator(self, value: Value) -> list[Piece]:
        """An iterator of the wrapper of a loader."""
        return ["iter(", *self.wrapped(value.loader, value.device), ")"]

    def explain(self, site: Site, form: str) -> None:
        """Let a finding say which form a loader takes."""
        if form == PLAIN:
            site.fix_title = "Loop over the loader itself and move each batch"
            site.message = "`{api}` moves each batch; the loop itself does so, which is in sight"
        else:
            site.fix_title = "Wrap the loader in a class that moves each batch"
            site.message = (
                "`{api}` moves each batch; a small class does so, since not all that loops over it"
                " and how it takes a batch apart can be seen"
            )

    def move(self, loop: Loop, names: list[str], device: str) -> list[str]:
        """The lines that move what a loop's target holds: one, or one for each name if too long."""
        if not names:
            return []
        values = ", ".join(f"{name}.to({device})" for name in names)
        line = f"{', '.join(names)} = {values}"
        indent = len(self.builder.line_indent(self.tree.span(loop.node)[0])) + 4
        if len(names) == 1 or indent + len(line) <= _WIDTH:
            return [line]
        return [f"{name} = {name}.to({device})" for name in names]

    def names(self, node: cst.CSTNode) -> set[str]:
        """The names in an expression, which may come from a statement that goes."""
        return {n.value for n in descendants(node) if isinstance(n, cst.Name)}

    def _slice(self, node: cst.BaseExpression, site: Site) -> Slice:
        assert isinstance(site.expression, cst.BaseExpression)
        weak = syntax.precedence(node) < syntax.demanded(self.tree, site.expression)
        return Slice(node, weak and not node.lpar)
