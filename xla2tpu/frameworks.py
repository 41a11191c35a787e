"""Names and arguments of other packages that mean a TPU through torch_xla.

They are found by the names that they resolve to, and by what is written in the call. A package
whose own source is looked at is left alone: it may call itself whatever it likes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import libcst as cst

from xla2tpu import signatures, syntax
from xla2tpu.changes import Builder
from xla2tpu.match import allows
from xla2tpu.nodes import dotted
from xla2tpu.rulemodel import Rule, Use
from xla2tpu.rules import load_rules
from xla2tpu.scopes import Scope
from xla2tpu.sites import Change, Cut, Site
from xla2tpu.tree import Tree

CONTEXT = "framework"
_SEPARATORS = re.compile(r"[\s,]+")
_REST_OF_LINE = re.compile(r",?[ \t]*\r?\n")


class _Entry(NamedTuple):
    pattern: re.Pattern[str]
    rule: Rule
    uses: tuple[Use, ...]


@functools.cache
def _index(rule_files: tuple[str, ...]) -> dict[str, list[_Entry]]:
    """The uses of all rules that find their places here, by the package."""
    found: dict[str, list[_Entry]] = {}
    for rule in load_rules(rule_files).rules.values():
        for path in dict.fromkeys(use.path for use in rule.uses if rule.detector is None):
            uses = tuple(use for use in rule.uses if use.path == path)
            found.setdefault(path.split(".")[0], []).append(_Entry(_pattern(path), rule, uses))
    return found


@functools.cache
def _pattern(path: str) -> re.Pattern[str]:
    """What a path stands for: ``*`` is any number of names, none as well."""
    return re.compile(re.escape(path).replace(r"\.\*", r"(?:\.\w+)*") + r"\Z")


def said_of(rule: Rule, path: str) -> Use | None:
    """What a rule with places of its own says of a name in particular."""
    return next((use for use in rule.uses if _pattern(use.path).match(path)), None)


class Frameworks:
    """Finds such places in one file.

    ``own`` tells whether a package is one of the project's, ``on_tpu`` whether the file or its
    project is for TPUs.
    """

    def __init__(
        self,
        tree: Tree,
        builder: Builder,
        own: Callable[[str], bool],
        on_tpu: Callable[[], bool],
    ) -> None:
        self.tree, self.builder = tree, builder
        index = _index(builder.settings.rule_files)
        taken = {b.path.split(".")[0] for b in tree.bindings if b.path is not None}
        taken |= {(dotted(star.module) or "").split(".")[0] for star, _ in tree.stars}
        self.index = {p: index[p] for p in taken & index.keys() if not own(p)}
        self.on_tpu = bool(self.index) and on_tpu()

    def sites(self) -> list[Site]:
        """A site for each use, and for an import that nothing uses."""
        found: list[Site] = []
        for name in self._names():
            for load, scope in self.tree.loads.get(name, ()):
                found.extend(self._of_load(load, scope))
        found.extend(self._imports({s.root.value for s in found if s.root is not None}))
        return found

    def _names(self) -> set[str]:
        """The names that an import binds to one of the packages, and aliases of these."""
        return self.tree.with_aliases({b.name for b in self.tree.bindings if self._entries(b.path)})

    def _entries(self, path: str | None) -> Sequence[_Entry]:
        return self.index.get(path.split(".")[0], ()) if path is not None else ()

    def _matching(self, path: str) -> list[_Entry]:
        return [entry for entry in self._entries(path) if entry.pattern.match(path)]

    def _of_load(self, load: cst.Name, scope: Scope) -> Iterator[Site]:
        for path in self._paths(load, scope):
            sites = self._climb(load, path, scope)
            yield from sites
            if sites:
                return

    def _paths(self, load: cst.Name, scope: Scope) -> list[str]:
        """What a name may mean: one path, or those of imports that stand in for each other."""
        path = self.builder.meaning(load, scope)
        if path is not None:
            return [path] if self._entries(path) else []
        owner = scope.owner(load.value)
        bindings = owner.bindings[load.value] if owner is not None else []
        if any(b.path is None and b.kind != "none" for b in bindings):
            return []
        return [b.path for b in bindings if b.path is not None and self._entries(b.path)]

    def _climb(self, load: cst.Name, path: str, scope: Scope) -> list[Site]:
        """The sites at a name, or at the first of the attributes of it that has any."""
        node: cst.BaseExpression = load
        while True:
            sites = list(self._at(node, path, load, scope))
            above = self.tree.parent(node)
            if sites or not (isinstance(above, cst.Attribute) and above.value is node):
                return sites
            node, path = above, f"{path}.{above.attr.value}"

    def _at(
        self, node: cst.BaseExpression, path: str, load: cst.Name, scope: Scope
    ) -> Iterator[Site]:
        """The sites for one expression, one for each rule; ``load`` is the name at its root."""
        matching = self._matching(path)
        if not matching or id(node) in self.tree.stored or self._is_annotation(node):
            return
        aliased = node is load and self._is_alias(load, scope)
        above = self.tree.parent(node)
        call = above if isinstance(above, cst.Call) and above.func is node else None
        told: set[str] = set()
        for entry in matching:
            for use in entry.uses if entry.rule.code not in told else ():
                if aliased and use.argument is None and use.signature is None:
                    continue  # the assignment has been reported
                site = self._site(entry.rule, use, path, node, call, scope)
                if site is not None:
                    site.root = load
                    told.add(entry.rule.code)
                    yield site
                    break

    def _is_alias(self, load: cst.Name, scope: Scope) -> bool:
        owner = scope.owner(load.value)
        return owner is not None and any(b.kind == "assign" for b in owner.bindings[load.value])

    def _is_annotation(self, node: cst.CSTNode) -> bool:
        for above in self.tree.ancestors(node):
            if isinstance(above, (cst.BaseStatement, cst.BaseSmallStatement)):
                return False
            if isinstance(above, cst.Annotation):
                return True
        return False

    def _is_base(self, node: cst.CSTNode) -> bool:
        arg = self.tree.parent(node)
        return isinstance(arg, cst.Arg) and isinstance(self.tree.parent(arg), cst.ClassDef)

    def _imports(self, used: set[str]) -> Iterator[Site]:
        """Imports of names that mean torch_xla wherever they stand, and that no place uses."""
        for binding in self.tree.bindings:
            if binding.kind not in ("import", "from") or binding.name in used:
                continue
            path, alias = binding.path, binding.node
            if binding.kind == "import" and isinstance(alias, cst.ImportAlias):
                path = dotted(alias.name)
            yield from self._imported(path, alias, binding.scope)
        for star, scope in self.tree.stars:
            if not star.relative:
                yield from self._imported(dotted(star.module), star, scope)

    def _imported(self, path: str | None, node: cst.CSTNode, scope: Scope) -> Iterator[Site]:
        for entry in self._matching(path) if path is not None else ():
            use = entry.uses[0]
            if use.argument is None and use.signature is None and (self.on_tpu or not use.on_tpu):
                yield self._made(entry.rule, use, path or "", node, node, scope)
                return

    # -- one use -----------------------------------------------------------------------------

    def _site(
        self,
        rule: Rule,
        use: Use,
        path: str,
        node: cst.BaseExpression,
        call: cst.Call | None,
        scope: Scope,
    ) -> Site | None:
        if use.on_tpu and not self.on_tpu:
            return None
        if use.argument is None:
            if use.signature is not None and call is None and not self._is_base(node):
                return None  # only what makes one is meant
            made = self._made(rule, use, path, call or node, call or node, scope)
            if use.write is not None and isinstance(node, cst.Attribute):
                start, end = self.tree.span(node.attr)
                self._fix(made, Change(cuts=[Cut(start, end, (use.write,))]), use)
            return made
        args = self._arguments(use, call, scope) if call is not None else None
        if call is None or args is None:
            return None
        for name, words in use.args.items():
            if not any(self._allows(word, args.get(name), scope) for word in words):
                return None
        for name, words in use.holds.items():
            if not any(self._held(args.get(name), scope) & {word} for word in words):
                return None
        arg = args.get(use.argument)
        site = self._made(rule, use, path, _shown(arg) or call, call, scope)
        shown = any(other is arg for other in call.args)
        if arg is not None and shown and (use.write is not None or use.drop):
            write = use.write
            change = self._write(write, arg) if write is not None else self._drop(arg, call)
            self._fix(site, change, use)
        return site

    def _fix(self, site: Site, change: Change | None, use: Use) -> None:
        if change is not None:
            site.change, site.reason, site.applicability = change, None, use.applicability

    def _made(
        self,
        rule: Rule,
        use: Use,
        path: str,
        node: cst.CSTNode,
        expression: cst.CSTNode,
        scope: Scope,
    ) -> Site:
        site = Site(
            rule, path, node, expression, scope, CONTEXT, counts=False, blocks=not use.on_tpu
        )
        site.refuse("silent-cpu" if use.on_tpu else "framework")
        site.message, site.advice = use.message, use.advice
        return site

    def _arguments(self, use: Use, call: cst.Call, scope: Scope) -> dict[str, cst.Arg] | None:
        """The arguments by parameter, those of a dictionary that is seen behind ``**`` too.

        None where a condition asks for what is hidden by ``**``.
        """
        found = {a.keyword.value: a for a in call.args if a.keyword is not None}
        for arg in call.args:
            for value in self._values(arg.value, scope) if arg.star == "**" else ():
                for name, item in _items(value):
                    found.setdefault(name, cst.Arg(item))
        if use.signature is not None:
            plain = [a for a in call.args if not a.star]
            bound = signatures.bind(use.signature, plain, lambda _: False)
            # What stands behind a starred argument is in an unknown place.
            if not isinstance(bound, str) and not any(a.star == "*" for a in call.args):
                found |= bound.args
        hidden = any(a.star == "**" for a in call.args)
        if hidden and any("absent" in w and n not in found for n, w in use.args.items()):
            return None
        return found

    def _allows(self, word: str, arg: cst.Arg | None, scope: Scope) -> bool:
        if arg is None or word == "absent":
            return allows(word, arg, self.tree)
        if word == "given":
            return not self._is_off(arg.value)
        if word == "constant" and self._is_off(arg.value) and not self.on_tpu:
            return False  # printed defaults, that mean nothing
        return any(
            allows(word, cst.Arg(value), self.tree) for value in self._values(arg.value, scope)
        )

    def _held(self, arg: cst.Arg | None, scope: Scope) -> set[str]:
        """The words in a literal: keys that are not off, elements, parts of a string."""
        found: set[str] = set()
        for value in self._values(arg.value, scope) if arg is not None else ():
            match value:
                case cst.Dict() | cst.Call():
                    found |= {name for name, item in _items(value) if not self._is_off(item)}
                case cst.List() | cst.Tuple() | cst.Set():
                    found |= {_text(e.value) or "" for e in value.elements}
                case _:
                    found |= set(_SEPARATORS.split(_text(value) or ""))
        return found

    def _is_off(self, value: cst.BaseExpression) -> bool:
        return self.tree.source(value) in ("False", "None", "0")

    def _values(self, node: cst.BaseExpression, scope: Scope) -> Iterator[cst.BaseExpression]:
        """What an expression may be: both sides of a choice, what its name was assigned."""
        owner = scope.owner(node.value) if isinstance(node, cst.Name) else None
        if isinstance(node, cst.Name) and owner is not None:
            for binding in owner.bindings[node.value]:
                if binding.kind == "assign" and binding.value is not None:
                    yield from _sides(binding.value)
        else:
            yield from _sides(node)

    # -- fixes -------------------------------------------------------------------------------

    def _write(self, text: str, arg: cst.Arg) -> Change | None:
        """Another string for an argument, in the quotes of the old one."""
        value = arg.value
        if not isinstance(value, cst.SimpleString):
            return None
        start, end = self.tree.span(value)
        return Change(cuts=[Cut(start, end, (f"{value.quote}{text}{value.quote}",))])

    def _drop(self, arg: cst.Arg, call: cst.Call) -> Change | None:
        """The call without an argument, where that takes no comment along."""
        if arg.keyword is None or not syntax.is_constant(arg.value):
            return None
        text, args = self.tree.text, list(call.args)
        index = next(i for i, other in enumerate(args) if other is arg)
        start, end = self.tree.span(arg)[0], self.tree.span(arg.value)[1]
        line = text.rfind("\n", 0, start) + 1
        rest, last = _REST_OF_LINE.match(text, end), index == len(args) - 1
        if len(args) == 1:
            start = text.index("(", self.tree.span(call.func)[1]) + 1
            end = text.index(")", end)
        elif rest is not None and text[line:start].isspace() and (last or rest[0][0] == ","):
            start, end = line, rest.end()
        elif last or not self._may_go(args[:index]):
            start = self.tree.span(args[index - 1].value)[1]
        else:
            end = self.tree.span(args[index + 1])[0]
        behind = text[end : text.find("\n", end)]
        if "#" in text[start:end] or ("\n" in text[start:end] and "#" in behind):
            return None
        return Change(cuts=[Cut(start, end, ())])

    def _may_go(self, args: Sequence[cst.Arg]) -> bool:
        """Whether each argument may be taken out too, with the comma behind it."""
        names = {u.argument for e in self.index.values() for x in e for u in x.uses if u.drop}
        return all(arg.keyword is not None and arg.keyword.value in names for arg in args)


def _sides(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.IfExp):
        yield from _sides(node.body)
        yield from _sides(node.orelse)
    else:
        yield node


def _items(node: cst.BaseExpression) -> Iterator[tuple[str, cst.BaseExpression]]:
    """The keys and values that a dictionary is written with."""
    match node:
        case cst.Dict():
            for element in node.elements:
                key = _text(element.key) if isinstance(element, cst.DictElement) else None
                if key is not None:
                    yield key, element.value
        case cst.Call(func=cst.Name(value="dict")):
            for arg in node.args:
                if arg.keyword is not None:
                    yield arg.keyword.value, arg.value


def _shown(arg: cst.Arg | None) -> cst.CSTNode | None:
    """What of an argument is reported: without the comma that belongs to it."""
    return None if arg is None else arg.keyword or arg.value


def _text(node: cst.CSTNode | None) -> str | None:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None
