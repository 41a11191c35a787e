"""Sites: the places of a file that have to do with torch_xla, each with its rule and its change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from xla2tpu.inhouse import handed_on
from xla2tpu.model import Applicability, Effort
from xla2tpu.names import Meaning, Names
from xla2tpu.rulemodel import Api, Case, Rule, RuleSet
from xla2tpu.scopes import Scope
from xla2tpu.signatures import Bound
from xla2tpu.template import Piece
from xla2tpu.tree import Tree


@dataclass(frozen=True, slots=True)
class Cut:
    """Replace the characters ``start`` to ``end`` by the pieces.

    ``anchor`` is a node of the statement that is cut, where that is not the site's own.
    """

    start: int
    end: int
    pieces: tuple[Piece, ...]
    anchor: cst.CSTNode | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """A new line: first in the body of ``anchor`` where that is a loop, else before its line."""

    anchor: cst.CSTNode
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A replacement in characters; ``order`` puts insertions at one place in order."""

    start: int
    end: int
    content: str
    order: int = 0


@dataclass(slots=True)
class Change:
    """What a fix does, apart from the imports that follow from it.

    ``replaced`` is the expression that makes way, ``kept`` are the nodes in it that stay.
    ``needs`` are import statements; ``helpers`` the names of helpers; ``uses`` are names of the
    file that the new text uses. ``deeper`` are nodes whose further lines go one level in,
    because the statements get a block around them. ``swaps`` are imports that become
    ``import torch_tpu``, since their success is what a flag tells. ``with_import``: the fix
    is right only if the import that the site uses goes as well.
    """

    cuts: list[Cut] = field(default_factory=list)
    inserts: list[Insert] = field(default_factory=list)
    deletes: list[cst.CSTNode] = field(default_factory=list)
    unwraps: list[tuple[cst.With, cst.WithItem]] = field(default_factory=list)
    decorators: list[cst.Decorator] = field(default_factory=list)
    replaced: list[cst.CSTNode] = field(default_factory=list)
    kept: list[cst.CSTNode] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)
    uses: set[str] = field(default_factory=set)
    deeper: list[cst.CSTNode] = field(default_factory=list)
    swaps: list[cst.CSTNode] = field(default_factory=list)
    with_import: bool = False


@dataclass(slots=True, eq=False)
class Site:
    """One place: what stands there, the rule for it and, where there is a fix, its change.

    ``node`` is reported, ``expression`` is the call or the bare name. ``follows`` are the sites
    on which this one depends: it is mended with them, or not at all; ``makers`` those that make
    the value whose attribute this is.
    """

    rule: Rule
    path: str
    node: cst.CSTNode
    expression: cst.CSTNode
    scope: Scope
    context: str
    counts: bool = True
    blocks: bool = True
    api: Api | None = None
    call: cst.Call | None = None
    bound: Bound | None = None
    meaning: Meaning | None = None
    root: cst.Name | None = None
    case: Case | None = None
    change: Change | None = None
    reason: str | None = None
    applicability: Applicability = Applicability.MANUAL
    follows: list[Site] = field(default_factory=list)
    makers: list[Site] = field(default_factory=list)
    message: str | None = None
    advice: str | None = None
    fix_title: str | None = None
    effort: Effort | None = None

    @property
    def fixable(self) -> bool:
        """Whether there is a fix at all."""
        return self.applicability is not Applicability.MANUAL

    def refuse(self, reason: str) -> None:
        """Leave the place to a person, for this reason."""
        self.reason, self.change, self.applicability = reason, None, Applicability.MANUAL

    def take_along(self, other: Site) -> None:
        """Mend another place with this one: its text goes with what this site replaces."""
        other.reason, other.change = None, Change()
        other.applicability = Applicability.SAFE
        other.follows = [self]
        self.follows.append(other)


@dataclass(frozen=True, slots=True)
class Reference:
    """One use of a torch_xla name: the name or attribute, and the call of it."""

    node: cst.BaseExpression
    path: str
    scope: Scope
    meaning: Meaning
    root: cst.Name | None
    call: cst.Call | None
    aliased: bool


# Where torch shows the operators that torch_xla registers.
OPERATORS = "torch.ops.xla"


