"""Process groups that torch_xla made: the backend ``xla`` and the rendezvous ``xla://``.

Backend, rendezvous and what stands beside them change in one go, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from xla2tpu import devices, workers
from xla2tpu.changes import Builder
from xla2tpu.model import Applicability
from xla2tpu.nodes import descendants
from xla2tpu.rulemodel import Rule
from xla2tpu.scopes import Scope
from xla2tpu.signatures import Bound, bind
from xla2tpu.sites import Change, Site, within
from xla2tpu.template import Piece, Slice
from xla2tpu.tree import Tree

_MAKERS = frozenset(
    {"torch.distributed.init_process_group",
     "torch.distributed.distributed_c10d.init_process_group"}
)  # fmt: skip
_PARAMETERS = (
    "(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None,"
    " group_name='', pg_options=None, device_id=None)"
)
_BARRIERS = frozenset({"torch.distributed.barrier", "torch.distributed.distributed_c10d.barrier"})
_URL = re.compile(r"(xla|pjrt)://")
_RANK_TEST = re.compile(
    r"\b(get_|is_|global_|local_|my_|proc_|process_)*"
    r"(rank|ordinal|index|main|master|main_process|master_ordinal|node_local_rank)\b"
)
_MAIN = re.compile(r"(main|master)(_process|_ordinal)?\b")
_BACKEND = '"cpu:gloo,tpu:tpu_dist"'
_DIST = ("import torch.distributed as dist",)
_OWN = re.compile(r"gloo|tpu_dist")
_CLASS = "XLA525"
_ASKING = frozenset({"global_rank", "world_size"})
_TORCHRUN = "from now on the program is started with torchrun, for a single process too"
_GIVEN_BACK = (
    "Leave it to the launcher to destroy the process group: under torchrun the second launch finds"
    " no other."
)
_EARLY = (
    "Make the process group first, with the ranks that torchrun sets (RANK, WORLD_SIZE): until"
    " there is a group, each process takes itself for rank 0 of 1."
)
LAUNCHERS = frozenset({"XLA506", "XLA507"})
TWICE = (
    "Start the processes by torchrun or torch.multiprocessing, and make one process group in each:"
    " the worker makes one itself."
)
# What the launcher has no place for; torch_xla had none for it either.
_PLAIN = frozenset({"backend", "init_method", "rank", "world_size"})


def calls(builder: Builder) -> list[cst.Call]:
    """The calls of the file that make a process group of torch_xla."""
    found: dict[int, cst.Call] = {}
    for node, _ in builder.tree.strings:
        value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
        if isinstance(value, str) and (value == "xla" or _URL.match(value)):
            call = _maker_around(node, builder)
            if call is not None:
                found[id(call)] = call
    return list(found.values())


def makes_its_own(builder: Builder) -> bool:
    """Whether a function makes a group that would be the second in a launched process.

    Backends of other hardware are in branches of their own, and a test whether there is a group
    already is what it takes.
    """
    tree = builder.tree
    helper = builder.rules.helpers["launch"]
    for call in _makers(builder):
        backend = _text(call.args[0].value) if call.args else None
        if not _OWN.search(backend or ""):
            continue
        functions = [a for a in tree.ancestors(call) if isinstance(a, cst.FunctionDef)]
        tests = [tree.source(a.test) for a in tree.ancestors(call) if isinstance(a, cst.If)]
        ours = any(builder.naming.present(helper, f.name.value) for f in functions)
        if functions and not ours and not any("is_initialized" in test for test in tests):
            return True
    return False


def _makers(builder: Builder) -> Iterator[cst.Call]:
    """The calls that make a process group, whatever its backend."""
    tree = builder.tree
    name = "init_process_group"
    loads = (n for n, _ in tree.loads.get(name, ()))
    for node in (*tree.attributes.get(name, ()), *loads):
        call = tree.parent(node)
        if not isinstance(call, cst.Call) or call.func is not node:
            continue
        if builder.callee(call, tree.scope(call)) in _MAKERS:
            yield call


def _needs_group(builder: Builder) -> list[Site]:
    """The places whose replacement answers 0 of 1 where there is no group yet."""
    return [
        s
        for s in builder.sites.values()
        if s.fixable and s.case is not None and not _ASKING.isdisjoint(s.case.helpers)
    ]


def _asked_early(launched: bool, builder: Builder) -> dict[int, list[Site]]:
    """The ranks and sizes that are asked for before a group is made, by the call that makes it.

    Launched workers have their group from the start.
    """
    asking = _needs_group(builder)
    if launched or not asking:
        return {}
    tree = builder.tree
    helper = builder.rules.helpers["launch"]
    found: dict[int, list[Site]] = {}
    for call in _makers(builder):
        texts = [t for a in call.args if (t := _text(a.value)) is not None]
        if not any(_OWN.search(t) or t == "xla" or _URL.match(t) for t in texts):
            continue
        functions = [a for a in tree.ancestors(call) if isinstance(a, cst.FunctionDef)]
        if any(builder.naming.present(helper, f.name.value) for f in functions):
            continue
        places = _reached_from(call, tree)
        for site in asking:
            loads = _loads_of_value(site, tree)
            alone = bool(loads) and all(tree.is_within(load, call) for load in loads)
            if alone or tree.is_within(site.node, call):
                continue
            if any(
                _is_before(a, b, tree) for a in _reached_from(site.expression, tree) for b in places
            ):
                found.setdefault(id(call), []).append(site)
    return found


def _given_ranks(builder: Builder, mended: list[cst.Call]) -> list[Site]:
    """The ranks and sizes among the arguments of a call that stays."""
    done = {id(call) for call in mended}
    tree = builder.tree
    calls = [call for call in _makers(builder) if id(call) not in done]
    return [
        s
        for s in (_needs_group(builder) if calls else ())
        if any(
            tree.is_within(node, call)
            for call in calls
            for node in (s.node, *_loads_of_value(s, tree))
        )
    ]


def _loads_of_value(site: Site, tree: Tree) -> list[cst.Name]:
    """The places that read the name which a value is given, where it has one."""
    statement = tree.parent(site.expression)
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return []
    target = statement.targets[0].target
    owner = site.scope.owner(target.value) if isinstance(target, cst.Name) else None
    if owner is None or not isinstance(target, cst.Name):
        return []
    return [load for load, _ in tree.loads_of(target.value, owner)]


def _reached_from(node: cst.CSTNode, tree: Tree) -> list[cst.CSTNode]:
    """A place, and the calls in the file of the functions that it stands in."""
    places = [node]
    for place in places:  # grows
        function = _function(place, tree)
        if function is None:
            continue
        for load, _ in tree.loads.get(function.name.value, ()):
            call = tree.parent(load)
            if isinstance(call, cst.Call) and call.func is load and call not in places:
                places.append(call)
    return places


def _function(node: cst.CSTNode, tree: Tree) -> cst.FunctionDef | None:
    return next((a for a in tree.ancestors(node) if isinstance(a, cst.FunctionDef)), None)


def _is_before(first: cst.CSTNode, second: cst.CSTNode, tree: Tree) -> bool:
    """Whether one place of a function runs before another, which is not in another branch."""
    if _function(first, tree) is not _function(second, tree):
        return False
    if tree.span(first)[0] >= tree.span(second)[0]:
        return False
    for above in tree.ancestors(second):
        branches = (above.body, above.orelse) if isinstance(above, cst.If) else None
        if branches is None or branches[1] is None:
            continue
        if tree.is_within(first, branches[0]) and tree.is_within(second, branches[1]):
            return False
    return True


def is_asked_for(builder: Builder) -> bool:
    """Whether the file, which makes no group, asks whether there is one."""
    tree = builder.tree
    name = "is_initialized"
    loads = (*tree.attributes.get(name, ()), *(n for n, _ in tree.loads.get(name, ())))
    asked = any(builder.meaning(n, tree.scope(n)) == f"torch.distributed.{name}" for n in loads)
    return asked and next(_makers(builder), None) is None


def is_destroyed(builder: Builder) -> bool:
    """Whether the program gives its process group back itself."""
    return next(_destroyers(builder), None) is not None


def _destroyers(builder: Builder) -> Iterator[cst.CSTNode]:
    name = "destroy_process_group"
    for node in (
        *builder.tree.attributes.get(name, ()),
        *(n for n, _ in builder.tree.loads.get(name, ())),
    ):
        if builder.meaning(node, builder.tree.scope(node)) == f"torch.distributed.{name}":
            yield node


def is_repeated(site: Site, builder: Builder) -> bool:
    """Whether a program may launch more than once: in a loop, or in several places."""
    tree = builder.tree
    loops = (cst.For, cst.While)
    if any(isinstance(above, loops) for above in tree.ancestors(site.expression)):
        return True
    return sum(s.call is not None and s.rule.code in LAUNCHERS for s in builder.sites.values()) > 1


def _keep_for_launches(launchers: list[Site], groups: list[Site], builder: Builder) -> bool:
    """Leave it to the launcher to give its group back; False where workers still would.

    Under torchrun one group serves all launches: a second would not find its members.
    """
    tree = builder.tree
    kept = False
    for node in _destroyers(builder):
        call = tree.parent(node)
        statement = tree.parent(call) if isinstance(call, cst.Call) else None
        change = groups[0].change if groups else None
        if workers.is_at_top(node, tree):
            continue
        if change is None or not isinstance(statement, cst.Expr):
            kept = True
            continue
        change.deletes.append(statement)
        change.replaced.append(statement.value)
    return not kept or not any(is_repeated(s, builder) for s in launchers)


def _maker_around(node: cst.CSTNode, builder: Builder) -> cst.Call | None:
    arg = devices.argument_around(node, builder)
    call = builder.tree.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return None
    return call if builder.callee(call, builder.tree.scope(call)) in _MAKERS else None


def mend(sites: list[Site], builder: Builder, single_controller: bool) -> None:
    """Make the changes of process groups, when those of the launchers are known.

    ``single_controller`` tells whether one process drives all devices.
    """
    launchers = [s for s in sites if s.rule.code in LAUNCHERS and s.call is not None]
    launched = bool(launchers) and all(s.fixable for s in launchers)
    by_call: dict[int, tuple[cst.Call, list[Site]]] = {}
    for site in sites:
        if site.rule.detector == "rendezvous-url":
            call = _maker_around(site.node, builder)
            if call is not None:
                by_call.setdefault(id(call), (call, []))[1].append(site)
    early = {} if single_controller else _asked_early(launched, builder)
    # A test of the group's class would fail with another backend.
    tested = any(s.rule.code == _CLASS and not s.fixable for s in sites)
    for call, group in by_call.values():
        first, rest = group[0], group[1:]
        made: Change | str
        if id(call) in early:
            made, first.advice = "whole-program", _EARLY
        elif single_controller or tested:
            made = "single-controller" if single_controller else "whole-program"
        else:
            made = _mended(first, call, launchers if launched else [], sites, builder)
        if isinstance(made, str):
            for site in group:
                site.refuse(made)
                site.advice = first.advice
            continue
        first.reason, first.change, first.applicability = None, made, Applicability.UNSAFE
        for site in rest:
            site.reason, site.change = None, Change(replaced=[site.node])
            site.applicability, site.follows = Applicability.UNSAFE, [first]
            site.fix_title = first.fix_title
    strings = [s for _, group in by_call.values() for s in group]
    together, advice = all(s.fixable for s in strings), TWICE
    if launched and together and builder.settings.launcher != "torchrun":
        together = _keep_for_launches(launchers, strings, builder)
        advice = _GIVEN_BACK
    if launched and not together:
        # One group too many or none: the launch and the groups are left together.
        for site in (*launchers, *(s for s in strings if s.fixable)):
            site.refuse("whole-program")
            site.advice = advice
        early = _asked_early(False, builder)
    given = _given_ranks(builder, [call for call, group in by_call.values() if group[0].fixable])
    for site in (*(s for asked in early.values() for s in asked), *given):
        if site.fixable:
            site.refuse("whole-program")
            site.advice = _EARLY
    started = any(s.applicability is Applicability.UNSAFE for s in launchers)
    if not started and not _has_group(builder):
        sites[:] = [s for s in sites if s.rule.detector != "rank-barrier"]


def _mended(
    site: Site, call: cst.Call, launchers: list[Site], sites: list[Site], builder: Builder
) -> Change | str:
    bound = bind(_PARAMETERS, call.args, lambda node: False)
    if isinstance(bound, str):
        return bound
    backend = bound.args.get("backend")
    if backend is not None and _text(backend.value) not in ("xla", "gloo"):
        return "user-option"
    if "pg_options" in bound.args:
        return "argument-not-supported"
    if launchers:
        return _given_by_launcher(site, call, bound, launchers, sites, builder)
    return _own(site, call, bound, sites, builder)


def _given_by_launcher(
    site: Site,
    call: cst.Call,
    bound: Bound,
    launchers: list[Site],
    sites: list[Site],
    builder: Builder,
) -> Change | str:
    """The processes have their group when the worker starts: a second cannot be made."""
    if workers.is_at_top(call, builder.tree):
        return "whole-program"
    statement = builder.tree.parent(call)
    if not isinstance(statement, cst.Expr):
        return "unsupported-form"
    if bound.args.keys() - _PLAIN:
        return _own(site, call, bound, sites, builder, tested=True)
    site.follows = list(launchers)
    site.fix_title = "Remove the process group that the launcher has made"
    return builder.delete(site, call)


def _own(
    site: Site,
    call: cst.Call,
    bound: Bound,
    sites: list[Site],
    builder: Builder,
    tested: bool = False,
) -> Change | str:
    """Make the group by the variables that the launcher sets, and not a second time."""
    tree = builder.tree
    extra: dict[str, Piece] = {"callee": Slice(call.func)}
    ranks = [a for n in ("rank", "world_size") if (a := bound.args.get(n)) is not None]
    # Before there is a group, the ranks of torch_xla are not known.
    asked = any(workers.asks_torch_xla(a.value, site.scope, builder) for a in ranks)
    parts = []
    for index, arg in enumerate(call.args):
        if arg is bound.args.get("init_method") or (asked and arg in ranks):
            for inner in within(sites, tree, arg):
                if inner is not site and inner.rule is not site.rule:
                    inner.follows.append(site)
            continue
        keyword = f"{arg.keyword.value}=" if arg.keyword is not None else ""
        if arg is bound.args.get("backend") and _text(arg.value) == "xla":
            parts.append(f"{keyword}{_BACKEND}")
        else:
            extra[f"item{index}"] = Slice(arg.value)
            parts.append(f"{keyword}{{item{index}}}")
    template = f"{{callee}}({', '.join(parts)})"
    site.fix_title = "Make the process group of TorchTPU"
    script = _is_script(call, builder)
    if script and not any(s.rule.code in LAUNCHERS for s in sites):
        site.message = f"{site.rule.message}; {_TORCHRUN}"
    alone = script and not tested
    if alone or not isinstance(tree.parent(call), cst.Expr):
        return builder.replace(site, template, extra=extra, node=call)
    guarded = f"if not dist.is_initialized():\n    {template}"
    return builder.statement(site, guarded, _DIST, extra=extra)


def _is_script(call: cst.Call, builder: Builder) -> bool:
    """Whether the file is a program of its own: no other has made the group before."""
    body = builder.tree.module.body
    return workers.is_at_top(call, builder.tree) or any(workers.is_main_guard(s) for s in body)


def _text(node: cst.BaseExpression) -> str | None:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None


def barriers(rule: Rule, builder: Builder) -> Iterator[Site]:
    """Barriers that some ranks alone come to: under the backend ``xla`` they did nothing.

    As many behind tests of rank 0 as behind those of the others may meet each other.
    """
    tree = builder.tree
    alone: dict[int, list[tuple[str, bool | None, cst.Call, Scope]]] = {}
    for load, scope in _barrier_loads(builder):
        node: cst.CSTNode = load
        while isinstance(above := tree.parent(node), cst.Attribute) and above.value is node:
            node = above
        call = tree.parent(node)
        if not isinstance(call, cst.Call) or call.func is not node:
            continue
        if builder.callee(call, scope) not in _BARRIERS:
            continue
        test = _rank_test(call, tree)
        if test is not None:
            function = next((a for a in tree.ancestors(call) if isinstance(a, cst.FunctionDef)), 0)
            alone.setdefault(id(function), []).append((*test, call, scope))
    for group in alone.values():
        sides = [first for _, first, _, _ in group]
        if None in sides and len({test for test, _, _, _ in group}) > 1:
            continue
        if None not in sides and sides.count(True) == sides.count(False):
            continue
        for _, _, call, scope in group:
            site = Site(rule, "torch.distributed.barrier", call, call, scope, "call", counts=False)
            site.refuse("waits-now")
            yield site


def _barrier_loads(builder: Builder) -> Iterator[tuple[cst.Name, Scope]]:
    """The names that calls of ``dist.barrier`` begin with, where the group may be torch_xla's."""
    tree = builder.tree
    launchers = any(s.rule.code in LAUNCHERS for s in builder.sites.values())
    if not launchers and not _has_group(builder):
        return
    for name in sorted({b.name for b in tree.bindings if (b.path or "").startswith("torch")}):
        yield from tree.loads.get(name, ())


