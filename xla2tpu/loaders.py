"""Loaders of torch_xla: which make way for the plain loader, and which for a small wrapper.

All loaders of a file are decided together, when the first of them is asked for: what makes one,
what is called on it and the loops over it change together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from xla2tpu.batches import Loop, loop_over, moves
from xla2tpu.changes import Builder
from xla2tpu.flow import reaching, stays
from xla2tpu.loaderchanges import ITERATOR, PLAIN, WRAPPED, Changes, Value
from xla2tpu.loaderuses import MP, OF_LOADER, PARALLEL, PER_DEVICE, PLACE, Uses, deletable
from xla2tpu.model import Applicability
from xla2tpu.nodes import descendants
from xla2tpu.scopes import Scope
from xla2tpu.sites import Change, Cut, Insert, Site
from xla2tpu.template import Piece, Slice

CLASSES = frozenset({MP, PARALLEL, f"{PLACE}PerDeviceLoader"})
_OWN = {
    f"{PARALLEL}()": frozenset(
        {"per_device_loader", "per_device_samples", "next_item", "close", "batches_per_execution"}
    ),
    f"{PER_DEVICE}()": frozenset({"next"}),
}
_KEPT = frozenset({"_loader", "_device"})


class Loaders:
    """The decisions for one file; `change_of` gives the change of each site, or the reason."""

    def __init__(self, builder: Builder) -> None:
        self.builder, self.tree = builder, builder.tree
        self.sites = [s for s in builder.sites.values() if s.path.startswith(PLACE)]
        self.uses = Uses(builder, self.sites)
        self.changes = Changes(builder, self.uses)
        self.results: dict[Site, Change | str] = {}
        # Tests by a class change with all that makes its values.
        self.tests = [s for s in self.sites if s.call is None and s.path in CLASSES]
        made = [s for s in self.sites if s.call is not None and s.case is not None and s.fixable]
        self.makers = [s for s in made if s.path in (MP, PARALLEL)]
        self._tell_makers_apart()
        for site in self.makers:
            if site.path == MP:
                self._wrapper(site)
            else:
                self._parallel(site)

    @classmethod
    def of(cls, builder: Builder) -> Loaders:
        """The decisions for the file that a builder works on, made once."""
        found = builder.memory.get(cls)
        if not isinstance(found, cls):
            found = builder.memory[cls] = cls(builder)
        return found

    def change_of(self, site: Site) -> Change | str:
        """What becomes of a loader, or of what is called on one."""
        if site in self.results:
            return self.results[site]
        reasons = [m.reason for m in site.makers if m.reason is not None]
        return site.reason or next(iter(reasons), "value-escapes")

    def _tell_makers_apart(self) -> None:
        """Where it is certain which loader a name holds, the others do not make it."""
        for site in self.sites:
            base = site.node.value if isinstance(site.node, cst.Attribute) else None
            if "()." not in site.path or not isinstance(base, cst.Name):
                continue
            seen = reaching(self.tree, base, site.scope)
            if seen is not None:
                site.makers = [s for s in site.makers if s.expression is seen.value]
                if not site.makers and site.reason is None:
                    self.results[site] = Change()  # the plain loader, before it is wrapped
            elif site.meaning is not None and site.meaning.ambiguous and PARALLEL in site.path:
                holder, _, word = site.path.rpartition(".")
                if word in _OWN.get(holder, ()) or word.startswith("_"):
                    site.reason = site.reason or "ambiguous-binding"
                elif site.reason is None:
                    site.makers = []
                    self.results[site] = Change()  # of the other thing that the name may hold

    # -- MpDeviceLoader -----------------------------------------------------------------------

    def _wrapper(self, site: Site) -> None:
        assert site.bound is not None
        args = site.bound.args
        value = Value(site, args["loader"].value, args["device"].value)
        value.held = self.uses.held(site)
        attributes = self._attributes_of(site)
        words = [s.path.removeprefix(f"{MP}().").split(".")[0] for s in attributes]
        if any(w.startswith("_") and w not in _KEPT for w in words):
            self._refuse([site, *attributes], "private-api")
            return
        if self._class_stays(MP) or any(s.reason for s in attributes):
            self._refuse([site, *attributes], "value-escapes")
            return
        self._decide(value)
        change = self._change(value)
        self._settle([site, *attributes], {site: change})

    def _attributes_of(self, maker: Site) -> list[Site]:
        return [s for s in self.sites if s is not maker and maker in s.makers]

    def _class_stays(self, path: str) -> bool:
        """Whether the class itself is used in a way that has no rewrite."""
        named = [s for s in self.sites if s.path == path and s.call is None]
        return any(not self.is_tested(s) and id(s.node) not in self.tree.annotations for s in named)

    def is_tested(self, site: Site) -> bool:
        """Whether a class is only what ``isinstance`` asks for."""
        node: cst.CSTNode = site.node
        parent = self.tree.parent(node)
        while isinstance(parent, (cst.Element, cst.Tuple)):
            node, parent = parent, self.tree.parent(parent)
        call = self.tree.parent(parent) if isinstance(parent, cst.Arg) else None
        if not isinstance(call, cst.Call) or len(call.args) != 2 or call.args[1] is not parent:
            return False
        asked = self.builder.callee(call, site.scope)
        return asked in ("builtins.isinstance", "builtins.issubclass")

    # -- ParallelLoader -----------------------------------------------------------------------

    def _parallel(self, site: Site) -> None:
        assert site.bound is not None
        args = site.bound.args
        given = args.get("loader") or args["cpu_loader"]
        device = only_device(args["devices"].value)
        methods = self._attributes_of(site)
        group = [site, *methods]
        group += [s for m in methods for s in self._attributes_of(m)]
        if device is None:
            self._refuse(group, "several-devices")
        elif any(s.reason or s.change for s in group) or self._class_stays(PARALLEL):
            self._refuse(group, next((s.reason for s in group if s.reason), "value-escapes"))
        elif not self._direct(site, given.value, device, group):
            self._named(site, given.value, device, group)

    def _direct(
        self, site: Site, loader: cst.BaseExpression, device: cst.BaseExpression, group: list[Site]
    ) -> bool:
        """``pl.ParallelLoader(loader, [device]).per_device_loader(device)``."""
        feeds = [s for s in group if s.path == PER_DEVICE and self._base(s) is site.expression]
        if not feeds:
            return False
        (feed,) = feeds
        value = Value(feed, loader, device, self.uses.held(feed))
        changes: dict[Site, Change | str] = {site: Change()}
        rest = [s for s in group if s is not site and s is not feed]
        nexts = {id(s.expression): s for s in rest if s.path == f"{PER_DEVICE}().next" and s.call}
        chained = next((s for s in nexts.values() if self._base(s) is feed.expression), None)
        if chained is not None:
            text = self.changes.iterator(value)
            changes[feed] = Change()
            changes[chained] = self.changes.replaced(chained, ["next(", *text, ")"])
        else:
            self._decide(value)
            changes[feed] = self._change(value)
            changes.update(self._called(value, rest))
        self._settle(group, changes)
        return True

    def _named(
        self, site: Site, loader: cst.BaseExpression, device: cst.BaseExpression, group: list[Site]
    ) -> None:
        """``para = pl.ParallelLoader(loader, [device])``, and what is called on it later."""
        held = self.uses.held(site)
        if held is None or any(u.kind not in _ON_PARALLEL for u in held.uses):
            self._refuse(group, "value-escapes")
            return
        changes: dict[Site, Change | str] = {}
        feeds = [u for u in held.uses if u.kind == "per-device"]
        known = {u.site for u in held.uses if u.site is not None}
        inner = [s for s in group if any(m in s.makers for m in known)]
        if {s for s in group if s is not site and s not in inner} - known:
            self._refuse(group, "ambiguous-binding")
            return
        since = self.tree.span(held.statement)[1]
        simple = all(stays(self.tree, e, site.scope, since) for e in (loader, device))
        simple = simple and (isinstance(loader, cst.Name) or self.uses.follows(held))
        dissolves = held.certain and simple and bool(feeds) and deletable(held)
        main = Change(replaced=[site.expression])
        changes[site] = main
        for use in held.uses:
            if use.kind == "close" and use.site is not None:
                changes[use.site] = self.builder.delete(use.site)
            elif use.kind == "delete" and dissolves:
                main.deletes.append(self.tree.statement(use.node))
            elif use.kind == "inner" and use.site is not None:
                changes[use.site] = self.changes.stripped(use, loader if dissolves else None)
        if dissolves:
            main.deletes.append(held.statement)
        else:
            changes[site] = self.changes.replaced(site, self.changes.wrapped(loader, device))
            self.changes.explain(site, WRAPPED)
        taken = [u for u in feeds if u.site is not None and not self._is_measured(u.site)]
        for use in feeds:
            feed = use.site
            assert feed is not None
            if len(taken) > 1 or self.uses.repeats(use.node, held.statement):
                feed.applicability = Applicability.UNSAFE  # the later ones got nothing
            if dissolves:
                value = Value(feed, loader, device, self.uses.held(feed))
                self._decide(value)
                changes[feed] = self._change(value)
                below = [s for s in inner if feed in s.makers]
                changes.update(self._called(value, below))
            else:
                value = Value(feed, use.node, device, self.uses.held(feed))
                self._decide(value, plain=False)
                text: list[Piece] = [Slice(use.node)]
                if value.form == ITERATOR:
                    text = ["iter(", Slice(use.node), ")"]
                fits = self._fits(value) and not self._asks_for_more(value)
                changes[feed] = self.changes.replaced(feed, text) if fits else "unsupported-form"
                changes.update(self._called(value, [s for s in inner if feed in s.makers]))
        self._settle(group, changes)

    def _is_measured(self, site: Site) -> bool:
        """Whether only the length of what a site makes is asked for."""
        arg = self.tree.parent(site.expression)
        call = self.tree.parent(arg) if isinstance(arg, cst.Arg) else None
        return (
            isinstance(call, cst.Call) and self.builder.callee(call, site.scope) == "builtins.len"
        )

    def _called(self, value: Value, sites: Iterable[Site]) -> dict[Site, Change | str]:
        """The changes of what is called on the loader of one device."""
        found: dict[Site, Change | str] = {}
        for site in sites:
            name = site.path.removeprefix(f"{PER_DEVICE}().")
            base = self._base(site)
            if (
                base is not None
                and name == "next"
                and site.call is not None
                and value.form == ITERATOR
            ):
                found[site] = self.changes.replaced(site, ["next(", Slice(base), ")"])
            elif name in OF_LOADER and value.form == WRAPPED:
                above = self.tree.parent(site.node)
                inner = isinstance(above, cst.Attribute) and above.attr.value in OF_LOADER
                # The first is the ParallelLoader, the second the plain loader.
                end = self.tree.span(above if inner and above is not None else site.node)[1]
                cut = Cut(self.tree.span(site.node)[1], end, ("",))
                found[site] = Change(cuts=[cut], replaced=[]) if inner else "unsupported-form"
            else:
                found[site] = "unsupported-form"
        return found

    def _base(self, site: Site) -> cst.BaseExpression | None:
        """What a method is called on; None where it is called by another name."""
        return site.node.value if isinstance(site.node, cst.Attribute) else None

    # -- which form ---------------------------------------------------------------------------

    def _decide(self, value: Value, plain: bool = True) -> None:
        """Choose the plain loader, the wrapper, or an iterator of the wrapper."""
        held, once = value.held, value.site.path == PER_DEVICE
        uses = held.uses if held is not None else []
        if once and any(u.kind == "next" for u in uses):
            value.form = ITERATOR
            return
        again = sum(u.kind not in _LOOKED_AT for u in uses) > 1
        if once and (again or any(self.uses.repeats(u.node, value.site.expression) for u in uses)):
            value.site.applicability = Applicability.UNSAFE  # the later uses got nothing
            return
        if self.tests or not plain:
            return
        loops: list[Loop] = []
        if held is None:
            loop = loop_over(value.site.expression, value.site.scope, self.builder)
            loops = [loop] if loop is not None else []
        elif held.certain and isinstance(held.target, cst.Name):
            fits = {"loop", "len", "inner", "delete", "attribute"}
            if all(u.kind in fits for u in uses):
                loops = [u.loop for u in uses if u.loop is not None]
        if any(loop.scope is not value.site.scope for loop in loops):
            return
        if not loops:
            return
        since = self.tree.span(value.site.expression)[0]
        collated = self._is_collated(value.loader, value.site.scope)
        for loop in loops:
            names = moves(loop, value.device, since, collated, self.builder)
            if names is None:
                value.moved.clear()
                return
            value.moved.append((loop, names))
        value.form = PLAIN

    def _is_collated(self, loader: cst.BaseExpression, scope: Scope) -> bool:
        """Whether the loader is seen to be made with a function that makes the batches."""
        made: list[cst.CSTNode] = [loader]
        if isinstance(loader, cst.Name):
            owner = scope.owner(loader.value)
            bindings = owner.bindings[loader.value] if owner is not None else []
            made = [b.value for b in bindings if b.value is not None]
        return any(
            isinstance(n, cst.Arg) and n.keyword is not None and n.keyword.value == "collate_fn"
            for node in made for n in descendants(node)
        )  # fmt: skip

    # -- changes ------------------------------------------------------------------------------

    def _change(self, value: Value) -> Change | str:
        """The change of the site that makes the value."""
        site = value.site
        if not self._fits(value):
            return "unsupported-form"
        if value.form == ITERATOR:
            return self.changes.replaced(site, self.changes.iterator(value))
        if value.form == WRAPPED:
            if self._asks_for_more(value):
                return "ambiguous-binding"
            self.changes.explain(site, WRAPPED)
            return self.changes.replaced(site, self.changes.wrapped(value.loader, value.device))
        self.changes.explain(site, PLAIN)
        change = self.changes.plain(value)
        if isinstance(change, Change):
            for loop, names in value.moved:
                change.uses |= self.changes.names(value.device) if names else set()
                for line in self.changes.move(loop, names, self.tree.source(value.device)):
                    change.inserts.append(Insert(loop.node, (line,)))
        return change

    def _fits(self, value: Value) -> bool:
        """Whether what is done with a value can be done with what takes its place."""
        uses = value.held.uses if value.held is not None else []
        if value.form == ITERATOR and any(u.kind not in _ON_ITERATOR for u in uses):
            return False
        return all(self.uses.iterates(n) for n in (value.site.expression, *(u.node for u in uses)))

    def _asks_for_more(self, value: Value) -> bool:
        """Whether an attribute is used that the wrapper has not, and that nothing else mends."""
        lost = {"private"} if value.site.path == MP else {"private", "inner"}
        uses = value.held.uses if value.held is not None else []
        return value.form == WRAPPED and any(u.kind in lost and u.site is None for u in uses)

    # -- together -----------------------------------------------------------------------------

    def _refuse(self, group: list[Site], reason: str) -> None:
        for site in group:
            self.results[site] = site.reason or reason

    def _settle(self, group: list[Site], changes: dict[Site, Change | str]) -> None:
        """Note the changes of a group: all of them, or the reason of the first that fails."""
        failed = next((c for c in changes.values() if isinstance(c, str)), None)
        failed = failed or next(
            (r for s in group if isinstance(r := self.results.get(s), str)), None
        )
        if failed is not None:
            self._refuse(group, failed)
            return
        for site in group:
            self.results[site] = changes.get(site, Change())
        group = [*group, *self.tests]
        for site in group:
            site.follows += [s for s in group if s is not site and s not in site.follows]


# What takes no batch from a loader.
_LOOKED_AT = frozenset({"len", "inner", "private", "delete", "delete-item", "close"})
_ON_ITERATOR = frozenset({"next", "loop", "delete", "delete-item"})
_ON_PARALLEL = frozenset({"per-device", "close", "delete", "delete-item", "inner"})


def only_device(devices: cst.BaseExpression) -> cst.BaseExpression | None:
    """The device of a list of one that is written out, else None."""
    if not isinstance(devices, (cst.List, cst.Tuple)) or len(devices.elements) != 1:
        return None
    element = devices.elements[0]
    return None if isinstance(element, cst.StarredElement) else element.value
