"""Strings and tests that have to do with torch_xla without being uses of its names.

Device strings, environment variables, backend names, ``xla://``, names in strings, tests of
other packages. Each detector finds its places; rules with ``detector`` say the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from xla2tpu import compilebackends, devices, environment, frameworks, processgroups, syntax
from xla2tpu.changes import Builder
from xla2tpu.comments import MARK
from xla2tpu.model import Applicability
from xla2tpu.nodes import dotted
from xla2tpu.prefilter import GUARD_PACKAGES
from xla2tpu.rulemodel import Rule, RuleSet
from xla2tpu.scopes import Scope
from xla2tpu.sites import Change, Cut, Site
from xla2tpu.template import Slice
from xla2tpu.tree import Tree

_DOTTED = re.compile(r"torch_xla(_py)?(\.\w+)*\.?\Z")
_CODE = re.compile(
    r"\b(import|from)\s+torch_xla\b|pip3?\s+install\b.*torch[-_]xla|-m\s+torch_xla\b"
)
_PRINTERS = frozenset(
    {"print", "master_print", "warn", "warning", "info", "debug", "error", "exception", "pprint"}
)
_XLA = re.compile(r"xla(:(\d+|%[sd]|\{\w*\})?)?\Z")
_RENDEZVOUS = re.compile(r"(xla|pjrt)://")
# What the backends of torch_xla ignored, and TorchTPU's reads or refuses.
_OPTIONS = 'Use backend="tpu" and leave out mode, options and dynamic=True, or choose them anew.'
# A run with the safe fixes alone may have taken the imports, and left the tests of a device.
_MIGRATED = re.compile(r"""(?:\btorch\.device\(|\.to\(|\bdevice=)["']tpu["']""")
_OUTSIDE_GUARD = "XLA006"
_GUARDS = (
    r"(is_torch_(xla|tpu)_available|is_tpu_available|_?(TORCH_)?XLA_AVAILABLE"
    r"|_TPU_AVAILABLE|has_xla_support|is_xla_available|_XLA_GREATER_EQUAL_\w+)"
)
# In these packages the name never meant anything but torch_xla.
_ALWAYS = re.compile(r"(?:accelerate|peft)\..*\bis_(?:torch_)?tpu_available\Z")
_GUARD_NAMES = re.compile(rf"(?:^|\.){_GUARDS}$")
_DOTTED_GUARDS = re.compile(rf"\.[\s\\]*{_GUARDS}\b")


class Literals:
    """Finds the sites of one file that are not references by name."""

    def __init__(self, tree: Tree, rules: RuleSet, builder: Builder, uses_torch_xla: bool) -> None:
        self.tree, self.rules, self.builder = tree, rules, builder
        self.uses_torch_xla = uses_torch_xla
        self.by_detector = {r.detector: r for r in rules.rules.values() if r.detector}

    def sites(self) -> list[Site]:
        """All such places of the file."""
        found: list[Site] = []
        for node, scope in self.tree.strings:
            site = self._string(node, scope)
            if site is not None:
                found.append(site)
        found.extend(self._guards())
        found.extend(self._keywords())
        rule = self.by_detector.get("rank-barrier")
        if rule is not None:
            found.extend(processgroups.barriers(rule, self.builder))
        if self.uses_torch_xla:
            found.extend(self._is_xla())
        return found

    # -- strings -----------------------------------------------------------------------------

    def _string(self, node: cst.CSTNode, scope: Scope) -> Site | None:
        if isinstance(node, cst.FormattedStringText):
            return self._formatted(node, scope)
        if not isinstance(node, cst.SimpleString):
            return None
        value = node.evaluated_value
        if not isinstance(value, str) or self._is_docstring(node):
            return None
        if id(node) in self.tree.annotations:
            return self._annotation(node, value, scope)
        if _DOTTED.match(value):
            return self._named(node, value, scope)
        if _XLA.match(value):
            return self._device(node, value, scope)
        if _RENDEZVOUS.match(value):
            return self._simple("rendezvous-url", node, value, scope, reason="whole-program")
        if value in compilebackends.NAMES:
            return self._backend(node, value, scope)
        if environment.is_variable(value):
            return self._variable(node, value, scope)
        if _CODE.search(value):
            site = self._simple("code-string", node, "torch_xla", scope, reason="string-reference")
            if site is not None:
                site.blocks = False
            return site
        return None

    def _is_docstring(self, node: cst.CSTNode) -> bool:
        parent = self.tree.parent(node)
        while isinstance(parent, cst.ConcatenatedString):
            parent = self.tree.parent(parent)
        return isinstance(parent, cst.Expr)

    def _simple(
        self, detector: str, node: cst.CSTNode, path: str, scope: Scope, reason: str | None = None
    ) -> Site | None:
        rule = self.by_detector.get(detector)
        if rule is None:
            return None
        site = Site(rule, path, node, node, scope, "string", counts=False)
        if reason is not None:
            site.refuse(reason)
        if rule.cases and reason is None:
            site.refuse(rule.cases[-1].reason or "unsupported-form")
        return site

    def _annotation(self, node: cst.SimpleString, value: str, scope: Scope) -> Site | None:
        if re.search(r"\btorch_xla(_py)?\.", value):
            site = self._simple("string-reference", node, value, scope, "annotation")
            if site is not None:
                site.counts = True
            return site
        for name in re.findall(r"(?<![\w.])[A-Za-z_]\w*", value):
            meaning = self.builder.names.name(name, scope)
            if self.builder.names.is_ours(meaning.path):
                site = self._simple(
                    "string-reference", node, meaning.path or name, scope, "annotation"
                )
                if site is not None:
                    site.counts = True
                return site
        return None

    def _named(self, node: cst.SimpleString, value: str, scope: Scope) -> Site | None:
        """A dotted torch_xla name in a string: a package test, an import, a patch, or text."""
        call = self._argument_of(node)
        callee = self.builder.callee(call, scope) if call is not None else None
        if callee in ("importlib.util.find_spec", "importlib.find_loader", "pkgutil.find_loader"):
            site = self._simple("find-spec", node, value, scope)
            if site is None:
                return None
            site.counts = True
            if value.split(".")[0] == "torch_xla":
                quote = node.quote
                start, end = self.tree.span(node)
                site.change = Change(
                    cuts=[Cut(start, end, (f"{node.prefix}{quote}torch_tpu{quote}",))],
                    replaced=[node],
                )
                site.reason, site.applicability = None, Applicability.UNSAFE
            else:
                site.refuse("string-reference")
            return site
        if "." not in value and not self._is_looked_up(node, call, scope):
            return None
        site = self._simple("string-reference", node, value, scope, reason="string-reference")
        if site is not None:
            site.counts = True
        return site

    def _argument_of(self, node: cst.CSTNode) -> cst.Call | None:
        arg = self.tree.parent(node)
        call = self.tree.parent(arg) if isinstance(arg, cst.Arg) else None
        return call if isinstance(call, cst.Call) else None

    def _is_looked_up(self, node: cst.CSTNode, call: cst.Call | None, scope: Scope) -> bool:
        """Whether the bare word torch_xla is used as the name of the package, not as text."""
        if call is None:
            parent = self.tree.parent(node)
            listed = isinstance(parent, (cst.Index, cst.Element, cst.DictElement))
            return listed or self._is_compared(node)
        name = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
        last = name.value if isinstance(name, cst.Name) else ""
        path = self.builder.callee(call, scope) or ""
        return not {last, path.rpartition(".")[2]} & _PRINTERS

    def _is_compared(self, node: cst.CSTNode) -> bool:
        return isinstance(self.tree.parent(node), (cst.Comparison, cst.ComparisonTarget))

    def _device(self, node: cst.SimpleString, value: str, scope: Scope) -> Site | None:
        rule = self.by_detector.get("device-string")
        if rule is None:
            return None
        if devices.is_backend(node, scope, self.builder):
            return self._simple("rendezvous-url", node, value, scope, reason="whole-program")
        site = Site(rule, value, node, node, scope, "string", counts=False)
        uses = self.uses_torch_xla or bool(_MIGRATED.search(self.tree.text))
        verdict = devices.string(site, node, value, self.builder, uses)
        if verdict is None:
            return None
        site.change, site.applicability, site.reason = verdict
        if site.reason is not None:
            site.refuse(site.reason)
            site.blocks = site.reason != "user-option"
        around = self.builder.sites.get(id(self._argument_of(node)))
        if around is not None and site.fixable:
            site.follows = [around]  # a call that stays keeps its device
        return site

    def _formatted(self, node: cst.FormattedStringText, scope: Scope) -> Site | None:
        whole = self.tree.parent(node)
        if whole is not None and re.match(r"torch_xla(_py)?\.", node.value):
            site = self._simple("string-reference", whole, node.value, scope, "string-reference")
            if site is not None:
                site.counts = True
            return site
        if not re.match(r"(xla|pjrt)://|xla:\Z", node.value) or whole is None:
            return None
        if "://" in node.value:
            return self._simple("rendezvous-url", whole, node.value, scope, "whole-program")
        # Said whether or not torch_xla is used, so that the answer outlives the migration.
        return self._simple("device-string", whole, node.value, scope, "device-ordinal")

    def _backend(self, node: cst.SimpleString, value: str, scope: Scope) -> Site | None:
        """The name of a dynamo backend, in ``torch.compile(backend=...)`` or on the way there."""
        site = self._simple("dynamo-backend", node, value, scope, reason="user-option")
        if site is None:
            return None
        reason = compilebackends.refusal(node, scope, self.builder)
        if reason is not None:
            site.refuse(reason)
            if reason == "argument-not-supported":
                site.advice = _OPTIONS
            return site
        start, end = self.tree.span(node)
        text = f"{node.prefix}{node.quote}tpu{node.quote}"
        site.change = Change(cuts=[Cut(start, end, (text,))], replaced=[node])
        site.reason, site.applicability = None, Applicability.UNSAFE
        return site

    def _variable(self, node: cst.SimpleString, value: str, scope: Scope) -> Site | None:
        rule = self.by_detector.get(environment.detector(value))
        if rule is None:
            return None
        site = Site(rule, value, node, node, scope, "string", counts=False)
        verdict = environment.variable(site, node, value, self.builder)
        if verdict is None:
            return None
        site.change, site.applicability, site.reason = verdict
        if site.reason is not None:
            site.refuse(site.reason)
            site.blocks = environment.blocks(value)
        return site

    def _keywords(self) -> Iterator[Site]:
        """Variables that are set as keywords: ``os.environ.update(PJRT_DEVICE="TPU")``."""
        for name in ("os", "environ"):
            for load, scope in self.tree.loads.get(name, []):
                node: cst.CSTNode = load
                while isinstance(up := self.tree.parent(node), cst.Attribute):
                    node = up
                parent = self.tree.parent(node)
                if isinstance(parent, cst.Arg):
                    parent = self.tree.parent(parent)
                if not isinstance(parent, cst.Call):
                    continue
                callee = self.builder.callee(parent, scope)
                if callee not in ("os.environ.update", "builtins.dict"):
                    continue
                for arg in parent.args:
                    variable = arg.keyword.value if arg.keyword is not None else ""
                    rule = self.by_detector.get(environment.detector(variable))
                    if rule is None or not environment.is_variable(variable):
                        continue
                    assert arg.keyword is not None
                    site = Site(rule, variable, arg.keyword, arg, scope, "string", counts=False)
                    site.refuse(environment.reason(variable))
                    site.blocks = environment.blocks(variable)
                    yield site

    def _is_xla(self) -> Iterator[Site]:
        """``tensor.is_xla``: False for every tensor once torch_xla is gone."""
        rule = self.by_detector.get("is-xla")
        for node, scope in self.tree.is_xla if rule is not None else ():
            assert rule is not None
            site = Site(rule, "is_xla", node, node, scope, "attribute", counts=False)
            value = Slice(node.value, syntax.precedence(node.value) < syntax.PRIMARY)
            made = (
                "store-or-delete"
                if id(node) in self.tree.stored
                else self.builder.replace(site, '{x}.device.type == "tpu"', extra={"x": value})
            )
            if isinstance(made, str):
                site.refuse(made)
            else:
                site.change, site.applicability = made, Applicability.UNSAFE
            yield site

    # -- tests of other packages -----------------------------------------------------------------

    def _guards(self) -> Iterator[Site]:
        rule = self.by_detector.get("outside-guard")
        if rule is None:
            return
        for binding in self.tree.bindings:
            path = binding.path or ""
            if path.split(".")[0] not in GUARD_PACKAGES or not self._is_guard(path):
                continue
            if self.builder.names.is_local(path.split(".")[0]):
                continue
            home = binding.scope.owner(binding.name)
            for load, scope in self.tree.loads.get(binding.name, []):
                if scope.owner(binding.name) is home:
                    yield self._guard(rule, load, path, scope)
        yield from self._dotted_guards(rule)

    def _is_guard(self, path: str) -> bool:
        """Whether a name is such a test; some names mean another thing in newer releases."""
        if not _GUARD_NAMES.search(path):
            return False
        # A marker tells that the file used it, before an earlier run took the rest.
        marked = f"{MARK} {_OUTSIDE_GUARD}" in self.tree.text
        named = "xla" in path.rpartition(".")[2].lower() or _ALWAYS.match(path) is not None
        return self.uses_torch_xla or marked or named

    def _guard(self, rule: Rule, load: cst.BaseExpression, path: str, scope: Scope) -> Site:
        parent = self.tree.parent(load)
        whole = parent if isinstance(parent, cst.Call) and parent.func is load else load
        site = Site(rule, path, whole, whole, scope, "guard", counts=False)
        site.refuse("guard-outside-project")
        said = frameworks.said_of(rule, path)
        if said is not None:
            site.message, site.advice = said.message, said.advice
        return site

    def _dotted_guards(self, rule: Rule) -> Iterator[Site]:
        """``transformers.is_torch_xla_available()`` through a module."""
        if not _DOTTED_GUARDS.search(self.tree.text):
            return
        for name in self.tree.loads:
            for load, scope in self.tree.loads[name]:
                node: cst.BaseExpression = load
                while isinstance(up := self.tree.parent(node), cst.Attribute) and up.value is node:
                    node = up
                if node is load or not self._is_guard(dotted(node) or ""):
                    continue
                path = self.builder.meaning(node, scope) or ""
                package = path.split(".")[0]
                if package in GUARD_PACKAGES and not self.builder.names.is_local(package):
                    yield self._guard(rule, node, path, scope)
