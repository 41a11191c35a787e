"""One libcst tree of a file, walked once: scopes, bindings, name loads, strings, parents, spans.

The walk goes over the fields of the nodes itself. libcst's visitors, matchers and metadata
providers rebuild or copy the tree and cost five to fifteen times as much as parsing it
(measured by ``benchmarks/bench.py``). Positions come from one code generation pass, which is
made only when a file has something to report.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import gc
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

import libcst as cst
from libcst._nodes.internal import CodegenState

# Deep expressions are walked without recursion here, but libcst generates code recursively.
_RECURSION_LIMIT = 20_000

_SKIPPED_FIELDS = re.compile(
    r"whitespace|^(l|r)(par|bracket|brace)s?$|^leading_lines$|^lines_after|^header$|^footer$"
    r"|^semicolon$|^comma$|^colon$|^equal$|^dot$|^newline$|^indent$|^default_indent$"
    r"|^(from_|as|in_|if_|else_|async_|await_|star|async)$|^operator$|^asynchronous$"
)

_STRING_OF_INTEREST = re.compile(r"xla|XLA|PJRT|XRT|COLAB_TPU_ADDR|TPU_")


@dataclass(slots=True, eq=False)
class Binding:
    """What binds a name in a scope.

    ``kind``: import, from, assign, none, param, def, class, delete or other. ``path`` is the dotted
    path that an import binds, with leading dots where it is relative. ``node`` is the node
    that holds the name, ``value`` the assigned expression.
    """

    name: str
    kind: str
    node: cst.CSTNode
    scope: Scope
    path: str | None = None
    value: cst.BaseExpression | None = None
    statement: cst.CSTNode | None = None


@dataclass(slots=True, eq=False)
class Scope:
    """A Python scope. ``attributes`` are those set on the first parameter of a class's methods."""

    kind: str
    node: cst.CSTNode
    parent: Scope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    outer_names: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, list[Binding]] = field(default_factory=dict)
    first_param: str | None = None

    def owner(self, name: str) -> Scope | None:
        """The scope in which a load of ``name`` from here finds it, None for builtins."""
        scope: Scope | None = self
        first = True
        while scope is not None:
            where = scope.outer_names.get(name)
            if where == "global":
                return scope.module() if name in scope.module().bindings else None
            if where is None and (first or scope.kind != "class") and name in scope.bindings:
                return scope
            # A comprehension or lambda directly in a class body does not see the class's names.
            first = False
            scope = scope.parent
        return None

    def module(self) -> Scope:
        """The scope of the file."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def enclosing_class(self) -> tuple[Scope, str] | None:
        """The class of the innermost method around, and the name of its first parameter."""
        scope: Scope | None = self
        while scope is not None and scope.parent is not None:
            if scope.kind == "function" and scope.parent.kind == "class" and scope.first_param:
                return scope.parent, scope.first_param
            scope = scope.parent
        return None


class _Positions(CodegenState):
    """A code generation that notes where each node begins and ends, in characters."""

    __slots__ = ("at", "full", "inner", "starts")

    def __init__(self, default_indent: str, default_newline: str) -> None:
        super().__init__(default_indent, default_newline)
        self.at = 0
        self.full: dict[int, tuple[int, int]] = {}
        self.inner: dict[int, tuple[int, int]] = {}
        self.starts: list[int] = []

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        self.at += len(value)

    def add_indent_tokens(self) -> None:
        for token in self.indent_tokens:
            self.tokens.append(token)
            self.at += len(token)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.starts.append(self.at)

    def after_codegen(self, node: cst.CSTNode) -> None:
        self.full[id(node)] = (self.starts.pop(), self.at)

    def record_syntactic_position(  # type: ignore[override]
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> _Recorder:
        return _Recorder(self, node, start_node, end_node)


class _Recorder:
    __slots__ = ("begin", "end_node", "node", "start_node", "state")

    def __init__(
        self,
        state: _Positions,
        node: cst.CSTNode,
        start_node: cst.CSTNode | None,
        end_node: cst.CSTNode | None,
    ) -> None:
        self.state, self.node = state, node
        self.start_node, self.end_node = start_node, end_node

    def __enter__(self) -> None:
        self.begin = self.state.at

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        state = self.state
        begin, end = self.begin, state.at
        if self.start_node is not None and id(self.start_node) in state.inner:
            begin = state.inner[id(self.start_node)][0]
        if self.end_node is not None and id(self.end_node) in state.inner:
            end = state.inner[id(self.end_node)][1]
        state.inner[id(self.node)] = (begin, end)


_fields: dict[type, tuple[str, ...]] = {}


def child_fields(kind: type) -> tuple[str, ...]:
    """The fields of a node class that hold code, without white space and punctuation."""
    found = _fields.get(kind)
    if found is None:
        found = tuple(
            f.name for f in dataclasses.fields(kind) if not _SKIPPED_FIELDS.search(f.name)
        )
        _fields[kind] = found
    return found


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes directly below, in the order of the source for all that matters here."""
    for name in child_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, (tuple, list)):
            for item in value:
                if isinstance(item, cst.CSTNode):
                    yield item


def descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all nodes of code below it."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(children(top))


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Parsing makes only long-lived objects; collecting meanwhile costs a third of its time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


_STATEMENTS = (
    cst.BaseStatement,
    cst.BaseSmallStatement,
    cst.Decorator,
    cst.ExceptHandler,
    cst.ExceptStarHandler,
    cst.Else,
    cst.Finally,
)


class PositionError(ValueError):
    """The parser does not give back the source unchanged, so that no position can be trusted."""


class Tree:
    """The parsed file and what one walk over it found.

    ``text`` is the source without its byte order mark, ``parsable`` the same for the parser,
    as long to the character. Raises ``cst.ParserSyntaxError``.
    """

    def __init__(self, text: str, parsable: str) -> None:
        if sys.getrecursionlimit() < _RECURSION_LIMIT:
            sys.setrecursionlimit(_RECURSION_LIMIT)
        self.text = text
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
        self._full: dict[int, tuple[int, int]] = {}
        self._inner: dict[int, tuple[int, int]] = {}
        self._everywhere = False
        self._chunks: dict[int, int] | None = None
        with paused_gc():
            self.module = cst.parse_module(parsable)
            self._parsable = parsable
            self.root = Scope("module", self.module)
            _Walk(self).run()

    def release(self) -> None:
        """Cut the cycles of scopes and bindings, so that the tree goes without a collection."""
        for binding in (*self.bindings, *self.held):
            binding.scope.bindings.clear()
            binding.scope.attributes.clear()
            binding.value = binding.statement = None
        self.bindings.clear()
        self.held.clear()
        self.scope_of.clear()
        self.loads.clear()
        self.parents.clear()
        self.strings.clear()
        self._full.clear()
        self._inner.clear()

    # -- positions ------------------------------------------------------------------------

    def locate(self) -> None:
        """Find the spans of all nodes; raises `PositionError`."""
        if self._everywhere:
            return
        state = _Positions(self.module.default_indent, self.module.default_newline)
        with paused_gc():
            self.module._codegen(state)
        if "".join(state.tokens) != self._parsable:
            raise PositionError("the parser does not give back the source unchanged")
        self._full, self._inner = state.full, state.inner
        self._everywhere = True

    def _locate(self, node: cst.CSTNode) -> None:
        """Find the spans of the nodes around ``node``: of a function or statement of the file.

        Generating code for a whole file costs a third of parsing it, and most of a long file
        has nothing to report.
        """
        chunk = self._chunk(node)
        if chunk is None:
            self.locate()
            return
        state = _Positions(self.module.default_indent, self.module.default_newline)
        state.indent_tokens.extend(chunk[1])
        with paused_gc():
            chunk[0]._codegen(state)
        shift = self._place(chunk[0], state)
        if shift is None:
            self.locate()
            return
        end = len(self.text)
        for table, found in ((self._full, state.full), (self._inner, state.inner)):
            table.update((k, (a + shift, min(b + shift, end))) for k, (a, b) in found.items())

    def _chunk(self, node: cst.CSTNode) -> tuple[cst.CSTNode, list[str]] | None:
        """The statement of the file, or of a class in it, around a node, and its indentation."""
        path = [node, *self.ancestors(node)]
        below = len(path) - 2
        indent: list[str] = []
        while below >= 0:
            here = path[below]
            block = here.body if isinstance(here, cst.ClassDef) else None
            if not isinstance(block, cst.IndentedBlock):
                return here, indent
            if below < 2 or path[below - 1] is not block:
                return None
            indent.append(self.module.default_indent if block.indent is None else block.indent)
            below -= 2
        return None

    def _place(self, chunk: cst.CSTNode, state: _Positions) -> int | None:
        """Where the generated code stands in the file; None where that is not certain."""
        code = "".join(state.tokens)
        at = self._parsable.find(f"\n{code}") + 1
        if at and self._parsable.find(f"\n{code}", at) < 0:
            return at
        if self._chunks is None:
            self._chunks = self._split()
        start = self._chunks.get(id(chunk))
        if start is None:
            return None
        shift = start - state.inner[id(chunk)][0]
        # The last line of a file may have no newline.
        at_end = self._parsable[shift:] == code.rstrip("\r\n")
        return shift if at_end or self._parsable.startswith(code, shift) else None

    def _split(self) -> dict[int, int]:
        """Where the statements of the file and of its classes begin.

        CPython's parser tells it at a tenth of libcst's price. Empty where the two disagree.
        """
        try:
            body = ast.parse(self._parsable).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return {}
        starts = [0, *(m.end() for m in re.finditer(r"\r\n|\r|\n", self._parsable))]
        found: dict[int, int] = {}
        return found if self._pair(list(self.module.body), body, starts, found) else {}

    def _pair(
        self,
        nodes: list[cst.CSTNode],
        others: list[ast.stmt],
        starts: list[int],
        found: dict[int, int],
    ) -> bool:
        index = 0
        for node in nodes:
            if index >= len(others):
                return False
            other = others[index]
            index += len(node.body) if isinstance(node, cst.SimpleStatementLine) else 1
            if isinstance(node, cst.ClassDef) and isinstance(other, ast.ClassDef):
                block = node.body
                if isinstance(block, cst.IndentedBlock):
                    if not self._pair(list(block.body), other.body, starts, found):
                        return False
                    continue
            # Columns are bytes, but what stands before a statement on its line is white space.
            found[id(node)] = starts[other.lineno - 1] + other.col_offset
        return index == len(others)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Where the node's own text stands, in characters, parentheses around it included.

        For statements: without the comment lines above and the newline after.
        """
        full = self.full_span(node)
        if isinstance(node, _STATEMENTS):
            return self._inner.get(id(node)) or full
        return full

    def full_span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Like ``span``, with the white space and comments that the node owns."""
        found = self._full.get(id(node))
        if found is None:
            self._locate(node)
            found = self._full[id(node)]
        return found

    def source(self, node: cst.CSTNode) -> str:
        """The text of the node."""
        start, end = self.span(node)
        return self.text[start:end]

    # -- structure ------------------------------------------------------------------------

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node above, None for the module."""
        return self.parents.get(id(node))

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes above, innermost first."""
        above = self.parents.get(id(node))
        while above is not None:
            yield above
            above = self.parents.get(id(above))

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The small or compound statement that the node stands in (itself if it is one)."""
        here: cst.CSTNode | None = node
        while here is not None:
            if isinstance(here, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                return here
            here = self.parents.get(id(here))
        return self.module

    def scope(self, node: cst.CSTNode) -> Scope:
        """The innermost scope around the node."""
        here: cst.CSTNode | None = node
        while here is not None:
            found = self.scope_of.get(id(here))
            if found is not None:
                return found
            here = self.parents.get(id(here))
        return self.root

    def is_within(self, node: cst.CSTNode, above: cst.CSTNode) -> bool:
        """Whether ``node`` is ``above`` or stands below it."""
        here: cst.CSTNode | None = node
        while here is not None:
            if here is above:
                return True
            here = self.parents.get(id(here))
        return False


Handler = Callable[..., None]


class _Walk:
    """The one walk; iterative, so that long operator chains do not exhaust the stack."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.stack: list[tuple[cst.CSTNode, Scope]] = []
        tree.scope_of[id(tree.module)] = tree.root

    def run(self) -> None:
        module = self.tree.module
        self.push_all(module.body, module, self.tree.root)
        stack, parents = self.stack, self.tree.parents
        while stack:
            node, scope = stack.pop()
            kind = type(node)
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, node, scope)
                continue
            for name in child_fields(kind):
                value = getattr(node, name)
                if value is None:
                    continue
                if type(value) in (tuple, list):
                    for item in value:
                        parents[id(item)] = node
                        stack.append((item, scope))
                elif isinstance(value, cst.CSTNode):
                    parents[id(value)] = node
                    stack.append((value, scope))
        self.settle_declarations()

    def settle_declarations(self) -> None:
        """Move what is bound under ``global`` or ``nonlocal`` to the scope that it belongs to."""
        for scope in self.tree.scopes:
            for name, where in scope.outer_names.items():
                moved = scope.bindings.pop(name, [])
                home: Scope | None = self.tree.root
                if where == "nonlocal":
                    home = scope.parent
                    while home is not None and not (
                        home.kind == "function" and name in home.bindings
                    ):
                        home = home.parent
                if home is not None and moved:
                    home.bindings.setdefault(name, []).extend(moved)

    def push(self, node: cst.CSTNode | None, parent: cst.CSTNode, scope: Scope) -> None:
        if isinstance(node, cst.CSTNode):
            self.tree.parents[id(node)] = parent
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
        self.tree.names.add(name)
        binding = Binding(name, kind, node, scope, path, value, statement)
        scope.bindings.setdefault(name, []).append(binding)
        self.tree.bindings.append(binding)

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
        self.tree.parents[id(node)] = parent
        if isinstance(node, cst.Name):
            self.bind(node.value, kind, node, scope, value=value, statement=statement)
        elif isinstance(node, (cst.Tuple, cst.List)):
            values = _unpacked(value, len(node.elements))
            for element, item in zip(node.elements, values, strict=True):
                self.tree.parents[id(element)] = node
                known = "none" if _is_none(item) else "assign" if item is not None else "other"
                self.target(element.value, element, scope, known, item, statement)
        elif isinstance(node, cst.StarredElement):
            self.target(node.value, node, scope)
        elif isinstance(node, cst.Attribute):
            self.tree.stored.add(id(node))
            self.push(node.value, node, scope)
            if isinstance(node.value, cst.Name):
                owner = scope.enclosing_class()
                if owner is not None and owner[1] == node.value.value:
                    name = node.attr.value
                    held = Binding(name, kind, node, scope, value=value, statement=statement)
                    owner[0].attributes.setdefault(name, []).append(held)
                    self.tree.held.append(held)
        else:
            self.tree.stored.add(id(node))
            self.stack.append((node, scope))

    def name(self, node: cst.Name, scope: Scope) -> None:
        self.tree.names.add(node.value)
        self.tree.loads.setdefault(node.value, []).append((node, scope))

    def attribute(self, node: cst.Attribute, scope: Scope) -> None:
        if node.attr.value == "is_xla":
            self.tree.is_xla.append((node, scope))
        self.push(node.value, node, scope)
        self.tree.parents[id(node.attr)] = node

    def arg(self, node: cst.Arg, scope: Scope) -> None:
        self.push(node.value, node, scope)

    def string(self, node: cst.SimpleString, scope: Scope) -> None:
        if _STRING_OF_INTEREST.search(node.value) or id(node) in self.tree.annotations:
            self.tree.strings.append((node, scope))

    def text(self, node: cst.FormattedStringText, scope: Scope) -> None:
        if _STRING_OF_INTEREST.search(node.value):
            self.tree.strings.append((node, scope))

    # -- imports --------------------------------------------------------------------------

    def import_(self, node: cst.Import, scope: Scope) -> None:
        for alias in node.names:
            self.tree.parents[id(alias)] = node
            path = dotted(alias.name) or ""
            if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                self.bind(alias.asname.name.value, "import", alias, scope, path, statement=node)
            else:
                top = path.split(".")[0]
                self.bind(top, "import", alias, scope, top, statement=node)

    def import_from(self, node: cst.ImportFrom, scope: Scope) -> None:
        base = "." * len(node.relative) + (dotted(node.module) or "" if node.module else "")
        if isinstance(node.names, cst.ImportStar):
            self.tree.stars.append((node, scope))
            return
        for alias in node.names:
            self.tree.parents[id(alias)] = node
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
            self.tree.parents[id(target)] = node
            self.target(target.target, target, scope, kind, node.value, node)
            if isinstance(target.target, cst.Name) and target.target.value == "__all__":
                self.tree.exported.update(_texts(node.value))
        self.push(node.value, node, scope)

    def ann_assign(self, node: cst.AnnAssign, scope: Scope) -> None:
        if node.value is None:
            kind, value = "declared", None
        else:
            kind, value = ("none" if _is_none(node.value) else "assign"), node.value
        if kind != "declared" or not isinstance(node.target, cst.Name):
            self.target(node.target, node, scope, kind, value, node)
        else:
            self.tree.parents[id(node.target)] = node
        self.annotation(node.annotation, node, scope)
        self.push(node.value, node, scope)

    def aug_assign(self, node: cst.AugAssign, scope: Scope) -> None:
        self.target(node.target, node, scope, "other", None, node)
        if isinstance(node.target, cst.Name):
            if node.target.value == "__all__":
                self.tree.exported.update(_texts(node.value))
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
            self.tree.parents[id(node.asname)] = node
            self.target(node.asname.name, node.asname, scope)
        self.push(node.item, node, scope)

    def handler(self, node: cst.ExceptHandler, scope: Scope) -> None:
        if node.name is not None:
            self.tree.parents[id(node.name)] = node
            self.target(node.name.name, node.name, scope)
        self.push(node.type, node, scope)
        self.push(node.body, node, scope)

    def delete(self, node: cst.Del, scope: Scope) -> None:
        # A name may be deleted alone or in a tuple; the deletion is a use and a rebinding.
        stack: list[tuple[cst.CSTNode, cst.CSTNode]] = [(node.target, node)]
        while stack:
            target, parent = stack.pop()
            self.tree.parents[id(target)] = parent
            if isinstance(target, cst.Name):
                self.bind(target.value, "delete", target, scope, statement=node)
                self.tree.stored.add(id(target))
                self.name(target, scope)
            elif isinstance(target, (cst.Tuple, cst.List)):
                for element in target.elements:
                    self.tree.parents[id(element)] = target
                    stack.append((element.value, element))
            else:
                self.tree.stored.add(id(target))
                self.stack.append((target, scope))

    def declare(self, node: cst.Global | cst.Nonlocal, scope: Scope) -> None:
        where = "global" if isinstance(node, cst.Global) else "nonlocal"
        for item in node.names:
            self.tree.parents[id(item)] = node
            scope.outer_names[item.name.value] = where
        if scope not in self.tree.scopes:
            self.tree.scopes.append(scope)

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
        self.tree.parents[id(node)] = parent
        for below in descendants(node):
            self.tree.annotations.add(id(below))
        self.push(node.annotation, node, scope)

    def parameters(
        self, params: cst.Parameters, parent: cst.CSTNode, inner: Scope, outer: Scope
    ) -> None:
        self.tree.parents[id(params)] = parent
        every = [*params.posonly_params, *params.params]
        if every:
            inner.first_param = every[0].name.value
        for star in (params.star_arg, params.star_kwarg):
            if isinstance(star, cst.Param):
                every.append(star)
        every.extend(params.kwonly_params)
        for param in every:
            self.tree.parents[id(param)] = params
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
            self.tree.firsts.add(inner.first_param)
        self.tree.scope_of[id(node.body)] = inner
        self.push(node.body, node, inner)

    def lambda_(self, node: cst.Lambda, scope: Scope) -> None:
        inner = Scope("lambda", node, scope)
        self.parameters(node.params, node, inner, scope)
        self.tree.scope_of[id(node.body)] = inner
        self.push(node.body, node, inner)

    def class_(self, node: cst.ClassDef, scope: Scope) -> None:
        inner = Scope("class", node, scope)
        self.bind(node.name.value, "class", node, scope, statement=node)
        self.push_all(node.decorators, node, scope)
        self.push_all(node.bases, node, scope)
        self.push_all(node.keywords, node, scope)
        self.type_parameters(node.type_parameters, node, inner)
        self.tree.scope_of[id(node.body)] = inner
        self.push(node.body, node, inner)

    def type_parameters(
        self, node: cst.TypeParameters | None, parent: cst.CSTNode, scope: Scope
    ) -> None:
        if node is None:
            return
        self.tree.parents[id(node)] = parent
        for item in node.params:
            self.tree.parents[id(item)] = node
            param = item.param
            self.tree.parents[id(param)] = item
            self.target(param.name, param, scope)
            self.push(getattr(param, "bound", None), param, scope)
            self.push(item.default, item, scope)

    def comprehension(self, node: cst.BaseComp, scope: Scope) -> None:
        inner = Scope("comprehension", node, scope)
        self.tree.scope_of[id(node)] = inner
        for name in ("elt", "key", "value"):
            self.push(getattr(node, name, None), node, inner)
        outer: Scope = scope
        parent: cst.CSTNode = node
        loop: cst.CompFor | None = node.for_in
        while loop is not None:
            self.tree.parents[id(loop)] = parent
            self.target(loop.target, loop, inner)
            self.push(loop.iter, loop, outer)
            for condition in loop.ifs:
                self.tree.parents[id(condition)] = loop
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


