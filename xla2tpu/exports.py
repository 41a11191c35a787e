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

_IMPORT_LINE = re.compile(
    rb"^([ \t]*)(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]*)"
    rb"|import[ \t]+([\w., \t]+))",
    re.M,
)
_COLUMN_0 = re.compile(rb"^[^\s#)\]}]", re.M)
_ALIAS = re.compile(rb"^([A-Za-z_]\w*)[ \t]*=[ \t]*(?:getattr\()?([A-Za-z_]\w*)", re.M)
# The module, and the names taken from it with what they are bound to.
ImportLine = tuple[str, list[tuple[str | None, str]]]
_OPENER = re.compile(rb"(try|except|finally|if|elif|else|with)\b")


@dataclass(slots=True)
class Module:
    """The names that a file binds at its top: each to the import paths that it may lead to."""

    exports: dict[str, set[str]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)


def imports_at_top(data: bytes) -> bool:
    """Whether a file imports torch_xla so that its names stand at the top of the file."""
    return any(m.startswith("torch_xla") for m, _ in import_lines(data, everywhere=False))


def direct_names(data: bytes, in_house: InHouse = NOTHING) -> set[str]:
    """The names at the top of a file that are torch_xla's or in-house, as its imports say."""
    names: set[str] = set()
    for module, imported in import_lines(data, everywhere=False):
        if module.startswith(PACKAGES):
            names.update(local for _, local in imported)
        else:
            names.update(local for name, local in imported if in_house.imported(module, name))
    # ``xm = torch_xla.core.xla_model``: an alias at the top counts as well.
    for match in _ALIAS.finditer(data) if names else ():
        if match[2].decode() in names:
            names.add(match[1].decode())
    return names - {"*"}


def import_lines(data: bytes, everywhere: bool) -> Iterator[ImportLine]:
    """The imports of a file by their text: the module, and names with what they are bound to.

    The name is None where the module itself is imported.

    Without ``everywhere`` only those that bind names at the top of the file: at the start of a
    line, or below a ``try``, ``if`` and the like that is.
    """
    openers = _Openers(data)
    for match in _IMPORT_LINE.finditer(data):
        if match[1] and not everywhere and not openers.guards(match.start()):
            continue
        if match[2] is None:
            for part in match[4].decode("ascii", "replace").split(","):
                words = part.split()
                if words:
                    yield words[0], [(None, words[-1].split(".")[0])]
            continue
        text = re.sub(rb"#[^\n]*|[()\\\s]+", b" ", match[3]).decode("ascii", "replace")
        names: list[tuple[str | None, str]] = []
        for part in text.split(","):
            words = part.split()
            if words:
                names.append((words[0], words[-1]))
        yield match[2].decode("ascii", "replace"), names


class _Openers:
    """Tells whether a line stands below a ``try`` or the like at the start of a line."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.starts: list[int] | None = None

    def guards(self, at: int) -> bool:
        """Whether the last line before ``at`` that is not indented opens such a block."""
        if self.starts is None:
            self.starts = [m.start() for m in _COLUMN_0.finditer(self.data)]
        index = bisect.bisect_left(self.starts, at) - 1
        return index >= 0 and _OPENER.match(self.data, self.starts[index]) is not None


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, those in if, try and with too."""
    import ast

    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
                yield from _top_level(getattr(node, name, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _top_level(handler.body)


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
        path = _path(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                if isinstance(node.value, ast.Constant) and node.value.value is None:
                    exports.setdefault(target.id, set())
                else:
                    exports.setdefault(target.id, set()).update(_through(path, exports))
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        exports.setdefault(node.name, set()).add("")


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


def exports_of(data: bytes) -> Module | None:
    """The names at the top of a module's source, None where it is not valid Python."""
    if b"torch_xla" not in data or not imports_at_top(data):
        # It can only hand names on: its import lines tell all, at a hundredth of the cost.
        module = Module()
        for base, names in import_lines(data, everywhere=False):
            for name, local in names:
                if name == "*":
                    module.stars.append(base)
                elif name is not None:
                    path = f"{base}{name}" if base.endswith(".") else f"{base}.{name}"
                    module.exports.setdefault(local, set()).add(path)
        return module
    import ast

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    module = Module()
    for node in _top_level(tree.body):
        _note(node, module)
    return module
