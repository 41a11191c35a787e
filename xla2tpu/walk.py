"""The one walk over a tree: scopes, bindings, loads, strings and parents.

libcst's visitors, matchers and metadata providers rebuild or copy the tree and cost five to
fifteen times as much as parsing it (measured by ``benchmarks/bench.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst as cst

from xla2tpu.nodes import PLAIN, child_fields, children, descendants, dotted
from xla2tpu.scopes import Binding, Scope

_STRING_OF_INTEREST = re.compile(r"xla|XLA|PJRT|XRT|COLAB_TPU_ADDR|TPU_")

Handler = Callable[..., None]


class Facts:
    """What one walk over a module finds; nodes are kept by their ids.

    ``loads`` are uses of names, ``strings`` those that may name something of torch_xla,
    ``stored`` attributes and subscripts that are assigned or deleted, ``held`` what is assigned to
    attributes of self, ``firsts`` the names of the first parameters of methods, ``exported`` the
    names in ``__all__``.
    """

    def __init__(self, module: cst.Module) -> None:
        self.module = module
        self.root = Scope("module", module)
        self.parents: dict[int, cst.CSTNode] = {}
        self.loads: dict[str, list[tuple[cst.Name, Scope]]] = {}
        self.names: set[str] = set()
        self.strings: list[tuple[cst.CSTNode, Scope]] = []
        self.stored: set[int] = set()
        self.annotations: set[int] = set()
        self.scope_of: dict[int, Scope] = {}
        self.stars: list[tuple[cst.ImportFrom, Scope]] = []
        self.scopes: list[Scope] = []
        self.bindings: list[Binding] = []
        self.held: list[Binding] = []
        self.firsts: set[str] = set()
        self.is_xla: list[tuple[cst.Attribute, Scope]] = []
        self.exported: set[str] = set()


class Walk:
    """The one walk; iterative, so that long operator chains do not exhaust the stack."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.stack: list[tuple[cst.CSTNode, Scope]] = []
        facts.scope_of[id(facts.module)] = facts.root

    def run(self) -> None:
        module = self.facts.module
        self.push_all(module.body, module, self.facts.root)
        stack, parents = self.stack, self.facts.parents
        while stack:
            node, scope = stack.pop()
            kind = type(node)
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, node, scope)
                continue
            for name in child_fields(kind):
                value = getattr(node, name)
                of = type(value)
                if of is tuple or of is list:
                    for item in value:
                        parents[id(item)] = node
                        stack.append((item, scope))
                elif of not in PLAIN:
                    parents[id(value)] = node
                    stack.append((value, scope))
        self.settle_declarations()

    def settle_declarations(self) -> None:
        """Move what is bound under ``global`` or ``nonlocal`` to the scope that it belongs to."""
        for scope in self.facts.scopes:
            for name, where in scope.outer_names.items():
                moved = scope.bindings.pop(name, [])
                home: Scope | None = self.facts.root
                if where == "nonlocal":
                    home = scope.parent
                    while home is not None and not (
                        home.kind == "function" and name in home.bindings
                    ):
                        home = home.parent
                if home is not None and moved:
                    home.bindings.setdefault(name, []).extend(moved)

    def push(
        self, node: cst.CSTNode | cst.MaybeSentinel | None, parent: cst.CSTNode, scope: Scope
    ) -> None:
        if node is not None and not isinstance(node, cst.MaybeSentinel):
            self.facts.parents[id(node)] = parent
            self.stack.append((node, scope))

    def push_all(self, nodes: object, parent: cst.CSTNode, scope: Scope) -> None:
        for node in nodes:  # type: ignore[attr-defined]
            self.push(node, parent, scope)

    # -- names ----------------------------------------------------------------------------

    def bind(
        self,
        name: str,
        kind: str,
        node: cst.CSTNode,
        scope: Scope,
        path: str | None = None,
        value: cst.BaseExpression | None = None,
        statement: cst.CSTNode | None = None,
    ) -> None:
        self.facts.names.add(name)
        binding = Binding(name, kind, node, scope, path, value, statement)
        scope.bindings.setdefault(name, []).append(binding)
        self.facts.bindings.append(binding)

    def target(
        self,
        node: cst.CSTNode,
        parent: cst.CSTNode,
        scope: Scope,
        kind: str = "other",
        value: cst.BaseExpression | None = None,
        statement: cst.CSTNode | None = None,
    ) -> None:
        """Bind what an assignment target names; the rest of it is walked as loads."""
        self.facts.parents[id(node)] = parent
        if isinstance(node, cst.Name):
            self.bind(node.value, kind, node, scope, value=value, statement=statement)
        elif isinstance(node, (cst.Tuple, cst.List)):
            values = _unpacked(value, len(node.elements))
            for element, item in zip(node.elements, values, strict=True):
                self.facts.parents[id(element)] = node
                known = "none" if _is_none(item) else "assign" if item is not None else "other"
                self.target(element.value, element, scope, known, item, statement)
        elif isinstance(node, cst.StarredElement):
            self.target(node.value, node, scope)
        elif isinstance(node, cst.Attribute):
            self.facts.stored.add(id(node))
            self.push(node.value, node, scope)
            if isinstance(node.value, cst.Name):
                owner = scope.enclosing_class()
                if owner is not None and owner[1] == node.value.value:
                    name = node.attr.value
                    held = Binding(name, kind, node, scope, value=value, statement=statement)
                    owner[0].attributes.setdefault(name, []).append(held)
                    self.facts.held.append(held)
        else:
            self.facts.stored.add(id(node))
            self.stack.append((node, scope))

    def name(self, node: cst.Name, scope: Scope) -> None:
        self.facts.names.add(node.value)
        self.facts.loads.setdefault(node.value, []).append((node, scope))

    def attribute(self, node: cst.Attribute, scope: Scope) -> None:
        if node.attr.value == "is_xla":
            self.facts.is_xla.append((node, scope))
        self.push(node.value, node, scope)
        self.facts.parents[id(node.attr)] = node

    def arg(self, node: cst.Arg, scope: Scope) -> None:
        self.push(node.value, node, scope)

    def string(self, node: cst.SimpleString, scope: Scope) -> None:
        if _STRING_OF_INTEREST.search(node.value) or id(node) in self.facts.annotations:
            self.facts.strings.append((node, scope))

    def text(self, node: cst.FormattedStringText, scope: Scope) -> None:
        if _STRING_OF_INTEREST.search(node.value):
            self.facts.strings.append((node, scope))

    # -- imports --------------------------------------------------------------------------

    def import_(self, node: cst.Import, scope: Scope) -> None:
        for alias in node.names:
            self.facts.parents[id(alias)] = node
            path = dotted(alias.name) or ""
            if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                self.bind(alias.asname.name.value, "import", alias, scope, path, statement=node)
            else:
                top = path.split(".")[0]
                self.bind(top, "import", alias, scope, top, statement=node)

    def import_from(self, node: cst.ImportFrom, scope: Scope) -> None:
        base = "." * len(node.relative) + (dotted(node.module) or "" if node.module else "")
        if isinstance(node.names, cst.ImportStar):
            self.facts.stars.append((node, scope))
            return
        for alias in node.names:
            self.facts.parents[id(alias)] = node
            name = dotted(alias.name) or ""
            path = f"{base}{name}" if base.endswith(".") else f"{base}.{name}"
            local = name
            if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                local = alias.asname.name.value
            self.bind(local, "from", alias, scope, path, statement=node)

    # -- statements that bind -------------------------------------------------------------

    def assign(self, node: cst.Assign, scope: Scope) -> None:
        kind = "none" if _is_none(node.value) else "assign"
        for target in node.targets:
            self.facts.parents[id(target)] = node
            self.target(target.target, target, scope, kind, node.value, node)
            if isinstance(target.target, cst.Name) and target.target.value == "__all__":
                self.facts.exported.update(_texts(node.value))
        self.push(node.value, node, scope)

    def ann_assign(self, node: cst.AnnAssign, scope: Scope) -> None:
        if node.value is None:
            kind, value = "declared", None
        else:
            kind, value = ("none" if _is_none(node.value) else "assign"), node.value
        if kind != "declared" or not isinstance(node.target, cst.Name):
            self.target(node.target, node, scope, kind, value, node)
        else:
            self.facts.parents[id(node.target)] = node
        self.annotation(node.annotation, node, scope)
        self.push(node.value, node, scope)

    def aug_assign(self, node: cst.AugAssign, scope: Scope) -> None:
        self.target(node.target, node, scope, "other", None, node)
        if isinstance(node.target, cst.Name):
            if node.target.value == "__all__":
                self.facts.exported.update(_texts(node.value))
            self.name(node.target, scope)
        self.push(node.value, node, scope)

    def walrus(self, node: cst.NamedExpr, scope: Scope) -> None:
        where = scope
        while where.kind == "comprehension" and where.parent is not None:
            where = where.parent
        self.target(node.target, node, where, "assign", node.value, node)
        self.push(node.value, node, scope)

    def for_(self, node: cst.For, scope: Scope) -> None:
        self.target(node.target, node, scope)
        self.push(node.iter, node, scope)
        self.push(node.body, node, scope)
        self.push(node.orelse, node, scope)

    def with_item(self, node: cst.WithItem, scope: Scope) -> None:
        if node.asname is not None:
            self.facts.parents[id(node.asname)] = node
            self.target(node.asname.name, node.asname, scope)
        self.push(node.item, node, scope)

    def handler(self, node: cst.ExceptHandler, scope: Scope) -> None:
        if node.name is not None:
            self.facts.parents[id(node.name)] = node
            self.target(node.name.name, node.name, scope)
        self.push(node.type, node, scope)
        self.push(node.body, node, scope)

    def delete(self, node: cst.Del, scope: Scope) -> None:
        # A name may be deleted alone or in a tuple; the deletion is a use and a rebinding.
        stack: list[tuple[cst.CSTNode, cst.CSTNode]] = [(node.target, node)]
        while stack:
            target, parent = stack.pop()
            self.facts.parents[id(target)] = parent
            if isinstance(target, cst.Name):
                self.bind(target.value, "delete", target, scope, statement=node)
                self.facts.stored.add(id(target))
                self.name(target, scope)
            elif isinstance(target, (cst.Tuple, cst.List)):
                for element in target.elements:
                    self.facts.parents[id(element)] = target
                    stack.append((element.value, element))
            else:
                self.facts.stored.add(id(target))
                self.stack.append((target, scope))

    def declare(self, node: cst.Global | cst.Nonlocal, scope: Scope) -> None:
        where = "global" if isinstance(node, cst.Global) else "nonlocal"
        for item in node.names:
            self.facts.parents[id(item)] = node
            scope.outer_names[item.name.value] = where
        if scope not in self.facts.scopes:
            self.facts.scopes.append(scope)

    def match_as(self, node: cst.CSTNode, scope: Scope) -> None:
        for name in ("name", "rest"):
            target = getattr(node, name, None)
            if isinstance(target, cst.Name):
                self.target(target, node, scope)
        for child in children(node):
            if not isinstance(child, cst.Name):
                self.push(child, node, scope)

    # -- scopes ---------------------------------------------------------------------------

    def annotation(self, node: cst.Annotation | None, parent: cst.CSTNode, scope: Scope) -> None:
        if node is None:
            return
        self.facts.parents[id(node)] = parent
        for below in descendants(node):
            self.facts.annotations.add(id(below))
        self.push(node.annotation, node, scope)

    def parameters(
        self, params: cst.Parameters, parent: cst.CSTNode, inner: Scope, outer: Scope
    ) -> None:
        self.facts.parents[id(params)] = parent
        every = [*params.posonly_params, *params.params]
        if every:
            inner.first_param = every[0].name.value
        for star in (params.star_arg, params.star_kwarg):
            if isinstance(star, cst.Param):
                every.append(star)
        every.extend(params.kwonly_params)
        for param in every:
            self.facts.parents[id(param)] = params
            self.target(param.name, param, inner, "param", param.default)
            self.annotation(param.annotation, param, outer)
            self.push(param.default, param, outer)

    def function(self, node: cst.FunctionDef, scope: Scope) -> None:
        inner = Scope("function", node, scope)
        self.bind(node.name.value, "def", node, scope, statement=node)
        self.push_all(node.decorators, node, scope)
        self.annotation(node.returns, node, scope)
        self.parameters(node.params, node, inner, scope)
        self.type_parameters(node.type_parameters, node, inner)
        if scope.kind == "class" and inner.first_param is not None:
            self.facts.firsts.add(inner.first_param)
        self.facts.scope_of[id(node.body)] = inner
        self.push(node.body, node, inner)

    def lambda_(self, node: cst.Lambda, scope: Scope) -> None:
        inner = Scope("lambda", node, scope)
        self.parameters(node.params, node, inner, scope)
        self.facts.scope_of[id(node.body)] = inner
        self.push(node.body, node, inner)

    def class_(self, node: cst.ClassDef, scope: Scope) -> None:
        inner = Scope("class", node, scope)
        self.bind(node.name.value, "class", node, scope, statement=node)
        self.push_all(node.decorators, node, scope)
        self.push_all(node.bases, node, scope)
        self.push_all(node.keywords, node, scope)
        self.type_parameters(node.type_parameters, node, inner)
        self.facts.scope_of[id(node.body)] = inner
        self.push(node.body, node, inner)

    def type_parameters(
        self, node: cst.TypeParameters | None, parent: cst.CSTNode, scope: Scope
    ) -> None:
        if node is None:
            return
        self.facts.parents[id(node)] = parent
        for item in node.params:
            self.facts.parents[id(item)] = node
            param = item.param
            self.facts.parents[id(param)] = item
            self.target(param.name, param, scope)
            self.push(getattr(param, "bound", None), param, scope)
            self.push(item.default, item, scope)

    def comprehension(self, node: cst.BaseComp, scope: Scope) -> None:
        inner = Scope("comprehension", node, scope)
        self.facts.scope_of[id(node)] = inner
        for name in ("elt", "key", "value"):
            self.push(getattr(node, name, None), node, inner)
        outer: Scope = scope
        parent: cst.CSTNode = node
        loop: cst.CompFor | None = node.for_in
        while loop is not None:
            self.facts.parents[id(loop)] = parent
            self.target(loop.target, loop, inner)
            self.push(loop.iter, loop, outer)
            for condition in loop.ifs:
                self.facts.parents[id(condition)] = loop
                self.push(condition.test, condition, inner)
            outer, parent, loop = inner, loop, loop.inner_for_in


