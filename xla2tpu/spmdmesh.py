"""The start of a program of SPMD: its main function, the switch, and the mesh."""

from __future__ import annotations

import re
from collections.abc import Callable

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.scopes import Binding, Scope
from xla2tpu.sites import Site
from xla2tpu.spmdcode import Code
from xla2tpu.spmdsamples import Obstacle, argument
from xla2tpu.syntax import small_statement_alone

_GUARD = re.compile(r"""__name__\s*==\s*(['"])__main__\1\Z""")
_RANKS = ("rank", "index", "process_index", "process_rank")


class Start:
    """The function that is called under the main guard, once and last, and the switch to SPMD."""

    main: cst.FunctionDef
    started: cst.Call
    guard: cst.If
    scope: Scope
    rank: str

    def __init__(self, sites: list[Site], builder: Builder, taken: Callable[[str], bool]) -> None:
        self.builder, self.tree, self.taken = builder, builder.tree, taken
        self.by_code: dict[str, list[Site]] = {}
        for site in sites:
            if site.counts:
                self.by_code.setdefault(site.rule.code, []).append(site)
        self.code = Code(builder)

    def sites(self, code: str) -> list[Site]:
        """The sites of one rule."""
        return self.by_code.get(code, [])

    def _started(self) -> None:
        """The function that is called under the main guard, once and last."""
        last = self.tree.module.body[-1]
        if (
            not isinstance(last, cst.If)
            or last.orelse is not None
            or not _GUARD.match(self.tree.source(last.test))
            or not isinstance(last.body, cst.IndentedBlock)
        ):
            raise Obstacle(last, "the file does not end with a main guard that calls a function")
        line = last.body.body[-1]
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        statement = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        call = statement.value if alone and isinstance(statement, cst.Expr) else None
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name):
            raise Obstacle(line, "the main guard does not end with a call of a function")
        name = call.func.value
        bindings = self.tree.root.bindings.get(name, [])
        node = bindings[0].statement if len(bindings) == 1 else None
        if not isinstance(node, cst.FunctionDef) or len(self.tree.loads.get(name, [])) != 1:
            raise Obstacle(call, f"`{name}` is not a function of the file that is used here alone")
        params = node.params
        plain = not (params.kwonly_params or params.posonly_params or params.star_kwarg)
        if (
            not plain
            or not isinstance(params.star_arg, cst.MaybeSentinel)
            or any(p.default is not None for p in params.params)
            or len(params.params) != len(call.args)
            or any(a.star or a.keyword for a in call.args)
        ):
            raise Obstacle(node, "the arguments of the main function are not plain")
        if node.decorators or node.asynchronous is not None or self.taken(name):
            raise Obstacle(node, "the main function is not called by the file alone")
        self.main, self.started, self.guard = node, call, last
        self.scope = self.tree.scope(node.body)
        self.rank = next((r for r in _RANKS if r not in self.tree.names), None) or "rank_"
        if self.rank in self.tree.names:
            raise Obstacle(node, "there is no free name for the rank")

    def _switch(self) -> None:
        uses = self.sites("XLA801")
        if len(uses) != 1 or uses[0].context != "statement" or uses[0].bound is None:
            raise Obstacle(uses[-1].node, "SPMD is not switched on by one plain statement")
        auto = uses[0].bound.args.get("auto")
        if auto is not None and self.tree.source(auto.value) != "False":
            raise Obstacle(
                uses[0].node, "the compiler chooses the shardings: TorchTPU has no such mode"
            )
        statement = self.tree.statement(uses[0].expression)
        line = self.tree.parent(statement)
        block = self.tree.parent(line) if line is not None else None
        if block not in (self.tree.module, self.main.body, self.guard.body):
            raise Obstacle(uses[0].node, "SPMD is switched on under a condition, or elsewhere")

    def _called(self, node: cst.CSTNode) -> cst.Call | None:
        call = self.tree.parent(node)
        return call if isinstance(call, cst.Call) and call.func is node else None


