"""Writes the inventory of the public names of torch_xla, release by release.

    python -m pip download --no-deps torch_xla==2.9.0 -d wheels      # 2.1.0 and 2.5.0 too
    git -C xla archive --format=zip -o 1.13.zip v1.13.0 torch_xla    # of pytorch/xla; v1.5.0 too
    python scripts/torch_xla_names.py 1.5=1.5.zip 1.13=1.13.zip 2.1=wheels/torch_xla-2.1.0-*.whl ...

Sources are read, never imported. A public name is a function, class or variable at the top of a
module, where no part of its dotted path has a leading underscore; what a package's `__init__.py`
imports from torch_xla counts as a name of the package, and so does all that is in an `__all__` or
comes by a star import.
`tests/test_inventory.py` holds the rules to the list, and `python -m xla2tpu.docs` makes
`docs/coverage.md` of it.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).parent.parent / "docs" / "data" / "torch_xla_names.json"


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, those under `if` and `try` too."""
    for statement in body:
        yield statement
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statement, (ast.If, ast.Try, ast.With, ast.For)):
                yield from statements(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from statements(handler.body)


def exported(tree: ast.Module) -> set[str]:
    """The names in `__all__`, as far as they are written there."""
    found = set()
    for statement in statements(tree.body):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            value = statement.value  # type: ignore[attr-defined]
            found |= {e.value for e in ast.walk(value) if isinstance(e, ast.Constant)}
    return found


def names(tree: ast.Module, is_package: bool) -> set[str]:
    """The names at the top of a module that are its own, or that it hands on."""
    found: set[str] = set()
    for statement in statements(tree.body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(statement.name)
        elif isinstance(statement, ast.Assign):
            found |= {n.id for t in statement.targets for n in ast.walk(t) if _is_stored(n)}
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found.add(statement.target.id)
        elif isinstance(statement, ast.ImportFrom) and is_package:
            own = statement.level > 0 or (statement.module or "").startswith("torch_xla")
            found |= {a.asname or a.name for a in statement.names if own and a.name != "*"}
    return {name for name in found | exported(tree) if not name.startswith("_")}


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def stars(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    """The modules that a module imports all names of."""
    parts = module.split(".")
    for statement in statements(tree.body):
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            above = parts[: len(parts) - statement.level + is_package] if statement.level else []
            yield ".".join([*above, *filter(None, [statement.module])])


def inventory(archive: str) -> dict[str, set[str]]:
    """The public names in a wheel or an archive of the sources, by module."""
    found: dict[str, set[str]] = {}
    taken: list[tuple[str, str]] = []
    with zipfile.ZipFile(archive) as file:
        for entry in file.namelist():
            if not entry.startswith("torch_xla/") or not entry.endswith(".py"):
                continue
            parts = entry.removesuffix(".py").split("/")
            is_package = parts[-1] == "__init__"
            parts = parts[: -1 if is_package else None]
            if any(part.startswith("_") or part.endswith("_pb2") for part in parts):
                continue
            module, tree = ".".join(parts), ast.parse(file.read(entry))
            taken += [(module, source) for source in stars(tree, module, is_package)]
            found[module] = names(tree, is_package)
    for module, source in taken:
        found[module] |= found.get(source, set())
    # A name that is a module of the package is not one more name.
    modules = {m for module in found for m in _with_parents(module)}
    return {
        module: {name for name in own if f"{module}.{name}" not in modules}
        for module, own in found.items()
    }


def _with_parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def main(arguments: list[str]) -> None:
    if not arguments or not all("=" in argument for argument in arguments):
        sys.exit(__doc__)
    releases: dict[str, dict[str, list[str]]] = {}
    for argument in arguments:
        release, _, archive = argument.partition("=")
        for module, own in inventory(archive).items():
            for name in own:
                releases.setdefault(module, {}).setdefault(name, []).append(release)
    document = {
        "releases": [argument.partition("=")[0] for argument in arguments],
        "names": {
            module: {name: " ".join(found) for name, found in sorted(own.items())}
            for module, own in sorted(releases.items())
        },
    }
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(FILE, sum(map(len, releases.values())), "names")


if __name__ == "__main__":
    main(sys.argv[1:])
