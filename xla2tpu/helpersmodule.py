"""The module that ``--helpers-module`` names: the helpers of all migrated files in one place."""

from __future__ import annotations

import ast

from xla2tpu.rules import RuleSet

_HEAD = '"""Small helpers that the move from PyTorch/XLA to TorchTPU needs."""\n'


def updated(data: bytes, names: list[str], rules: RuleSet) -> bytes:
    """The module with the helpers that it lacks; what is in it stays.

    Raises SyntaxError, and ValueError where it has something else under the name of a helper.
    """
    text = data.decode("utf-8")
    there: set[str] = set()
    imports: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            there.add(node.name)
            if node.name in names and not _is_helper(node, rules):
                raise ValueError(
                    f"line {node.lineno}: another {node.name} stands there; rename it first"
                )
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
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


def _is_helper(node: ast.FunctionDef | ast.ClassDef, rules: RuleSet) -> bool:
    """Whether a definition is the helper of its name, whatever was done to its body."""
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