class Meshes(Start):
    """The one mesh of a program. ``noted`` are the names through which its parts are given."""

    mesh_statement: cst.Assign
    mesh_site: Site
    mesh_name: str
    mesh_loads: dict[int, cst.Name]
    set_globally: list[Site]
    axes: list[str | None]
    axis: int

    def __init__(self, sites: list[Site], builder: Builder, taken: Callable[[str], bool]) -> None:
        super().__init__(sites, builder, taken)
        self.noted: list[Binding] = []

    def value(self, node: cst.BaseExpression, scope: Scope) -> cst.BaseExpression:
        """What an expression is, through names that are assigned once; these are noted."""
        while isinstance(node, cst.Name):
            owner = scope.owner(node.value)
            bindings = owner.bindings[node.value] if owner is not None else []
            if len(bindings) != 1 or bindings[0].kind != "assign" or bindings[0].value is None:
                break
            if not isinstance(bindings[0].statement, cst.Assign):
                break
            if bindings[0] not in self.noted:
                self.noted.append(bindings[0])
            node, scope = bindings[0].value, bindings[0].scope
        return node

    def _mesh(self) -> None:
        """The one mesh: the axis that spans all devices, and the assignment that makes it."""
        every = self.sites("XLA803")
        self.set_globally = [s for s in every if s.path.endswith(".set_global_mesh")]
        meshes = [s for s in every if s not in self.set_globally]
        if len(meshes) != 1:
            place = meshes[1] if meshes else self.sites("XLA801")[0]
            raise Obstacle(place.node, "there is not one mesh that is made and used in this file")
        site = meshes[0]
        statement = self.tree.statement(site.expression)
        if (
            site.call is None
            or not isinstance(statement, cst.Assign)
            or statement.value is not site.call
            or len(statement.targets) != 1
            or not isinstance(statement.targets[0].target, cst.Name)
            or not small_statement_alone(self.tree, statement)
        ):
            raise Obstacle(site.node, "the mesh is not assigned to one name")
        name = statement.targets[0].target.value
        owner = self.tree.scope(statement)
        if owner not in (self.tree.root, self.scope) or len(owner.bindings[name]) != 1:
            raise Obstacle(site.node, "the mesh is made elsewhere than in the main function")
        self.mesh_statement, self.mesh_site, self.mesh_name = statement, site, name
        self.mesh_loads = {id(load): load for load, _ in self.tree.loads_of(name, owner)}
        if site.path.endswith(".get_1d_mesh"):
            axis = argument(site.call, 0, "axis_name")
            self.axes = [self._text(axis.value, site.scope) if axis is not None else None]
            self.axis = 0
            self._global()
            return
        if not site.path.endswith(".Mesh"):
            raise Obstacle(site.node, "the mesh spans several slices, or is a global one")
        self._shape(site)
        self._global()

    def _shape(self, site: Site) -> None:
        assert site.call is not None
        ids = argument(site.call, 0, "device_ids")
        shape = argument(site.call, 1, "mesh_shape")
        names = argument(site.call, 2, "axis_names")
        if ids is None or shape is None or not self._all_ids(ids.value, site.scope):
            raise Obstacle(site.node, "the mesh is not made of all devices in their order")
        sizes = self.value(shape.value, site.scope)
        if not isinstance(sizes, (cst.Tuple, cst.List)):
            raise Obstacle(site.node, "the shape of the mesh is not literal")
        whole = []
        for index, element in enumerate(sizes.elements):
            if self.tree.source(element.value) == "1":
                continue
            if not self._counts(element.value, self.tree.scope(element.value)):
                raise Obstacle(element, "the mesh has more than one dimension, or a fixed size")
            whole.append(index)
        if len(whole) != 1:
            raise Obstacle(site.node, "the mesh has more than one dimension, or none")
        self.axis = whole[0]
        self.axes = [None] * len(sizes.elements)
        if names is not None:
            words = self.value(names.value, site.scope)
            if not isinstance(words, (cst.Tuple, cst.List)):
                raise Obstacle(site.node, "the names of the axes are not literal")
            self.axes = [self._text(e.value, self.tree.scope(e.value)) for e in words.elements]
            if len(self.axes) != len(sizes.elements):
                raise Obstacle(site.node, "the mesh has not as many names as axes")

    def _global(self) -> None:
        """The mesh may be made the global one, which only FSDPv2 asks for here."""
        for site in self.set_globally:
            given = argument(site.call, 0, "mesh") if site.call is not None else None
            if site.context != "statement" or not self._is_mesh(given):
                raise Obstacle(site.node, "another mesh is made the global one")

    def _text(self, node: cst.BaseExpression, scope: Scope) -> str | None:
        found = self.value(node, scope)
        text = found.evaluated_value if isinstance(found, cst.SimpleString) else None
        return text if isinstance(text, str) else None

    def _counts(self, node: cst.BaseExpression, scope: Scope) -> bool:
        """Whether an expression is the number of all devices."""
        found = self.value(node, scope)
        site = self.builder.sites.get(id(found))
        if site is not None:
            return site.rule.code == "XLA305" and site.call is not None
        if isinstance(found, cst.Call) and len(found.args) == 1:
            asked = self.builder.callee(found, self.tree.scope(found)) == "builtins.len"
            return asked and self._all_ids(found.args[0].value, self.tree.scope(found))
        return False

    def _all_ids(self, node: cst.BaseExpression, scope: Scope) -> bool:
        """Whether an expression holds the numbers of all devices in their order."""
        found = self.value(node, scope)
        if not isinstance(found, cst.Call) or len(found.args) != 1 or found.args[0].star:
            return False
        inside, path = found.args[0].value, self.builder.callee(found, self.tree.scope(found))
        if path in ("numpy.arange", "builtins.range"):
            return self._counts(inside, self.tree.scope(inside))
        if path in ("numpy.array", "numpy.asarray", "builtins.list"):
            made = self.value(inside, self.tree.scope(inside))
            if not isinstance(made, cst.Call):
                return False
            inner = self.builder.callee(made, self.tree.scope(made))
            return inner == "builtins.range" and self._all_ids(made, self.tree.scope(made))
        return False

    def _is_mesh(self, arg: cst.Arg | None) -> bool:
        return arg is not None and id(arg.value) in self.mesh_loads

    def _is_batch_spec(self, arg: cst.Arg | None) -> bool:
        """Whether a partition spec shards the first dimension, and no other."""
        if arg is None:
            return False
        spec = self.value(arg.value, self.tree.scope(arg.value))
        if not isinstance(spec, (cst.Tuple, cst.List)) or not spec.elements:
            return False
        first, *rest = (e.value for e in spec.elements)
        if any(self.tree.source(e) != "None" for e in rest):
            return False
        source = self.tree.source(first)
        if isinstance(first, cst.Integer):
            return source == str(self.axis)
        name = self._text(first, self.tree.scope(first))
        return name is not None and self.axes[self.axis] == name
