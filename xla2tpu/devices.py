"""What is known to be a device, how a device is used, and where a string names one."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.imports import attributes_named
from xla2tpu.model import Applicability
from xla2tpu.scopes import Binding, Scope
from xla2tpu.sites import Change, Cut, Site

Verdict = tuple[Change | None, Applicability, str | None]

DEVICE_CALLS = frozenset(
    {
        "torch_xla.core.xla_model.xla_device()",
        "torch_xla.device()",
        "torch_xla.torch_xla.device()",
        "torch_xla.runtime.xla_device()",
        "torch_xla_py.xla_model.xla_device()",
    }
)
PORTABLE = 'torch.accelerator.current_accelerator() or torch.device("cpu")'
_AUTOCAST = frozenset({"torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast"})
_FIRST_ARGUMENT = frozenset(
    {"torch.device", "torch.set_default_device", "torch.Generator", "torch.autocast",
     "torch.amp.autocast", "torch.amp.autocast_mode.autocast", "torch.is_autocast_enabled",
     "torch.get_autocast_dtype", "torch.amp.GradScaler", "torch.distributed.init_device_mesh",
     "torch.distributed.device_mesh.init_device_mesh", "torch.distributed.device_mesh.DeviceMesh",
     "torch.distributed.tensor.DeviceMesh",
     "torch_xla.core.xla_model.xla_device_hw", "torch_xla.amp.autocast"}
)  # fmt: skip
_KEYWORDS = frozenset({"device", "device_type", "map_location"})
_SPLITS = frozenset({"split", "rsplit", "partition", "rpartition"})
_ASSERTIONS = frozenset({"assertEqual", "assertNotEqual", "assertIn", "assertNotIn"})
_DEVICE_METHODS = frozenset({"to", "to_empty"})


def is_device(node: cst.CSTNode | None, scope: Scope, builder: Builder) -> bool:
    """Whether an expression is a torch.device for certain."""
    if node is None:
        return False
    meaning = builder.names.expression(node, scope)
    if meaning.path in DEVICE_CALLS:
        return True
    if isinstance(node, cst.Call):
        return builder.callee(node, scope) == "torch.device"
    if isinstance(node, cst.IfExp):
        return is_device(node.body, scope, builder) and is_device(node.orelse, scope, builder)
    if isinstance(node, cst.Name):
        owner = scope.owner(node.value)
        bindings = owner.bindings[node.value] if owner is not None else []
        return bool(bindings) and all(_binds_device(b, builder) for b in bindings)
    return False


def _binds_device(binding: Binding, builder: Builder) -> bool:
    if binding.kind == "assign":
        # A name bound to itself would never be settled: ``device = device or ...``.
        if isinstance(binding.value, (cst.Call, cst.IfExp, cst.Attribute)):
            return is_device(binding.value, binding.scope, builder)
        return False
    if binding.kind == "param":
        param = builder.tree.parent(binding.node)
        if isinstance(param, cst.Param) and param.annotation is not None:
            note = param.annotation.annotation
            if isinstance(note, cst.SimpleString):
                return note.evaluated_value == "torch.device"
            return builder.meaning(note, builder.tree.root) == "torch.device"
    return False


def needs_index(site: Site, builder: Builder) -> bool:
    """Whether the device is compared, hashed or asked for its index, so that it needs one."""
    tree = builder.tree
    node: cst.CSTNode = site.expression
    parent = tree.parent(node)
    while True:
        if _use_needs_index(node, builder):
            return True
        if isinstance(parent, cst.NamedExpr) and parent.value is node:
            if _name_needs_index(parent.target, site.scope, builder):
                return True
        elif not isinstance(parent, (cst.IfExp, cst.BooleanOperation)):
            break
        node, parent = parent, tree.parent(parent)
    match parent:
        case cst.Assign():
            return any(_name_needs_index(t.target, site.scope, builder) for t in parent.targets)
        case cst.AnnAssign():
            return _name_needs_index(parent.target, site.scope, builder)
        case cst.Element():
            return _element_needs_index(parent, site, builder)
        case cst.Param():
            owner = tree.parent(tree.parent(parent) or parent)
            body = getattr(owner, "body", None)
            inner = tree.scope_of.get(id(body)) if body is not None else None
            return inner is not None and _name_needs_index(parent.name, inner, builder)
    return False


def _element_needs_index(element: cst.Element, site: Site, builder: Builder) -> bool:
    """For a device in a tuple or list: unpacked by an assignment, looped over, or searched."""
    tree = builder.tree
    box = tree.parent(element)
    if not isinstance(box, (cst.Tuple, cst.List)):
        return False
    index = next(i for i, e in enumerate(box.elements) if e is element)
    parent = tree.parent(box)
    if isinstance(parent, cst.ComparisonTarget):
        return True
    if isinstance(parent, (cst.For, cst.CompFor)):
        return _name_needs_index(parent.target, tree.scope(parent), builder)
    if not isinstance(parent, cst.Assign):
        return False
    for target in parent.targets:
        names = target.target
        if isinstance(names, cst.Name) and _is_searched(names, site.scope, builder):
            return True
        if not isinstance(names, (cst.Tuple, cst.List)) or index >= len(names.elements):
            continue
        if _name_needs_index(names.elements[index].value, site.scope, builder):
            return True
    return False


def _is_searched(name: cst.Name, scope: Scope, builder: Builder) -> bool:
    """Whether a list or tuple of devices is compared or searched under its name."""
    owner = scope.owner(name.value)
    loads = builder.tree.loads_of(name.value, owner) if owner is not None else []
    parents = [builder.tree.parent(load) for load, _ in loads]
    return any(
        isinstance(p, (cst.Comparison, cst.ComparisonTarget))
        or (isinstance(p, cst.Attribute) and p.attr.value in ("index", "count", "remove"))
        for p in parents
    )


def _name_needs_index(target: cst.CSTNode, scope: Scope, builder: Builder) -> bool:
    """Whether a name or attribute that holds the device is used so, anywhere in its scope."""
    tree = builder.tree
    if isinstance(target, cst.Name):
        owner = scope.owner(target.value)
        for load, _ in tree.loads_of(target.value, owner) if owner is not None else ():
            if _use_needs_index(load, builder):
                return True
        if owner is not None and owner.kind == "class":
            return any(_use_needs_index(n, builder) for n in attributes_named(tree, target.value))
        return False
    if isinstance(target, cst.Attribute):
        name = target.attr.value
        uses = [n for n in attributes_named(tree, name) if n is not target]
        return any(_use_needs_index(n, builder) or _is_copied(n, builder) for n in uses)
    return False


def _copies_need_index(assign: cst.Assign, builder: Builder) -> bool:
    """Whether a name that the device is copied to is asked for its index, or compared."""
    tree = builder.tree
    for target in assign.targets:
        name = target.target.value if isinstance(target.target, cst.Name) else ""
        owner = tree.scope(assign).owner(name)
        for load, _ in tree.loads_of(name, owner) if owner is not None else ():
            parent = tree.parent(load)
            if not isinstance(parent, cst.Assign) and _use_needs_index(load, builder):
                return True
    return False


def _is_copied(node: cst.CSTNode, builder: Builder) -> bool:
    """Whether an attribute is assigned on, so that its further uses are not followed."""
    return isinstance(builder.tree.parent(node), cst.Assign)


def _use_needs_index(node: cst.CSTNode, builder: Builder) -> bool:
    parent = builder.tree.parent(node)
    match parent:
        case cst.Attribute() if parent.value is node:
            return parent.attr.value == "index"
        case cst.Comparison():
            return not any(
                _is_string(t.comparator) or _is_none(t.comparator) for t in parent.comparisons
            )
        case cst.ComparisonTarget():
            whole = builder.tree.parent(parent)
            left = whole.left if isinstance(whole, cst.Comparison) else None
            return left is not None and not _is_string(left) and not _is_none(left)
        case cst.DictElement() if parent.key is node:
            return True
        case cst.Element():
            box = builder.tree.parent(parent)
            searched = isinstance(builder.tree.parent(box or parent), cst.ComparisonTarget)
            return searched or isinstance(box, cst.Set)
        case cst.Assign() if isinstance(node, (cst.Name, cst.Attribute)):
            return _copies_need_index(parent, builder)
        case cst.FormattedStringExpression():
            whole = builder.tree.parent(parent)
            above = builder.tree.parent(whole) if whole is not None else None
            return isinstance(above, cst.Attribute) and above.attr.value in _SPLITS
        case cst.Index():
            return True
        case cst.Arg():
            call = builder.tree.parent(parent)
            if isinstance(call, cst.Call) and _asserts(call):
                others = [a.value for a in call.args if a is not parent]
                return not any(_is_string(o) or _is_none(o) for o in others[:1])
            if isinstance(call, cst.Call) and isinstance(call.func, cst.Name):
                # ``str(d).split(":")``: the index is in the text.
                above = builder.tree.parent(call)
                taken_apart = isinstance(above, cst.Attribute) and above.attr.value in _SPLITS
                return call.func.value in ("hash", "set", "frozenset") or taken_apart
    return False


def _asserts(call: cst.Call) -> bool:
    """Whether a call compares its arguments: ``self.assertEqual(a, b)``, ``assert_equal``."""
    last = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    return isinstance(last, cst.Name) and last.value.startswith("assert")


def _is_string(node: cst.CSTNode) -> bool:
    return isinstance(node, (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString))


def _is_none(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def is_device_position(node: cst.CSTNode, scope: Scope, builder: Builder) -> bool:
    """Whether a string stands where only a device can be meant."""
    arg = builder.tree.parent(node)
    while (isinstance(arg, cst.IfExp) and arg.test is not node) or isinstance(
        arg, cst.BinaryOperation
    ):
        # Both arms of a conditional expression stand in its place.
        node, arg = arg, builder.tree.parent(arg)
    if not isinstance(arg, cst.Arg) or arg.star:
        return False
    call = builder.tree.parent(arg)
    if not isinstance(call, cst.Call):
        return False
    callee = builder.callee(call, scope) or ""
    if arg.keyword is not None:
        if callee == "torch.device":
            return arg.keyword.value in ("type", "device")
        return arg.keyword.value in _KEYWORDS and (
            callee.startswith("torch.") or isinstance(call.func, cst.Attribute)
        )
    if call.args[0] is not arg:
        return False
    if callee in _FIRST_ARGUMENT:
        return True
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in _DEVICE_METHODS


def string(
    site: Site, node: cst.SimpleString, value: str, builder: Builder, uses_torch_xla: bool
) -> Verdict | None:
    """What becomes of the string ``xla`` or ``xla:N``; None where it is none of our business."""
    manual = Applicability.MANUAL
    if _is_device_default(node, builder):
        if not uses_torch_xla:
            return None, manual, "device-test"
        if value in ("xla", "xla:0"):
            return _renamed(node, builder), Applicability.UNSAFE, None
        return None, manual, "device-ordinal"
    if is_device_position(node, site.scope, builder):
        if value not in ("xla", "xla:0") or _has_ordinal(node, site.scope, builder):
            return None, manual, "device-ordinal"
        return _placed(site, node, builder), Applicability.SAFE, None
    test = _tested(node, site.scope, builder)
    if test is not None and ":" in value:
        return None, manual, "device-ordinal"
    if test is not None:
        known, change = test
        if known:
            return change, Applicability.SAFE, None
        if uses_torch_xla:
            return change, Applicability.UNSAFE, None
        return None, manual, "device-test"
    return (None, manual, "user-option") if uses_torch_xla else None


def _renamed(node: cst.SimpleString, builder: Builder) -> Change:
    start, end = builder.tree.span(node)
    return Change(cuts=[Cut(start, end, (_quoted(node, "tpu"),))], replaced=[node])


def _quoted(node: cst.SimpleString, text: str) -> str:
    return f"{node.prefix}{node.quote}{text}{node.quote}"


def _placed(site: Site, node: cst.SimpleString, builder: Builder) -> Change:
    """The device's new name in a place for devices; autocast gets the type it had by default."""
    tree = builder.tree
    arg = tree.parent(node)
    call = tree.parent(arg) if arg is not None else None
    if not isinstance(call, cst.Call):
        return _renamed(node, builder)
    callee = builder.callee(call, site.scope)
    if builder.settings.device == "accelerator" and _takes_device(arg, call, callee):
        target = call if callee == "torch.device" and len(call.args) == 1 else node
        made = builder.replace(site, PORTABLE, ["import torch"], node=target)
        if isinstance(made, Change):
            return made
    change = _renamed(node, builder)
    if callee in _AUTOCAST and not _has_dtype(call):
        torch = builder.need(change, "import torch", site.scope)
        at = tree.span(call.args[0].value)[1]
        change.cuts.append(Cut(at, at, (f", dtype={torch}.bfloat16",)))
    return change


