"""Where nodes stand: a code generation that notes each node's begin and end."""

from __future__ import annotations

from types import TracebackType

import libcst as cst
from libcst._nodes.internal import CodegenState


class PositionError(ValueError):
    """The parser does not give back the source unchanged, so that no position can be trusted."""


class Positions(CodegenState):
    """A code generation that notes where each node begins and ends, in characters."""

    __slots__ = ("at", "full", "inner", "starts")

    def __init__(self, default_indent: str, default_newline: str) -> None:
        super().__init__(default_indent, default_newline)
        self.at = 0
        self.full: dict[int, tuple[int, int]] = {}
        self.inner: dict[int, tuple[int, int]] = {}
        self.starts: list[int] = []

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        self.at += len(value)

    def add_indent_tokens(self) -> None:
        for token in self.indent_tokens:
            self.tokens.append(token)
            self.at += len(token)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.starts.append(self.at)

    def after_codegen(self, node: cst.CSTNode) -> None:
        self.full[id(node)] = (self.starts.pop(), self.at)

    def record_syntactic_position(  # type: ignore[override]
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> _Recorder:
        return _Recorder(self, node, start_node, end_node)


class _Recorder:
    __slots__ = ("begin", "end_node", "node", "start_node", "state")

    def __init__(
        self,
        state: Positions,
        node: cst.CSTNode,
        start_node: cst.CSTNode | None,
        end_node: cst.CSTNode | None,
    ) -> None:
        self.state, self.node = state, node
        self.start_node, self.end_node = start_node, end_node

    def __enter__(self) -> None:
        self.begin = self.state.at

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        state = self.state
        begin, end = self.begin, state.at
        if self.start_node is not None and id(self.start_node) in state.inner:
            begin = state.inner[id(self.start_node)][0]
        if self.end_node is not None and id(self.end_node) in state.inner:
            end = state.inner[id(self.end_node)][1]
        state.inner[id(self.node)] = (begin, end)
