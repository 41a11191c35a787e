"""What a launcher starts: whether a new process can take the function, and finds what it reads."""

from __future__ import annotations

import re

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.nodes import descendants
from xla2tpu.scopes import Binding, Scope
from xla2tpu.sites import Site, within
from xla2tpu.syntax import is_constant
from xla2tpu.tree import Tree

_CHANGERS = frozenset({"add", "append", "extend", "insert", "setdefault", "update"})
_FLAGS = "absl.flags.FLAGS"
_RANDOM = re.compile(
    r"torch\.(nn\.(modules\.\w+\.)?[A-Z]|rand|normal$)|torchvision\.models\.|(numpy\.)?random\."
)
_DEFINITIONS = (cst.FunctionDef, cst.ClassDef, cst.Import, cst.ImportFrom, cst.Pass)


def is_notebook(tree: Tree) -> bool:
    """Whether the file is the export of a notebook."""
    return "get_ipython" in tree.loads


def is_main_guard(node: cst.CSTNode) -> bool:
    """Whether a statement is ``if __name__ == "__main__":``, whatever else it asks."""
    return isinstance(node, cst.If) and any(
        isinstance(n, cst.Name) and n.value == "__name__" for n in descendants(node.test)
    )


def is_at_top(node: cst.CSTNode, tree: Tree) -> bool:
    """Whether a place is in no function."""
    return not any(isinstance(a, (cst.FunctionDef, cst.Lambda)) for a in tree.ancestors(node))


def runs_at_import(site: Site, tree: Tree) -> bool:
    """Whether a place runs when its file is imported: in no function and under no main guard."""
    return is_at_top(site.expression, tree) and _guard_above(site.expression, tree) is None


def may_be_guarded(site: Site, tree: Tree) -> bool:
    """Whether a main guard around the statement alone leaves the rest of the file right.

    What follows at the top of the file still runs in each process that imports it.
    """
    node: cst.CSTNode = tree.statement(site.expression)
    for above in tree.ancestors(node):
        match above:
            case cst.SimpleStatementLine():
                if len(above.body) != 1:
                    return False
            case cst.IndentedBlock() | cst.SimpleStatementSuite() | cst.Module():
                index = next(i for i, s in enumerate(above.body) if s is node)
                if not all(_is_inert(s, tree) for s in above.body[index + 1 :]):
                    return False
            case cst.If():
                pass
            case _:
                return False
        node = above
    return True


def _is_inert(statement: cst.CSTNode, tree: Tree) -> bool:
    match statement:
        case cst.SimpleStatementLine():
            return all(_is_inert(s, tree) for s in statement.body)
        case cst.Assign(value=value):
            return is_constant(value)
        case cst.Expr(value=value):
            return is_constant(value)
    return isinstance(statement, _DEFINITIONS)


def is_picklable(node: cst.BaseExpression, site: Site, builder: Builder, forked: bool) -> bool:
    """Whether a function can be handed to a new process.

    Where torch_xla did not fork, it pickled the function too: then only what never worked is
    refused.
    """
    if isinstance(node, cst.Lambda):
        return False
    if isinstance(node, cst.Name):
        owner = site.scope.owner(node.value)
        bindings = owner.bindings[node.value] if owner is not None else []
        return all(_is_picklable_binding(b, site, builder, forked) for b in bindings)
    if isinstance(node, cst.Call):
        if builder.callee(node, site.scope) == "functools.partial" and node.args:
            return is_picklable(node.args[0].value, site, builder, forked)
        return not forked
    if isinstance(node, cst.Attribute):
        root: cst.BaseExpression = node
        while isinstance(root, cst.Attribute):
            root = root.value
        meaning = builder.names.expression(root, site.scope)
        return not forked or any(b.path is not None for b in meaning.bindings)
    return not forked


def _is_picklable_binding(binding: Binding, site: Site, builder: Builder, forked: bool) -> bool:
    if binding.kind == "def":
        return binding.scope.parent is None
    if binding.kind == "assign" and binding.value is not None:
        if isinstance(binding.value, cst.Name) and binding.value.value == binding.name:
            return not forked
        return is_picklable(binding.value, site, builder, forked)
    return binding.path is not None or binding.kind == "class" or not forked


def are_picklable(node: cst.BaseExpression, site: Site, builder: Builder) -> bool:
    """Whether nothing that can be seen in the arguments of a worker is refused by pickle."""
    match node:
        case (
            cst.Tuple(elements=elements) | cst.List(elements=elements) | cst.Set(elements=elements)
        ):
            return all(are_picklable(e.value, site, builder) for e in elements)
        case cst.Dict(elements=items):
            return all(are_picklable(e.value, site, builder) for e in items)
    return is_picklable(node, site, builder, forked=False)


def is_defined_here(node: cst.BaseExpression, site: Site, builder: Builder) -> bool:
    """Whether a function is one of the file, by itself or with some arguments filled in."""
    if isinstance(node, cst.Call) and node.args:
        partial = builder.callee(node, site.scope) == "functools.partial"
        return partial and is_defined_here(node.args[0].value, site, builder)
    if not isinstance(node, cst.Name):
        return isinstance(node, cst.Lambda)
    owner = site.scope.owner(node.value)
    bindings = owner.bindings[node.value] if owner is not None else []
    return bool(bindings) and all(b.kind == "def" for b in bindings)


