"""What stands in the strings of Python files: `setup.py`, and shells of exported notebooks."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator

from xla2tpu.files import requirements
from xla2tpu.files.commands import Commands
from xla2tpu.files.declared import Declarations, Item, line_at, without_item
from xla2tpu.files.places import Place
from xla2tpu.lines import Lines

_REQUIRES = {
    "install_requires": "main",
    "setup_requires": "setup",
    "tests_require": "tests",
}
_SYSTEM = frozenset(("system", "getoutput", "getoutput_as_list", "magic"))


class Strings:
    """The texts of a Python program, by their places in its characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = Lines(text)
        self.tree: ast.Module | None = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node stands."""
        last = node.end_lineno or node.lineno
        return (
            self._at(node.lineno, node.col_offset),
            self._at(last, node.end_col_offset or 0),
        )

    def _at(self, line: int, column: int) -> int:
        start = self.lines.starts[line - 1]
        content = self.text[start : start + column]
        if content.isascii():
            return start + column
        return start + len(content.encode()[:column].decode(errors="ignore"))

    def inside(self, node: ast.AST) -> tuple[int, int] | None:
        """Where the text of a constant stands that is written as it is read."""
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            return None
        start, end = self.span(node)
        for width in (3, 1):
            if self.text[start + width : end - width] == node.value:
                return start + width, end - width
        return None

    # -- setup.py ------------------------------------------------------------------------------

    def setup(self) -> list[Place]:
        """The requirements that a setup.py hands to setup(), by the lists that they stand in."""
        declared = Declarations()
        for call in self._calls():
            name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func
            name = name.id if isinstance(name, ast.Name) else name
            if name != "setup":
                continue
            for keyword in call.keywords:
                if keyword.arg in _REQUIRES:
                    self._listed(declared, keyword.value, _REQUIRES[keyword.arg])
                elif keyword.arg == "extras_require":
                    for key, value in self._dict(keyword.value):
                        self._listed(declared, value, f"extra {key}")
                elif keyword.arg == "python_requires":
                    self._floor(declared, keyword.value)
        return declared.places()

    def _calls(self) -> Iterator[ast.Call]:
        for node in ast.walk(self.tree) if self.tree is not None else ():
            if isinstance(node, ast.Call):
                yield node

    def _resolved(self, node: ast.expr) -> ast.expr:
        """What a name is bound to where that is one assignment."""
        if not isinstance(node, ast.Name) or self.tree is None:
            return node
        values = [
            n.value
            for n in ast.walk(self.tree)
            if isinstance(n, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets)
        ]
        return values[0] if len(values) == 1 else node

    def _dict(self, node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
        node = self._resolved(node)
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                named = isinstance(key, ast.Constant)
                yield str(key.value) if named else "", value  # type: ignore[union-attr]

    def _listed(self, declared: Declarations, node: ast.expr, scope: str) -> None:
        node = self._resolved(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            self._listed(declared, node.left, scope)
            self._listed(declared, node.right, scope)
        for element in node.elts if isinstance(node, (ast.List, ast.Tuple)) else ():
            span = self.inside(element)
            if span is None or any(i.start == span[0] for i in declared.items):
                continue
            start, end = self.span(element)
            anchor = line_at(self.text, start)[0]
            gone = without_item(self.text, start, end)
            value = self.text[slice(*span)]
            quote = self.text[end - 1]
            item = Item(value, *span, scope, gone, anchor, separator=f"{quote}, {quote}")
            declared.items.append(item)

    def _floor(self, declared: Declarations, node: ast.expr) -> None:
        node = self._resolved(node)
        span = self.inside(node)
        if span is not None:
            value = self.text[slice(*span)]
            item = Item(value, *span, anchor=line_at(self.text, span[0])[0])
            declared.floors.append((item, requirements.python_floor(value)))

    # -- shells --------------------------------------------------------------------------------

    def shells(self) -> list[Place]:
        """What a program hands to IPython's shell, as an exported notebook does."""
        found = Commands(self.text)
        for call in self._calls():
            method = _ipython(call)
            texts = [self.inside(a) for a in call.args]
            if method is None or not texts or any(t is None for t in texts):
                continue
            spans = [t for t in texts if t is not None]
            values = [self.text[slice(*s)] for s in spans]
            whole, anchor = self._statement(call)
            if method in _SYSTEM:
                span = spans[0]
                line = values[0].lstrip("%")
                found.add(span[1] - len(line), span[1], "kernel", anchor=anchor, whole=whole,
                          quoted=True, keep=True)  # fmt: skip
            elif method == "run_line_magic" and len(spans) == 2:
                magic(found, self.text, values[0], spans[1], anchor, whole)
            elif method == "run_cell_magic" and len(spans) == 3 and values[0] in ("bash", "sh"):
                found.add(*spans[2], "kernel", anchor=anchor, quoted=True, keep=True)
        return found.places()

    def _statement(self, call: ast.Call) -> tuple[tuple[int, int] | None, int]:
        """The lines of the statement that a call is all of, where it can go; and its start."""
        for node in ast.walk(self.tree) if self.tree is not None else ():
            for block in _blocks(node):
                for statement in block:
                    if isinstance(statement, ast.Expr) and statement.value is call:
                        start, end = self.span(statement)
                        first, last = line_at(self.text, start)[0], line_at(self.text, end)[1]
                        around = self.text[first:start] + self.text[end:last]
                        alone = not around.strip() and (len(block) > 1 or node is self.tree)
                        return ((first, last) if alone else None), first
        return None, line_at(self.text, self.span(call)[0])[0]


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _ipython(call: ast.Call) -> str | None:
    """The method of ``get_ipython()`` that is called."""
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Call):
        return None
    made = call.func.value.func
    return call.func.attr if isinstance(made, ast.Name) and made.id == "get_ipython" else None


def magic(
    found: Commands, text: str, name: str, span: tuple[int, int], anchor: int | None,
    whole: tuple[int, int] | None,
) -> None:  # fmt: skip
    """One line magic: pip and the shell's, and those that set variables."""
    start, end = span
    if name in ("env", "set_env"):
        said = text[start:end]
        if "=" not in said and len(said.split()) == 2:
            # `%env NAME value`, which no shell says in this way.
            variable = said.split()[0]
            found.spaced(variable, start, end, anchor, whole)
            return
        found.add(start, end, "kernel", anchor=anchor, whole=whole, quoted=True, keep=True)
    elif name in ("pip", "sx", "system", "uv"):
        prefix = name if name in ("pip", "uv") else ""
        found.add(start, end, "kernel", anchor=anchor, whole=whole, quoted=True, keep=True,
                  prefix=prefix)  # fmt: skip


def spans_of(places: Iterable[Place]) -> list[tuple[int, int]]:
    """The spans that an engine is not to read, since a place stands there."""
    return [(p.start, p.end) for p in places]
