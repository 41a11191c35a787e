"""The two FSDP wrappers of torch_xla, argument by argument, in the words of FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.constants import constant, values
from xla2tpu.scopes import Scope
from xla2tpu.sites import Site
from xla2tpu.tree import Tree

XLA_FSDP, SPMD_FSDP = "XlaFullyShardedDataParallel", "SpmdFullyShardedDataParallel"
_PARAMETERS = {
    XLA_FSDP: (
        "module", "reshard_after_forward", "flatten_parameters", "execute_sharding_on_init",
        "optimization_barrier_in_forward", "optimization_barrier_in_backward",
        "sync_on_finalization", "disable_reshard_on_root", "compute_dtype", "buffer_dtype",
        "fp32_reduce_scatter", "sharding_groups", "sharding_rank", "sharding_world_size",
        "shard_param_on_dim_0", "pin_layout_in_collective_ops", "reduce_scatter_bucket_size_mb",
        "coalesce_all_gather_ops", "auto_wrap_policy", "auto_wrapper_callable", "param_init_fn",
    ),
    SPMD_FSDP: (
        "module", "mesh", "shard_output", "auto_wrap_policy", "auto_wrapper_callable",
        "extra_data_axis",
    ),
}  # fmt: skip
_GONE = {
    "flatten_parameters": "FSDP2 never flattens, so the optimizer sees each parameter",
    "shard_param_on_dim_0": "FSDP2 shards dimension 0",
    "shard_output": "outputs are local tensors",
}
_BY_HAND = {
    "buffer_dtype": "cast the buffers by hand",
    "sharding_groups": "give the DeviceMesh of the group as mesh",
    "sharding_rank": "give the DeviceMesh of the group as mesh",
    "sharding_world_size": "give the DeviceMesh of the group as mesh",
    "param_init_fn": "build on the meta device, fully_shard, to_empty, then set the weights",
    "auto_wrapper_callable": "what it does to a block comes first: checkpoint_wrapper, say, and"
    " fully_shard on what that gives",
}
_METHODS = {
    "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm), whose result"
    " is a DTensor",
    "no_sync": "model.set_requires_gradient_sync(False), and True for the last micro-batch; it is"
    " no context manager",
    "set_gradient_divide_factors": "model.set_gradient_divide_factor(factor), with one factor",
    "get_shard_metadata": "nothing: torch.distributed.checkpoint keeps the layout itself",
    "state_dict": "get_model_state_dict(model, options=...), or the state dict of DTensors",
    "load_state_dict": "set_model_state_dict(model, state_dict, options=...)",
    "module": "the model itself: fully_shard works in place",
}
_WORLD = 'mesh = init_device_mesh("tpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))'
_POLICIES = "torch_xla.distributed.fsdp.wrap."


@dataclass(slots=True)
class Wrapping:
    """One wrapper: the ``module``, the ``arguments`` of fully_shard, what ``became`` of each that
    was given, the classes of ``blocks`` that a policy names, and what is to be done ``by_hand``.
    """

    module: str
    arguments: dict[str, str] = field(default_factory=dict)
    became: list[str] = field(default_factory=list)
    blocks: tuple[str, ...] = ()
    policy: str | None = None
    by_hand: list[str] = field(default_factory=list)
    makes_mesh: bool = False

    def told(self) -> str | None:
        """A sentence for the message of the finding, None where no argument was given."""
        return f"for fully_shard: {'; '.join(self.became)}" if self.became else None

    def lines(self, name: str) -> Iterator[str]:
        """The calls of fully_shard in its place; ``name`` is what the wrapped model is called."""
        if self.makes_mesh:
            yield _WORLD
        model = self.module
        if not model.replace(".", "").isidentifier():
            yield f"{name} = {model}"
            model = name
        rest = "".join(f", {name}={value}" for name, value in self.arguments.items())
        if self.policy is not None:
            classes = self.blocks[0] if len(self.blocks) == 1 else f"({', '.join(self.blocks)})"
            test = f"isinstance(block, {classes})" if self.blocks else "is_block(block)"
            yield f"for block in {model}.modules():"
            yield f"    if {test}:"
            yield f"        fully_shard(block{rest})"
        yield f"fully_shard({model}{rest})"
        if name != model:
            yield f"{name} = {model}"


def method(path: str) -> str | None:
    """What an attribute of a wrapped model becomes; ``path`` as the finding has it."""
    above, _, name = path.rpartition(".")
    return _METHODS.get(name) if above.endswith("()") else None


def wrapping(
    site: Site, tree: Tree, builder: Builder, axes: tuple[str | None, ...] | None
) -> Wrapping | None:
    """Read the call of a wrapper; ``axes`` are those of the mesh that it gets, as far as known.

    None where the site is no such call.
    """
    kind = site.path.rpartition(".")[2]
    if site.call is None or kind not in _PARAMETERS:
        return None
    given: dict[str, cst.BaseExpression] = {}
    stars: list[str] = []
    for index, arg in enumerate(site.call.args):
        if arg.star:
            stars.append(arg.star + tree.source(arg.value))
        elif arg.keyword is not None:
            given[arg.keyword.value] = arg.value
        elif index < len(_PARAMETERS[kind]) and not stars:
            given[_PARAMETERS[kind][index]] = arg.value
    module = given.pop("module", None)
    found = Wrapping("model" if module is None else tree.source(module))
    reader = _Reader(found, given, tree, builder, site.scope, axes)
    reader.read(kind)
    for star in stars:
        found.by_hand.append(f"look at what `{star}` holds")
    return found


@dataclass(slots=True)
class _Reader:
    found: Wrapping
    given: dict[str, cst.BaseExpression]
    tree: Tree
    builder: Builder
    scope: Scope
    axes: tuple[str | None, ...] | None

    def read(self, kind: str) -> None:
        found = self.found
        if kind == SPMD_FSDP:
            self._mesh()
        else:
            found.arguments["mesh"], found.makes_mesh = "mesh", True
        precision: list[str] = []
        for name, node in self.given.items():
            text = self.tree.source(node)
            if name == "reshard_after_forward":
                found.arguments[name] = text
                found.became.append(f"`{name}` stays")
            elif name == "compute_dtype":
                precision.append(f"param_dtype={text}")
                self._becomes(name, f"mp_policy=MixedPrecisionPolicy(param_dtype={text})")
            elif name == "fp32_reduce_scatter" and text != "False":
                precision.append("reduce_dtype=torch.float32")
                self._becomes(name, "mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32)")
            elif name == "disable_reshard_on_root" and text == "False":
                self._becomes(name, "reshard_after_forward=True on the root")
            elif name == "auto_wrap_policy":
                self._policy(node)
            elif name in _BY_HAND:
                found.became.append(f"`{name}`: {_BY_HAND[name]}")
                found.by_hand.append(f"`{name}`: {_BY_HAND[name]}")
            elif name not in ("mesh", "extra_data_axis"):
                why = f" ({_GONE[name]})" if name in _GONE else ""
                found.became.append(f"`{name}` goes{why}")
        if precision:
            found.arguments["mp_policy"] = f"MixedPrecisionPolicy({', '.join(precision)})"

    def _becomes(self, name: str, text: str) -> None:
        self.found.became.append(f"`{name}` is `{text}`")

    def _mesh(self) -> None:
        node = self.given.get("mesh")
        mesh = "mesh" if node is None or isinstance(node, cst.Call) else self.tree.source(node)
        extra = self.given.get("extra_data_axis")
        if extra is not None:
            axis = constant(self.tree, extra, self.scope)
            if axis is not None:
                mesh = f'{mesh}[{self.tree.source(extra)}, "fsdp"]'
                self._becomes("extra_data_axis", f"mesh={mesh}")
                self.found.by_hand.append("the data axis has to stand before fsdp in the mesh")
        elif self.axes is None or len(self.axes) > 1:
            mesh = f'{mesh}["fsdp"]'
        if extra is None and node is not None:
            self._becomes("mesh", f"mesh={mesh}")
        self.found.arguments["mesh"] = mesh

    def _policy(self, node: cst.BaseExpression) -> None:
        """The classes that a policy chooses, where it stands in the file as torch_xla has it."""
        found = self.found
        for value, scope in values(self.tree, node, self.scope) or [(node, self.scope)]:
            call = value if isinstance(value, cst.Call) else None
            inner = call.args[0].value if call is not None and call.args else value
            path = self.builder.meaning(inner, scope) or ""
            policy = path.removeprefix(_POLICIES) if path.startswith(_POLICIES) else ""
            found.policy = policy or "policy"
            if call is None or policy != "transformer_auto_wrap_policy":
                continue
            for arg in call.args:
                is_classes = arg.keyword is not None and arg.keyword.value.endswith("layer_cls")
                if is_classes and isinstance(arg.value, (cst.Set, cst.Tuple, cst.List)):
                    found.blocks = tuple(self.tree.source(e.value) for e in arg.value.elements)
        if found.blocks:
            shown = ", ".join(found.blocks)
            text = f"a loop that calls fully_shard on each {shown}, then on the model"
        else:
            text = "a loop that calls fully_shard on each block that it chose, then on the model"
        found.became.append(f"`auto_wrap_policy` is {text}")
        if not found.blocks:
            size = " (a size chose them: name classes)" if "size" in (found.policy or "") else ""
            found.by_hand.append(f"is_block tells the modules that the policy chose{size}")
