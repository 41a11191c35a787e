"""Where the loaders of a file are kept, and what is done with them there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import libcst as cst

from xla2tpu.batches import Loop, loop_over
from xla2tpu.changes import Builder
from xla2tpu.flow import reaching
from xla2tpu.scopes import Scope
from xla2tpu.sites import Site

PLACE = "torch_xla.distributed.parallel_loader."
MP, PARALLEL = f"{PLACE}MpDeviceLoader", f"{PLACE}ParallelLoader"
PER_DEVICE = f"{PARALLEL}().per_device_loader"
OF_LOADER = frozenset({"_loader", "_cpu_loader"})
# What an iterator of torch_xla could do and that of the wrapper cannot.
_LOST = frozenset({"len", "private", "inner", "attribute", "stored"})


@dataclass(eq=False)
class Use:
    """One use of a name that holds a loader: what is done with it there."""

    node: cst.BaseExpression
    # loop, len, next, inner (the plain loader), attribute, private, stored, close, per-device,
    # delete, delete-item (among others) or other
    kind: str
    loop: Loop | None = None
    site: Site | None = None


@dataclass(eq=False)
class Held:
    """Where a loader is kept: the name or attribute, the assignment, and the uses of it.

    ``certain``: each use sees this very loader, and no other can see it.
    """

    target: cst.BaseExpression
    statement: cst.CSTNode
    certain: bool
    uses: list[Use]


class Uses:
    """The uses of loaders in one file; ``sites`` are those of all its loaders."""

    def __init__(self, builder: Builder, sites: list[Site]) -> None:
        self.builder, self.tree, self.sites = builder, builder.tree, sites

    def held(self, site: Site) -> Held | None:
        """The name or attribute that a loader is assigned to, with all uses of it."""
        statement = self.tree.parent(site.expression)
        if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
            target = statement.targets[0].target
        elif isinstance(statement, cst.AnnAssign):
            target = statement.target
        else:
            return None
        if isinstance(target, cst.Name):
            return self._named_uses(site, target, statement)
        if isinstance(target, cst.Attribute):
            nodes = [n for n in self.tree.attributes[target.attr.value] if n is not target]
            uses = [self.use(n, self.tree.scope(n)) for n in nodes if id(n) not in self.tree.stored]
            return Held(target, statement, False, uses)
        return None

    def _named_uses(self, site: Site, target: cst.Name, statement: cst.CSTNode) -> Held | None:
        owner = site.scope.owner(target.value)
        if owner is None:
            return None
        uses: list[Use] = []
        certain = owner is site.scope and isinstance(statement, cst.Assign)
        for load, scope in self.tree.loads_of(target.value, owner):
            seen = reaching(self.tree, load, scope)
            if seen is None:
                certain = certain and self.tree.is_within(load, statement)
            elif seen.value is not site.expression:
                continue  # another loader, or the plain one
            if seen is not None or not self.tree.is_within(load, statement):
                uses.append(self.use(load, scope))
        return Held(target, statement, certain, uses)

    def use(self, node: cst.CSTNode, scope: Scope) -> Use:
        """What is done at a place with the loader that is there."""
        assert isinstance(node, cst.BaseExpression)
        parent = self.tree.parent(node)
        loop = loop_over(node, scope, self.builder)
        if loop is not None:
            return Use(node, "loop", loop)
        if isinstance(parent, cst.Del):
            return Use(node, "delete")
        if isinstance(parent, cst.Element) and isinstance(self.tree.statement(node), cst.Del):
            return Use(node, "delete-item")
        if isinstance(parent, cst.Arg):
            call = self.tree.parent(parent)
            name = self.builder.callee(call, scope) if isinstance(call, cst.Call) else None
            kinds = {"builtins.len": "len", "builtins.next": "next"}
            return Use(node, kinds.get(name or "", "other"))
        if isinstance(parent, cst.Attribute) and parent.value is node:
            return self._attribute(node, parent)
        return Use(node, "other")

    def _attribute(self, node: cst.BaseExpression, parent: cst.Attribute) -> Use:
        site = next((s for s in self.sites if s.node is parent), None)
        word = parent.attr.value
        if word == "per_device_loader" and site is not None and site.call is not None:
            return Use(node, "per-device", site=site)
        if word == "close" and site is not None:
            alone = site.context in ("statement", "discarded")
            return Use(node, "close" if alone else "other", site=site)
        if word == "next":
            served = site is not None and site.call is not None
            if site is not None and served and site.path == f"{PER_DEVICE}().next":
                return Use(node, "next", site=site)
            return Use(node, "private")  # the name may hold something else: nothing mends it
        if id(parent) in self.tree.stored:
            return Use(node, "stored", site=site)
        if word in OF_LOADER:
            return Use(node, "inner", site=site)
        return Use(node, "private" if word.startswith("_") else "attribute", site=site)

    def follows(self, held: Held) -> bool:
        """Whether the one use of a name is the loop right after the assignment.

        Then nothing comes between that could give an attribute another value.
        """
        uses = [u for u in held.uses if not u.kind.startswith("delete") and u.kind != "close"]
        line = self.tree.parent(held.statement)
        suite = self.tree.parent(line) if isinstance(line, cst.SimpleStatementLine) else None
        if len(uses) != 1 or not isinstance(suite, (cst.IndentedBlock, cst.Module)):
            return False
        after = next((b for a, b in pairwise(suite.body) if a is line), None)
        return isinstance(after, cst.For) and self.tree.is_within(uses[0].node, after.iter)

    def repeats(self, node: cst.CSTNode, once: cst.CSTNode) -> bool:
        """Whether a place is in a loop that what is done once is not in."""
        return any(
            isinstance(a, (cst.For, cst.While))
            and not self.tree.is_within(once, a)
            and not (isinstance(a, cst.For) and self.tree.is_within(node, a.iter))
            for a in self.tree.ancestors(node)
        )

    def iterates(self, node: cst.CSTNode) -> bool:
        """Whether ``iter(node)``, if that is there, is used as any iterator is.

        The iterator of torch_xla had a length and ``next()`` too; that of the wrapper has not.
        """
        arg = self.tree.parent(node)
        call = self.tree.parent(arg) if isinstance(arg, cst.Arg) else None
        if not isinstance(call, cst.Call):
            return True
        scope = self.tree.scope(call)
        if self.builder.callee(call, scope) != "builtins.iter":
            return True
        statement = self.tree.parent(call)
        if not isinstance(statement, cst.Assign):
            return self.use(call, scope).kind in ("next", "loop")
        target = statement.targets[0].target
        if len(statement.targets) != 1:
            return False
        if isinstance(target, cst.Attribute):
            named = self.tree.attributes[target.attr.value]
            loads = [(n, self.tree.scope(n)) for n in named if id(n) not in self.tree.stored]
        elif isinstance(target, cst.Name) and (owner := scope.owner(target.value)) is not None:
            loads = [*self.tree.loads_of(target.value, owner)]
        else:
            return False
        return not any(self.use(n, s).kind in _LOST for n, s in loads)


def deletable(held: Held) -> bool:
    """Whether the assignment may go with all deletions of the name."""
    return isinstance(held.target, cst.Name) and all(u.kind != "delete-item" for u in held.uses)