def reads_parents_globals(node: cst.BaseExpression, site: Site, builder: Builder) -> bool:
    """Whether a function reads names that only the process which forks has set.

    These are set under a main guard, or by a ``global`` statement of a function that the new
    process does not run; or they hold what is random, so that each new process makes another, or
    the flags that ``absl`` has parsed.
    """
    tree = builder.tree
    loads = {id(name): scope for uses in tree.loads.values() for name, scope in uses}
    reached: set[int] = set()
    read: set[str] = set()
    queue: list[cst.CSTNode] = [node]
    while queue:
        top = queue.pop()
        if id(top) in reached:
            continue
        reached.add(id(top))
        for below in descendants(top):
            if not isinstance(below, cst.Name) or id(below) not in loads or below.value in read:
                continue
            owner = loads[id(below)].owner(below.value)
            if owner is None or owner.parent is not None:
                continue
            if _is_parsed_by_parent(below, loads[id(below)], builder):
                return True
            read.add(below.value)
            for binding in owner.bindings[below.value]:
                if binding.kind in ("def", "class") and binding.statement is not None:
                    queue.append(binding.statement)
    if any(_is_set_by_parent(name, reached, tree) for name in read):
        return True
    made = [b for name in read for b in tree.root.bindings.get(name, []) if b.value is not None]
    return any(_is_random(b.value, builder) for b in made if b.value) and not _is_seeded(tree)


def _is_parsed_by_parent(name: cst.Name, scope: Scope, builder: Builder) -> bool:
    node: cst.BaseExpression = name
    while (builder.meaning(node, scope) or "") != _FLAGS:
        parent = builder.tree.parent(node)
        if not isinstance(parent, cst.Attribute) or parent.value is not node:
            return False
        node = parent
    return True


def _is_random(value: cst.CSTNode, builder: Builder) -> bool:
    """Whether a value has weights or numbers that are drawn when it is made."""
    tree = builder.tree
    callees = [
        (call.func, builder.callee(call, tree.scope(call)))
        for call in (value, *descendants(value))
        if isinstance(call, cst.Call)
    ]
    if any((path or "").endswith(".MpModelWrapper") for _, path in callees):
        return False  # its weights are handed out by a rule of their own
    return any(
        _is_module(func, builder, set()) if path is None else _RANDOM.match(path) is not None
        for func, path in callees
    )


def _is_module(node: cst.BaseExpression, builder: Builder, seen: set[str]) -> bool:
    """Whether an expression is a class of the file that is a torch.nn.Module."""
    if not isinstance(node, cst.Name) or node.value in seen:
        return False
    for binding in builder.tree.root.bindings.get(node.value, []):
        if isinstance(binding.statement, cst.ClassDef):
            for base in binding.statement.bases:
                path = builder.meaning(base.value, builder.tree.root) or ""
                if _RANDOM.match(path) or _is_module(base.value, builder, {*seen, node.value}):
                    return True
    return False


def _is_seeded(tree: Tree) -> bool:
    """Whether the file seeds at its top, which each process runs."""
    return any(
        re.search("seed", name, re.IGNORECASE)
        and isinstance(tree.parent(use), cst.Call)
        and is_at_top(use, tree)
        and _guard_above(use, tree) is None
        for uses in (tree.attributes, tree.loads)
        for name, found in uses.items()
        for use in (u[0] if isinstance(u, tuple) else u for u in found)
    )


def _is_set_by_parent(name: str, reached: set[int], tree: Tree) -> bool:
    changes = [load for load, _ in tree.loads_of(name, tree.root) if _is_changed(load, tree)]
    set_by_parent = any(_guard_above(load, tree) is not None for load in changes)
    for binding in tree.root.bindings.get(name, []):
        above = [binding.node, *tree.ancestors(binding.node)]
        if any(id(a) in reached for a in above):
            return False  # the new process sets it itself
        guarded = _guard_above(binding.node, tree) is not None
        by_function = binding.scope.parent is not None
        set_by_parent = set_by_parent or guarded or by_function
    return set_by_parent


def _guard_above(node: cst.CSTNode, tree: Tree) -> cst.If | None:
    """The main guard in whose suite a node stands."""
    inside = node
    for above in tree.ancestors(node):
        if isinstance(above, cst.If) and inside is above.body and is_main_guard(above):
            return above
        inside = above
    return None


def _is_changed(load: cst.CSTNode, tree: Tree) -> bool:
    """Whether what a name holds is changed: an item or attribute set, or a method that adds."""
    parent = tree.parent(load)
    if not isinstance(parent, (cst.Attribute, cst.Subscript)) or parent.value is not load:
        return False
    called = isinstance(parent, cst.Attribute) and parent.attr.value in _CHANGERS
    return called or id(parent) in tree.stored


def is_started_at_import(site: Site, tree: Tree) -> bool:
    """Whether the function around a place is called when the file is imported, under no guard."""
    names: set[str] = set()
    found = _top_definition(site.expression, tree)
    while found is not None:
        names.add(found)
        callers: set[str] = set()
        for name in names:
            for load, _ in tree.loads_of(name, tree.root):
                caller = _top_definition(load, tree)
                if caller is not None:
                    callers.add(caller)
                elif isinstance(tree.parent(load), cst.Call) and not _guard_above(load, tree):
                    return True
        found = next(iter(sorted(callers - names)), None)
    return False


def _top_definition(node: cst.CSTNode, tree: Tree) -> str | None:
    """The name of the function or class at the top of the file around a node."""
    for above in tree.ancestors(node):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            outer = tree.parent(above)
            if isinstance(outer, cst.Module):
                return above.name.value
    return None


def asks_torch_xla(node: cst.BaseExpression, scope: Scope, builder: Builder) -> bool:
    """Whether a value comes from torch_xla, by itself or through a name."""
    sites = builder.sites.values()
    if within(sites, builder.tree, node):
        return True
    if not isinstance(node, cst.Name):
        return False
    owner = scope.owner(node.value)
    values = [b.value for b in owner.bindings[node.value]] if owner is not None else []
    return any(v is not None and bool(within(sites, builder.tree, v)) for v in values)
