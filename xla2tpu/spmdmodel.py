"""The model of a program of SPMD: how it is made and wrapped, and the optimizer that steps it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from xla2tpu.nodes import descendants
from xla2tpu.scopes import Binding, Scope
from xla2tpu.sites import Site
from xla2tpu.spmdmesh import Meshes
from xla2tpu.spmdsamples import Obstacle, argument
from xla2tpu.syntax import small_statement_alone

_FSDP = "SpmdFullyShardedDataParallel"
_OF_MODELS = frozenset(
    {"eval", "load_state_dict", "parameters", "requires_grad_", "state_dict", "to", "train",
     "zero_grad"}
)  # fmt: skip
# What FSDPv2 gives other names than the plain module has.
_PREFIXED = frozenset(
    {"load_state_dict", "module", "named_modules", "named_parameters", "state_dict"}
)


# Those that treat each number of a parameter by itself, so that parts of them are enough.
_BY_NUMBER = frozenset(
    {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
     "SGD"}
)  # fmt: skip
_CLIPS = re.compile(r"torch\.nn\.utils\.clip_grad_(norm|value)_\Z")
_SIZED = re.compile(r"torch\.(empty|full|ones|rand|randn|zeros)\Z")


class Models(Meshes):
    """The one model and its optimizer. ``wrapping`` is the site of FSDPv2, where there is one."""

    model: str
    optimizer: str
    optimizer_statement: cst.Assign
    wrapping: Site | None = None
    wrapped: cst.BaseExpression
    wrapped_statement: cst.Assign
    # The class whose modules FSDPv2 wraps one by one; None where it wraps the model alone.
    block: str | None = None
    # Uses of the model, in the main function and where it is handed to.
    held: list[cst.Name]
    loop: cst.For
    before: Sequence[cst.CSTNode]
    after: Sequence[cst.CSTNode]

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
            or not self._is_first_level(statement)
        ):
            raise Obstacle(made, "the optimizer is not made of the parameters of one model")
        self.model, self.optimizer_statement = holder.value.value, statement
        self._wrapper_of()
        self._bound_models(holder, self.model)
        if self.wrapping is not None and self.wrapped_target() != self.model:
            raise Obstacle(holder, "the optimizer has not the parameters of the wrapped model")
        self._kept_whole()
        self._stays_plain()

    def _bound_model(self, bound: Binding, name: str) -> None:
        statement = bound.statement
        if bound.kind != "assign" or bound.value is None or not self._is_first_level(statement):
            raise Obstacle(
                bound.node, "the model is not assigned at the start of the main function"
            )
        if self.tree.span(bound.node) > self.tree.span(self.optimizer_statement):
            raise Obstacle(bound.node, "the model changes after the optimizer is made")
        made: cst.BaseExpression = bound.value
        if self.wrapping is not None and made is self.wrapping.call:
            made = self.wrapped
            if isinstance(made, cst.Name):
                if made.value != name:
                    self._bound_models(made, made.value)
                return
        if isinstance(made, cst.Call) and isinstance(made.func, cst.Attribute):
            func = made.func
            if func.attr.value == "to" and self.tree.source(func.value) == name:
                return
        self.code.model(made, self.scope)

    def _bound_models(self, place: cst.CSTNode, name: str) -> None:
        bindings = self.scope.bindings.get(name, [])
        if not bindings:
            raise Obstacle(place, "the model is not made in the main function")
        for bound in bindings:
            self._bound_model(bound, name)

    def _is_first_level(self, statement: cst.CSTNode | None) -> bool:
        """Whether a statement stands alone on its line, in the body of the main function."""
        line = self.tree.parent(statement) if statement is not None else None
        if statement is None or line is None or not small_statement_alone(self.tree, statement):
            return False
        return self.tree.parent(line) is self.main.body

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
                continue
            func = call.func
            steps = isinstance(func, cst.Attribute) and func.attr.value == "step"
            if steps and isinstance(func, cst.Attribute) and isinstance(func.value, cst.Name):
                found.append(func.value)
        return found

    def _optimizer(self, name: cst.Name) -> cst.Call | None:
        bindings = self.scope.bindings.get(name.value, [])
        made = bindings[0].value if len(bindings) == 1 else None
        if not isinstance(made, cst.Call):
            return None
        path = self.builder.callee(made, self.scope) or ""
        head, _, kind = path.rpartition(".")
        return made if head == "torch.optim" and kind != "LBFGS" else None

    def wrapped_target(self) -> str:
        """The name that the wrapped model is assigned to."""
        target = self.wrapped_statement.targets[0].target
        assert isinstance(target, cst.Name)
        return target.value

    # -- FSDPv2 -------------------------------------------------------------------------------

    def _wrapper_of(self) -> None:
        """The call of FSDPv2, with a policy over one class of the file."""
        sites, policies = self.sites("XLA816"), self.sites("XLA813")
        if not sites:
            if policies:
                raise Obstacle(policies[0].node, "a policy is made, and no model wrapped")
            return
        site, call = sites[0], sites[0].call
        statement = self.tree.statement(site.expression)
        if len(sites) != 1 or call is None or site.path.rpartition(".")[2] != _FSDP:
            raise Obstacle(sites[-1].node, "it is not the one model that is wrapped")
        if (
            not isinstance(statement, cst.Assign)
            or statement.value is not call
            or len(statement.targets) != 1
            or not isinstance(statement.targets[0].target, cst.Name)
            or not self._is_first_level(statement)
        ):
            raise Obstacle(
                site.node, "the wrapped model is not assigned at the start of the function"
            )
        for arg in call.args[1:]:
            word = arg.keyword.value if arg.keyword is not None else None
            if word not in ("mesh", "auto_wrap_policy"):
                raise Obstacle(arg, "FSDPv2 has an argument that fully_shard has no place for")
        module, mesh = argument(call, 0, "module"), argument(call, None, "mesh")
        if module is None or not (self._is_mesh(mesh) if mesh is not None else self.set_globally):
            raise Obstacle(site.node, "the mesh of FSDPv2 comes from elsewhere")
        if self.axes[self.axis] != "fsdp":
            raise Obstacle(site.node, 'FSDPv2 asks for an axis "fsdp" that spans all devices')
        self.wrapping, self.wrapped, self.wrapped_statement = site, module.value, statement
        if not self._is_moved(module.value, statement):
            raise Obstacle(site.node, "the model is not moved to the device before it is wrapped")
        policy = argument(call, None, "auto_wrap_policy")
        if policy is not None:
            self.block = self._blocks(policy)
        elif policies:
            raise Obstacle(policies[0].node, "the policy is not that of the model")

    def _is_moved(self, node: cst.BaseExpression, statement: cst.CSTNode) -> bool:
        """Whether a model is on its device by then, where fully_shard has to find it."""
        if isinstance(node, cst.Call):
            return isinstance(node.func, cst.Attribute) and node.func.attr.value == "to"
        if not isinstance(node, cst.Name):
            return False
        before = [
            self.tree.statement(n)
            for n in self.tree.attributes.get("to", [])
            if self.tree.span(n) < self.tree.span(statement)
        ]
        values = [
            s.value for s in before
            if isinstance(s, (cst.Assign, cst.Expr)) and self._is_first_level(s)
        ]  # fmt: skip
        bound = [b.value for b in self.scope.bindings.get(node.value, [])]
        return any(
            isinstance(v, cst.Call)
            and self._is_moved(v, statement)
            and (any(v is b for b in bound) or self.tree.source(v).startswith(f"{node.value}.to("))
            for v in values
        )

    def _blocks(self, arg: cst.Arg) -> str:
        """The class of a policy: ``partial(transformer_auto_wrap_policy, ...)`` over one."""
        found = self.value(arg.value, self.scope)
        policies = self.sites("XLA813")
        if (
            not isinstance(found, cst.Call)
            or self.builder.callee(found, self.tree.scope(found)) != "functools.partial"
            or len(found.args) != 2
            or len(policies) != 1
            or found.args[0].value is not policies[0].node
            or not policies[0].path.endswith(".transformer_auto_wrap_policy")
        ):
            raise Obstacle(arg, "the policy is not a transformer_auto_wrap_policy over one class")
        classes = argument(found, None, "transformer_layer_cls")
        given = self.value(classes.value, self.tree.scope(found)) if classes is not None else None
        elements = given.elements if isinstance(given, (cst.Set, cst.Tuple, cst.List)) else ()
        name = elements[0].value if len(elements) == 1 else None
        bindings = self.tree.root.bindings.get(name.value, []) if isinstance(name, cst.Name) else []
        node = bindings[0].statement if len(bindings) == 1 else None
        if not isinstance(name, cst.Name) or not isinstance(node, cst.ClassDef):
            raise Obstacle(arg, "the policy is not a transformer_auto_wrap_policy over one class")
        if self.scope.owner(name.value) is not self.tree.root or self._makes(node, name.value):
            raise Obstacle(node, "blocks of the policy hold others: the inner ones come first")
        return name.value

    def _makes(self, node: cst.CSTNode, name: str) -> bool:
        """Whether a piece of code calls a name."""
        calls = (n.func for n in descendants(node) if isinstance(n, cst.Call))
        return any(isinstance(f, cst.Name) and f.value == name for f in calls)

    def _kept_whole(self) -> None:
        """Nothing of the model is exchanged once it is made."""
        self.held = self._holders(self.model, self.scope, set())
        for load in self.held:
            parent = self.tree.parent(load)
            if isinstance(parent, (cst.Assign, cst.Element)):
                raise Obstacle(load, "the model has another name, which is not followed")
        for node in descendants(self.tree.module):
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    held = target.target
                    if isinstance(held, cst.Attribute) and not isinstance(held.value, cst.Name):
                        raise Obstacle(
                            node,
                            "weights may be tied, which neither the move to a device "
                            "nor fully_shard keeps",
                        )
        for load, _ in self.tree.loads_of(self.model, self.scope):
            parent = self.tree.parent(load)
            if isinstance(parent, cst.Subscript) and id(parent) in self.tree.stored:
                raise Obstacle(load, "a part of the model is exchanged")
            if isinstance(parent, cst.Attribute) and parent.attr.value not in _OF_MODELS:
                raise Obstacle(load, "more is done with the model than to train and to call it")

    def _holders(self, name: str, scope: Scope, seen: set[int]) -> list[cst.Name]:
        """The uses of the model by one name, and by the names that functions have for it."""
        found = [load for load, _ in self.tree.loads_of(name, scope)]
        for load in list(found):
            arg = self.tree.parent(load)
            call = self.tree.parent(arg) if isinstance(arg, cst.Arg) else None
            if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name):
                continue
            for binding in self.tree.root.bindings.get(call.func.value, []):
                node = binding.statement
                if binding.kind != "def" or not isinstance(node, cst.FunctionDef):
                    continue
                for index, param in enumerate(node.params.params):
                    word = param.name.value
                    if argument(call, index, word) is arg and id(param) not in seen:
                        seen.add(id(param))
                        found += self._holders(word, self.tree.scope(node.body), seen)
        return found

    def _stays_plain(self) -> None:
        """Nothing depends on the names of parameters, and none belongs to two modules."""
        if self.wrapping is None:
            return
        if "inference_mode" in self.tree.names | set(self.tree.attributes):
            raise Obstacle(self.main, "fully_shard cannot gather parameters in the inference mode")
        for word in sorted(_PREFIXED & set(self.tree.attributes)):
            raise Obstacle(
                self.tree.attributes[word][0],
                f"FSDPv2 changed the names of parameters and modules: look at `{word}` by hand",
            )
        self._stays_sharded()
        made = [b.value for b in self.scope.bindings.get(self.model, []) if b.value is not None]
        for value in [*made, self.wrapped]:
            root = value
            while isinstance(root, cst.Call) and isinstance(root.func, cst.Attribute):
                root = root.func.value
            called = root.func if isinstance(root, cst.Call) else None
            if isinstance(called, cst.Name) and called.value == self.block:
                raise Obstacle(value, "the model itself is of the class of the policy")

    def _stays_sharded(self) -> None:
        """The model is called as a whole, and nothing else asks for its parameters."""
        made = self.optimizer_statement.value
        path = self.builder.callee(made, self.scope) if isinstance(made, cst.Call) else None
        if (path or "").rpartition(".")[2] not in _BY_NUMBER:
            raise Obstacle(self.optimizer_statement, "the optimizer may need whole parameters")
        for load in self.held:
            self._called_whole(load)
        for node in self.tree.attributes.get("parameters", []):
            if not self._asks_no_values(node):
                raise Obstacle(node, "each process has a part of the parameters alone")
        for below in descendants(self.tree.module):
            if isinstance(below, cst.Call) and self._is_scalar(below):
                raise Obstacle(below, "fully_shard cannot shard a parameter without dimensions")
            if isinstance(below, cst.SimpleString) and below.evaluated_value == "params":
                raise Obstacle(below, "each process has a part of the parameters alone")
            if isinstance(below, cst.ClassDef) and self.block is not None:
                self._blocks_called(below, self.block)

    def _called_whole(self, load: cst.Name) -> None:
        parent = self.tree.parent(load)
        call = self.tree.parent(parent) if isinstance(parent, cst.Arg) else None
        own = (
            isinstance(call, cst.Call)
            and isinstance(call.func, cst.Name)
            and any(b.kind == "def" for b in self.tree.root.bindings.get(call.func.value, []))
        )
        wrapped = self.wrapping is not None and call is self.wrapping.call
        asked = isinstance(parent, cst.Attribute) and parent.attr.value in _OF_MODELS
        if not (own or wrapped or asked or isinstance(parent, (cst.Call, cst.Return))):
            raise Obstacle(load, "parts of the model may be asked for, which fully_shard shards")

    def _asks_no_values(self, node: cst.CSTNode) -> bool:
        """Whether parameters are given to the optimizer, or clipped, or counted."""
        call = self.tree.parent(node)
        parent = self.tree.parent(call) if call is not None else None
        if isinstance(parent, cst.CompFor):
            made = self.tree.parent(parent)
            if not isinstance(made, (cst.GeneratorExp, cst.ListComp)):
                return False
            return self.tree.source(made.elt).endswith(".numel()")
        taker = self.tree.parent(parent) if isinstance(parent, cst.Arg) else None
        if not isinstance(taker, cst.Call):
            return False
        path = self.builder.callee(taker, self.tree.scope(taker)) or ""
        return taker is self.optimizer_statement.value or bool(_CLIPS.match(path))

    def _is_scalar(self, call: cst.Call) -> bool:
        """Whether a parameter is made that may have no dimension."""
        if self.builder.callee(call, self.tree.scope(call)) != "torch.nn.Parameter":
            return False
        made = call.args[0].value if call.args else None
        if not isinstance(made, cst.Call):
            return False
        path = self.builder.callee(made, self.tree.scope(made)) or ""
        first = made.args[0].value if made.args else None
        if path in ("torch.tensor", "torch.as_tensor"):
            return not isinstance(first, (cst.List, cst.Tuple))
        empty = first is None or self.tree.source(first) in ("()", "[]")
        return bool(_SIZED.match(path)) and empty

    def _blocks_called(self, node: cst.ClassDef, block: str) -> None:
        """Modules outside of the blocks call these, and nothing in them."""
        holders = {
            target.target.attr.value
            for below in descendants(node)
            if isinstance(below, cst.Assign) and self._names(below.value, block)
            for target in below.targets
            if isinstance(target.target, cst.Attribute)
        }
        for below in descendants(node):
            inner = below.value if isinstance(below, cst.Attribute) else None
            while isinstance(inner, (cst.Subscript, cst.Attribute)):
                if isinstance(inner, cst.Attribute) and inner.attr.value in holders:
                    raise Obstacle(below, "parts of a block are used, which only its call gathers")
                inner = inner.value

    def _names(self, node: cst.CSTNode, name: str) -> bool:
        return any(isinstance(n, cst.Name) and n.value == name for n in descendants(node))
