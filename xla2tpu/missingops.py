"""Calls of torch that torch_tpu has no kernel for, where torch_xla went on.

torch_xla compiled them, or ran them on the CPU and only counted them; on TorchTPU they raise.
They are found by the names that they resolve to, in files that use torch_xla or were migrated.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import libcst as cst

from xla2tpu import kerneltable, signatures
from xla2tpu.changes import Builder
from xla2tpu.match import allows
from xla2tpu.rulemodel import Op, Rule
from xla2tpu.rules import load_rules
from xla2tpu.scopes import Scope
from xla2tpu.sites import Site
from xla2tpu.tree import Tree

# torch shows these classes under shorter names as well.
_INNER = re.compile(
    r"torch\.(nn)\.modules\.(?:\w+\.)?(?=[A-Z])|torch\.(distributions)\.\w+\.(?=[A-Z])"
)
_ON_CPU = re.compile(r"""\.cpu\(\)|["']cpu["']""")
_TESTS = frozenset(("builtins.isinstance", "builtins.issubclass", "builtins.hasattr"))

Entry = tuple[Rule, Op]


@functools.cache
def _index(rule_files: tuple[str, ...]) -> dict[str, list[Entry]]:
    """The names whose operators are missing from the newest table."""
    table = kerneltable.newest()
    found: dict[str, list[Entry]] = {}
    for rule in load_rules(rule_files).rules.values():
        for op in rule.ops:
            if any(map(table.lacks, op.needs)):
                found.setdefault(op.path, []).append((rule, op))
    return found


@functools.cache
def last_names(rule_files: tuple[str, ...]) -> frozenset[str]:
    """The last parts of these names, one of which a file has that calls one."""
    return frozenset(path.rpartition(".")[2] for path in _index(rule_files))


@functools.cache
def rule_names(rule_files: tuple[str, ...]) -> frozenset[str]:
    """The names of the rules that tell of such calls."""
    return frozenset(rule.name for entries in _index(rule_files).values() for rule, _ in entries)


def public(path: str) -> str:
    """The usual name of a class that was reached through the module that defines it."""
    return _INNER.sub(lambda m: f"torch.{m[1] or m[2]}.", path)


class MissingOps:
    """Finds such calls in one file."""

    def __init__(self, tree: Tree, builder: Builder) -> None:
        self.tree, self.builder = tree, builder
        self.index = _index(builder.settings.rule_files)

    def sites(self) -> list[Site]:
        """A site for each use; none of them keeps its file from being done."""
        found: list[Site] = []
        for name in self._names():
            for load, scope in self.tree.loads.get(name, ()):
                found.extend(self._of_load(load, scope))
        return found

    def _names(self) -> set[str]:
        """The names that an import binds to torch or a part of it, and aliases of these."""
        return self.tree.with_aliases(
            {
                b.name
                for b in self.tree.bindings
                if b.path is not None and (b.path == "torch" or b.path.startswith("torch."))
            }
        )

    def _of_load(self, load: cst.Name, scope: Scope) -> Iterator[Site]:
        path = self.builder.meaning(load, scope)
        if path is None or not path.startswith("torch"):
            return
        node: cst.BaseExpression = load
        while public(path) not in self.index:
            above = self.tree.parent(node)
            if not (isinstance(above, cst.Attribute) and above.value is node):
                return
            node, path = above, f"{path}.{above.attr.value}"
        if node is load and self._is_alias(load, scope):
            return  # the assignment has been reported
        above = self.tree.parent(node)
        call = above if isinstance(above, cst.Call) and above.func is node else None
        if self._is_harmless(node, call, scope):
            return
        for rule, op in self.index[public(path)]:
            if not op.args or (call is not None and self._holds(op, call)):
                yield self._site(rule, op, call or node, scope)
                return

    def _is_alias(self, load: cst.Name, scope: Scope) -> bool:
        owner = scope.owner(load.value)
        return owner is not None and any(b.kind == "assign" for b in owner.bindings[load.value])

    def _is_harmless(self, node: cst.CSTNode, call: cst.Call | None, scope: Scope) -> bool:
        """Whether it is only compared or replaced, or called on the CPU by its own words."""
        if id(node) in self.tree.stored:
            return True
        if call is not None and _ON_CPU.search(self.tree.source(call)):
            return True
        for above in self.tree.ancestors(node):
            if isinstance(above, cst.Annotation):
                return True
            if isinstance(above, cst.Call) and above is not call:
                return self.builder.callee(above, scope) in _TESTS
            if isinstance(above, cst.BaseStatement):
                return False
        return False

    def _holds(self, op: Op, call: cst.Call) -> bool:
        bound = signatures.bind(op.signature or "()", call.args, lambda _: False)
        if isinstance(bound, str):
            return False
        return all(
            any(allows(word, bound.args.get(name), self.tree) for word in words)
            for name, words in op.args.items()
        )

    def _site(self, rule: Rule, op: Op, node: cst.CSTNode, scope: Scope) -> Site:
        table = kerneltable.newest()
        site = Site(rule, op.path, node, node, scope, "op", counts=False, blocks=False)
        site.refuse("no-kernel")
        lacking = next(need for need in op.needs if table.lacks(need))
        site.message = (
            f"{rule.message}: torch_tpu {table.torch_tpu} has no kernel for aten::{lacking}"
        )
        site.advice = op.advice
        return site
