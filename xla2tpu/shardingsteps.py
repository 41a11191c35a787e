"""Steps of a manual plan for meshes and sharding annotations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst as cst

from xla2tpu.constants import values
from xla2tpu.model import Step
from xla2tpu.nodes import descendants
from xla2tpu.plansteps import Steps, title
from xla2tpu.shardings import Mesh, Sharding, mesh_told
from xla2tpu.sites import Site

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
# Ids of devices that are 0, 1, 2, ... for certain.
_ORDERED = re.compile(
    r"(?:np|numpy)\.(?:arange\([^,()]+(?:\(\))?\)|array\((?:list\()?range\([^,()]+(?:\(\))?\)\)*)"
    r"|list\(range\([^,()]+(?:\(\))?\)\)|range\([^,()]+(?:\(\))?\)"
)


class ShardingSteps(Steps):
    """The steps of one file for what the file says about layouts."""

    def mesh(self, site: Site, mesh: Mesh) -> Step:
        def given(name: str) -> str | None:
            arg = mesh.bound.args.get(name)
            return None if arg is None else self.source(arg.value)

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
        target = self.replaced(mesh.call, new)
        arg = self.tree.parent(mesh.call)
        if any(arg in s.call.args for s in self.it.sites if s.call and _sets_global(s)):
            target = f"MESH = {new}"
        return self.step(site.node, "mesh", "mesh", target, "; ".join(notes), mesh.devices)

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
        return all(re.fullmatch(_ORDERED, self.source(n).replace(" ", "")) for n in nodes)

    def global_mesh(self, site: Site, name: str) -> Step:
        if name == "set_global_mesh" and site.call is not None and site.call.args:
            given = site.call.args[0].value
            made = any(found.call is given for found in self.it.shardings.meshes.values())
            target = "" if made else f"MESH = {self.source(given)}"
            note = "There is no global mesh: hand it on, or keep it in a variable of a module"
        elif name == "get_global_mesh":
            target, note = "", "Take the mesh from where it is made; there is no global one"
        elif site.call is not None:
            target, note = "", site.rule.advice
        else:
            target, note = "", "The class is torch.distributed.device_mesh.DeviceMesh now"
        return self.step(site.node, "mesh", title(site), target, note)

    def relayout(self, site: Site, name: str, call: cst.Call) -> Step:
        """Where an annotation is taken away, or taken over from another tensor."""
        given = [self.source(arg.value) for arg in call.args]
        target, note = "", site.rule.advice
        if name == "clear_sharding" and len(given) == 1:
            new, note = f"{given[0]}.full_tensor()", "It gathers: all ranks call it"
            target = self._assigned(call, call.args[0].value, new)
        elif name == "shard_as" and len(given) == 2:
            a, b = given
            target = f"{b} = {b}.redistribute({a}.device_mesh, {a}.placements)"
            note = "Where both are DTensors"
        return self.step(site.node, "activations", title(site), target, note)

    def annotation(self, site: Site, sharding: Sharding) -> Step:
        name = site.path.rpartition(".")[2]
        text = sharding.text or "placements"
        mesh_arg = sharding.bound.args.get("mesh")
        mesh = "mesh" if mesh_arg is None else self.source(mesh_arg.value)
        why = "" if sharding.text is not None else f"; {sharding.told}"
        if name == "ShardingSpec":
            what = f"sharding of the batches of a loader{why}"
            note = "It goes: the loader of each rank loads its part"
            return self.step(site.node, "data", what, "", note)
        node = sharding.tensor
        assert node is not None
        tensor = self.source(node)
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
            if self._is_later_in_loop(site):
                target = f"sharded = distribute_tensor(param.data, {mesh}, {text})"
                why += "; in the function for the whole loop"
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
        return self.step(site.node, stage, what + why, target, note)

    def _is_later_in_loop(self, site: Site) -> bool:
        """Whether another annotation stands before it in the same loop."""
        loop = next(a for a in self.tree.ancestors(site.node) if isinstance(a, cst.For))
        start = self.tree.span(site.node)[0]
        others = (s.node for s in self.it.shardings.of)
        return any(self.tree.is_within(n, loop) and self.tree.span(n)[0] < start for n in others)

    def _assigned(self, call: cst.Call, tensor: cst.BaseExpression, new: str) -> str:
        """The statement with the new text for a call; what annotated in place assigns now."""
        if not isinstance(self.tree.parent(call), cst.Expr):
            return self._in_place(call, new)
        is_name = isinstance(tensor, (cst.Name, cst.Attribute))
        return f"{self.source(tensor)} = {new}" if is_name else new

    def _in_place(self, call: cst.Call, new: str) -> str:
        """The statement with the new text for a call, and for what asks for its global tensor."""
        above = self.tree.parent(call)
        asks = isinstance(above, cst.Attribute) and above.attr.value == "global_tensor"
        return self.replaced(above if asks and above is not None else call, new)

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
        target = self._in_place(sharding.call, new)
        return self.step(site.node, "activations", what + why, target, note)

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
            made = [self.meaning(v) for v, _ in found if isinstance(v, cst.Call)]
            return "parameter" if made and set(made) == {"torch.nn.Parameter"} else "tensor"
        if not isinstance(node, cst.Name):
            return "tensor"
        for above in self.tree.ancestors(site.node):
            if isinstance(above, cst.For) and node.value in _names(above.target):
                if re.search(r"parameters\(", self.source(above.iter)):
                    return "parameters"
                return "input" if self.is_over_loader(above.iter) else "tensor"
            if isinstance(above, cst.FunctionDef):
                return "activation" if above.name.value == "forward" else "tensor"
        return "tensor"

    def is_of_batch(self, site: Site, sharding: Sharding) -> bool:
        name, tensor = site.path.rpartition(".")[2], sharding.tensor
        if tensor is None:
            return name == "ShardingSpec"
        return name == "mark_sharding" and self._role(site, name, tensor) == "input"


def _sets_global(site: Site) -> bool:
    return site.path.endswith(".set_global_mesh")


def _names(target: cst.CSTNode) -> set[str]:
    return {n.value for n in descendants(target) if isinstance(n, cst.Name)}


def _partition(mesh: str, text: str) -> Iterator[str]:
    """Code that lays out the parameters of a model one by one."""
    yield "def shard(name, module, mesh):"
    yield "    for key, param in module.named_parameters(recurse=False):"
    yield f"        sharded = distribute_tensor(param.data, mesh, {text})"
    yield "        module.register_parameter("
    yield "            key, nn.Parameter(sharded, requires_grad=param.requires_grad)"
    yield "        )"
    yield f"distribute_module(model, {mesh}, shard)"