def dotted(node: cst.CSTNode | None) -> str | None:
    """``a.b.c`` for a chain of plain names, else None."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    parts.append(node.value)
    return ".".join(reversed(parts))


_HANDLERS: dict[type, Handler] = {
    cst.Name: _Walk.name,
    cst.Attribute: _Walk.attribute,
    cst.Arg: _Walk.arg,
    cst.SimpleString: _Walk.string,
    cst.FormattedStringText: _Walk.text,
    cst.Import: _Walk.import_,
    cst.ImportFrom: _Walk.import_from,
    cst.Assign: _Walk.assign,
    cst.AnnAssign: _Walk.ann_assign,
    cst.AugAssign: _Walk.aug_assign,
    cst.NamedExpr: _Walk.walrus,
    cst.For: _Walk.for_,
    cst.WithItem: _Walk.with_item,
    cst.ExceptHandler: _Walk.handler,
    cst.ExceptStarHandler: _Walk.handler,
    cst.Del: _Walk.delete,
    cst.Global: _Walk.declare,
    cst.Nonlocal: _Walk.declare,
    cst.MatchAs: _Walk.match_as,
    cst.MatchStar: _Walk.match_as,
    cst.MatchMapping: _Walk.match_as,
    cst.FunctionDef: _Walk.function,
    cst.Lambda: _Walk.lambda_,
    cst.ClassDef: _Walk.class_,
    cst.ListComp: _Walk.comprehension,
    cst.SetComp: _Walk.comprehension,
    cst.DictComp: _Walk.comprehension,
    cst.GeneratorExp: _Walk.comprehension,
}