def _has_group(builder: Builder) -> bool:
    """Whether the file makes a group of torch_xla, or of TorchTPU, or takes the launcher's."""
    module = builder.naming.helpers_module
    if "tpu_dist" in builder.tree.text or calls(builder):
        return True
    return module is not None and any(b.path == f"{module}.launch" for b in builder.tree.bindings)


def _rank_test(call: cst.Call, tree: Tree) -> tuple[str, bool | None] | None:
    """The test of a rank that lets some ranks alone come to a barrier, None where there is none.

    With it comes whether rank 0 is among them, None where that cannot be told.
    """
    counters: set[str] = {
        name.value
        for loop in tree.ancestors(call)
        if isinstance(loop, cst.For)
        for name in (loop.target, *descendants(loop.target))
        if isinstance(name, cst.Name)
    }
    inside: cst.CSTNode = call
    for above in tree.ancestors(call):
        test, holds = None, True
        match above:
            case cst.FunctionDef() | cst.Lambda():
                return None
            case cst.If():
                text = tree.source(above.test)
                if text.endswith("is_initialized()") and " " not in text:
                    return None  # made of a meeting point, or meant to be where there are others
                if above.orelse is None:
                    test = above.test
                elif _tests_rank(above.test, tree, counters):
                    return None
            case cst.IfExp(body=body) if inside is not above.test:
                test, holds = above.test, inside is body
            case cst.BooleanOperation(right=right) if inside is right:
                test, holds = above.left, isinstance(above.operator, cst.And)
            case cst.IndentedBlock(body=body) | cst.Module(body=body):
                before = body[: next(i for i, s in enumerate(body) if s is inside)]
                left = (s.test for s in before if isinstance(s, cst.If) and _leaves(s))
                test = next((t for t in left if _tests_rank(t, tree, counters)), None)
                holds = False
        if test is not None and _tests_rank(test, tree, counters):
            first = _holds_for_first(test, tree)
            return tree.source(test), first if first is None else first == holds
        inside = above
    return None


