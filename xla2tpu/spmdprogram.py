"""One program of SPMD, read as a whole: its training loop, loaders, and all code around them."""

from __future__ import annotations

import re

import libcst as cst

from xla2tpu import workers
from xla2tpu.batches import loop_over
from xla2tpu.flow import reaching
from xla2tpu.nodes import descendants
from xla2tpu.sites import Site
from xla2tpu.spmdmodel import Models
from xla2tpu.spmdsamples import Obstacle, argument
from xla2tpu.syntax import small_statement_alone

_LOADER_ARGUMENTS = frozenset(
    {"dataset", "batch_size", "shuffle", "drop_last", "num_workers", "pin_memory",
     "persistent_workers", "prefetch_factor", "timeout"}
)  # fmt: skip
_PARSES = re.compile(
    r"argparse\.(?!FileType)\w+\Z|builtins\.(?!open|input|exec|eval|compile)\w+\Z|os\.(environ\.get|getenv)\Z"
)
_CLIPS = re.compile(r"torch\.nn\.utils\.clip_grad_(norm|value)_\Z")


class Program(Models):
    """Reads a program, raising an `Obstacle` at what is not known."""

    backward: cst.Expr
    loss: cst.BaseExpression
    loss_name: str | None
    epochs: cst.For | None
    # The statement before which the gradients are averaged.
    anchor: cst.SimpleStatementLine
    batch: set[str]
    loader_statement: cst.Assign
    loader_call: cst.Call
    given: dict[str, cst.Arg]
    shuffled: bool
    # The loader of torch_xla in the training loop.
    wrapper: Site | None = None

    def start(self) -> None:
        """Read how the program is started, and its mesh."""
        if self.builder.settings.processes == "single":
            raise Obstacle(
                self.tree.module.body[0], "the configuration says that there is a single process"
            )
        if workers.is_notebook(self.tree) or self.builder.settings.notebook:
            raise Obstacle(self.tree.module.body[0], "functions of a notebook cannot be started")
        self._started()
        self._switch()
        self._mesh()

    def check(self) -> None:
        """Read all the rest."""
        self._loop()
        self._model()
        self._loader()
        self._specs()
        self._rest()
        self._seeded()
        self._written()

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

    def _iterated(self) -> tuple[cst.BaseExpression, cst.BaseExpression]:
        """What the training loop runs over, and the target of each batch."""
        inner: cst.BaseExpression = self.loop.iter
        counted = isinstance(inner, cst.Call) and (
            self.builder.callee(inner, self.scope) == "builtins.enumerate"
        )
        if counted and isinstance(inner, cst.Call) and inner.args:
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
        statement = self.tree.statement(call)
        if (
            not isinstance(statement, cst.Assign)
            or len(statement.targets) != 1
            or not self._is_first_level(statement)
        ):
            raise Obstacle(call, "the loader is not assigned at the start of the main function")
        self.loader_statement, self.loader_call = statement, call
        size = self.given["batch_size"].value
        if not isinstance(size, cst.Integer):
            self._made_for(self.tree.source(size))
        for holder in holders:
            for load, scope in self.tree.loads_of(holder.value, self.scope):
                seen = reaching(self.tree, load, scope)
                if seen is None:
                    raise Obstacle(load, "which loader it is cannot be told")
                if not self._is_plain_use(load):
                    raise Obstacle(load, "more is asked of the loader than its batches and length")
        self._sharded(node)
        self._body()

    def _made_for(self, size: str) -> None:
        """No module is made for the size of a batch, of which a process has a part."""
        for call in descendants(self.main.body):
            func = call.func if isinstance(call, cst.Call) else None
            if not isinstance(call, cst.Call) or not isinstance(func, cst.Name):
                continue
            for binding in self.tree.root.bindings.get(func.value, []):
                node = binding.statement
                module = isinstance(node, cst.ClassDef) and any(
                    self.builder.meaning(b.value, self.tree.root) == "torch.nn.Module"
                    for b in node.bases
                )
                given = (n for a in call.args for n in descendants(a.value))
                if module and any(
                    self.tree.source(n) == size for n in given if isinstance(n, cst.BaseExpression)
                ):
                    raise Obstacle(call, "the model is made for the size of the whole batch")

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
                if not isinstance(seen.statement, cst.Assign) or len(seen.statement.targets) != 1:
                    raise Obstacle(node, "which loader it is cannot be told")
                holders.append(node)
                node = seen.value
            elif isinstance(node, cst.Call):
                return node
            else:
                raise Obstacle(node, "which loader it is cannot be told")

    def _is_plain_use(self, load: cst.Name) -> bool:
        """Whether a loader is that of the training loop there, or asked for its length."""
        parent = self.tree.parent(load)
        if isinstance(parent, cst.For):
            return parent is self.loop and parent.iter is load
        call = self.tree.parent(parent) if isinstance(parent, cst.Arg) else None
        if not isinstance(call, cst.Call):
            return False
        if call is self.loop.iter or (self.wrapper and call is self.wrapper.expression):
            return True
        return self.builder.callee(call, self.tree.scope(call)) == "builtins.len"

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
        bound = self.wrapper.bound if self.wrapper is not None else None
        if not marks and (bound is None or "input_sharding" not in bound.args):
            raise Obstacle(node, "the batches of the training loop are not sharded")

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

    def _steps(self) -> None:
        """The first statement after ``backward`` that stays is where gradients are averaged."""
        found = None
        for line in self.after:
            if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
                break
            statement = line.body[0]
            call = statement.value if isinstance(statement, cst.Expr) else None
            if not isinstance(call, cst.Call):
                break
            site = self.builder.sites.get(id(call))
            if site is not None and site.rule.code in ("XLA101", "XLA102"):
                continue
            path = self.builder.callee(call, self.scope) or ""
            stepped = site is not None and site.rule.code == "XLA501"
            if isinstance(call.func, cst.Attribute) and not path:
                stepped = call.func.attr.value == "step" and not call.args
            if stepped or _CLIPS.match(path):
                found = line
            break
        if found is None:
            raise Obstacle(
                self.backward,
                "`backward()` is not followed by the clipping of gradients or the step",
            )
        self.anchor = found
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
        codes = ("XLA803", "XLA804", "XLA806", "XLA816")
        used = {
            id(a.value) for c in codes for s in self.sites(c) if s.call is not None
            for a in s.call.args
        }  # fmt: skip
        for key, load in self.mesh_loads.items():
            if key not in used:
                raise Obstacle(load, "the mesh is used for more than sharding the batches")

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
                over = statement.iter
                if isinstance(over, cst.Call) and id(over) not in self.builder.sites:
                    counted = self.builder.callee(over, self.tree.scope(over))
                    if counted != "builtins.enumerate" or not over.args:
                        return False
                    over = over.args[0].value
                if isinstance(over, cst.Name) or id(over) in self.builder.sites:
                    continue
                return False
            source = self.tree.source(statement.value) if isinstance(statement, cst.Assign) else ""
            moved = re.findall(r"(\w+)\.to\(\w+\)", source)
            if node.value not in moved or re.sub(r"\w+\.to\(\w+\)|[\s,()]", "", source):
                return False
        return True

    def _rest(self) -> None:
        """All other code does the same in each process; every site is in code that was read."""
        self.code.reached[id(self.main)] = self.main
        if "FileType" in self.tree.attributes:
            raise Obstacle(
                self.tree.attributes["FileType"][0], "open files cannot be given to a process"
            )
        for line in self.main.body.body:
            if not self.tree.is_within(self.loop, line):
                self.code.alike(line)
        for node in self.after:
            self.code.alike(node)
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
        clock = any(
            b.path in ("time", "time.time", "time.perf_counter") for b in self.tree.bindings
        )
        for below in descendants(self.main.body):
            if clock and isinstance(below, (cst.Break, cst.Return, cst.Raise, cst.While)):
                raise Obstacle(below, "processes would end at different times by their clocks")
        if clock:
            self._clocks()
        self._top()

    def _clocks(self) -> None:
        """What a clock tells is kept in names and printed; nothing is done according to it."""
        told: set[str] = set()
        while True:
            known = len(told)
            for node in descendants(self.tree.module):
                if not isinstance(node, (cst.Call, cst.Name)) or not self._is_timed(node, told):
                    continue
                statement = self.tree.statement(node)
                value = statement.value if isinstance(statement, cst.Expr) else None
                func = value.func if isinstance(value, cst.Call) else None
                if isinstance(statement, cst.Expr) and (
                    any(statement is g for g in self.code.guards) or id(value) in self.builder.sites
                ):
                    continue
                if isinstance(func, cst.Attribute) and func.attr.value == "append":
                    told |= {func.value.value} if isinstance(func.value, cst.Name) else set()
                    continue
                targets = (
                    [t.target for t in statement.targets] if isinstance(statement, cst.Assign)
                    else [statement.target] if isinstance(statement, cst.AugAssign) else []
                )  # fmt: skip
                if not targets or not all(isinstance(t, cst.Name) for t in targets):
                    raise Obstacle(node, "processes would do different things by their clocks")
                told |= {t.value for t in targets if isinstance(t, cst.Name)}
            if len(told) == known:
                return

    def _is_timed(self, node: cst.Call | cst.Name, told: set[str]) -> bool:
        if isinstance(node, cst.Call):
            path = self.builder.callee(node, self.tree.scope(node)) or ""
            return path in ("time.time", "time.perf_counter")
        loads = self.tree.loads.get(node.value, []) if node.value in told else []
        return any(node is load for load, _ in loads)

    def _top(self) -> None:
        guards = len(self.code.guards)
        for statement in self.tree.module.body:
            if statement is self.guard or isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
                continue
            if isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    if not isinstance(small, (cst.Import, cst.ImportFrom)):
                        self.code.alike(small)
                    self._calls_nothing(small)
            else:
                raise Obstacle(statement, "it would run in each process that imports the file")
        if len(self.code.guards) != guards:
            raise Obstacle(
                self.code.guards[-1], "it would run in each process that imports the file"
            )
        for statement in self.tree.module.body:
            if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
                self.code.definition(statement)
        for sites in self.by_code.values():
            for site in sites:
                if self.tree.is_within(site.node, self.guard) and site.rule.code != "XLA801":
                    raise Obstacle(site.node, "it stands under the main guard")
        held = [
            b for bs in self.tree.root.bindings.values() for b in bs
            if self.tree.is_within(b.node, self.guard)
        ]  # fmt: skip
        for call in descendants(self.guard.body):
            if isinstance(call, cst.Call) and call is not self.started:
                self._of_first(call)
        for binding in held:
            for load, _ in self.tree.loads_of(binding.name, self.tree.root):
                if not self.tree.is_within(load, self.guard):
                    raise Obstacle(
                        load, "it is set under the main guard, which other processes skip"
                    )

    def _calls_nothing(self, statement: cst.CSTNode) -> None:
        """While the file is imported there is no process group, and no rank."""
        for below in descendants(statement):
            func = below.func if isinstance(below, cst.Call) else None
            name = func.value if isinstance(func, cst.Name) else ""
            if any(b.kind == "def" for b in self.tree.root.bindings.get(name, [])):
                raise Obstacle(below, "it would run in each process that imports the file")

    def _of_first(self, call: cst.Call) -> None:
        """What stands under the main guard is run by the process that starts the others."""
        path = self.builder.callee(call, self.tree.root) or ""
        if path == "builtins.print" and self.builder.settings.launcher == "torchrun":
            raise Obstacle(call, "each process that torchrun starts would print it")
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        parses = not path and method in ("add_argument", "parse_args")
        if id(call) not in self.builder.sites and not parses and not _PARSES.match(path):
            raise Obstacle(call, "it stands under the main guard, which other processes skip")

    def _written(self) -> None:
        """Nothing waits for what the first process writes, and no other file runs what changes."""
        calls = [g.value for g in self.code.guards]
        saves = [
            c for c in calls
            if isinstance(c, cst.Call)
            and self.builder.callee(c, self.tree.scope(c)) == "torch.save"
        ]  # fmt: skip
        if self.code.read and (saves or self.sites("XLA402")):
            raise Obstacle(
                self.code.read[0], "other processes may read a file before the first has written it"
            )
        for save in [*saves, *(s.expression for s in self.sites("XLA402"))]:
            kept = save.args[0].value if isinstance(save, cst.Call) and save.args else save
            whole = isinstance(kept, cst.Name) or any(
                self.tree.is_within(n, kept) and not isinstance(self.tree.parent(n), cst.Attribute)
                for n in self.held
            )
            if whole:
                raise Obstacle(save, "a spawned process saves whole objects under other names")
        for call in calls:
            for above in self.tree.ancestors(call):
                if isinstance(above, cst.FunctionDef) and self.taken(above.name.value):
                    raise Obstacle(call, "another file of the project calls it without processes")

        for made in (*calls, *self.code.random, *self.code.drawn):
            holder = self._function(made)
            if holder is not None and not self._is_for_main(holder, set()):
                raise Obstacle(made, "a loader, or who else calls it, would do so for each sample")

    def _function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The function of the file that holds a piece of code; None in classes and outside."""
        above = list(self.tree.ancestors(node))
        if any(isinstance(a, cst.ClassDef) for a in above):
            return None
        return next((a for a in above if isinstance(a, cst.FunctionDef)), None)

    def _is_for_main(self, node: cst.FunctionDef, seen: set[int]) -> bool:
        """Whether a function is called by the main function, or by others that are."""
        if node is self.main or id(node) in seen:
            return True
        for load, _ in self.tree.loads.get(node.name.value, []):
            called = self._called(load)
            caller = self._function(load)
            if called is None or caller is None:
                return False
            if not self._is_for_main(caller, seen | {id(node)}):
                return False
        return True

    def _seeds(self, line: cst.CSTNode) -> bool:
        """Whether a line seeds the numbers of torch, alike in each process."""
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        call = small.value if isinstance(small, cst.Expr) else None
        if not isinstance(call, cst.Call) or len(call.args) != 1:
            return False
        seed = self.value(call.args[0].value, self.tree.scope(call))
        if any(isinstance(n, cst.Call) for n in descendants(seed)):
            return False
        return self.builder.callee(call, self.tree.scope(call)) == "torch.manual_seed"

    def _seeded(self) -> None:
        """Numbers that are drawn must be the same in each process: they are seeded before."""
        random = [c for c in self.code.random if c is not self.loader_call]
        if not random:
            return
        for line in (*self.tree.module.body, *self.main.body.body):
            if line is self.guard or isinstance(line, (cst.FunctionDef, cst.ClassDef)):
                continue
            if self._seeds(line):
                return
            for below in descendants(line):
                name = below.func if isinstance(below, cst.Call) else None
                own = isinstance(name, cst.Name) and any(
                    b.kind in ("def", "class") for b in self.tree.root.bindings.get(name.value, [])
                )
                if own or any(below is r for r in random):
                    raise Obstacle(
                        below,
                        "each process would draw other numbers: call torch.manual_seed() before",
                    )
        raise Obstacle(
            random[0],
            "each process would draw other numbers: call torch.manual_seed() before",
        )