def _unpacked(value: cst.BaseExpression | None, count: int) -> list[cst.BaseExpression | None]:
    """The expressions that ``count`` unpacked targets get, None for each that is not plain."""
    times = 1
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Multiply):
        value, times = value.left, count
    if not isinstance(value, (cst.Tuple, cst.List)) or len(value.elements) * times != count:
        return [None] * count
    if any(isinstance(e, cst.StarredElement) for e in value.elements):
        return [None] * count
    values: list[cst.BaseExpression | None] = [e.value for e in value.elements]
    return values * times


def _is_none(node: cst.CSTNode | None) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def _texts(node: cst.CSTNode) -> Iterator[str]:
    for below in descendants(node):
        if isinstance(below, cst.SimpleString) and isinstance(below.evaluated_value, str):
            yield below.evaluated_value


_HANDLERS: dict[type, Handler] = {
    cst.Name: Walk.name,
    cst.Attribute: Walk.attribute,
    cst.Arg: Walk.arg,
    cst.SimpleString: Walk.string,
    cst.FormattedStringText: Walk.text,
    cst.Import: Walk.import_,
    cst.ImportFrom: Walk.import_from,
    cst.Assign: Walk.assign,
    cst.AnnAssign: Walk.ann_assign,
    cst.AugAssign: Walk.aug_assign,
    cst.NamedExpr: Walk.walrus,
    cst.For: Walk.for_,
    cst.WithItem: Walk.with_item,
    cst.ExceptHandler: Walk.handler,
    cst.ExceptStarHandler: Walk.handler,
    cst.Del: Walk.delete,
    cst.Global: Walk.declare,
    cst.Nonlocal: Walk.declare,
    cst.MatchAs: Walk.match_as,
    cst.MatchStar: Walk.match_as,
    cst.MatchMapping: Walk.match_as,
    cst.FunctionDef: Walk.function,
    cst.Lambda: Walk.lambda_,
    cst.ClassDef: Walk.class_,
    cst.ListComp: Walk.comprehension,
    cst.SetComp: Walk.comprehension,
    cst.DictComp: Walk.comprehension,
    cst.GeneratorExp: Walk.comprehension,
}
