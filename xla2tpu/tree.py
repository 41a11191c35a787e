"""One libcst tree of a file: what the walk found in it, where its nodes stand, how they nest."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator

import libcst as cst

from xla2tpu import reparse
from xla2tpu.nodes import descendants, paused_gc, unchecked
from xla2tpu.positions import PositionError, Positions
from xla2tpu.scopes import Scope
from xla2tpu.walk import Facts, Walk

# Deep expressions are walked without recursion here, but libcst generates code recursively.
_RECURSION_LIMIT = 20_000


_STATEMENTS = (
    cst.BaseStatement,
    cst.BaseSmallStatement,
    cst.Decorator,
    cst.ExceptHandler,
    cst.ExceptStarHandler,
    cst.Else,
    cst.Finally,
)


class Tree(Facts):
    """The parsed file and what one walk over it found.

    ``text`` is the source without its byte order mark, ``parsable`` the same for the parser,
    as long to the character. Raises ``cst.ParserSyntaxError``.
    """

    def __init__(self, text: str, parsable: str) -> None:
        if sys.getrecursionlimit() < _RECURSION_LIMIT:
            sys.setrecursionlimit(_RECURSION_LIMIT)
        self.text = text
        self._full: dict[int, tuple[int, int]] = {}
        self._inner: dict[int, tuple[int, int]] = {}
        self._everywhere = False
        self._owned: dict[str, dict[int, list[tuple[cst.Name, Scope]]]] = {}
        self._chunks: dict[int, int] | None = None
        self._memory = reparse.current()
        with paused_gc():
            if self._memory is None:
                with unchecked():
                    module = cst.parse_module(parsable)
            else:
                module = self._memory.parse(parsable)
            super().__init__(module)
            self._parsable = parsable
            Walk(self).run()

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
        state = Positions(self.module.default_indent, self.module.default_newline)
        with paused_gc():
            self.module._codegen(state)
        if "".join(state.tokens) != self._parsable:
            raise PositionError("the parser does not give back the source unchanged")
        self._full, self._inner = state.full, state.inner
        if not self.module.has_trailing_newline:
            # The last statements come with a newline of their own, which the file lacks.
            end = len(self._parsable)
            for table in (self._full, self._inner):
                table.update([(k, (a, end)) for k, (a, b) in table.items() if b > end])
        self._everywhere = True

    def _locate(self, node: cst.CSTNode) -> None:
        """Find the spans of the nodes around ``node``: of a function or statement of the file.

        Generating code for a whole file costs a third of parsing it, and most of a long file
        has nothing to report. In an editor most of it is known from the text before.
        """
        if self._memory is not None and (known := self._memory.spans(self._topmost(node))):
            self._full.update(known[0])
            self._inner.update(known[1])
            return
        chunk = self._chunk(node)
        if chunk is None:
            self.locate()
            return
        state = Positions(self.module.default_indent, self.module.default_newline)
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

    def _topmost(self, node: cst.CSTNode) -> cst.CSTNode:
        """The statement of the file around a node."""
        while (above := self.parents.get(id(node))) is not None and above is not self.module:
            node = above
        return node

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

    def _place(self, chunk: cst.CSTNode, state: Positions) -> int | None:
        """Where the generated code stands in the file; None where that is not certain."""
        code = "".join(state.tokens)
        at = 0 if self._parsable.startswith(code) else self._parsable.find(f"\n{code}") + 1
        # At the end of a file it may stand without its newline.
        bare = code.rstrip("\r\n")
        at_end = bare != code and self._parsable.endswith(f"\n{bare}")
        twice = at_end or self._parsable.find(f"\n{code}", at) >= 0
        if not twice and (at or self._parsable.startswith(code)):
            return at
        if self._chunks is None:
            self._chunks = self._split()
        start = self._chunks.get(id(chunk))
        if start is None:
            return None
        shift = start - state.inner[id(chunk)][0]
        return (
            shift
            if self._parsable[shift:] == bare or self._parsable.startswith(code, shift)
            else None
        )

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

    @functools.cached_property
    def attributes(self) -> dict[str, list[cst.CSTNode]]:
        """All attributes of the file by their names; made only when it is asked for."""
        found: dict[str, list[cst.CSTNode]] = {}
        for node in descendants(self.module):
            if isinstance(node, cst.Attribute):
                found.setdefault(node.attr.value, []).append(node)
        return found

    def with_aliases(self, names: set[str]) -> set[str]:
        """These names, and those that one of them or a part of one is assigned to."""
        found = set(names)
        for binding in self.bindings if found else ():
            value = binding.value if binding.kind == "assign" else None
            while isinstance(value, cst.Attribute):
                value = value.value
            if isinstance(value, cst.Name) and value.value in found:
                found.add(binding.name)
        return found

    def loads_of(self, name: str, owner: Scope) -> list[tuple[cst.Name, Scope]]:
        """The uses of a name that find it in one scope."""
        if name not in self._owned:
            self._owned[name] = {}
            for load, scope in self.loads.get(name, []):
                self._owned[name].setdefault(id(scope.owner(name)), []).append((load, scope))
        return self._owned[name].get(id(owner), [])

    def is_within(self, node: cst.CSTNode, above: cst.CSTNode) -> bool:
        """Whether ``node`` is ``above`` or stands below it."""
        here: cst.CSTNode | None = node
        while here is not None:
            if here is above:
                return True
            here = self.parents.get(id(here))
        return False
