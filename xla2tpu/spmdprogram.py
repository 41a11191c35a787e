"""One program of SPMD: its mesh, loaders, model and training loop, and the program for processes."""

from __future__ import annotations

import re
from collections.abc import Callable

import libcst as cst

from xla2tpu import workers
from xla2tpu.batches import loop_over
from xla2tpu.changes import INDENT, Builder
from xla2tpu.flow import reaching
from xla2tpu.nodes import descendants
from xla2tpu.scopes import Binding, Scope
from xla2tpu.sites import Change, Cut, Insert, Site
from xla2tpu.spmdcode import Code, Obstacle, argument
from xla2tpu.syntax import small_statement_alone
from xla2tpu.template import Slice

_GUARD = re.compile(r"""__name__\s*==\s*(['"])__main__\1\Z""")
_DIST = "import torch.distributed as dist"
_SAMPLER = "from torch.utils.data.distributed import DistributedSampler"
_LOADER_ARGUMENTS = frozenset(
    {"dataset", "batch_size", "shuffle", "drop_last", "num_workers", "pin_memory",
     "persistent_workers", "prefetch_factor", "timeout"}
)  # fmt: skip
_RANKS = ("rank", "index", "process_index", "process_rank")
_CLIPS = re.compile(r"torch\.nn\.utils\.clip_grad_(norm|value)_\Z")