def _tests_rank(test: cst.BaseExpression, tree: Tree, counters: set[str]) -> bool:
    """Whether a test asks for a rank; an index that a loop counts is none."""
    return any(m.group() not in counters for m in _RANK_TEST.finditer(tree.source(test)))


def _leaves(statement: cst.If) -> bool:
    """Whether what follows is for those alone whom a test does not hold for."""
    body = statement.body.body
    last = body[-1] if body and statement.orelse is None else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    return isinstance(last, (cst.Return, cst.Continue, cst.Break))


def _holds_for_first(test: cst.BaseExpression, tree: Tree) -> bool | None:
    """Whether a test of a rank holds for rank 0, None where that cannot be told."""
    match test:
        case cst.UnaryOperation(operator=cst.Not(), expression=inner):
            holds = _holds_for_first(inner, tree)
            return None if holds is None else not holds
        case cst.BooleanOperation(left=left, right=right):
            ranks = [p for p in (left, right) if _RANK_TEST.search(tree.source(p))]
            sides = {_holds_for_first(part, tree) for part in ranks}
            return sides.pop() if len(sides) == 1 else None
        case cst.Comparison(left=left, comparisons=[one]):
            if _RANK_TEST.search(tree.source(left)):
                return _is_of_first(one.operator, tree.source(one.comparator))
            equal = isinstance(one.operator, (cst.Equal, cst.NotEqual))
            return _is_of_first(one.operator, tree.source(left)) if equal else None
        case cst.Comparison():
            return None
    return _MAIN.search(tree.source(test)) is not None


def _is_of_first(operator: cst.BaseCompOp, other: str) -> bool | None:
    numbers = [int(n) for n in re.findall(r"-?\d+", other)]
    if not numbers or not re.fullmatch(r"[-\d\s,()\[\]{}]+", other):
        return None
    number = numbers[0]
    match operator:
        case cst.Equal():
            return number == 0 if number >= 0 else None
        case cst.NotEqual():
            return number != 0 if number >= 0 else None
        case cst.In():
            return 0 in numbers
        case cst.NotIn():
            return 0 not in numbers
        case cst.GreaterThan():
            return number < 0
        case cst.GreaterThanEqual():
            return number <= 0
        case cst.LessThan():
            return number > 0
        case cst.LessThanEqual():
            return number >= 0
    return None