def _takes_device(arg: cst.CSTNode | None, call: cst.Call, callee: str | None) -> bool:
    """Whether a place takes a torch.device, and not only the name of a type."""
    if callee == "torch.device":
        return len(call.args) == 1
    if isinstance(arg, cst.Arg) and arg.keyword is not None:
        return arg.keyword.value in ("device", "map_location")
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    return name in _DEVICE_METHODS or callee in ("torch.set_default_device", "torch.Generator")


def _has_dtype(call: cst.Call) -> bool:
    if any(a.star for a in call.args):
        return True
    return len(call.args) > 1 and (
        call.args[1].keyword is None
        or any(a.keyword and a.keyword.value == "dtype" for a in call.args)
    )


def _tested(node: cst.SimpleString, scope: Scope, builder: Builder) -> tuple[bool, Change] | None:
    """A test of a device against the string: whether the device is known, and the new string."""
    tree = builder.tree
    parent = tree.parent(node)
    change = _renamed(node, builder)
    inner: cst.CSTNode = node
    if isinstance(parent, cst.Element):
        box = tree.parent(parent)
        if not isinstance(box, (cst.Tuple, cst.List, cst.Set)):
            return None
        if any(_text(e.value) == "tpu" for e in box.elements):
            change = _without_element(parent, box, builder)
            change.replaced.append(node)
        inner, parent = box, tree.parent(box)
    if isinstance(parent, cst.ComparisonTarget):
        whole = tree.parent(parent)
        assert isinstance(whole, cst.Comparison)
        other: cst.CSTNode = whole.left
    elif isinstance(parent, cst.Comparison) and parent.left is inner:
        other = parent.comparisons[0].comparator
    elif isinstance(parent, cst.Arg):
        call = tree.parent(parent)
        if not (isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute)):
            return None
        if call.func.attr.value in _ASSERTIONS and len(call.args) >= 2:
            first = call.args[0] is parent
            other = call.args[1 if first else 0].value
        elif call.func.attr.value == "startswith":
            other = call.func.value
        else:
            return None
    else:
        return None
    device = _device_behind(other, scope, builder)
    if device is None:
        return None
    return is_device(device, scope, builder), change