class Program:
    """Reads a program, raising an `Obstacle` at what is not known, and rewrites it."""

    main: cst.FunctionDef
    started: cst.Call

    def __init__(self, sites: list[Site], builder: Builder, taken: Callable[[str], bool]) -> None:
        self.builder, self.tree, self.taken = builder, builder.tree, taken
        self.by_code: dict[str, list[Site]] = {}
        for site in sites:
            if site.counts:
                self.by_code.setdefault(site.rule.code, []).append(site)
        self.code = Code(builder)
        # Statements that go, and assignments that only they read.
        self.gone: list[cst.CSTNode] = []
        self.helpers: list[Binding] = []

    def sites(self, code: str) -> list[Site]:
        """The sites of one rule."""
        return self.by_code.get(code, [])

    # -- reading ------------------------------------------------------------------------------

    def check(self) -> None:
        """Read the whole program."""
        if workers.is_notebook(self.tree) or self.builder.settings.notebook:
            raise Obstacle(self.tree.module.body[0], "functions of a notebook cannot be started")
        self._started()
        self._switch()
        self._mesh()
        self._loop()
        self._model()
        self._loader()
        self._specs()
        self._rest()
        self._seeded()

    def _started(self) -> None:
        """The function that is called under the main guard, once and last."""
        last = self.tree.module.body[-1]
        if (
            not isinstance(last, cst.If)
            or last.orelse is not None
            or not _GUARD.match(self.tree.source(last.test))
            or not isinstance(last.body, cst.IndentedBlock)
        ):
            raise Obstacle(
                last,
                'the file does not end with a call of its main function under `if __name__ == "__main__":`',
            )
        line = last.body.body[-1]
        call = None
        if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
            if isinstance(line.body[0], cst.Expr) and isinstance(line.body[0].value, cst.Call):
                call = line.body[0].value
        if call is None or not isinstance(call.func, cst.Name):
            raise Obstacle(line, "it is not a call of the main function")
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

    def value(self, node: cst.BaseExpression, scope: Scope) -> cst.BaseExpression:
        """What an expression is, through names that are assigned once; these are noted."""
        while isinstance(node, cst.Name):
            owner = scope.owner(node.value)
            bindings = owner.bindings[node.value] if owner is not None else []
            if len(bindings) != 1 or bindings[0].kind != "assign" or bindings[0].value is None:
                break
            if not isinstance(bindings[0].statement, cst.Assign):
                break
            if bindings[0] not in self.helpers:
                self.helpers.append(bindings[0])
            node, scope = bindings[0].value, bindings[0].scope
        return node

    def _mesh(self) -> None:
        """The one mesh: the axis that spans all devices, and the assignment that makes it."""
        meshes = self.sites("XLA803")
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
        self.mesh_statement, self.mesh_site = statement, site
        self.mesh_loads = {id(load) for load, _ in self.tree.loads_of(name, owner)}
        if site.path.endswith(".get_1d_mesh"):
            axis = argument(site.call, 0, "axis_name")
            self.axes = [self._text(axis.value, site.scope) if axis is not None else None]
            self.axis = 0
            return
        if not site.path.endswith(".Mesh"):
            raise Obstacle(site.node, "the mesh spans several slices, or is a global one")
        self._shape(site)

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
            called = isinstance(made, cst.Call)
            inner = self.builder.callee(made, self.tree.scope(made)) if called else None
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

    # -- the training loop --------------------------------------------------------------------

    def _loop(self) -> None:
        """The one loop that trains: its loader, and the statements around ``backward``."""
        backwards = [
            n for n in self.tree.attributes.get("backward", []) if self._called(n) is not None
        ]
        if len(backwards) != 1 or not self.tree.is_within(backwards[0], self.main):
            raise Obstacle(self.main, "the main function has not the one `backward()` of the file")
        call = self._called(backwards[0])
        statement = self.tree.parent(call) if call is not None else None
        line = self.tree.parent(statement) if statement is not None else None
        block = self.tree.parent(line) if line is not None else None
        loop = self.tree.parent(block) if block is not None else None
        if (
            call is None
            or call.args
            or not isinstance(statement, cst.Expr)
            or not isinstance(block, cst.IndentedBlock)
            or not isinstance(loop, cst.For)
            or self.tree.scope(call) is not self.scope
            or not small_statement_alone(self.tree, statement)
        ):
            raise Obstacle(backwards[0], "`backward()` is no statement of a plain training loop")
        self.loop = loop
        self.backward = statement
        assert isinstance(call.func, cst.Attribute)
        self.loss = call.func.value
        index = next(i for i, s in enumerate(block.body) if s is line)
        self.before, self.after = block.body[:index], block.body[index + 1 :]
        if loop.orelse is not None:
            raise Obstacle(loop, "the training loop has an `else`")
        epochs = [a for a in self.tree.ancestors(loop) if isinstance(a, (cst.For, cst.While))]
        if len(epochs) > 1 or any(isinstance(e, cst.While) for e in epochs):
            raise Obstacle(loop, "the training loop stands in more than one plain loop")
        self.epochs = epochs[0] if epochs and isinstance(epochs[0], cst.For) else None
        for above in self.tree.ancestors(loop):
            if above is self.main:
                break
            if isinstance(above, (cst.If, cst.Try, cst.With, cst.FunctionDef)):
                raise Obstacle(loop, "the training loop stands under a condition, or in a block")

    def _called(self, node: cst.CSTNode) -> cst.Call | None:
        call = self.tree.parent(node)
        return call if isinstance(call, cst.Call) and call.func is node else None

    def _iterated(self) -> tuple[cst.BaseExpression, cst.BaseExpression]:
        """What the training loop runs over, and the target of each batch."""
        inner: cst.BaseExpression = self.loop.iter
        if isinstance(inner, cst.Call) and inner.args:
            if self.builder.callee(inner, self.scope) == "builtins.enumerate":
                inner = inner.args[0].value
        found = loop_over(inner, self.scope, self.builder)
        if found is None or found.node is not self.loop:
            raise Obstacle(self.loop, "what the training loop runs over is not plain")
        return inner, found.target

    def _loader(self) -> None:
        """The DataLoader of the training loop, whose batches are the global ones."""
        node, target = self._iterated()
        self.batch = {n.value for n in descendants(target) if isinstance(n, cst.Name)}
        holders: list[cst.Name] = []
        call = self._unwrapped(node, holders)
        if self.builder.callee(call, self.scope) != "torch.utils.data.DataLoader":
            raise Obstacle(
                call, "the loader of the training loop is not a DataLoader of the function"
            )
        self._loader_arguments(call)
        self.loader = call
        statement = self.tree.statement(call)
        line = self.tree.parent(statement)
        above = [
            a for a in self.tree.ancestors(call) if isinstance(a, (cst.For, cst.While, cst.If))
        ]
        if (
            not isinstance(statement, cst.Assign)
            or any(self.tree.is_within(a, self.main) for a in above)
            or self.tree.parent(line) is not self.main.body
            or not small_statement_alone(self.tree, statement)
        ):
            raise Obstacle(call, "the loader is not assigned at the start of the main function")
        self.loader_statement = statement
        for holder in holders:
            for load, scope in self.tree.loads_of(holder.value, self.scope):
                seen = reaching(self.tree, load, scope)
                if seen is None:
                    raise Obstacle(load, "which loader it is cannot be told")
                if not self._is_plain_use(load):
                    raise Obstacle(load, "more is asked of the loader than its batches and length")
        self._sharded(node)
        self._body()

    def _unwrapped(self, node: cst.BaseExpression, holders: list[cst.Name]) -> cst.Call:
        """The call that makes a loader, through names and the loader of torch_xla around it."""
        while True:
            site = self.builder.sites.get(id(node))
            if site is not None and site.rule.code == "XLA503" and site.bound is not None:
                if "fixed_batch_size" in site.bound.args:
                    raise Obstacle(node, "the loader drops batches of another size")
                node = site.bound.args["loader"].value
                self.wrapper = site
            elif isinstance(node, cst.Name):
                seen = reaching(self.tree, node, self.scope)
                if seen is None or seen.value is None or seen.kind != "assign":
                    raise Obstacle(node, "which loader it is cannot be told")
                if not isinstance(seen.statement, cst.Assign):
                    raise Obstacle(node, "which loader it is cannot be told")
                holders.append(node)
                node = seen.value
            elif isinstance(node, cst.Call):
                return node
            else:
                raise Obstacle(node, "which loader it is cannot be told")

    wrapper: Site | None = None

    def _is_plain_use(self, load: cst.Name) -> bool:
        parent = self.tree.parent(load)
        if isinstance(parent, cst.For):
            return parent.iter is load
        call = self.tree.parent(parent) if isinstance(parent, cst.Arg) else None
        if not isinstance(call, cst.Call):
            return False
        site = self.builder.sites.get(id(call))
        if site is not None:
            return site.rule.code == "XLA503"
        path = self.builder.callee(call, self.tree.scope(call))
        return path in ("builtins.enumerate", "builtins.len")

    def _loader_arguments(self, call: cst.Call) -> None:
        given: dict[str, cst.Arg] = {}
        for index, arg in enumerate(call.args):
            word = arg.keyword.value if arg.keyword is not None else None
            if word is None and index < 2:
                word = ("dataset", "batch_size")[index]
            if arg.star or word not in _LOADER_ARGUMENTS:
                raise Obstacle(arg, "the DataLoader has an argument that a sampler may not go with")
            given[word] = arg
        if "dataset" not in given or "batch_size" not in given:
            raise Obstacle(call, "the DataLoader has no batch size of its own")
        if not isinstance(given["dataset"].value, cst.Name):
            raise Obstacle(given["dataset"], "the data has no name that a sampler could take")
        last = given.get("drop_last")
        if last is None or self.tree.source(last.value) != "True":
            raise Obstacle(
                call,
                "the last batch may be smaller than the others: give the DataLoader drop_last=True",
            )
        shuffle = given.get("shuffle")
        text = self.tree.source(shuffle.value) if shuffle is not None else "False"
        if text not in ("True", "False"):
            raise Obstacle(call, "whether the data is shuffled is not literal")
        self.shuffled, self.given = text == "True", given

    def _sharded(self, node: cst.BaseExpression) -> None:
        """The batches of the training loop are sharded, by its loader or in its body."""
        marks = [s for s in self.sites("XLA804") if self.tree.is_within(s.node, self.loop)]
        spec = self.wrapper.bound.args.get("input_sharding") if self._has_wrapper() else None
        if spec is None and not marks:
            raise Obstacle(node, "the batches of the training loop are not sharded")

    def _has_wrapper(self) -> bool:
        return self.wrapper is not None and self.wrapper.bound is not None

    def _body(self) -> None:
        """The loop up to ``backward`` treats the samples one by one, and only the loss goes on."""
        local, model = set(self.batch), self.model
        self.loss_name = self.loss.value if isinstance(self.loss, cst.Name) else None
        for line in self.before:
            if not isinstance(line, cst.SimpleStatementLine):
                raise Obstacle(line, "the statements before `backward()` are not plain")
            for statement in line.body:
                if self._is_mark(statement):
                    continue
                used = self.code.uses(statement, local)
                if not used:
                    self.code.alike(statement)
                    continue
                if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
                    raise Obstacle(
                        statement, "it depends on the part of the batch that a process has"
                    )
                target = statement.targets[0].target
                if isinstance(target, cst.Name) and target.value == self.loss_name:
                    self.code.mean_loss(statement.value, local, model)
                    continue
                names = [target] if isinstance(target, cst.Name) else self._tuple(target)
                self.code.per_sample(statement.value, local, model)
                local |= {n.value for n in names}
        if self.loss_name is None:
            self.code.mean_loss(self.loss, local, model)
        elif not any(
            b.value is not None and self.tree.is_within(b.node, self.loop)
            for b in self.scope.bindings.get(self.loss_name, [])
        ):
            raise Obstacle(self.loss, "the loss is not made in the training loop")
        self._stays_local(local)
        self._steps()

    def _tuple(self, target: cst.BaseExpression) -> list[cst.Name]:
        elements = target.elements if isinstance(target, cst.Tuple) else ()
        names = [e.value for e in elements if isinstance(e.value, cst.Name)]
        if not names or len(names) != len(elements):
            raise Obstacle(target, "it is assigned to more than plain names")
        return names

    def _is_mark(self, statement: cst.CSTNode) -> bool:
        value = statement.value if isinstance(statement, cst.Expr) else None
        site = self.builder.sites.get(id(value))
        return site is not None and site.rule.code == "XLA804"

    def _stays_local(self, local: set[str]) -> None:
        """Nothing that a process made of its part is read after ``backward``, but for the loss."""
        end = self.tree.span(self.backward)[1]
        names = local | ({self.loss_name} if self.loss_name else set())
        for name in sorted(names):
            owner = self.scope
            if name not in owner.bindings:
                continue
            for load, scope in self.tree.loads_of(name, owner):
                inside = self.tree.is_within(load, self.loop)
                if name == self.loss_name:
                    early = inside and self.tree.span(load)[0] < self.tree.span(self.backward)[0]
                    if early or scope is not self.scope:
                        raise Obstacle(load, "the loss is read before it is averaged")
                    continue
                if inside and self.tree.span(load)[0] < end and scope is self.scope:
                    continue
                seen = reaching(self.tree, load, scope)
                if inside or seen is None or self.tree.is_within(seen.node, self.loop):
                    raise Obstacle(load, f"`{name}` is of the part of the batch that a process has")

    # -- the model and its optimizer ----------------------------------------------------------

    def _model(self) -> None:
        """The optimizer that steps, and the one model whose parameters it has."""
        steps = [n for n in self._steppers() if self._optimizer(n) is not None]
        if not steps:
            raise Obstacle(self.loop, "the training loop steps no optimizer of torch.optim")
        names = {n.value for n in steps}
        if len(names) != 1:
            raise Obstacle(self.loop, "there are several optimizers")
        self.optimizer = names.pop()
        made = self._optimizer(steps[0])
        assert made is not None
        binding = self.scope.bindings[self.optimizer][0]
        statement = binding.statement
        first = argument(made, 0, "params")
        holder = (
            first.value.func if first is not None and isinstance(first.value, cst.Call) else None
        )
        if (
            not isinstance(statement, cst.Assign)
            or not isinstance(holder, cst.Attribute)
            or holder.attr.value != "parameters"
            or not isinstance(holder.value, cst.Name)
            or self.tree.parent(self.tree.parent(statement) or statement) is not self.main.body
            or not small_statement_alone(self.tree, statement)
        ):
            raise Obstacle(made, "the optimizer is not made of the parameters of one model")
        self.model, self.optimizer_statement = holder.value.value, statement
        bindings = self.scope.bindings.get(self.model, [])
        if not bindings:
            raise Obstacle(holder, "the model is not made in the main function")
        for bound in bindings:
            self._bound_model(bound)

    def _bound_model(self, bound: Binding) -> None:
        at_first_level = self.tree.parent(
            self.tree.parent(bound.statement or bound.node) or bound.node
        )
        if bound.kind != "assign" or bound.value is None or at_first_level is not self.main.body:
            raise Obstacle(
                bound.node, "the model is not assigned at the start of the main function"
            )
        if self.tree.span(bound.node) > self.tree.span(self.optimizer_statement):
            raise Obstacle(bound.node, "the model changes after the optimizer is made")
        moved = bound.value
        if isinstance(moved, cst.Call) and isinstance(moved.func, cst.Attribute):
            func = moved.func
            if func.attr.value == "to" and self.tree.source(func.value) == self.model:
                return
        self.code.model(moved, self.scope)

    def _steppers(self) -> list[cst.Name]:
        """The names of what steps in the training loop after ``backward``."""
        found = []
        for line in self.after:
            statement = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            call = statement.value if isinstance(statement, cst.Expr) else None
            if not isinstance(call, cst.Call):
                continue
            site = self.builder.sites.get(id(call))
            if site is not None and site.rule.code == "XLA501":
                if site.bound is None or set(site.bound.args) - {"optimizer", "barrier"}:
                    raise Obstacle(call, "the step has arguments that are not followed")
                node = site.bound.args["optimizer"].value
                if isinstance(node, cst.Name):
                    found.append(node)
            elif isinstance(call.func, cst.Attribute) and call.func.attr.value == "step":
                if isinstance(call.func.value, cst.Name):
                    found.append(call.func.value)
        return found

    def _optimizer(self, name: cst.Name) -> cst.Call | None:
        bindings = self.scope.bindings.get(name.value, [])
        made = bindings[0].value if len(bindings) == 1 else None
        if not isinstance(made, cst.Call):
            return None
        path = self.builder.callee(made, self.scope) or ""
        head, _, kind = path.rpartition(".")
        return made if head == "torch.optim" and kind != "LBFGS" else None

    def _steps(self) -> None:
        """The first statement after ``backward`` that stays is where gradients are averaged."""
        self.anchor = None
        for line in self.after:
            statement = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            call = statement.value if isinstance(statement, cst.Expr) else None
            if not isinstance(call, cst.Call) or len(line.body) != 1:
                break
            site = self.builder.sites.get(id(call))
            if site is not None and site.rule.code in ("XLA101", "XLA102"):
                continue
            path = self.builder.callee(call, self.scope) or ""
            stepped = site is not None and site.rule.code == "XLA501"
            if isinstance(call.func, cst.Attribute) and not path:
                stepped = call.func.attr.value == "step" and not call.args
            if stepped or _CLIPS.match(path):
                self.anchor = line
            break
        if self.anchor is None:
            raise Obstacle(
                self.backward,
                "`backward()` is not followed by the clipping of gradients or the step",
            )
        for node in self.tree.attributes.get("step", []):
            call = self._called(node)
            asked = (
                isinstance(node, cst.Attribute) and self.tree.source(node.value) == self.optimizer
            )
            if asked and (
                call is None
                or call.args
                or not any(self.tree.is_within(node, s) for s in self.after)
            ):
                raise Obstacle(node, "the optimizer steps elsewhere, or by a closure")

    # -- all the rest -------------------------------------------------------------------------

    def _specs(self) -> None:
        """Every annotation shards a batch on its first dimension over the whole mesh."""
        for site in self.sites("XLA804"):
            call = site.call
            if call is None or not site.path.endswith(".mark_sharding"):
                raise Obstacle(site.node, f"`{site.path}` is not part of a known form")
            tensor = argument(call, 0, "t")
            if site.context != "statement" or tensor is None or not self._is_batch(tensor.value):
                raise Obstacle(site.node, "what is sharded is not a batch of a loader")
            if not self._is_mesh(argument(call, 1, "mesh")):
                raise Obstacle(site.node, "the mesh comes from elsewhere")
            if not self._is_batch_spec(argument(call, 2, "partition_spec")):
                raise Obstacle(site.node, "more or another dimension than the first one is sharded")
        for site in self.sites("XLA806"):
            self._spec(site)
        for site in self.sites("XLA503"):
            given = site.bound.args.get("input_sharding") if site.bound is not None else None
            if given is not None and self.tree.source(given.value) != "None":
                found = self.value(given.value, site.scope)
                spec = self.builder.sites.get(id(found))
                if spec is None or spec.rule.code != "XLA806":
                    raise Obstacle(given, "the sharding of the inputs is not one ShardingSpec")
        used = {
            id(a.value)
            for s in (*self.sites("XLA804"), *self.sites("XLA806"))
            if s.call is not None
            for a in s.call.args
        }
        for load in self.mesh_loads - used:
            raise Obstacle(self.mesh_site.node, f"the mesh is used elsewhere too{load and ''}")

    def _spec(self, site: Site) -> None:
        call = site.call
        if call is None or not site.path.endswith(".ShardingSpec"):
            raise Obstacle(site.node, f"`{site.path}` is not part of a known form")
        minibatch = argument(call, 2, "minibatch")
        if minibatch is not None and self.tree.source(minibatch.value) != "False":
            raise Obstacle(site.node, "with minibatch=True a batch is that of one host")
        if not self._is_mesh(argument(call, 0, "mesh")):
            raise Obstacle(site.node, "the mesh comes from elsewhere")
        if not self._is_batch_spec(argument(call, 1, "partition_spec")):
            raise Obstacle(site.node, "more or another dimension than the first one is sharded")
        parent = self.tree.parent(site.expression)
        if isinstance(parent, cst.Arg):
            return
        if not isinstance(parent, cst.Assign) or not small_statement_alone(self.tree, parent):
            raise Obstacle(site.node, "the spec is used elsewhere than in a loader")

    def _is_batch(self, node: cst.BaseExpression) -> bool:
        """Whether a name is only bound by loops, or to what it is moved to a device as."""
        if not isinstance(node, cst.Name):
            return False
        scope = self.tree.scope(node)
        owner = scope.owner(node.value)
        if owner is None or owner.kind != "function":
            return False
        for binding in owner.bindings[node.value]:
            statement = self.tree.statement(binding.node)
            if isinstance(statement, cst.For) and self.tree.is_within(
                binding.node, statement.target
            ):
                continue
            source = self.tree.source(statement.value) if isinstance(statement, cst.Assign) else ""
            moved = re.findall(r"(\w+)\.to\(\w+\)", source)
            if node.value not in moved or re.sub(r"\w+\.to\(\w+\)|[\s,()]", "", source):
                return False
        return True

    def _rest(self) -> None:
        """All other code does the same in each process; every site is in code that was read."""
        self.code.reached[id(self.main)] = self.main
        for line in self.main.body.body:
            if not self.tree.is_within(self.loop, line):
                self.code.alike(line)
        for line in self.after:
            self.code.alike(line)
        for above in self.tree.ancestors(self.loop):
            if above is self.main:
                break
            if isinstance(above, cst.IndentedBlock):
                for line in above.body:
                    if not self.tree.is_within(self.loop, line):
                        self.code.alike(line)
            if isinstance(above, cst.For):
                self.code.alike(above.iter)
        self.code.alike(self.loop.iter)
        self._top()
        for sites in self.by_code.values():
            for site in sites:
                if not self._was_read(site):
                    raise Obstacle(
                        site.node, "it stands in code that the main function does not run"
                    )

    def _top(self) -> None:
        guards = len(self.code.guards)
        for statement in self.tree.module.body:
            if statement is self.guard or isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
                continue
            if isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    if not isinstance(small, (cst.Import, cst.ImportFrom)):
                        self.code.alike(small)
            else:
                raise Obstacle(statement, "it would run in each process that imports the file")
        if len(self.code.guards) != guards:
            raise Obstacle(
                self.code.guards[-1], "it would run in each process that imports the file"
            )
        held = [
            b for bs in self.tree.root.bindings.values() for b in bs
            if self.tree.is_within(b.node, self.guard)
        ]  # fmt: skip
        for binding in held:
            for load, _ in self.tree.loads_of(binding.name, self.tree.root):
                if not self.tree.is_within(load, self.guard):
                    raise Obstacle(
                        load, "it is set under the main guard, which other processes skip"
                    )

    def _was_read(self, site: Site) -> bool:
        if self.tree.is_within(site.node, self.guard):
            return site.rule.code == "XLA801"
        above = [a for a in self.tree.ancestors(site.node) if id(a) in self.code.reached]
        defined = any(
            isinstance(a, (cst.FunctionDef, cst.ClassDef)) for a in self.tree.ancestors(site.node)
        )
        return bool(above) or not defined

    def _seeded(self) -> None:
        """Numbers that are drawn must be the same in each process: they are seeded before."""
        if not self.code.random:
            return
        for line in (*self.tree.module.body, *self.main.body.body):
            if line is self.guard or isinstance(line, (cst.FunctionDef, cst.ClassDef)):
                continue
            small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            call = small.value if isinstance(small, cst.Expr) else None
            if isinstance(call, cst.Call):
                if self.builder.callee(call, self.tree.scope(call)) == "torch.manual_seed":
                    return
            for below in descendants(line):
                own = isinstance(below, cst.Call) and isinstance(below.func, cst.Name)
                own = own and below.func.value in self.tree.root.bindings
                if own or any(below is r for r in self.code.random):
                    raise Obstacle(
                        below,
                        "each process would draw other numbers: call torch.manual_seed() before",
                    )
        raise Obstacle(
            self.code.random[0],
            "each process would draw other numbers: call torch.manual_seed() before",
        )

    # -- writing ------------------------------------------------------------------------------

    def rewrite(self, site: Site, changes: dict[Site, Change]) -> None:
        """Make the changes: those of the program, put on ``site``, and those of the parts."""
        change = site.change = Change(replaced=[])
        site.fix_title = "Run one process for each device"
        self._start(site, change)
        self._delete(change, changes)
        self._sample(change)
        self._average(change, changes)
        for guard in self.code.guards:
            self._on_first(guard, change)

    def _start(self, site: Site, change: Change) -> None:
        params = self.main.params.params
        if params:
            at = self.tree.span(params[0])[0]
            change.cuts.append(Cut(at, at, (f"{self.rank}, ",), self.main))
        else:
            end = self.tree.span(self.main.name)[1]
            at = self.tree.text.index("(", end) + 1
            change.cuts.append(Cut(at, at, (self.rank,), self.main))
        call = self.started
        start, end = self.tree.span(call)
        items: list[str | Slice] = []
        for arg in call.args:
            items += [Slice(arg.value), ", "]
        change.replaced.append(call)
        change.kept += [call.func, *(a.value for a in call.args)]
        if self.builder.settings.launcher == "torchrun":
            dist = self.builder.need(change, _DIST, site.scope)
            lines = [
                f'{dist}.init_process_group("cpu:gloo,tpu:tpu_dist")',
                self.builder.newline,
                INDENT,
            ]
            pieces = [*lines, Slice(call.func), f"({dist}.get_rank()"]
            for arg in call.args:
                pieces += [", ", Slice(arg.value)]
            pieces += [")", self.builder.newline, INDENT, f"{dist}.destroy_process_group()"]
        else:
            helper = self.builder.use_helper(change, "launch")
            pieces = [f"{helper}(", Slice(call.func)]
            if items:
                more = items[:-1] if len(call.args) > 1 else [items[0], ","]
                pieces += [", args=(", *more, ")"]
            pieces.append(")")
        change.cuts.append(Cut(start, end, tuple(pieces), call))

    def _delete(self, change: Change, changes: dict[Site, Change]) -> None:
        """SPMD, its mesh and its annotations go, with the names that nothing else reads."""
        for site in (*self.sites("XLA801"), *self.sites("XLA804")):
            statement = self.tree.statement(site.expression)
            changes[site] = Change(deletes=[statement], replaced=[site.expression])
            self.gone.append(statement)
        changes[self.mesh_site] = Change(deletes=[self.mesh_statement])
        self.gone.append(self.mesh_statement)
        wrapped = [
            a.value
            for s in self.sites("XLA503")
            if s.bound is not None and (a := s.bound.args.get("input_sharding")) is not None
        ]
        for site in self.sites("XLA806"):
            changes[site] = Change()
        more = True
        while more:
            more = False
            for binding in self.helpers:
                statement = binding.statement
                if statement is None or any(statement is g for g in self.gone):
                    continue
                loads = [load for load, _ in self.tree.loads_of(binding.name, binding.scope)]
                away = [*self.gone, *wrapped]
                alone = isinstance(statement, cst.Assign) and len(statement.targets) == 1
                if alone and all(any(self.tree.is_within(n, g) for g in away) for n in loads):
                    self.gone.append(statement)
                    change.deletes.append(statement)
                    more = True

    def _sample(self, change: Change) -> None:
        """The data goes through a sampler, and a batch is the part of one process."""
        statement, given = self.loader_statement, self.given
        sampler = self.builder.need(change, _SAMPLER, self.scope)
        share = self.builder.use_helper(change, "share_of_batch")
        name = next(n for n in self._names("sampler") if n not in self.tree.names)
        data = self.tree.source(given["dataset"].value)
        shuffle = "True" if self.shuffled else "False"
        text = f"{name} = {sampler}({data}, shuffle={shuffle}, drop_last=True)"
        change.inserts.append(Insert(statement, (text,)))
        size = given["batch_size"].value
        start, end = self.tree.span(size)
        change.cuts.append(Cut(start, start, (f"{share}(",), statement))
        new = f"sampler={name}"
        shuffled = given.get("shuffle")
        if shuffled is not None:
            change.cuts.append(Cut(end, end, (")",), statement))
            a, b = (
                self.tree.span(shuffled.keyword or shuffled)[0],
                self.tree.span(shuffled.value)[1],
            )
            change.cuts.append(Cut(a, b, (new,), statement))
        else:
            change.cuts.append(Cut(end, end, (f"), {new}",), statement))
        if self.shuffled and self.epochs is not None:
            self._new_order(name, change)

    def _names(self, base: str) -> list[str]:
        return [
            base,
            f"train_{base}",
            f"data_{base}",
            f"distributed_{base}",
            f"{base}_of_processes",
        ]

    def _new_order(self, sampler: str, change: Change) -> None:
        """Each epoch has an order of its own."""
        assert self.epochs is not None
        target = self.epochs.target
        if not isinstance(target, cst.Name):
            raise Obstacle(self.epochs, "the loop of epochs has no plain counter")
        epoch = target.value
        if epoch == "_":
            epoch = "epoch"
            if epoch in self.tree.names:
                raise Obstacle(self.epochs, "there is no free name for the number of the epoch")
            a, b = self.tree.span(target)
            change.cuts.append(Cut(a, b, (epoch,), self.epochs))
        change.inserts.append(Insert(self.epochs, (f"{sampler}.set_epoch({epoch})",)))

    def _average(self, change: Change, changes: dict[Site, Change]) -> None:
        """The model starts alike everywhere; gradients, and a loss that is read, are averaged."""
        assert self.anchor is not None
        broadcast = self.builder.use_helper(change, "broadcast_model")
        change.inserts.append(Insert(self.optimizer_statement, (f"{broadcast}({self.model})",)))
        average = self.builder.use_helper(change, "average_gradients")
        change.inserts.append(Insert(self.anchor, (f"{average}({self.optimizer})",)))
        name = self.loss_name
        loads = self.tree.loads_of(name, self.scope) if name is not None else []
        if any(not self.tree.is_within(load, self.backward) for load, _ in loads):
            mean = self.builder.use_helper(change, "mean_over_processes")
            change.inserts.append(Insert(self.anchor, (f"{name} = {mean}({name})",)))
        for site in self.sites("XLA501"):
            changes[site] = Change(
                cuts=[Cut(*self.tree.span(site.expression), (f"{self.optimizer}.step()",))],
                replaced=[site.expression],
            )

    def _on_first(self, statement: cst.Expr, change: Change) -> None:
        start = self.tree.span(statement)[0]
        if self.tree.is_within(statement, self.main):
            asked = self.rank
        else:
            asked = f"{self.builder.need(change, _DIST, self.tree.scope(statement))}.get_rank()"
        block = f"if {asked} == 0:{self.builder.newline}{INDENT}{self.builder.unit}"
        change.cuts.append(Cut(start, start, (block,), statement))
        change.deeper.append(statement)
