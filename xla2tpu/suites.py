"""Which statements vanish together: emptied suites, branches and guards, and what stays of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import libcst as cst

from xla2tpu import syntax
from xla2tpu.tree import Tree

Suite = cst.IndentedBlock | cst.SimpleStatementSuite | cst.Module

_LOGGING = frozenset({"print", "warn", "warning", "info", "debug", "error", "exit", "exception"})


@dataclass(slots=True)
class Settled:
    """What becomes of statements.

    ``gone``: statement lines and compound statements that vanish, ``clauses``: ``else``,
    ``elif`` and ``finally`` parts that vanish, ``passes``: suites that need ``pass``.
    ``smalls`` are all small statements that vanish by themselves.
    """

    smalls: dict[int, cst.CSTNode] = field(default_factory=dict)
    gone: dict[int, cst.CSTNode] = field(default_factory=dict)
    clauses: dict[int, cst.CSTNode] = field(default_factory=dict)
    passes: dict[int, Suite] = field(default_factory=dict)


class Suites:
    """Works out the consequences of deleted small statements and unwrapped ``with`` blocks."""

    def __init__(self, tree: Tree, may_vanish: Callable[[cst.CSTNode], bool]) -> None:
        self.tree = tree
        self.may_vanish = may_vanish

    def settle(self, smalls: Iterable[cst.CSTNode], unwrapped: set[int]) -> Settled:
        """Propagate deletions outwards."""
        result = Settled()
        # Innermost first, so that a suite is judged when all below it is settled.
        queue: list[tuple[int, int, cst.CSTNode]] = []
        for small in smalls:
            result.smalls[id(small)] = small
            parent = self.tree.parent(small)
            if parent is not None:
                self._push(queue, parent)
        seen: set[int] = set()
        while queue:
            node = heapq.heappop(queue)[2]
            if id(node) in seen and not isinstance(node, (cst.IndentedBlock, cst.If, cst.Try)):
                continue
            seen.add(id(node))
            up = self._step(node, result, unwrapped)
            if up is not None:
                self._push(queue, up)
        for key in [k for k, s in result.passes.items() if self._inside_gone(s, result)]:
            del result.passes[key]
        return result

    def _push(self, queue: list[tuple[int, int, cst.CSTNode]], node: cst.CSTNode) -> None:
        depth = sum(1 for _ in self.tree.ancestors(node))
        heapq.heappush(queue, (-depth, id(node), node))

    def _inside_gone(self, node: cst.CSTNode, result: Settled) -> bool:
        return any(
            id(above) in result.gone or id(above) in result.clauses
            for above in self.tree.ancestors(node)
        )

    def _step(self, node: cst.CSTNode, result: Settled, unwrapped: set[int]) -> cst.CSTNode | None:
        if isinstance(node, cst.SimpleStatementLine):
            if all(id(s) in result.smalls for s in node.body):
                result.gone[id(node)] = node
                return self.tree.parent(node)
            return None
        if not self._is_empty(node, result):
            return None
        if isinstance(node, cst.Module):
            return None
        owner = self.tree.parent(node)
        assert isinstance(node, (cst.IndentedBlock, cst.SimpleStatementSuite))
        return self._owner(node, owner, result, unwrapped)

    def _is_empty(self, suite: cst.CSTNode, result: Settled) -> bool:
        if isinstance(suite, cst.SimpleStatementSuite):
            return all(id(s) in result.smalls for s in suite.body)
        if isinstance(suite, (cst.IndentedBlock, cst.Module)):
            return bool(suite.body) and all(id(s) in result.gone for s in suite.body)
        return False

    def _owner(
        self,
        suite: cst.IndentedBlock | cst.SimpleStatementSuite,
        owner: cst.CSTNode | None,
        result: Settled,
        unwrapped: set[int],
    ) -> cst.CSTNode | None:
        match owner:
            case cst.If():
                return self._if(suite, owner, result)
            case cst.Else():
                whole = self.tree.parent(owner)
                if isinstance(whole, cst.If):
                    result.clauses[id(owner)] = owner
                    if self._is_empty(whole.body, result):
                        return self._if(whole.body, whole, result)
                    return None
                if isinstance(whole, (cst.Try, cst.For, cst.While)):
                    result.clauses[id(owner)] = owner
                    return None
            case cst.Finally():
                whole = self.tree.parent(owner)
                if isinstance(whole, cst.Try) and whole.handlers:
                    result.clauses[id(owner)] = owner
                    return None
            case cst.Try():
                if self._guard_is_empty(owner, result):
                    result.gone[id(owner)] = owner
                    return self.tree.parent(owner)
            case cst.With() if id(owner) in unwrapped:
                result.gone[id(owner)] = owner
                return self.tree.parent(owner)
        result.passes[id(suite)] = suite
        return None

    def _if(self, suite: cst.CSTNode, owner: cst.If, result: Settled) -> cst.CSTNode | None:
        orelse = owner.orelse
        alone = orelse is None or id(orelse) in result.clauses
        pure = syntax.is_pure(owner.test) and self.may_vanish(owner.test)
        if not alone or not pure:
            assert isinstance(suite, (cst.IndentedBlock, cst.SimpleStatementSuite))
            result.passes[id(suite)] = suite
            return None
        parent = self.tree.parent(owner)
        if isinstance(parent, cst.If) and parent.orelse is owner:
            result.clauses[id(owner)] = owner
            if self._is_empty(parent.body, result):
                result.passes.pop(id(parent.body), None)
                return self._if(parent.body, parent, result)
            return None
        result.passes.pop(id(suite), None)
        result.gone[id(owner)] = owner
        return parent

    def _guard_is_empty(self, node: cst.Try, result: Settled) -> bool:
        """Whether a ``try`` with nothing left to try can go with its handlers."""
        if node.finalbody is not None and id(node.finalbody) not in result.clauses:
            return False
        if node.orelse is not None and id(node.orelse) not in result.clauses:
            return False
        return all(
            self.is_inert(s, result.smalls) for h in node.handlers for s in smalls_of(h.body)
        )

    def is_inert(self, small: cst.CSTNode, deleted: Collection[int]) -> bool:
        """Whether a handler's statement only says that torch_xla is missing, or vanishes."""
        if id(small) in deleted:
            return True
        match small:
            case cst.Pass() | cst.Raise():
                return True
            case cst.Expr():
                call = small.value
                if isinstance(call, cst.Call):
                    name = call.func
                    last = name.attr if isinstance(name, cst.Attribute) else name
                    return isinstance(last, cst.Name) and last.value in _LOGGING
                return isinstance(call, (cst.SimpleString, cst.Ellipsis))
        return False


def smalls_of(suite: cst.BaseSuite) -> list[cst.CSTNode]:
    """The small statements directly in a suite; a compound statement stands for itself."""
    found: list[cst.CSTNode] = []
    for statement in suite.body:
        if isinstance(statement, cst.SimpleStatementLine):
            found.extend(statement.body)
        else:
            found.append(statement)
    return found