def _text(node: cst.CSTNode | None) -> str | None:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None


def _without_element(
    element: cst.CSTNode, box: cst.Tuple | cst.List | cst.Set, builder: Builder
) -> Change:
    tree = builder.tree
    elements = list(box.elements)
    if len(elements) == 2 and isinstance(box, cst.Tuple):
        kept = next(e.value for e in elements if e is not element)
        return Change(cuts=[Cut(*tree.span(box), (f"({tree.source(kept)},)",))])
    index = next(i for i, e in enumerate(elements) if e is element)
    if index + 1 < len(elements):
        span = tree.full_span(element)[0], tree.full_span(elements[index + 1])[0]
    else:
        span = tree.span(elements[index - 1].value)[1], tree.span(elements[index].value)[1]
    return Change(cuts=[Cut(*span, ("",))])


def _device_behind(node: cst.CSTNode, scope: Scope, builder: Builder) -> cst.CSTNode | None:
    """``d`` for ``d.type`` and ``str(d)``, or a name that only ever holds one of these."""
    if isinstance(node, cst.Name):
        owner = scope.owner(node.value)
        bindings = owner.bindings[node.value] if owner is not None else []
        if len(bindings) == 1 and bindings[0].kind == "param":
            # Its default is renamed, and what it is compared with goes along.
            default = bindings[0].value
            named = isinstance(default, cst.SimpleString) and node.value in _KEYWORDS
            return node if named and _text(default) == "xla" else None
        if len(bindings) == 1 and bindings[0].kind == "assign":
            value = bindings[0].value
            if isinstance(value, (cst.Attribute, cst.Call)):
                return _device_behind(value, bindings[0].scope, builder)
        return None
    if isinstance(node, cst.Attribute) and node.attr.value == "type":
        return node.value
    if not isinstance(node, cst.Call) or builder.callee(node, scope) != "builtins.str":
        return None
    if len(node.args) == 1 and node.args[0].keyword is None:
        return node.args[0].value
    return None


