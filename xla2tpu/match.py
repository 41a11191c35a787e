"""Turns references into sites: the rule, the case that holds, and the change that it makes."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable

import libcst as cst

from xla2tpu import devices, syntax
from xla2tpu.changes import Builder
from xla2tpu.model import Applicability
from xla2tpu.names import Names
from xla2tpu.rulemodel import Api, Case, RuleSet
from xla2tpu.scopes import Binding
from xla2tpu.signatures import bind_api, parse
from xla2tpu.sites import Change, Reference, Site
from xla2tpu.spmd import Unit
from xla2tpu.template import compile_template
from xla2tpu.tree import Tree

Transform = Callable[[Site, Builder], "Change | str"]

UNKNOWN_RULE = "XLA099"
MODULE_RULE = "XLA005"
_LAUNCHERS = frozenset({"XLA506", "XLA507", "XLA510"})
_COUNTS = frozenset({"XLA305", "XLA306", "XLA307", "XLA308", "XLA309"})
_LOADERS = frozenset({"XLA503", "XLA504"})
_SPMD = re.compile(r"\.(use_spmd|spmd|xla_sharding|spmd_fully_sharded_data_parallel)\b")
_DOTTED_NAME = re.compile(r"[A-Za-z_][\w.]*\Z")
# A setting that stands in a class, such as `FlashAttention.DEFAULT_BLOCK_SIZES`.
_OF_CLASS = re.compile(r"\.[A-Z]\w*\.[A-Z_]+\Z")
_LITERAL = re.compile(r"""\A(['"])([^'"\\]*)\1\Z""")


@functools.cache
def load_transform(name: str) -> Transform:
    """The function of ``xla2tpu/transforms/<name>.py`` that is called like its module."""
    module = importlib.import_module(f"xla2tpu.transforms.{name}")
    function: Transform = getattr(module, name)
    return function


class Matcher:
    """Matches the references of one file against the rules."""

    def __init__(
        self, tree: Tree, names: Names, rules: RuleSet, builder: Builder, modules: frozenset[str]
    ) -> None:
        self.tree, self.names, self.rules = tree, names, rules
        self.builder, self.modules = builder, modules

    def sites(self, references: list[Reference]) -> list[Site]:
        """One site for each reference, with its case chosen; `build` makes the changes."""
        sites = [self._site(r) for r in references]
        by_expression = {id(s.expression): s for s in sites}
        by_node = {id(s.node): s for s in sites}
        self.builder.sites.update(by_expression)
        for site, reference in zip(sites, references, strict=True):
            if site.reason is None:
                self._choose(site, reference, by_expression, by_node)
            if "()." in site.path:
                site.makers = self._makers(site, by_expression)
        self._module_aliases(sites)
        patched = {s.path for s in sites if s.reason == "store-or-delete"}
        for node, _ in self.tree.strings:
            if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
                arg = self.tree.parent(node)
                call = self.tree.parent(arg) if isinstance(arg, cst.Arg) else None
                if id(call) not in by_expression:  # there it is a tag, or the like
                    patched.add(node.evaluated_value)
        patched |= {p for s in sites if (p := self._patched(s)) is not None}
        for site in sites:
            # What the program itself replaces at run time must be called where it was.
            if site.path in patched and site.reason is None and site.path not in self.modules:
                site.refuse("store-or-delete")
        self.builder.naming.vacated = lambda name: self._is_vacated(name, sites)
        return sites

    def _module_aliases(self, sites: list[Site]) -> None:
        """``ym = xm`` goes with the last use of ``ym``."""
        for site in sites:
            parent = self.tree.parent(site.node)
            if site.rule.code != MODULE_RULE or not isinstance(parent, cst.Assign):
                continue
            names = {t.target.value for t in parent.targets if isinstance(t.target, cst.Name)}
            if len(names) != len(parent.targets):
                continue
            uses = [s for s in sites if s is not site and s.root and s.root.value in names]
            if not uses:
                continue
            site.reason, site.case = None, None
            site.change = Change(with_import=True)
            site.applicability = Applicability.SAFE
            site.follows = uses
            site.fix_title = "Goes with the last use of the name"

    def _patched(self, site: Site) -> str | None:
        """The name that ``setattr(xm, "name", ...)`` and the like put something else into."""
        arg = self.tree.parent(site.node)
        call = self.tree.parent(arg) if isinstance(arg, cst.Arg) else None
        if site.path not in self.modules or not isinstance(call, cst.Call) or len(call.args) < 2:
            return None
        name = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
        literal = call.args[1].value
        patches = isinstance(name, cst.Name) and name.value in ("setattr", "delattr", "object")
        value = literal.evaluated_value if isinstance(literal, cst.SimpleString) else None
        return f"{site.path}.{value}" if patches and isinstance(value, str) else None

    def _is_vacated(self, name: str, sites: list[Site]) -> bool:
        uses = [s for s in sites if s.root is not None and s.root.value == name]
        if self.builder.settings.unsafe:
            return all(s.fixable for s in uses)
        return all(s.applicability is Applicability.SAFE for s in uses)

    def _site(self, reference: Reference) -> Site:
        path = reference.path
        found = self.rules.lookup(path)
        api: Api | None = None
        if path in self.modules and not isinstance(self.tree.parent(reference.node), cst.Call):
            rule = self.rules.rules[MODULE_RULE]
        elif found is not None:
            rule, api = found
        else:
            rule = self.rules.rules[UNKNOWN_RULE]
        node = reference.node
        expression: cst.BaseExpression = reference.call or node
        context = syntax.context_of(self.tree, expression, reference.call is not None)
        site = Site(
            rule, path, node, expression, reference.scope, context,
            api=api, call=reference.call, meaning=reference.meaning, root=reference.root,
        )  # fmt: skip
        site.reason = self._obstacle(site, reference)
        return site

    def _obstacle(self, site: Site, reference: Reference) -> str | None:
        """Why nothing can be rewritten whatever the rule says, or None."""
        node = reference.node
        parent = self.tree.parent(node)
        # A transform tells apart what a value may be, and where its attributes are set.
        attribute = "()." in site.path or _OF_CLASS.search(site.path)
        if attribute and any(c.action == "transform" for c in site.rule.cases):
            return None
        if id(node) in self.tree.stored:
            return "store-or-delete"
        if reference.meaning.star:
            return "star-import"
        if isinstance(parent, cst.Arg) and isinstance(self.tree.parent(parent), cst.ClassDef):
            return "subclass"
        if isinstance(parent, (cst.MatchValue, cst.MatchClass, cst.MatchKeywordElement)):
            return "unsupported-form"  # a plain name in a pattern would be bound, and always fit
        if reference.meaning.optional and site.call is None and site.path not in self.modules:
            asked = isinstance(parent, (cst.Comparison, cst.ComparisonTarget))
            if asked or is_truth_test(self.tree, node):
                return "unsupported-form"  # a flag that tells whether the import worked
        if reference.meaning.ambiguous and not reference.aliased:
            return "ambiguous-binding"
        if isinstance(parent, cst.Attribute) and id(parent) in self.tree.stored:
            return "store-or-delete"
        return None

    def _is_spelled_out(self, node: cst.CSTNode) -> bool:
        """Whether the text of an expression is printed too, as by ``f"{xm.get_ordinal()=}"``."""
        for above in self.tree.ancestors(node):
            if isinstance(above, cst.FormattedStringExpression):
                return above.equal is not None
            if isinstance(above, (cst.BaseStatement, cst.BaseSmallStatement)):
                return False
        return False

    # -- cases -------------------------------------------------------------------------------

    def _choose(
        self,
        site: Site,
        reference: Reference,
        by_expression: dict[int, Site],
        by_node: dict[int, Site],
    ) -> None:
        if reference.aliased:
            self._follow_alias(site, reference, by_node)
            return
        if id(site.node) in self.tree.annotations:
            self._annotate(site)
            return
        if site.call is not None and site.api is not None and site.api.signatures:
            bound = bind_api(
                site.api, site.call.args, self.builder.settings.source_version,
                lambda node: self._is_device(node, site),
            )  # fmt: skip
            if bound == "starred-arguments" and self._hand_over(site, by_expression):
                return
            if isinstance(bound, str):
                manual = [c for c in site.rule.cases if c.action == "reason" and not c.args]
                site.refuse(
                    manual[-1].reason or bound if len(site.rule.cases) == 1 and manual else bound
                )
                return
            site.bound = bound
        for case in site.rule.cases:
            if self._holds(case, site):
                self._take(case, site, by_expression)
                return
        site.refuse("unsupported-form")

    def _hand_over(self, site: Site, by_expression: dict[int, Site]) -> bool:
        """Whether a helper with the very parameters of the function is called in its place."""
        assert site.api is not None
        for case in site.rule.cases:
            helper = self.rules.helpers.get(case.template or "")
            if helper is None or "reference" not in case.context or case.args or case.used_as:
                continue
            heading = f"def {helper.name}"
            if all(helper.code.startswith(f"{heading}{s.source}:") for s in site.api.signatures):
                site.call, site.expression, site.context = None, site.node, "reference"
                self._take(case, site, by_expression)
                if site.applicability is Applicability.SAFE:
                    site.applicability = Applicability.UNSAFE  # what is given is not seen
                return True
        return False

    def _annotate(self, site: Site) -> None:
        """In an annotation only the name of a class can stand for another."""
        for case in site.rule.cases:
            named = case.action == "replace" and _DOTTED_NAME.match(case.template or "")
            is_class = site.path.rpartition(".")[2][:1].isupper()
            others = (s for s in self.builder.sites.values() if s.path == site.path)
            if case.helpers and all(s.call is None for s in others):
                continue  # a class of this file would be another one than the value's
            if named and is_class and "reference" in case.context and site.call is None:
                self._take(case, site, {})
                return
        site.refuse("annotation")

    def _take(self, case: Case, site: Site, by_expression: dict[int, Site]) -> None:
        site.case = case
        site.message, site.advice = case.message, case.advice
        site.fix_title, site.effort = case.fix_title, case.effort
        if case.action == "reason":
            site.refuse(case.reason or "unsupported-form")
            return
        obstacle = self._arguments(case, site)
        if obstacle is not None:
            site.refuse(obstacle)
            return
        site.applicability = case.applicability
        if self._is_spelled_out(site.node):
            site.applicability = Applicability.UNSAFE
        if case.action == "keep":
            self._follow_maker(site, by_expression)

    def _holds(self, case: Case, site: Site) -> bool:
        contexts = {site.context} | ({"value"} if site.context == "lambda-body" else set())
        if case.context and not contexts & case.context:
            return False
        if case.used_as and not any(self._used_as(site, use) for use in case.used_as):
            return False
        given = site.bound.args if site.bound is not None else {}
        for name, allowed in case.args.items():
            arg = given.get(name)
            if not any(allows(word, arg, self.tree) for word in allowed):
                return False
        return True

    def _used_as(self, site: Site, use: str) -> bool:
        node = site.expression
        parent = self.tree.parent(node)
        match use:
            case "subscript":
                return isinstance(parent, cst.Subscript) and parent.value is node
            case "attribute":
                return isinstance(parent, cst.Attribute) and parent.value is node
            case "compare":
                return isinstance(parent, (cst.Comparison, cst.ComparisonTarget))
            case "len":
                call = self.tree.parent(parent) if isinstance(parent, cst.Arg) else None
                return isinstance(call, cst.Call) and self._is_len(call, site)
            case "truth":
                return is_truth_test(self.tree, node)
        return False

    def _is_len(self, call: cst.Call, site: Site) -> bool:
        return self.builder.callee(call, site.scope) == "builtins.len"

    def _is_device(self, node: cst.BaseExpression, site: Site) -> bool:
        return devices.is_device(node, site.scope, self.builder)

    def _arguments(self, case: Case, site: Site) -> str | None:
        """Why an argument that is given cannot be served by the case, or None."""
        bound = site.bound
        if bound is None:
            return None
        if case.action == "transform":
            used = set(bound.args) - case.drops
            stars = True
        else:
            used, stars = _placeholders(case)
        for name, arg in bound.args.items():
            if name in used:
                if name in _repeated(case) and not self.builder.droppable(arg.value, site.scope):
                    return "argument-side-effects"
                continue
            if name not in case.args and name not in case.drops:
                return "argument-not-supported"
            if not self.builder.droppable(arg.value, site.scope):
                return "argument-side-effects"
        variadic = [*bound.variadic, *bound.keywords]
        if not variadic or stars or case.action == "keep":
            return None
        names = (
            {p.name for s in site.api.signatures for p in parse(s.source) if "arg" in p.kind}
            if site.api
            else set()
        )
        if not names & case.drops or any(a.star for a in variadic):
            return "argument-not-supported"
        if not all(self.builder.droppable(a.value, site.scope) for a in variadic):
            return "argument-side-effects"
        return None

    # -- sites that depend on others ------------------------------------------------------------

    def _follow_alias(self, site: Site, reference: Reference, by_node: dict[int, Site]) -> None:
        """A call of ``mark`` after ``mark = xm.mark_step`` is mended where the alias is made."""
        makers = self._where_made(reference.meaning.bindings, by_node, set())
        if makers is None:
            site.refuse("ambiguous-binding")
        else:
            self._depend(site, makers)

    def _where_made(
        self, bindings: Iterable[Binding], by_node: dict[int, Site], seen: set[int]
    ) -> list[Site] | None:
        """The references that an alias stands for, through aliases of it too.

        None where one of the bindings is an import.
        """
        makers: list[Site] = []
        for binding in bindings:
            value = binding.value
            if binding.kind == "assign" and value is not None and id(value) not in seen:
                seen.add(id(value))
                inside = [s for s in by_node.values() if self.tree.is_within(s.node, value)]
                if not inside:
                    further = self.names.expression(value, binding.scope).bindings
                    more = self._where_made(further, by_node, seen)
                    if more is None:
                        return None
                    inside = more
                makers.extend(inside)
            elif binding.path is not None:
                return None
        return makers

    def _follow_maker(self, site: Site, by_expression: dict[int, Site]) -> None:
        """A method of a value is mended where the value is made."""
        self._depend(site, self._makers(site, by_expression))

    def _makers(self, site: Site, by_expression: dict[int, Site]) -> list[Site]:
        """The calls that make the value whose attribute the site is."""
        node = site.node
        if isinstance(node, cst.Attribute) and id(node.value) in by_expression:
            return [by_expression[id(node.value)]]
        if site.meaning is None:
            return []
        values: list[cst.CSTNode] = [b.value for b in site.meaning.bindings if b.value is not None]
        for value in values:
            if isinstance(value, cst.IfExp):
                values += [value.body, value.orelse]
        return [by_expression[id(v)] for v in values if id(v) in by_expression]

    def _depend(self, site: Site, makers: list[Site]) -> None:
        site.follows = makers
        if not makers:
            site.refuse("value-escapes")
            return
        site.change = Change()
        site.applicability = Applicability.SAFE
        site.fix_title = "Stays as it is, once the value is made anew"

    # -- changes --------------------------------------------------------------------------------

    def build(self, sites: list[Site]) -> None:
        """Make the changes; helpers that are called once in the file take their inline form."""
        uses = self.builder.helper_uses
        for site in sites:
            if site.fixable and site.case is not None:
                for name in site.case.helpers:
                    uses[name] = uses.get(name, 0) + 1
        self._respect_programs(sites)
        naming = self.builder.naming
        while True:
            self._build_all(sites)
            if all(naming.vacated(name) for name in naming.taken):
                return
            # A helper took the name of an import that a refused site still uses.
            naming.forget()
            for site in sites:
                if site.case is not None and site.case.action != "keep":
                    site.change = None

    def _build_all(self, sites: list[Site]) -> None:
        for site in sites:
            if site.fixable and site.case is not None and site.change is None:
                self._build(site, site.case)
        self.builder.naming.at = None
        for site in sites:
            # A value with one attribute that cannot be served keeps its maker as well.
            if not site.fixable:
                for maker in site.makers:
                    if maker.fixable:
                        maker.refuse(site.reason or "value-escapes")
        self._keep_classes(sites)
        settle_dependents(sites)

    def _respect_programs(self, sites: list[Site]) -> None:
        """Leave what only makes sense together with a launch or with SPMD."""
        spmd = is_single_controller(sites) and Unit not in self.builder.memory
        for site in sites:
            if not site.fixable:
                continue
            if spmd and site.rule.code in _COUNTS | _LOADERS:
                site.refuse("single-controller")
            arg = self.tree.parent(site.expression)
            call = self.tree.parent(arg) if isinstance(arg, cst.Arg) else None
            launcher = self.builder.sites.get(id(call)) if call is not None else None
            if site.context == "reference" and launcher and launcher.rule.code in _LAUNCHERS:
                site.refuse("whole-program")
                launcher.refuse("whole-program")

    def _keep_classes(self, sites: list[Site]) -> None:
        """The uses of one class change together: a test by another class would always fail."""
        for site in sites:
            is_class = site.counts and site.path.rpartition(".")[2][:1].isupper()
            if site.fixable or not is_class:
                continue
            if (
                site.call is not None
                and site.rule.code in _LOADERS
                and not any(s.path == site.path and s.call is None for s in sites)
            ):
                continue  # nothing asks what class a loader is of
            for other in sites:
                if other.path == site.path and other.fixable and not other.follows:
                    other.refuse(site.reason or "unsupported-form")

    def _build(self, site: Site, case: Case) -> None:
        self.builder.naming.at = site.expression
        if case.action == "transform":
            assert case.transform is not None
            result = load_transform(case.transform)(site, self.builder)
        else:
            result = self.builder.case(site, case)
        if isinstance(result, str):
            site.refuse(result)
        else:
            site.change = result


def is_single_controller(sites: list[Site]) -> bool:
    """Whether the program is one of SPMD, in which one process drives all devices."""
    # An import that nothing uses goes, and tells nothing a second time.
    return any(s.counts and _SPMD.search(s.path) for s in sites)


def settle_dependents(sites: list[Site]) -> None:
    """A site that follows others is as trustworthy as the least of them."""
    order = [Applicability.SAFE, Applicability.UNSAFE, Applicability.MANUAL]
    changed = True
    while changed:
        changed = False
        for site in sites:
            if not site.follows or not site.fixable:
                continue
            worst = max((f.applicability for f in site.follows), key=order.index)
            if worst is Applicability.MANUAL:
                first = next(f for f in site.follows if not f.fixable)
                site.refuse(first.reason or "value-escapes")
                changed = True
            elif worst is not site.applicability and order.index(worst) > order.index(
                site.applicability
            ):
                site.applicability = worst
                changed = True


def is_truth_test(tree: Tree, node: cst.CSTNode) -> bool:
    """Whether only the truth of an expression is asked for."""
    parent = tree.parent(node)
    match parent:
        case cst.If() | cst.While() | cst.IfExp() | cst.Assert() | cst.CompIf():
            return parent.test is node
        case cst.UnaryOperation():
            return isinstance(parent.operator, cst.Not)
        case cst.BooleanOperation():
            return is_truth_test(tree, parent)
    return False


@functools.cache
def _placeholders_of(template: str, block: bool) -> tuple[frozenset[str], bool]:
    compiled = compile_template(template, block)
    named = frozenset(s.name for s in compiled.slots if not s.stars)
    return named, any(s.stars for s in compiled.slots)


def _repeated(case: Case) -> set[str]:
    """The parameters that a case's template takes more than once."""
    if case.template is None:
        return set()
    compiled = compile_template(case.template.strip("\n"), case.action == "statement")
    names = [s.name for s in compiled.slots]
    return {n for n in names if names.count(n) > 1}


def _placeholders(case: Case) -> tuple[set[str], bool]:
    """The parameters that a case's template takes, and whether it takes variadic ones."""
    if case.template is None:
        return set(), False
    named, stars = _placeholders_of(case.template.strip("\n"), case.action == "statement")
    if "call" in named:
        return set(named), True
    return set(named), stars


def allows(word: str, arg: cst.Arg | None, tree: Tree) -> bool:
    """Whether an argument, None where it is not given, is what one word of a condition says."""
    if word == "absent":
        return arg is None
    if arg is None:
        return False
    if word == "given":
        return True
    if word == "constant":
        return syntax.is_constant(arg.value)
    source = tree.source(arg.value)
    if source == word:
        return True
    mine, theirs = _LITERAL.match(source), _LITERAL.match(word)
    return mine is not None and theirs is not None and mine[2] == theirs[2]
