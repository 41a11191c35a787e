"""Modules import downwards only, and what starts often starts light. `docs/design.md` says why."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "xla2tpu"
# Lowest first. A module may import from its own layer, without cycles, and from those before.
LAYERS = {
    "data": "model kinds inhouse reasons prefilter comments source lines patterns git placements",
    "rules": "rulemodel rulereader rules rulecheck ruleschema kerneltable",
    "reading": "nodes scopes positions reparse walk tree parsing exports roots words "
    "hardware projectfiles project names syntax suites",
    "rewriting": "template signatures sites naming imports changes processes flow devices "
    "batches loaderuses loaderchanges loaders environment compilebackends literals importsites "
    "workers processgroups spmdsamples spmdcode spmdmesh spmdmodel spmdprogram spmdrewrite "
    "spmd match missingops frameworks edits vanished layout deletions helpertexts placing plan "
    "constants fsdparguments shardings",
    "transforms": "transforms",
    "engine": "analysis afterswap plansteps shardingsteps plainsteps parallelplan markers findings "
    "engine helpersmodule",
    "files": "files exampleruns",
    "running": "config discover projectfacts imported manualplan writer batch runner baseline",
    "report": "report",
    "emulator": "emulator",
    "verify": "verify",
    "server": "server",
    "commands": "commands cli __main__ docs",
}
LAYER = {name: i for i, names in enumerate(LAYERS.values()) for name in names.split()}
HEAVY = {
    "libcst": {"reading", "rewriting", "transforms", "engine"},
    "yaml": {"rules", "files"},
    "click": {"commands"},
    "torch": {"emulator"},
    "concurrent": {"running", "server"},
    "lsprotocol": {"server"},
    "pygls": {"server"},
    "multiprocessing": {"running"},
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Modules that a file imports at run time, wherever it does, and the lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else str(node.module), node.lineno


def layer(module: str) -> int:
    """The layer of a module of the package; the package itself is below all."""
    return -1 if module == "xla2tpu" else LAYER[module.split(".")[1]]


def test_every_module_has_a_layer() -> None:
    assert {name.split(".")[1] for name in MODULES if name != "xla2tpu"} == set(LAYER)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    names = list(LAYERS)
    for imported, line in imports(MODULES[module]):
        if imported in MODULES:
            assert layer(imported) <= layer(module), f"{module}:{line} imports {imported}"
        home = HEAVY.get(imported.partition(".")[0])
        if home is not None:
            assert names[layer(module)] in home, f"{module}:{line} imports {imported}"


def test_no_cycles() -> None:
    graph = {
        module: {name for name, _ in imports(path) if name in MODULES}
        for module, path in MODULES.items()
    }
    TopologicalSorter(graph).prepare()


def test_every_module_is_in_the_design() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    missing = [n for n in LAYER if f"`{n}.py`" not in page and f"`{n}/`" not in page]
    assert not missing


@pytest.mark.parametrize("module", ["xla2tpu.cli", "xla2tpu.commands.check", "xla2tpu.model"])
def test_starts_light(module: str) -> None:
    heavy = "{'libcst', 'yaml', 'multiprocessing', 'concurrent', 'pygls', 'asyncio'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
