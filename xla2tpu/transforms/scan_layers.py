"""Layers that were run as one XLA operation: a plain loop calls each of them."""

from __future__ import annotations

import libcst as cst

from xla2tpu import syntax
from xla2tpu.changes import Builder
from xla2tpu.nodes import descendants
from xla2tpu.sites import Change, Site

_HELPER = "run_layers({layers}, {input_data})"
_LOOP = "for {each} in {layers}:\n    {target} = {each}({target})"
_LOOP_VARIABLES = ("layer", "block", "module")


def scan_layers(site: Site, builder: Builder) -> Change | str:
    """Write a loop where the call is all that an assignment or a return holds, else call a helper.

    A tuple as the input was unpacked for each layer, which the helper does too.
    """
    name, prologue, epilogue = _around(site, builder)
    each = next((w for w in _LOOP_VARIABLES if not _is_used(w, builder)), None)
    if name is None or each is None or "#" in builder.tree.source(site.expression):
        return builder.replace(site, _HELPER, helpers=["run_layers"])
    template = prologue + _LOOP + epilogue
    return builder.statement(site, template, extra={"each": each, "target": name})


def _around(site: Site, builder: Builder) -> tuple[str | None, str, str]:
    """The variable that runs through the loop, and the lines before and after the loop."""
    assert site.bound is not None
    layers, data = (site.bound.args[n].value for n in ("layers", "input_data"))
    nothing = None, "", ""
    statement = builder.tree.statement(site.expression)
    if not syntax.small_statement_alone(builder.tree, statement) or not syntax.is_pure(layers):
        return nothing
    if site.scope.kind == "class" or _is_tuple(data, site, builder):
        return nothing  # the variable of the loop would be an attribute of the class
    match statement:
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
            # The layers are looked up once, after the name has its new value.
            if value is not site.expression or _mentions(layers, name):
                return nothing
            same = isinstance(data, cst.Name) and data.value == name
            if _is_tried(site, builder):
                return nothing  # a handler would see what the layers before the error made
            return name, "" if same else "{target} = {input_data}\n", ""
        case cst.Return(value=value) if value is site.expression and isinstance(data, cst.Name):
            name = data.value
            if _mentions(layers, name) or not _is_own(name, site, builder):
                return nothing
            return name, "", "\nreturn {target}"
    return nothing


def _is_tuple(data: cst.BaseExpression, site: Site, builder: Builder) -> bool:
    """Whether the input is seen to be a tuple, which each layer got as its arguments."""
    values = [data]
    if isinstance(data, cst.Name):
        owner = site.scope.owner(data.value)
        bindings = owner.bindings[data.value] if owner is not None else []
        values += [b.value for b in bindings if isinstance(b.value, cst.BaseExpression)]
        if any(_is_annotated(b.node, builder) for b in bindings):
            return True
    return any(_makes_tuple(value, site, builder) for value in values)


def _makes_tuple(value: cst.BaseExpression, site: Site, builder: Builder) -> bool:
    match value:
        case cst.Tuple():
            return True
        case cst.Call():
            return builder.callee(value, site.scope) == "builtins.tuple"
        case cst.IfExp():
            return any(_makes_tuple(v, site, builder) for v in (value.body, value.orelse))
        case cst.BinaryOperation() | cst.BooleanOperation():
            return any(_makes_tuple(v, site, builder) for v in (value.left, value.right))
    return False


def _is_annotated(node: cst.CSTNode | None, builder: Builder) -> bool:
    """Whether a parameter or a variable has an annotation that names a tuple."""
    parent = builder.tree.parent(node) if node is not None else None
    annotation = parent.annotation if isinstance(parent, (cst.Param, cst.AnnAssign)) else None
    return annotation is not None and "tuple" in builder.tree.source(annotation).lower()


def _is_own(name: str, site: Site, builder: Builder) -> bool:
    """Whether a name belongs to the function alone, so that nothing sees it change at the end."""
    owner = site.scope.owner(name)
    if owner is None or owner is not site.scope or owner.kind != "function":
        return False
    if _is_tried(site, builder):
        return False
    return all(scope is owner for _, scope in builder.tree.loads_of(name, owner))


def _is_tried(site: Site, builder: Builder) -> bool:
    """Whether the call stands in a `try` of its function."""
    for above in builder.tree.ancestors(site.expression):
        if isinstance(above, (cst.FunctionDef, cst.Lambda)):
            break
        if isinstance(above, (cst.Try, cst.TryStar)):
            return True
    return False


def _mentions(node: cst.CSTNode, name: str) -> bool:
    return any(isinstance(below, cst.Name) and below.value == name for below in descendants(node))


def _is_used(name: str, builder: Builder) -> bool:
    return name in builder.tree.loads or any(b.name == name for b in builder.tree.bindings)
