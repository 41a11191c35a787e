"""The places of one file that an SPMD or FSDP program has to change together, with code for each.

Beside the findings that are left these are places of plain PyTorch: what runs once in a program of
a single controller runs once for each device afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from xla2tpu.analysis import Analysis
from xla2tpu.constants import constant, values
from xla2tpu.fsdparguments import Wrapping, method
from xla2tpu.model import Step
from xla2tpu.nodes import descendants
from xla2tpu.shardings import Mesh, Sharding, mesh_told
from xla2tpu.signatures import bind
from xla2tpu.sites import Site

# Rules whose places make a plan: of a single controller, and of FSDP.
_SPMD = frozenset(f"XLA{n}" for n in (801, 803, 804, 805, 806, 807, 809, 810, 816, 818))
_FSDP = frozenset(("XLA811", "XLA812", "XLA813", "XLA814", "XLA815", "XLA817"))
_VARIABLES = re.compile(r"XLA_(?:USE|AUTO)_SPMD\w*\Z")
# Other findings that are left because of them: rule, stage.
_ALONG = {
    **dict.fromkeys(("XLA506", "XLA507", "XLA508", "XLA509", "XLA510"), "launch"),
    **dict.fromkeys(("XLA525", "XLA904"), "group"),
    **dict.fromkeys(("XLA503", "XLA504", "XLA505"), "data"),
    **dict.fromkeys(("XLA501", "XLA502", "XLA819"), "optimizer"),
    **dict.fromkeys((f"XLA3{n:02}" for n in range(1, 13)), "ranks"),
    "XLA802": "ranks",
    "XLA808": "model",
}
# What every module has, and what fully_shard leaves as it is.
_OF_MODULES = frozenset(
    (
        *("apply", "children", "eval", "forward", "modules", "named_children", "named_modules"),
        *("named_parameters", "parameters", "register_forward_hook", "requires_grad_", "to"),
        *("train", "training", "zero_grad"),
    )
)
_DTENSOR = {
    "xla_distribute_tensor": "distribute_tensor",
    "xla_distribute_module": "distribute_module",
}
_COUNTS = {
    "global_runtime_device_count": ("dist.get_world_size()", ""),
    "global_device_count": ("dist.get_world_size()", ""),
    "addressable_runtime_device_count": ("1", "a process has one device"),
    "addressable_device_count": ("1", "a process has one device"),
    "local_device_count": ("1", "a process has one device"),
    "process_index": ("dist.get_rank()", "it was the number of the host"),
    "process_count": ("dist.get_world_size()", "it was the number of hosts"),
    "is_spmd": ("False", "keep the branch that is for one process on each device"),
}
_PARAMETER_NOTE = (
    "Before the optimizer is built; tied weights have to be tied again. Over an axis that shards"
    " the batch too, fully_shard does it for whole blocks; over another, parallelize_module with"
    " ColwiseParallel() where dimension 0 of an nn.Linear weight is sharded, RowwiseParallel() for"
    " dimension 1, and the other way round for nn.Embedding"
)
_LOOP_NOTE = (
    "Tests of the loop on names or shapes go into the function, where the whole name is"
    ' f"{name}.{key}". ' + _PARAMETER_NOTE
)
_INPUT_NOTE = (
    "Each rank loads its part, of which x is a plain tensor: no distribute_tensor here. Only where"
    " parameters are DTensors is from_local needed, with shape and stride where parts differ in"
    " size; else the line goes"
)
_ACTIVATION_NOTE = (
    "Only where the tensor is a DTensor; for plain tensors the line goes, and a plan of"
    " parallelize_module (PrepareModuleInput, SequenceParallel) lays activations out. redistribute"
    " communicates always; the annotation was a hint"
)
_TENSOR_NOTE = (
    "If it is a parameter: nn.Parameter of it, before the optimizer is built; a batch: the line"
    " goes and each rank loads its part; an activation that is a DTensor: x.redistribute"
)
_BATCH_NOTE = (
    "The batch was that of all devices. replicas and part are dist.get_world_size() and"
    ' dist.get_rank() where it is sharded over the whole mesh, mesh["data"].size() and'
    ' mesh["data"].get_local_rank() where over one axis of several, 1 and 0 where all ranks work on'
    " the same batch. Call sampler.set_epoch(epoch) in each epoch; an IterableDataset has to split"
    " itself"
)
_ONCE = "Under `if dist.get_rank() == 0:`, unless it is wanted once for each device"
# Ids of devices that are 0, 1, 2, ... for certain.
_ORDERED = re.compile(
    r"(?:np|numpy)\.(?:arange\([^,()]+(?:\(\))?\)|array\((?:list\()?range\([^,()]+(?:\(\))?\)\)*)"
    r"|list\(range\([^,()]+(?:\(\))?\)\)|range\([^,()]+(?:\(\))?\)"
)
_LOADERS = re.compile(r"(?:\A|_)(?:data_?)?(?:loader|iter(?:ator)?|batches)s?\Z|[a-z]Loader\Z")
_AROUND_A_LOADER = frozenset(("enumerate", "tqdm", "iter", "zip"))
_DATA_LOADER = "torch.utils.data.DataLoader"
_LOADER_ARGUMENTS = (
    "(dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None, *args, **kwargs)"
)
_RANK_TEST = re.compile(
    r"rank|master|main_process|process_index|ordinal|is_local|is_world|is_first"
)
_WRITERS = re.compile(r"(?:torch\.utils\.tensorboard|tensorboardX)\.SummaryWriter\Z|wandb\.init\Z")
_DCP = re.compile(r"torch\.distributed\.checkpoint\.(?:\w+\.)?(save|load)(?:_state_dict)?\Z")
_MANAGER = {
    "should_save": ("step % save_interval == 0", ""),
    "save": ('dcp.save(state_dict, checkpoint_id=f"{folder}/{step}")', "All ranks call it"),
    "save_async": (
        'future = dcp.async_save(state_dict, checkpoint_id=f"{folder}/{step}")',
        'It needs init_process_group("cpu:gloo,tpu:tpu_dist")',
    ),
    "restore": ('dcp.load(state_dict, checkpoint_id=f"{folder}/{step}")', "All ranks call it"),
    "all_steps": ("sorted(int(name) for name in os.listdir(folder))", ""),
    "join": ("future.result()", ""),
    "reached_preemption": ("", "A save before a preemption has no counterpart"),
}


def kinds(rules: Iterable[str]) -> frozenset[str]:
    """What a program is whose places with these rules are left: ``spmd``, ``fsdp`` or both."""
    found = set(rules)
    named = (("spmd", _SPMD), ("fsdp", _FSDP))
    return frozenset(kind for kind, codes in named if found & codes)


def steps(it: Analysis, around: frozenset[str] = frozenset()) -> list[Step]:
    """The steps of one file in the order of the source, none where it is no such program.

    ``around``: what the other files are that this one works with.
    """
    plan = _FilePlan(it, around)
    if not plan.kinds:
        return []
    return sorted(plan.all(), key=lambda step: (step.line, step.column))


class _FilePlan:
    def __init__(self, it: Analysis, around: frozenset[str]) -> None:
        self.it, self.tree, self.builder = it, it.tree, it.builder
        left = (s for s in it.sites if s.counts and not s.fixable and s not in it.suppressed)
        self.kinds = kinds(s.rule.code for s in left) | around
        # A program of FSDP alone runs in one process for each device already.
        self.single_controller = "spmd" in self.kinds
        self.batches = {
            site for site, found in it.shardings.of.items() if self._of_batch(site, found)
        }

    def all(self) -> Iterator[Step]:
        for site in self.it.sites:
            if site in self.it.suppressed or not (site.counts or site.rule.code[3] == "9"):
                continue
            if _VARIABLES.match(site.path):
                auto = (
                    "there is no automatic sharding: choose FSDP2 or a plan of parallelize_module"
                )
                yield self._step(
                    site.node, "environment", f"the variable {site.path}", "",
                    auto if "AUTO" in site.path else "nothing switches a mode: it goes",
                )  # fmt: skip
            elif not site.fixable:
                yield from self._of_site(site)
        for node in descendants(self.tree.module):
            if isinstance(node, cst.Call):
                yield from self._call(node)
            elif isinstance(node, cst.If) and self.single_controller:
                yield from self._entry(node)

    def _step(
        self, node: cst.CSTNode, stage: str, what: str, target: str, note: str = "",
        devices: int | None = None,
    ) -> Step:  # fmt: skip
        start, lines = self.tree.span(node)[0], self.it.plan.lines
        note = note[:1].upper() + note[1:].removesuffix(".")
        line = lines.index(start)
        return Step(
            stage, self.it.path, line + 1, start - lines.starts[line] + 1, what, target, note,
            devices,
        )  # fmt: skip

    def _replaced(self, node: cst.CSTNode, new: str) -> str:
        """The statement of an expression with another in its place, on one line; the new text
        alone where it is no simple statement.
        """
        statement = self.tree.statement(node)
        if not isinstance(statement, cst.BaseSmallStatement):
            return new
        (start, end), (a, b) = self.tree.span(statement), self.tree.span(node)
        return " ".join(f"{self.tree.text[start:a]}{new}{self.tree.text[b:end]}".split())

    def _source(self, node: cst.CSTNode) -> str:
        return " ".join(self.tree.source(node).split())

    # -- findings that are left --------------------------------------------------------------

    def _of_site(self, site: Site) -> Iterator[Step]:
        code, name = site.rule.code, site.path.rpartition(".")[2]
        shardings = self.it.shardings
        if site in shardings.of:
            yield self._annotation(site, shardings.of[site])
        elif site in shardings.meshes:
            yield self._mesh(site, shardings.meshes[site])
        elif site in shardings.wrappings:
            if not self._is_inside_wrapper(site):
                yield self._wrapper(site, shardings.wrappings[site])
        elif code == "XLA801":
            yield self._use_spmd(site)
        elif code == "XLA803":
            yield self._global_mesh(site, name)
        elif code in ("XLA811", "XLA816"):
            yield from self._of_wrapper(site, name)
        elif code == "XLA812":
            arguments = "" if site.call is None else ", ".join(map(self._source, site.call.args))
            yield self._step(
                site.node, "model", "activation checkpointing of a module",
                f"checkpoint_wrapper({arguments})", "Before fully_shard",
            )  # fmt: skip
        elif code == "XLA813":
            yield self._step(
                site.node, "model", "wrap policy", "",
                "FSDP2 takes none: the loop over the modules chooses the blocks",
            )  # fmt: skip
        elif code in ("XLA814", "XLA817", "XLA818"):
            yield from self._checkpoint(site, name)
        elif code == "XLA809" and name in _DTENSOR and site.call is not None:
            given = ", ".join(map(self._source, site.call.args))
            target = self._replaced(site.call, f"{_DTENSOR[name]}({given})")
            note = 'The mesh is one of init_device_mesh("tpu", ...)'
            yield self._step(site.node, "model", _title(site), target, note)
        elif name in ("clear_sharding", "shard_as") and site.call is not None:
            yield self._relayout(site, name, site.call)
        elif code in _ALONG:
            target, note = _COUNTS.get(name, ("", site.advice or site.rule.advice))
            if target and site.call is not None:
                target = self._replaced(site.call, target)
            yield self._step(site.node, _ALONG[code], _title(site), target, note)
        elif code in _SPMD | _FSDP:
            yield self._step(site.node, "rest", _title(site), "", site.advice or site.rule.advice)

    def _is_inside_wrapper(self, site: Site) -> bool:
        """Whether it is in what another wrapper gets, such as its auto_wrapper_callable."""
        others = (s.call for s in self.it.shardings.wrappings if s is not site)
        return any(call is not None and self.tree.is_within(site.node, call) for call in others)

    def _wrapper(self, site: Site, wrapping: Wrapping) -> Step:
        statement = self.tree.statement(site.node)
        targets = statement.targets if isinstance(statement, cst.Assign) else []
        is_whole = isinstance(statement, cst.Assign) and statement.value is site.call
        name = self._source(targets[0].target) if is_whole and len(targets) == 1 else ""
        if not name.replace(".", "").isidentifier():
            name = wrapping.module if wrapping.module.isidentifier() else "model"
        notes = ("Before the optimizer is built, and on all ranks", *wrapping.by_hand)
        code = "\n".join(wrapping.lines(name))
        return self._step(site.node, "model", "wrapper of FSDP", code, "; ".join(notes))

    def _relayout(self, site: Site, name: str, call: cst.Call) -> Step:
        """Where an annotation is taken away, or taken over from another tensor."""
        given = [self._source(arg.value) for arg in call.args]
        if name == "clear_sharding":
            target, note = f"{''.join(given[:1])}.full_tensor()", "It gathers: all ranks call it"
        else:
            a, b = (*given, "a", "b")[:2]
            target, note = f"{b}.redistribute({a}.device_mesh, {a}.placements)", "For DTensors"
        return self._step(
            site.node, "activations", _title(site), self._replaced(call, target), note
        )

    def _use_spmd(self, site: Site) -> Step:
        auto = site.call is not None and bool(site.call.args)
        note = "Before any tensor is put on the device. One process for each device from here on"
        if auto and self._source(site.call or site.node).replace(" ", "").endswith("True)"):
            note += "; there is no automatic sharding: choose FSDP2 or a plan of parallelize_module"
        return self._step(
            site.node, "group", "the switch to SPMD", 'dist.init_process_group("tpu_dist")', note
        )

    def _of_wrapper(self, site: Site, name: str) -> Iterator[Step]:
        becomes = method(site.path)
        if becomes is None and "()." in site.path and name in _OF_MODULES:
            return  # it stays as it is
        if becomes is None:
            yield self._step(site.node, "rest", _title(site), "", site.advice or site.rule.advice)
            return
        stages = {"get_shard_metadata": "checkpoint", "state_dict": "checkpoint"}
        stages |= {"load_state_dict": "checkpoint", "module": "model"}
        stage = stages.get(name, "optimizer")
        if name == "clip_grad_norm_" and site.call is not None:
            model = self._source(site.call.func)[: -len(".clip_grad_norm_")]
            rest = "".join(f", {self._source(arg)}" for arg in site.call.args)
            call = f"torch.nn.utils.clip_grad_norm_({model}.parameters(){rest})"
            target = self._replaced(site.call, call)
            note = "The norm is a DTensor: .full_tensor() on all ranks before .item()"
            yield self._step(site.node, stage, "clipping of gradients", target, note)
        else:
            yield self._step(site.node, stage, f"`{name}` of the wrapper", "", f"It is {becomes}")
        if name == "get_shard_metadata":
            yield self._old_shards(site)

    def _old_shards(self, site: Site) -> Step:
        return self._step(
            site.node, "convert", "checkpoints in one file for each rank",
            "python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts --ckpt_prefix PREFIX"
            ' --ckpt_suffix "*.pth"',
            "Only torch_xla can join them",
        )  # fmt: skip

    # -- meshes and annotations --------------------------------------------------------------

    def _mesh(self, site: Site, mesh: Mesh) -> Step:
        def given(name: str) -> str | None:
            arg = mesh.bound.args.get(name)
            return None if arg is None else self._source(arg.value)

        notes = ["All ranks make it, after the process group"]
        if mesh.kind == "get_1d_mesh":
            axis = given("axis_name")
            names = "" if axis in (None, "None") else f", mesh_dim_names=({axis},)"
            new = f'init_device_mesh("tpu", (dist.get_world_size(),){names})'
        elif mesh.kind == "HybridMesh":
            new = self._hybrid(given, mesh)
            notes.append("shape is that of all devices; torch_xla took that of one slice")
        else:
            axes = given("axis_names")
            names = "" if axes in (None, "None") else f", mesh_dim_names={axes}"
            shape = given("mesh_shape") or ""
            new = f'init_device_mesh("tpu", {shape}{names})'
            if not self._is_in_order(mesh, site):
                ids = given("device_ids")
                new = f'DeviceMesh("tpu", torch.as_tensor({ids}).reshape({shape}){names})'
                notes.append(
                    "if the ids are 0, 1, 2, ... in order, init_device_mesh does it; they are"
                    " ranks now, whose chips may be other ones"
                )
        told = mesh_told(mesh)
        if told is not None:
            notes.append(told.replace("its constant shape", "the constant shape"))
        elif mesh.kind != "get_1d_mesh":
            notes.append("its shape has to multiply to the world size")
        target = self._replaced(mesh.call, new)
        return self._step(site.node, "mesh", "mesh", target, "; ".join(notes), mesh.devices)

    def _hybrid(self, given: Callable[[str], str | None], mesh: Mesh) -> str:
        inner, outer, axes = given("ici_mesh_shape"), given("dcn_mesh_shape"), given("axis_names")
        names = "" if axes is None else f", mesh_dim_names={axes}"
        if outer is None:
            shape, dcn = inner, ""
        else:
            dcn = f", dcn_mesh_shape={outer}"
            shape = f"tuple(i * d for i, d in zip({inner}, {outer}))"
        if mesh.devices is not None and mesh.sizes is not None:
            shape = f"({', '.join(map(str, mesh.sizes))}{',' * (len(mesh.sizes) == 1)})"
        full = f"torch.tpu.distributed.topology_aware_mesh({shape}{dcn})"
        return f'DeviceMesh("tpu", {full}{names})'

    def _is_in_order(self, mesh: Mesh, site: Site) -> bool:
        """Whether the ids of a mesh are 0, 1, 2, ... for certain."""
        node: cst.BaseExpression = mesh.bound.args["device_ids"].value
        found = values(self.tree, node, site.scope)
        nodes = [value for value, _ in found] or [node]
        return all(re.fullmatch(_ORDERED, self._source(n).replace(" ", "")) for n in nodes)

    def _global_mesh(self, site: Site, name: str) -> Step:
        if name == "set_global_mesh" and site.call is not None and site.call.args:
            target = f"MESH = {self._source(site.call.args[0].value)}"
            note = "There is no global mesh: hand it on, or keep it in a variable of a module"
        else:
            target, note = "", "Take the mesh from where it is made; there is no global one"
        return self._step(site.node, "mesh", _title(site), target, note)

    def _annotation(self, site: Site, sharding: Sharding) -> Step:
        name = site.path.rpartition(".")[2]
        text = sharding.text or "placements"
        mesh_arg = sharding.bound.args.get("mesh")
        mesh = "mesh" if mesh_arg is None else self._source(mesh_arg.value)
        why = "" if sharding.text is not None else f"; {sharding.told}"
        if name == "ShardingSpec":
            what = f"sharding of the batches of a loader{why}"
            note = "It goes: the loader of each rank loads its part"
            return self._step(site.node, "data", what, "", note)
        node = sharding.tensor
        assert node is not None
        tensor = self._source(node)
        if name.endswith("manual_sharding"):
            return self._manual_region(site, sharding, name, tensor, mesh, text, why)
        role = self._role(site, name, node)
        if role == "activation":
            new = f"{tensor}.redistribute({mesh}, {text})"
            target = self._assigned(sharding.call, node, new)
            note = _ACTIVATION_NOTE
            if name in ("mark_sharding_with_gradients", "MarkShardingFunction"):
                note += ". The gradient gets the layout that the tensor had"
            what, stage = "sharding of an activation", "activations"
        elif role == "input":
            target = f"{tensor} = DTensor.from_local({tensor}, {mesh}, {text})"
            what, stage, note = "sharding of a batch", "data", _INPUT_NOTE
        elif role == "parameters":
            target = "\n".join(_partition(mesh, text))
            what, stage, note = "sharding of parameters in a loop", "model", _LOOP_NOTE
        elif role == "parameter":
            bare = tensor.removesuffix(".data")
            target = f"{bare} = nn.Parameter(distribute_tensor({bare}.data, {mesh}, {text}))"
            what, stage, note = "sharding of a parameter", "model", _PARAMETER_NOTE
        else:
            new = f"distribute_tensor({tensor}, {mesh}, {text})"
            target = self._assigned(sharding.call, node, new)
            what, stage, note = "sharding of a tensor", "model", _TENSOR_NOTE
        target = "" if sharding.wrong else target
        return self._step(site.node, stage, what + why, target, note)

    def _assigned(self, call: cst.Call, tensor: cst.BaseExpression, new: str) -> str:
        """The statement with the new text for a call; what annotated in place assigns now."""
        if not isinstance(self.tree.parent(call), cst.Expr):
            return self._replaced(call, new)
        is_name = isinstance(tensor, (cst.Name, cst.Attribute))
        return f"{self._source(tensor)} = {new}" if is_name else new

    def _manual_region(
        self, site: Site, sharding: Sharding, name: str, tensor: str, mesh: str, text: str, why: str
    ) -> Step:
        if name == "enable_manual_sharding":
            new, what = f"{tensor}.to_local()", "entry into a region of local shapes"
            note = "Or local_map around the region"
            if sharding.text is not None:
                note = f"The tensor has the placements {text} on {mesh}. {note}"
        else:
            new = f"DTensor.from_local({tensor}, {mesh}, {text})"
            what, note = "way out of a region of local shapes", "Give shape and stride of the whole"
        target = self._replaced(sharding.call, new)
        return self._step(site.node, "activations", what + why, target, note)

    def _role(self, site: Site, name: str, node: cst.BaseExpression) -> str:
        """What an annotated tensor is, as far as the file tells it."""
        if name in (
            "mark_sharding_with_gradients",
            "MarkShardingFunction",
            "annotate_custom_sharding",
        ):
            return "activation"
        while isinstance(node, cst.Attribute) and node.attr.value == "data":
            node = node.value
        if isinstance(node, cst.Attribute):
            if node.attr.value in ("weight", "bias"):
                return "parameter"
            found = values(self.tree, node, site.scope)
            made = [self._meaning(v) for v, _ in found if isinstance(v, cst.Call)]
            return "parameter" if made and set(made) == {"torch.nn.Parameter"} else "tensor"
        if not isinstance(node, cst.Name):
            return "tensor"
        for above in self.tree.ancestors(site.node):
            if isinstance(above, cst.For) and node.value in _names(above.target):
                if re.search(r"parameters\(", self._source(above.iter)):
                    return "parameters"
                return "input" if self._is_over_loader(above.iter) else "tensor"
            if isinstance(above, cst.FunctionDef):
                return "activation" if above.name.value == "forward" else "tensor"
        return "tensor"

    def _of_batch(self, site: Site, sharding: Sharding) -> bool:
        name, tensor = site.path.rpartition(".")[2], sharding.tensor
        if tensor is None:
            return name == "ShardingSpec"
        return name == "mark_sharding" and self._role(site, name, tensor) == "input"

    def _is_over_loader(self, node: cst.BaseExpression) -> bool:
        while isinstance(node, cst.Call):
            func = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
            name = func.value if isinstance(func, cst.Name) else ""
            if name not in _AROUND_A_LOADER or not node.args:
                return self._meaning(node) == _DATA_LOADER or bool(_LOADERS.search(name))
            node = node.args[0].value
        last = node.attr if isinstance(node, cst.Attribute) else node
        made = [v for v, _ in values(self.tree, node, self.tree.scope(node))]
        if any(isinstance(v, cst.Call) and self._meaning(v) == _DATA_LOADER for v in made):
            return True
        return isinstance(last, cst.Name) and _LOADERS.search(last.value) is not None

    def _meaning(self, call: cst.Call) -> str:
        return self.builder.callee(call, self.tree.scope(call)) or ""

    # -- checkpoints -------------------------------------------------------------------------

    def _checkpoint(self, site: Site, name: str) -> Iterator[Step]:
        if site.rule.code == "XLA814":
            yield self._old_shards(site)
            return
        if "()." in site.path:
            target, note = _MANAGER.get(name, ("", site.rule.advice))
            yield self._step(site.node, "checkpoint", f"`{name}` of the manager", target, note)
        elif name == "CheckpointManager":
            yield self._old_spmd(site)
            yield self._step(
                site.node, "checkpoint", "manager of checkpoints", "",
                "There is none in torch: count the steps and delete old folders in the program",
            )  # fmt: skip
        elif name == "prime_optimizer":
            yield self._step(
                site.node, "checkpoint", "states made for an optimizer", "",
                "It goes: get_state_dict and set_state_dict make the states",
            )  # fmt: skip
        else:
            if name in ("SPMDLoadPlanner", "SPMDSavePlanner"):
                yield self._old_spmd(site)
            yield self._step(
                site.node, "checkpoint", "planner of checkpoints", "",
                "Leave planner= out: the default ones know DTensor",
            )  # fmt: skip

    def _old_spmd(self, site: Site) -> Step:
        return self._step(
            site.node, "convert", "checkpoints of the SPMD program", "",
            "Whether torch.distributed.checkpoint reads them into DTensors is not proven: load them"
            " with the old program and write plain state dicts by torch.save",
        )  # fmt: skip

    # -- plain PyTorch -----------------------------------------------------------------------

    def _call(self, call: cst.Call) -> Iterator[Step]:
        path = self._meaning(call)
        if path == "builtins.print" or path == "builtins.open":
            writes = path.endswith("print") or self._writes(call)
            if self.single_controller and writes and not self._is_guarded(call):
                what = "print" if path.endswith("print") else "file that is written"
                yield self._step(call, "output", what, "", _ONCE)
        elif _WRITERS.match(path):
            if self.single_controller and not self._is_guarded(call):
                yield self._step(call, "output", f"{path.rpartition('.')[2]} of a log", "", _ONCE)
        elif path == _DATA_LOADER:
            if self.single_controller:
                yield from self._loader(call)
        elif path == "torch.manual_seed" and self.single_controller:
            yield self._step(
                call, "ranks", "seed", "",
                "One seed gives plain tensors the same random numbers on all ranks, dropout masks"
                " too: right for weights, not for data",
            )  # fmt: skip
        elif path.startswith("torch.optim.") and path.count(".") == 2:
            if path.rpartition(".")[2][:1].isupper():
                yield self._step(
                    call, "optimizer", "optimizer", self._replaced(call, self._source(call)),
                    "Behind the sharding of the parameters, which it holds",
                )  # fmt: skip
        elif path == "torch.nn.utils.clip_grad_norm_":
            yield self._step(
                call, "optimizer", "clipping of gradients", "",
                "It works on DTensors; the norm is one: .full_tensor() on all ranks before .item()",
            )  # fmt: skip
        elif path in ("torch.save", "torch.load", "torch_xla.core.xla_model.save"):
            yield from self._saved(call, path)
        elif (match := _DCP.match(path)) is not None:
            yield self._step(
                call, "checkpoint", f"{match[1]} of a distributed checkpoint",
                f"dcp.{match[1]}(state_dict, checkpoint_id=folder)",
                "It takes the state_dict of get_state_dict(model, optimizer); all ranks call it",
            )  # fmt: skip

    def _writes(self, call: cst.Call) -> bool:
        modes = [a.value for i, a in enumerate(call.args) if i == 1 and a.keyword is None]
        modes += [a.value for a in call.args if a.keyword and a.keyword.value == "mode"]
        mode = constant(self.tree, modes[0], self.tree.scope(call)) if modes else "r"
        return isinstance(mode, str) and any(c in mode for c in "wax")

    def _is_guarded(self, node: cst.CSTNode) -> bool:
        """Whether a test of the rank stands around it."""
        below = node
        for above in self.tree.ancestors(node):
            tests = above.test if isinstance(above, (cst.If, cst.IfExp)) else None
            if tests is not None and below is not tests and _RANK_TEST.search(self._source(tests)):
                return True
            below = above
        return False

    def _loader(self, call: cst.Call) -> Iterator[Step]:
        bound = bind(_LOADER_ARGUMENTS, call.args, lambda _: False)
        if isinstance(bound, str) or bound.variadic:
            yield self._step(call, "data", "loader", "", _BATCH_NOTE)
            return
        given = {name: self._source(arg.value) for name, arg in bound.args.items()}
        if "DistributedSampler" in given.get("sampler", ""):
            return
        if "batch_sampler" in given or "sampler" in given:
            note = "Its sampler has to give each rank a part of its own. " + _BATCH_NOTE
            yield self._step(call, "data", "loader with a sampler", "", note)
            return
        data, shuffle = given["dataset"], given.get("shuffle", "False")
        size = given.get("batch_size", "1")
        size = size if re.fullmatch(r"[\w.]+", size) else f"({size})"
        rest = "".join(f", {self._source(a)}" for a in bound.keywords)
        lines = [*self._replicas()]
        if not re.fullmatch(r"[\w.]+", data):
            lines.append(f"dataset = {data}")
            data = "dataset"
        lines.append(
            f"sampler = DistributedSampler({data}, num_replicas=replicas, rank=part,"
            f" shuffle={shuffle})"
        )
        new = f"DataLoader({data}, batch_size={size} // replicas, sampler=sampler{rest})"
        lines.append(self._replaced(call, new))
        yield self._step(call, "data", "loader", "\n".join(lines), _BATCH_NOTE)

    def _replicas(self) -> Iterator[str]:
        """How the batch is split, where the annotations of batches in the file agree on it."""
        found = {
            self._split(sharding)
            for site, sharding in self.it.shardings.of.items()
            if site in self.batches
        }
        only = found.pop() if len(found) == 1 else None
        if only is not None:
            yield f"replicas, part = {only}"

    def _split(self, sharding: Sharding) -> str | None:
        spec, mesh = sharding.spec, sharding.mesh
        if not spec or sharding.wrong:
            return None
        if spec[0] is None:
            return "1, 0"
        axes = spec[0] if isinstance(spec[0], tuple) else (spec[0],)
        if mesh is None or mesh.axes is None:
            return None
        if len(axes) == len(mesh.axes):
            return "dist.get_world_size(), dist.get_rank()"
        axis = mesh.axes[axes[0]] if isinstance(axes[0], int) else axes[0]
        given = sharding.bound.args.get("mesh")
        if len(axes) > 1 or axis is None or given is None:
            return None
        name = self._source(given.value)
        return f'{name}["{axis}"].size(), {name}["{axis}"].get_local_rank()'

    def _saved(self, call: cst.Call, path: str) -> Iterator[Step]:
        if path == "torch.load":
            if not re.search(r"state|model|optim|ckpt|checkpoint|weights", self._source(call)):
                return
            yield self._step(
                call, "checkpoint", "load of a file",
                "set_model_state_dict(model, state_dict, options=StateDictOptions("
                "full_state_dict=True, broadcast_from_rank0=True))",
                "It takes the state_dict as torch.load gives it, on rank 0 at least",
            )  # fmt: skip
            return
        yield self._step(
            call, "checkpoint", "save of a file",
            "state_dict = get_model_state_dict(model, options=StateDictOptions("
            "full_state_dict=True, cpu_offload=True))\n"
            "if dist.get_rank() == 0:\n    torch.save(state_dict, path)",
            "The first line gathers, on all ranks; torch.distributed.checkpoint keeps the parts",
        )  # fmt: skip

    def _entry(self, node: cst.If) -> Iterator[Step]:
        if self.tree.parent(node) is not self.tree.module:
            return
        if "__name__" not in self._source(node.test):
            return
        yield self._step(
            node, "launch", "entry of the program",
            "eval \"$(python -m torch.tpu.distributed | sed 's/^/export /')\"\n"
            f"torchrun --nproc_per_node=N {self.it.path.replace(chr(92), '/')}",
            "N is the number of devices of the host; on several hosts give --nnodes, --node_rank,"
            " --master_addr and --master_port too",
        )  # fmt: skip


def _names(target: cst.CSTNode) -> set[str]:
    return {n.value for n in descendants(target) if isinstance(n, cst.Name)}


def _title(site: Site) -> str:
    return f"`{site.path.rpartition('.')[2]}`: {site.rule.title[:1].lower()}{site.rule.title[1:]}"


def _partition(mesh: str, text: str) -> Iterator[str]:
    """Code that lays out the parameters of a model one by one."""
    yield "def shard(name, module, mesh):"
    yield "    for key, param in module.named_parameters(recurse=False):"
    yield f"        sharded = distribute_tensor(param.data, mesh, {text})"
    yield "        module.register_parameter("
    yield "            key, nn.Parameter(sharded, requires_grad=param.requires_grad)"
    yield "        )"
    yield f"distribute_module(model, {mesh}, shard)"