def _has_ordinal(node: cst.CSTNode, scope: Scope, builder: Builder) -> bool:
    """Whether a string is the type in ``torch.device(type, index)``, with an index above 0."""
    arg = builder.tree.parent(node)
    call = builder.tree.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or builder.callee(call, scope) != "torch.device":
        return False
    others = [a.value for a in call.args if a is not arg]
    return any(not (isinstance(o, cst.Integer) and o.value == "0") for o in others)


def _is_device_default(node: cst.CSTNode, builder: Builder) -> bool:
    """Whether a string is the default of a parameter, or the value of a field, called device."""
    parent = builder.tree.parent(node)
    match parent:
        case cst.Param():
            return parent.name.value in _KEYWORDS
        case cst.AnnAssign():
            return isinstance(parent.target, cst.Name) and parent.target.value in _KEYWORDS
    return False


def argument_around(node: cst.CSTNode, builder: Builder) -> cst.CSTNode | None:
    """The argument that an expression is, or is an arm of; else what stands above it."""
    above = builder.tree.parent(node)
    while isinstance(above, cst.IfExp) and above.test is not node:
        node, above = above, builder.tree.parent(above)
    return above


def is_backend(node: cst.CSTNode, scope: Scope, builder: Builder) -> bool:
    arg = argument_around(node, builder)
    call = builder.tree.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or not isinstance(arg, cst.Arg):
        return False
    if arg.keyword is not None and arg.keyword.value == "backend":
        return True
    name = builder.callee(call, scope) or ""
    return name.endswith(".init_process_group")
