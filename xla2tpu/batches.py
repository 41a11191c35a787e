"""Loops over a loader: the names that a batch is taken apart into, and what is known of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.devices import DEVICE_CALLS
from xla2tpu.flow import reaching, stays
from xla2tpu.nodes import descendants
from xla2tpu.scopes import Scope

# Names that no string, dict, list or tuple has, and that a tensor has.
_TENSOR = frozenset(
    {"T", "abs", "add", "all", "amax", "amin", "any", "argmax", "argmin", "argsort", "backward",
     "bfloat16", "bool", "byte", "chunk", "clamp", "clone", "contiguous", "cpu", "cuda",
     "cumsum", "data_ptr", "detach", "device", "dim", "div", "double", "dtype", "element_size",
     "eq", "exp", "expand", "expand_as", "fill_", "flatten", "float", "gather", "ge", "grad",
     "gt", "half", "int", "is_contiguous", "is_cuda", "is_floating_point", "item", "le", "log",
     "long", "lt", "masked_fill", "masked_fill_", "masked_select", "matmul", "max", "mean",
     "min", "mm", "mul", "ndim", "ndimension", "ne", "new_empty", "new_full", "new_ones",
     "new_zeros", "nonzero", "norm", "numel", "numpy", "permute", "pow", "prod", "repeat",
     "requires_grad", "requires_grad_", "reshape", "round", "scatter_", "shape", "short",
     "sigmoid", "sign", "size", "softmax", "sqrt", "squeeze", "std", "sub", "sum", "t", "tanh",
     "to", "tolist", "topk", "transpose", "type", "type_as", "unbind", "unflatten", "unfold",
     "unique", "unsqueeze", "view", "view_as", "where", "zero_"}
)  # fmt: skip
# Batches hold what these say as strings or lists as often as not.
_OTHERS = re.compile(
    r"(path|file|fname|name|text|str|string|meta|info|caption|sentence|url|key|word|uid|idx)s?\Z"
    r"|(\A|(?<!input)(?<!type)(?<!token)(?<!position)_)ids?\Z|_(list|dict|map)\Z"
)
_NEUTRAL_CALLS = frozenset({"builtins.print", "builtins.len", "builtins.type", "builtins.id"})
_OF_LISTS = frozenset(
    {"torch.as_tensor", "torch.block_diag", "torch.cat", "torch.chain_matmul", "torch.concat",
     "torch.dstack", "torch.hstack", "torch.stack", "torch.tensor", "torch.vstack"}
)  # fmt: skip
_OF_ANYTHING = frozenset({"torch.is_tensor", "torch.save", "torch.typename"})
_PASSED_ON = frozenset(
    {"itertools.islice", "fastprogress.progress_bar", "rich.progress.track", "builtins.enumerate",
     "builtins.zip"}
)  # fmt: skip

TENSOR, LIKELY, UNKNOWN, OTHER = range(4)


@dataclass(frozen=True, slots=True)
class Loop:
    """A ``for`` statement over a loader, and the target that each batch is assigned to."""

    node: cst.For
    target: cst.BaseExpression
    scope: Scope


def loop_over(node: cst.CSTNode, scope: Scope, builder: Builder) -> Loop | None:
    """The loop that runs over ``node`` itself, or through ``enumerate``, ``zip`` or ``tqdm``."""
    tree = builder.tree
    taken: list[tuple[int, int]] = []
    while True:
        parent = tree.parent(node)
        if isinstance(parent, cst.For) and parent.iter is node:
            break
        call = tree.parent(parent) if isinstance(parent, cst.Arg) else None
        if not isinstance(call, cst.Call) or not isinstance(parent, cst.Arg):
            return None
        if parent.star or parent.keyword is not None:
            return None
        name = builder.callee(call, scope) or ""
        if name not in _PASSED_ON and not name.startswith("tqdm"):
            return None
        positional = [a for a in call.args if a.keyword is None]
        if any(a.star for a in call.args):
            return None
        index = next(i for i, a in enumerate(positional) if a is parent)
        if name == "builtins.zip":
            taken.append((index, len(positional)))
        elif index:
            return None
        elif name == "builtins.enumerate":
            taken.append((1, 2))
        node = call
    if parent.asynchronous is not None:
        return None
    target: cst.BaseExpression = parent.target
    for index, count in reversed(taken):
        if not isinstance(target, (cst.Tuple, cst.List)) or len(target.elements) != count:
            return None
        if any(isinstance(e, cst.StarredElement) for e in target.elements):
            return None
        target = target.elements[index].value
    return Loop(parent, target, scope)


def moves(
    loop: Loop, device: cst.BaseExpression, since: int, collated: bool, builder: Builder
) -> list[str] | None:
    """The names that have to be moved to the device at the start of the loop's body.

    None where that cannot be done: the target is not made of plain names, one of them may be
    no tensor, or the device may be another one by then. ``since`` is where the device is given;
    ``collated`` tells that a function of the user's own makes the batches.
    """
    if not stays(builder.tree, device, loop.scope, since):
        return None
    names = _names(loop.target)
    roots = {n.value for n in descendants(device) if isinstance(n, cst.Name)}
    if names is None or roots.intersection(names):
        return None
    single = isinstance(loop.target, cst.Name)
    found: list[str] = []
    for name in names:
        loads = _loads(name, loop, builder)
        if all(_is_moved(load, device, builder) for load in loads):
            continue
        if names.count(name) > 1:
            return None
        verdict = max((_use(load, loop.scope, builder) for load in loads), key=_RANK.index)
        if verdict in (OTHER, UNKNOWN):
            return None
        if verdict == LIKELY and (single or collated or _OTHERS.search(name)):
            return None
        found.append(name)
    if found and isinstance(loop.node.body, cst.SimpleStatementSuite):
        # What is rewritten in the suite may put it on lines of its own.
        inside = (builder.tree.is_within(s.node, loop.node.body) for s in builder.sites.values())
        if any(inside):
            return None
    return found


# What one use says outweighs the ones before it in this order.
_RANK = (UNKNOWN, LIKELY, TENSOR, OTHER)


def _names(target: cst.BaseExpression) -> list[str] | None:
    if isinstance(target, cst.Name):
        return [target.value]
    if not isinstance(target, (cst.Tuple, cst.List)):
        return None
    found: list[str] = []
    for element in target.elements:
        inner = None if isinstance(element, cst.StarredElement) else _names(element.value)
        if inner is None:
            return None
        found += inner
    return found


def _loads(name: str, loop: Loop, builder: Builder) -> list[cst.Name]:
    """The uses of a name that may see what the loop assigns to it."""
    tree = builder.tree
    owner = loop.scope.owner(name)
    found = []
    for load, scope in tree.loads_of(name, owner) if owner is not None else ():
        if isinstance(tree.parent(load), cst.Del) or id(load) in tree.stored:
            continue
        inside = tree.is_within(load, loop.node.body)
        seen = reaching(tree, load, scope)
        if seen is not None and not tree.is_within(seen.node, loop.node.target):
            continue
        after = tree.span(load)[0] > tree.span(loop.node)[0]
        if inside or after or scope is not loop.scope:
            found.append(load)
    return found


def _is_moved(load: cst.Name, device: cst.BaseExpression, builder: Builder) -> bool:
    """Whether a use is ``x.to(device)``, or the same of an item of ``x``, or of each of them."""
    tree = builder.tree
    node: cst.CSTNode = load
    parent = tree.parent(node)
    while isinstance(parent, cst.Subscript) and parent.value is node:
        node, parent = parent, tree.parent(parent)
    each = _taken_from_each(node, builder)
    if each is not None:
        return _is_moved(each, device, builder)
    if not isinstance(parent, cst.Attribute) or parent.attr.value != "to":
        return False
    call = tree.parent(parent)
    if not isinstance(call, cst.Call) or call.func is not parent or not call.args:
        return False
    first = call.args[0]
    if first.star or (first.keyword is not None and first.keyword.value != "device"):
        return False
    if tree.source(first.value) == tree.source(device):
        return True
    return builder.meaning(first.value, tree.scope(load)) in DEVICE_CALLS


def _taken_from_each(node: cst.CSTNode, builder: Builder) -> cst.Name | None:
    """The name ``t`` of ``[t.to(device) for t in x]``, or of ``x.items()`` and ``x.values()``."""
    tree = builder.tree
    parent = tree.parent(node)
    if isinstance(parent, cst.Attribute) and parent.attr.value in ("items", "values"):
        call = tree.parent(parent)
        if not isinstance(call, cst.Call) or call.args or call.func is not parent:
            return None
        node, parent = call, tree.parent(call)
    if not isinstance(parent, cst.CompFor) or parent.iter is not node:
        return None
    whole = tree.parent(parent)
    if parent.inner_for_in is not None or parent.ifs:
        return None
    moved = whole.value if isinstance(whole, cst.DictComp) else getattr(whole, "elt", None)
    called = moved.func if isinstance(moved, cst.Call) else None
    name = called.value if isinstance(called, cst.Attribute) else None
    names = _names(parent.target)
    last = names[-1] if names else None
    return name if isinstance(name, cst.Name) and name.value == last else None


def _use(load: cst.Name, scope: Scope, builder: Builder) -> int:
    """What a use of a name says of its value: a tensor, likely one, nothing, or something else."""
    tree = builder.tree
    parent = tree.parent(load)
    match parent:
        case cst.Attribute():
            return TENSOR if parent.attr.value in _TENSOR else OTHER
        case cst.Subscript() if parent.value is load:
            strings = (cst.SimpleString, cst.FormattedString)
            indices = [e.slice for e in parent.slice]
            keys = [i.value for i in indices if isinstance(i, cst.Index)]
            return OTHER if any(isinstance(k, strings) for k in keys) else LIKELY
        case cst.Arg():
            return _argument(parent, scope, builder)
        case cst.BinaryOperation():
            if isinstance(parent.operator, cst.Modulo) and parent.right is load:
                return UNKNOWN
            return LIKELY if isinstance(parent.operator, cst.Add) else TENSOR
        case cst.UnaryOperation():
            return UNKNOWN if isinstance(parent.operator, cst.Not) else TENSOR
        case cst.ComparisonTarget():
            return OTHER if isinstance(parent.operator, _OF_OBJECTS) else LIKELY
        case cst.Comparison() if any(_asks_for_none(t) for t in parent.comparisons):
            return OTHER
        case cst.Comparison() | cst.Return() | cst.Yield() | cst.Element():
            return LIKELY
        case cst.DictElement() if parent.value is load:
            return LIKELY
        case cst.For() | cst.CompFor() | cst.StarredElement() | cst.StarredDictElement():
            return OTHER
        case cst.Assign():
            names = [isinstance(t.target, cst.Name) for t in parent.targets]
            return UNKNOWN if all(names) else OTHER
    return UNKNOWN


_OF_OBJECTS = (cst.In, cst.NotIn, cst.Is, cst.IsNot)


def _asks_for_none(target: cst.ComparisonTarget) -> bool:
    """Whether something is compared by identity, or with None: it need not be a tensor."""
    other = target.comparator
    none = isinstance(other, cst.Name) and other.value == "None"
    return none or isinstance(target.operator, (cst.Is, cst.IsNot))


def _argument(arg: cst.Arg, scope: Scope, builder: Builder) -> int:
    call = builder.tree.parent(arg)
    if arg.star or not isinstance(call, cst.Call):
        return OTHER
    name = builder.callee(call, scope)
    if name is not None:
        if name.startswith("torch."):
            if name in _OF_LISTS or name.startswith("torch.utils."):
                return OTHER
            return UNKNOWN if name in _OF_ANYTHING else TENSOR
        if name in _NEUTRAL_CALLS:
            return UNKNOWN
        if name.startswith("builtins."):
            return OTHER
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    if method in ("append", "add", "put", "info", "debug", "format", "write"):
        return UNKNOWN
    return OTHER if method in ("join", "extend", "update") else LIKELY
