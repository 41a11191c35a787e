"""Step markers: most go, those at which the program waits for the device become a wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import libcst as cst

from xla2tpu import syntax
from xla2tpu.changes import Builder
from xla2tpu.nodes import children
from xla2tpu.sites import Change, Site
from xla2tpu.tree import Tree

_WAIT = "torch.accelerator.synchronize()"
_TORCH = ("import torch",)
_OFF = frozenset({"False", "None", "0"})
_ON = frozenset({"True", "1"})
_TIME = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
_CLOCKS = frozenset(
    {f"time.{name}{unit}" for name in _TIME for unit in ("", "_ns")}
    | {f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")}
    | {"time.clock", "timeit.default_timer"}
)
_SUITES = (cst.SimpleStatementLine, cst.SimpleStatementSuite, cst.IndentedBlock, cst.Module)
_LOOPS = (cst.For, cst.While)
# From the end of these, or of a suite of theirs, the program goes on behind them.
_LEFT_ONCE = (
    cst.Else, cst.ExceptHandler, cst.ExceptStarHandler, cst.Finally, cst.If, cst.Match,
    cst.MatchCase, cst.With,
)  # fmt: skip
_EVENTS = frozenset({"torch.Event", "torch.cuda.Event", "torch.xpu.Event", "torch.tpu.Event"})


def sync_point(site: Site, builder: Builder) -> Change | str:
    """Delete a step marker, or wait in its place: with ``wait``, and before a clock is read.

    A step marker in front of a clock was where a program that takes the time had its work
    done; without a wait, the time would be that of dispatch alone.
    """
    wait = site.bound.args.get("wait") if site.bound is not None else None
    source = builder.tree.source(wait.value) if wait is not None else "False"
    if source not in _OFF | _ON:
        site.fix_title = "Wait for the device where the argument asks for it"
        if site.context == "statement":
            return builder.statement(site, f"if {{wait}}:\n    {_WAIT}", _TORCH)
        return builder.replace(site, f"{_WAIT} if {{wait}} else None", _TORCH)
    follower = _follower(builder.tree, builder.tree.statement(site.expression))
    if source in _ON or (follower is not None and _reads_clock(follower, builder)):
        site.fix_title = "Wait for the device"
        return builder.replace(site, _WAIT, _TORCH)
    return builder.delete(site, _conditional(site, builder.tree))


def _conditional(site: Site, tree: Tree) -> cst.CSTNode | None:
    """The whole of ``mark_step() if test else None``, where nothing of it need stay."""
    whole = tree.parent(site.expression)
    if site.context != "discarded" or not isinstance(whole, cst.IfExp):
        return None
    other = whole.orelse if whole.body is site.expression else whole.body
    return whole if syntax.is_pure(other) and syntax.is_pure(whole.test) else None


def _follower(tree: Tree, statement: cst.CSTNode) -> cst.CSTNode | None:
    """The statement that runs right after; None at the end of a loop's or function's body.

    The next turn of a loop does not count: a training loop must not wait in each step because
    the time of the epoch is taken at its end.
    """
    node: cst.CSTNode = statement
    while (above := tree.parent(node)) is not None:
        following: cst.CSTNode | None = None
        if isinstance(above, _SUITES):
            following = next((b for a, b in pairwise(above.body) if a is node), None)
        elif isinstance(above, (cst.Try, cst.TryStar)):
            following = _after_part(above, node)
        elif not isinstance(above, _LEFT_ONCE) or isinstance(tree.parent(above), _LOOPS):
            return None
        if following is not None:
            return following
        node = above
    return None


def _after_part(block: cst.Try | cst.TryStar, part: cst.CSTNode) -> cst.CSTNode | None:
    """The suite that runs after a part of a ``try`` statement."""
    if part is block.body and block.orelse is not None:
        return block.orelse.body
    if part is not block.finalbody and block.finalbody is not None:
        return block.finalbody.body
    return None


def _reads_clock(node: cst.CSTNode, builder: Builder) -> bool:
    """Whether the first thing that a statement does comes with a reading of the time."""
    return any(_is_clock(call, builder) for call in _calls(node))


def _calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    """The calls that are made at once; of a compound statement those of its head."""
    match node:
        case cst.FunctionDef() | cst.ClassDef() | cst.Lambda():
            return
        case cst.SimpleStatementLine() | cst.SimpleStatementSuite() | cst.IndentedBlock():
            parts: Iterable[cst.CSTNode] = node.body[:1]
        case (
            cst.If(test=head) | cst.While(test=head) | cst.For(iter=head) | cst.Match(subject=head)
        ):
            parts = [head]
        case cst.Try(body=suite) | cst.TryStar(body=suite):
            parts = [suite]
        case _:
            parts = children(node)
    if isinstance(node, cst.Call):
        yield node
    for part in parts:
        yield from _calls(part)


def _is_clock(call: cst.Call, builder: Builder) -> bool:
    scope = builder.tree.scope(call)
    if builder.callee(call, scope) in _CLOCKS:
        return True
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "record":
        meaning = builder.names.expression(call.func.value, scope)
        values = [b.value for b in meaning.bindings]
        return any(
            isinstance(v, cst.Call) and builder.callee(v, builder.tree.scope(v)) in _EVENTS
            for v in values
        )
    return False