def modules_of(rules: RuleSet) -> frozenset[str]:
    """All module paths that lie above the names that rules cover."""
    found: set[str] = {"torch_xla", "torch_xla_py"}
    for rule in rules.rules.values():
        for path in rule.apis:
            if path.startswith(f"{OPERATORS}."):
                continue
            wildcard = path.endswith(".*")
            parts = path.removesuffix(".*").split(".")
            for length in range(1, len(parts) + wildcard):
                prefix = ".".join(parts[:length])
                if "(" in prefix:
                    break
                # A class with entries for its attributes is not a module.
                if length == 1 or parts[length - 1][:1].islower() or parts[length - 1][:1] == "_":
                    found.add(prefix)
    for rule in rules.rules.values():
        found.difference_update(p for p in rule.apis if not p.endswith(".*"))
    return frozenset(found | {"torch_xla", "torch_xla_py"})


def tracked_values(rules: RuleSet) -> frozenset[str]:
    """The calls whose values are followed, since rules name attributes of theirs."""
    found: set[str] = set()
    for rule in rules.rules.values():
        for path in rule.apis:
            end = path.rfind("()")
            if end >= 0:
                found.add(path[: end + 2])
    return frozenset(found)


class References:
    """Collects the references of one file."""

    def __init__(self, tree: Tree, names: Names, rules: RuleSet, modules: frozenset[str]) -> None:
        self.tree, self.names, self.rules, self.modules = tree, names, rules, modules
        self.tracked = tracked_values(rules)

    def collect(self) -> list[Reference]:
        """All references, in no particular order; each use once."""
        found: dict[int, Reference] = {}
        candidates = self._candidates()
        for name, loads in self.tree.loads.items():
            if name not in candidates and not (self.tree.stars and self._free(name, loads)):
                continue
            for load, scope in loads:
                self._follow(load, scope, found)
        self._held(candidates, found)
        if "ops" in self.tree.text:
            self._operators(found)
        return list(found.values())

    def _operators(self, found: dict[int, Reference]) -> None:
        """Operators of torch_xla, which are attributes of torch: ``torch.ops.xla.gmm``."""
        names = {
            b.name
            for b in self.tree.bindings
            if b.path and f"{OPERATORS}.".startswith(f"{b.path}.")
        }
        for name in names:
            for load, scope in self.tree.loads.get(name, []):
                node: cst.BaseExpression = load
                path = self.names.expression(load, scope).path
                parent = self.tree.parent(node)
                while path and isinstance(parent, cst.Attribute) and parent.value is node:
                    node, path = parent, f"{path}.{parent.attr.value}"
                    parent = self.tree.parent(node)
                    if path.startswith(f"{OPERATORS}."):
                        break
                if path and f"{path}.".startswith(f"{OPERATORS}."):
                    call = parent if isinstance(parent, cst.Call) and parent.func is node else None
                    found[id(node)] = Reference(node, path, scope, Meaning(path), None, call, False)

    def _free(self, name: str, loads: Sequence[tuple[cst.Name, Scope]]) -> bool:
        return any(scope.owner(name) is None for _, scope in loads)

    def _candidates(self) -> set[str]:
        """The names that may lead to torch_xla, so that the others need not be resolved."""
        found: set[str] = set()
        rest: list[tuple[str, str]] = []
        for binding in self.tree.bindings:
            if binding.path is not None:
                # A module of the project is followed by attribute, so it counts as well.
                if self._leads(binding.path):
                    found.add(binding.name)
            elif binding.kind == "assign" and binding.value is not None:
                rest.extend((binding.name, root) for root in _roots(binding.value))
        changed = True
        while changed:
            changed = False
            for name, root in rest:
                if root in found and name not in found:
                    found.add(name)
                    changed = True
        return found

    def _leads(self, path: str) -> bool:
        if self.names.canonical(path) is not None or self.names.in_house.leads(path):
            return True
        return self.names.is_local(path)

    def _held(self, candidates: set[str], found: dict[int, Reference]) -> None:
        """References through attributes of self that hold torch_xla values."""
        attributes = {
            b.name for b in self.tree.held if b.value is not None and _roots(b.value) & candidates
        }
        attributes |= {
            b.name
            for b in self.tree.bindings
            if b.scope.kind == "class" and b.name in candidates and b.kind != "def"
        }
        if not attributes:
            return
        firsts = self.tree.firsts
        for first in firsts:
            for load, scope in self.tree.loads.get(first, []):
                parent = self.tree.parent(load)
                if (
                    isinstance(parent, cst.Attribute)
                    and parent.attr.value in attributes
                    and id(parent) not in self.tree.stored
                ):
                    self._follow(parent, scope, found, load)

    def _follow(
        self,
        start: cst.BaseExpression,
        scope: Scope,
        found: dict[int, Reference],
        root: cst.Name | None = None,
    ) -> None:
        meaning = self.names.expression(start, scope)
        node: cst.BaseExpression = start
        name = start if isinstance(start, cst.Name) else root
        assert name is not None
        path = meaning.path
        if path is None:
            return
        aliased = self._is_alias(meaning)
        if not self.names.is_ours(path):
            # A module of the project: climb until the path leads into torch_xla.
            while not self.names.is_ours(path):
                parent = self.tree.parent(node)
                looked_up = self._looked_up(node, scope)
                if isinstance(parent, cst.Attribute) and parent.value is node:
                    node, path = parent, f"{path}.{parent.attr.value}"
                elif looked_up is not None:
                    node, path = looked_up
                else:
                    return
                if self.names.is_doubtful(path):
                    meaning = replace(meaning, ambiguous=True)
                path = self.names.canonical(path) or path
            aliased = False
        self._climb(node, path, meaning, scope, name, aliased, found)

    def _climb(
        self,
        node: cst.BaseExpression,
        path: str,
        meaning: Meaning,
        scope: Scope,
        root: cst.Name,
        aliased: bool,
        found: dict[int, Reference],
    ) -> None:
        while True:
            parent = self.tree.parent(node)
            if path.endswith("()"):
                # A value: only its attributes are references, and only of values with rules.
                if path not in self.tracked:
                    return
                if not (isinstance(parent, cst.Attribute) and parent.value is node):
                    return
                node, path, aliased = parent, f"{path}.{parent.attr.value}", False
                parent = self.tree.parent(node)
                covered = self.rules.lookup(path)
                if meaning.ambiguous and covered and covered[1].path.endswith(".*"):
                    # `model.train()`, where a model is wrapped on one path only: the wrapping
                    # is the reference, and nothing tells that this is one too.
                    return
                break
            if path not in self.modules:
                if isinstance(parent, cst.Attribute) and parent.value is node:
                    # A method of a class, which has an entry of its own.
                    method = f"{path}.{parent.attr.value}"
                    covered = self.rules.lookup(method)
                    if covered is not None and covered[1].path == method:
                        node, path, aliased = parent, method, False
                        parent = self.tree.parent(node)
                break
            if isinstance(parent, cst.Attribute) and parent.value is node:
                node, path = parent, handed_on(f"{path}.{parent.attr.value}")
                aliased = False
                continue
            looked_up = self._looked_up(node, scope)
            if looked_up is None:
                break
            node, path = looked_up
        if self.rules.lookup(path) is None:
            while isinstance(parent, cst.Attribute) and parent.value is node:
                node, path = parent, f"{path}.{parent.attr.value}"
                parent = self.tree.parent(node)
        call = parent if isinstance(parent, cst.Call) and parent.func is node else None
        if aliased and call is None and not isinstance(parent, cst.Attribute):
            return  # an alias handed on: the binding itself is the reference
        if id(node) not in found:
            found[id(node)] = Reference(node, path, scope, meaning, root, call, aliased)
        if call is not None and not aliased:
            value = f"{path}()"
            above = self.tree.parent(call)
            if value in self.tracked and isinstance(above, cst.Attribute) and above.value is call:
                plain = Meaning(value)
                self._climb(call, value, plain, scope, root, False, found)

    def _looked_up(
        self, node: cst.BaseExpression, scope: Scope
    ) -> tuple[cst.BaseExpression, str] | None:
        arg = self.tree.parent(node)
        call = self.tree.parent(arg) if isinstance(arg, cst.Arg) else None
        if isinstance(call, cst.Call) and call.args and call.args[0] is arg:
            meaning = self.names.looked_up(call, scope)
            if meaning is not None and meaning.path is not None:
                return call, meaning.path
        return None

    def _is_alias(self, meaning: Meaning) -> bool:
        """Whether the name was assigned a function or class, rather than imported."""
        return (
            meaning.path is not None
            and not meaning.path.endswith("()")
            and meaning.path not in self.modules
            and any(b.kind == "assign" for b in meaning.bindings)
        )


def _roots(node: cst.BaseExpression) -> set[str]:
    """The names at the roots of an expression that may be an alias or a followed value."""
    found: set[str] = set()
    stack: list[cst.BaseExpression] = [node]
    while stack:
        top = stack.pop()
        match top:
            case cst.Name():
                found.add(top.value)
            case cst.Attribute():
                stack.append(top.value)
            case cst.Call():
                stack.append(top.func)
                if isinstance(top.func, cst.Name) and top.func.value == "getattr" and top.args:
                    stack.append(top.args[0].value)
            case cst.IfExp():
                stack.extend((top.body, top.orelse))
    return found


def within(sites: Iterable[Site], tree: Tree, node: cst.CSTNode) -> list[Site]:
    """The sites whose place lies inside a node."""
    return [s for s in sites if tree.is_within(s.node, node)]
