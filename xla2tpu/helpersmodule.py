"""The module that ``--helpers-module`` names: the helpers of all migrated files in one place."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from xla2tpu.exports import top_level
from xla2tpu.rulemodel import RuleSet

_HEAD = '"""Small helpers that the move from PyTorch/XLA to TorchTPU needs."""\n'


def file_of(root: str, module: str) -> str:
    """The file of the module, whether it is there or not: in the package's layout, or in ``src``.

    A package of that name holds the helpers in its ``__init__.py``.
    """
    base = os.path.join(root, "src") if os.path.isdir(os.path.join(root, "src")) else root
    if os.path.isdir(os.path.join(root, module.split(".")[0])):
        base = root
    place = os.path.join(base, *module.split("."))
    if os.path.isfile(os.path.join(place, "__init__.py")):
        return os.path.join(place, "__init__.py")
    return f"{place}.py"


def updated(data: bytes, names: list[str], rules: RuleSet) -> bytes:
    """The module with the helpers that it lacks; what is in it stays.

    Raises SyntaxError, and ValueError where it has something else under the name of a helper.
    """
    text = data.decode("utf-8")
    there: set[str] = set()
    imports: set[str] = set()
    for node in top_level(ast.parse(text).body):
        for name in _bound(node):
            there.add(name)
            if name in names and not _is_helper(node, rules):
                raise ValueError(f"line {node.lineno}: another {name} stands there; rename it")
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node.col_offset == 0:
            imports.add(ast.unparse(node))
    missing = [n for n in names if n not in there]
    if not missing:
        return data
    needed = sorted(
        {i for n in missing for i in rules.helpers[n].imports} - imports,
        key=lambda i: (i.startswith("from"), i),
    )
    codes = [rules.helpers[n].code.strip("\n") for n in missing]
    body = "\n\n\n".join(codes) + "\n"
    if not text.strip():
        head = _HEAD + ("\n" + "\n".join(needed) + "\n" if needed else "")
        return f"{head}\n\n{body}".encode()
    lines = text.splitlines(keepends=True)
    at = _after_imports(text)
    head = "".join(lines[:at]) + "".join(f"{i}\n" for i in needed)
    return f"{head}{''.join(lines[at:]).rstrip()}\n\n\n{body}".encode()


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds, without those inside it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.With)):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id


def _is_helper(node: ast.stmt, rules: RuleSet) -> bool:
    """Whether a definition is the helper of its name, whatever was done to its body."""
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return False
    return ast.get_docstring(node) == rules.helpers[node.name].doc


def _after_imports(text: str) -> int:
    """The number of lines up to the last import at the top, or up to the documentation."""
    at = 0
    for index, node in enumerate(ast.parse(text).body):
        is_doc = index == 0 and isinstance(node, ast.Expr)
        if not is_doc and not isinstance(node, (ast.Import, ast.ImportFrom)):
            break
        at = node.end_lineno or at
    return at
