"""The names at the top of a file, read from its import lines or from its syntax tree."""

from __future__ import annotations

import bisect
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xla2tpu.inhouse import NOTHING, PACKAGES, InHouse

if TYPE_CHECKING:
    import ast

# The module, and the names taken from it with what they are bound to.
ImportLine = tuple[str, list[tuple[str | None, str]]]

_COLUMN_0 = re.compile(rb"^[^\s#)\]}]", re.M)
_DEFINITION = re.compile(rb"(?:def|class|async[ \t]+def)\b")
_WORD = re.compile(rb"\w")
# What may stand before `import` in its statement; the statement may share its line.
_FROM = re.compile(rb"(?:^|[;:])[ \t\f]*from[ \t\f]*([.\w \t]+?)[ \t]*\Z")
_START = re.compile(rb"(?:^|[;:])[ \t\f]*\Z")
_CONTINUED = re.compile(rb"\\(?:\r\n|\n|\r)\Z")
_PART = re.compile(rb"\\\r?\n|#[^\r\n]*|[()\r\n;]")
_LONGEST = 20_000


@dataclass(slots=True)
class Module:
    """The names that a file binds at its top: each to the import paths that it may lead to."""

    exports: dict[str, set[str]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)


def direct_names(module: Module, in_house: InHouse = NOTHING) -> set[str]:
    """The names at the top of a file that are torch_xla's, or of in-house packages."""
    names = set()
    for name, targets in module.exports.items():
        for target in targets:
            above, _, last = target.rpartition(".")
            near = target.startswith(".") and in_house.imported(above or ".", last)
            if near or target.startswith(PACKAGES) or in_house.leads(target):
                names.add(name)
    return names


def import_lines(data: bytes, top: bool = False) -> Iterator[ImportLine]:
    """The imports of a file by its text: the module, and names with what they are bound to.

    The name is None where the module itself is imported. Wide: those in the text of documentation
    are among them, and those in functions unless only the ``top`` of the file is asked for.
    Reading text costs a hundredth of parsing it.
    """
    definitions = _Definitions(data)
    at = data.find(b"import")
    while at >= 0:
        end = at + len(b"import")
        if not _WORD.match(data, end) and not (top and definitions.hold(at)):
            yield from _statement(data, at, end)
        at = data.find(b"import", end)


def has_aliases(data: bytes, names: set[str]) -> bool:
    """Whether a line at the top of a file may bind another name to something of the names."""
    if not names:
        return False
    words = b"|".join(re.escape(name.encode()) for name in sorted(names))
    pattern = re.compile(rb"^[^#\r\n]*=[^=\r\n]*\b(?:" + words + rb")\b[^\r\n]*", re.M)
    definitions = _Definitions(data)
    return any(
        not definitions.hold(m.end()) and b"import" not in m[0] for m in pattern.finditer(data)
    )


class _Definitions:
    """Tells which places of a file lie in a function or class at its top."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.starts: list[int] | None = None

    def hold(self, at: int) -> bool:
        """Whether the last line before ``at`` that is not indented begins a definition."""
        if self.starts is None:
            self.starts = [m.start() for m in _COLUMN_0.finditer(self.data)]
        index = bisect.bisect_right(self.starts, at) - 1
        return index >= 0 and _DEFINITION.match(self.data, self.starts[index]) is not None


def _statement(data: bytes, at: int, end: int) -> Iterator[ImportLine]:
    """The import statement around the word `import`, if it is one."""
    start = max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
    before = data[start:at]
    while before.strip() == b"" and (broken := _CONTINUED.search(data[max(0, start - 3) : start])):
        stop = start - len(broken[0])
        start = max(data.rfind(b"\n", 0, stop), data.rfind(b"\r", 0, stop)) + 1
        before = data[start:stop] + b" " + before
    of = _FROM.search(before)
    if of is None and not _START.search(before):
        return
    words = _rest(data, end).decode("utf-8", "replace").split(",")
    pairs = [part.split() for part in words]
    if of is None:
        for part in pairs:
            if part:
                yield part[0], [(None, part[-1].split(".")[0] if len(part) == 1 else part[-1])]
        return
    module = of[1].decode("utf-8", "replace").replace(" ", "").replace("\t", "")
    yield module, [(part[0], part[-1]) for part in pairs if part]


def _rest(data: bytes, at: int) -> bytes:
    """What an import statement names, on one line and without comments and parentheses."""
    pieces: list[bytes] = []
    depth, last = 0, at
    for match in _PART.finditer(data, at, min(len(data), at + _LONGEST)):
        pieces.append(data[last : match.start()])
        last = match.end()
        mark = match[0][:1]
        if mark == b"(":
            depth += 1
        elif mark == b")":
            depth -= 1
            if depth <= 0:
                break
        elif mark in b"\r\n;" and depth == 0:
            break
        pieces.append(b" ")
    else:
        pieces.append(data[last : at + _LONGEST])
    return b"".join(pieces)


def top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, those in if, try and with too."""
    import ast

    # Chains of `elif` are nested: no recursion.
    stack = list(body)[::-1]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            inner: list[ast.stmt] = []
            for name in ("body", "orelse", "finalbody"):
                inner += getattr(node, name, [])
            if isinstance(node, ast.Try):
                inner += [s for handler in node.handlers for s in handler.body]
            stack += inner[::-1]


def _note(node: ast.stmt, module: Module) -> None:
    """Note what one statement binds; the empty target stands for anything else than an import."""
    import ast

    exports = module.exports
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                exports.setdefault(alias.asname, set()).add(alias.name)
            else:
                top = alias.name.split(".")[0]
                exports.setdefault(top, set()).add(top)
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                module.stars.append(base)
            else:
                path = f"{base}{alias.name}" if base.endswith(".") else f"{base}.{alias.name}"
                exports.setdefault(alias.asname or alias.name, set()).add(path)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            _assign(target, node.value, exports)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        _assign(node.target, node.value, exports)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        exports.setdefault(node.name, set()).add("")


def _assign(target: ast.expr, value: ast.expr, exports: dict[str, set[str]]) -> None:
    import ast

    if isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        whole = len(values) == len(target.elts)
        for index, element in enumerate(target.elts):
            _assign(element, values[index] if whole else value, exports)
    elif isinstance(target, ast.Name):
        if isinstance(value, ast.Constant) and value.value is None:
            exports.setdefault(target.id, set())
        else:
            exports.setdefault(target.id, set()).update(_through(_path(value), exports))


def _path(node: ast.expr) -> str:
    import ast

    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def _through(path: str, exports: dict[str, set[str]]) -> set[str]:
    """The import paths that an assigned name or attribute leads to."""
    top, _, rest = path.partition(".")
    if not top or top not in exports:
        return {""}
    return {f"{t}.{rest}" if rest and t else t for t in exports[top]} or {""}


def used_names(data: bytes, among: set[str]) -> set[str]:
    """Those of the names that code uses, and not only comments or documentation.

    All of them where the file is not valid Python, or hands on all that it has.
    """
    import ast

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(data)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return among
    used = {n.id for n in nodes if isinstance(n, ast.Name)}
    # `__all__` and strings that are evaluated name them as well.
    used |= {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return among & used


def exports_of(data: bytes) -> Module | None:
    """The names at the top of a module's source, None where it is not valid Python."""
    import ast

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    module = Module()
    for node in top_level(tree.body):
        _note(node, module)
    return module
