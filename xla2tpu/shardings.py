"""Meshes and partition specs of SPMD programs, as far as one file tells them.

The findings on sharding annotations get the placements that they become into their messages,
and those on wrappers of FSDP what becomes of each argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import libcst as cst

from xla2tpu import placements
from xla2tpu.changes import Builder
from xla2tpu.constants import UNREAD, Value, constant, values
from xla2tpu.fsdparguments import Wrapping, method, wrapping
from xla2tpu.nodes import descendants
from xla2tpu.scopes import Scope
from xla2tpu.signatures import Bound, bind
from xla2tpu.sites import Site
from xla2tpu.tree import Tree

MESH = "XLA803"
_WRAPPERS = frozenset(("XLA811", "XLA816"))
_RULES = frozenset(("XLA804", "XLA805", "XLA806"))
_FUNCTION = "MarkShardingFunction"
_ANNOTATION = "(t, mesh, partition_spec, use_dynamo_custom_op=False)"
# Calls that say how a tensor is sharded, by the last part of their names.
SIGNATURES = {
    "mark_sharding": _ANNOTATION,
    "mark_sharding_with_gradients": _ANNOTATION,
    "annotate_custom_sharding": _ANNOTATION,
    _FUNCTION: "(t, mesh, partition_spec)",
    "ShardingSpec": "(mesh, partition_spec, minibatch=False)",
    "enable_manual_sharding": "(t, partition_spec, *, mesh=None)",
    "disable_manual_sharding": "(t, partition_spec, full_shape, *, mesh=None)",
}
_MESHES = {
    "Mesh": "(device_ids, mesh_shape, axis_names=None)",
    "HybridMesh": "(*, ici_mesh_shape, dcn_mesh_shape=None, axis_names=None)",
    "get_1d_mesh": "(axis_name=None)",
}
_GLOBAL, _SET_GLOBAL = "get_global_mesh", "set_global_mesh"
_SPMD_PATHS = ("torch_xla.distributed.spmd.", "torch_xla.experimental.xla_sharding.")
# What makes a tensor of the sizes that it gets.
_MADE = frozenset(f"torch.{n}" for n in ("empty", "ones", "rand", "randn", "zeros"))
# Parameters of layers, and how many dimensions they have.
_LAYERS = {"Linear": 2, "Embedding": 2, "Conv1d": 3, "Conv2d": 4, "Conv3d": 5, "LayerNorm": 1}
_SAME_SIZES = frozenset(
    ("to", "cuda", "float", "half", "bfloat16", "contiguous", "clone", "detach", "requires_grad_")
)


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh as a call makes it. ``axes`` are the names, None each where there are none, and
    None as a whole where not even their number is known; ``sizes`` likewise.
    """

    call: cst.Call
    kind: str
    bound: Bound
    axes: tuple[str | None, ...] | None
    sizes: tuple[int | None, ...] | None

    @property
    def devices(self) -> int | None:
        """How many devices it has, where its shape is constant."""
        if self.sizes is None or any(size is None for size in self.sizes):
            return None
        return math.prod(size for size in self.sizes if size is not None)


@dataclass(frozen=True, slots=True)
class Sharding:
    """What one annotation says. ``text`` are the placements where they are known, ``told`` is
    a sentence about them in any case. ``spec`` is None where it is not literal; ``wrong``: XLA
    refuses it, or no placements give its layout.
    """

    call: cst.Call
    bound: Bound
    mesh: Mesh | None
    spec: tuple[placements.Entry, ...] | None
    text: str | None
    told: str
    wrong: bool = False

    @property
    def tensor(self) -> cst.BaseExpression | None:
        """The tensor that is annotated; None for the sharding of batches."""
        arg = self.bound.args.get("t")
        return None if arg is None else arg.value


class Shardings:
    """Reads the meshes and annotations of one file."""

    def __init__(self, tree: Tree, builder: Builder, sites: Sequence[Site]) -> None:
        self.tree, self.builder = tree, builder
        self.of: dict[Site, Sharding] = {}
        self.meshes: dict[Site, Mesh] = {}
        self.wrappings: dict[Site, Wrapping] = {}
        self._globals = [s for s in sites if s.path.rpartition(".")[2] == _SET_GLOBAL]
        for site in sites:
            if site.rule.code in _RULES:
                sharding = self._sharding(site)
                if sharding is not None:
                    self.of[site] = sharding
            elif site.call is None:
                continue
            elif site.rule.code == MESH:
                mesh = self.mesh(site.call, site.scope)
                if mesh is not None:
                    self.meshes[site] = mesh
            elif site.rule.code in _WRAPPERS:
                found = wrapping(site, tree, builder, self._axes_given(site.call, site.scope))
                if found is not None:
                    self.wrappings[site] = found

    def _axes_given(self, call: cst.Call, scope: Scope) -> tuple[str | None, ...] | None:
        """The axes of the mesh that a wrapper gets."""
        given = [a.value for a in call.args if a.keyword is None or a.keyword.value == "mesh"]
        named = [a.value for a in call.args if a.keyword and a.keyword.value == "mesh"]
        node = named[0] if named else given[1] if len(given) > 1 else None
        mesh = self._shared() if node is None else self.mesh(node, scope)
        return None if mesh is None else mesh.axes

    # -- meshes ----------------------------------------------------------------------------

    def mesh(self, node: cst.BaseExpression, scope: Scope, depth: int = 0) -> Mesh | None:
        """The mesh that an expression stands for, None where the file does not tell it.

        Where it may be one of several, they have to agree on their axes.
        """
        if depth > 5:
            return None
        if isinstance(node, cst.Call):
            path = self.builder.callee(node, scope) or ""
            name = path.rpartition(".")[2]
            if path.startswith(_SPMD_PATHS) and name in _MESHES:
                return self._made(node, name, scope)
            if path.startswith(_SPMD_PATHS) and name == _GLOBAL:
                return self._agreed([self._global(s, depth) for s in self._globals])
            return self._returned(node, scope, depth)
        found = values(self.tree, node, scope)
        return self._agreed(
            [
                self.mesh(value, inner, depth + 1)
                for value, inner in found
                if not (isinstance(value, cst.Name) and value.value == "None")
            ]
        )

    def _shared(self) -> Mesh | None:
        """The mesh that the file makes the global one."""
        return self._agreed([self._global(site, 0) for site in self._globals])

    def _global(self, site: Site, depth: int) -> Mesh | None:
        if site.call is None or len(site.call.args) != 1:
            return None
        return self.mesh(site.call.args[0].value, site.scope, depth + 1)

    def _returned(self, call: cst.Call, scope: Scope, depth: int) -> Mesh | None:
        """The mesh that a function of the file gives, if it has one way to end."""
        if not isinstance(call.func, cst.Name):
            return None
        owner = scope.owner(call.func.value)
        bindings = owner.bindings[call.func.value] if owner is not None else []
        function = bindings[0].statement if len(bindings) == 1 else None
        if not isinstance(function, cst.FunctionDef) or function.decorators:
            return None
        returns = [n for n in descendants(function.body) if isinstance(n, cst.Return)]
        if len(returns) != 1 or returns[0].value is None:
            return None
        inner = self.tree.scope(returns[0])
        if inner.node is not function:
            return None
        return self.mesh(returns[0].value, inner, depth + 1)

    def _made(self, call: cst.Call, kind: str, scope: Scope) -> Mesh | None:
        bound = bind(_MESHES[kind], call.args, lambda _: False)
        if isinstance(bound, str):
            return None
        if kind == "get_1d_mesh":
            name = self._value(bound, "axis_name", scope)
            axis = name if isinstance(name, str) else None
            return Mesh(call, kind, bound, None if name is UNREAD else (axis,), (None,))
        if kind == "HybridMesh":
            sizes = _product(
                _sizes(self._value(bound, "ici_mesh_shape", scope)),
                _sizes(self._value(bound, "dcn_mesh_shape", scope)),
                "dcn_mesh_shape" in bound.args,
            )
        else:
            sizes = _sizes(self._value(bound, "mesh_shape", scope))
        axes = _axes(self._value(bound, "axis_names", scope), sizes)
        if axes is not None and sizes is None:
            sizes = (None,) * len(axes)
        return Mesh(call, kind, bound, axes, sizes)

    def _value(self, bound: Bound, name: str, scope: Scope) -> Value:
        arg = bound.args.get(name)
        return None if arg is None else constant(self.tree, arg.value, scope)

    def _agreed(self, meshes: Sequence[Mesh | None]) -> Mesh | None:
        first = meshes[0] if meshes else None
        if first is None or any(m is None or m.axes != first.axes for m in meshes):
            return None
        if any(m is not None and m.sizes != first.sizes for m in meshes):
            blank = None if first.axes is None else (None,) * len(first.axes)
            return Mesh(first.call, first.kind, first.bound, first.axes, blank)
        return first

    # -- annotations -----------------------------------------------------------------------

    def _sharding(self, site: Site) -> Sharding | None:
        name, call = site.path.rpartition(".")[2], site.call
        if name == _FUNCTION:
            # The class is what the finding is about; its `apply` annotates.
            above = self.tree.parent(site.node)
            outer = self.tree.parent(above) if isinstance(above, cst.Attribute) else None
            call = outer if isinstance(outer, cst.Call) and outer.func is above else None
        if call is None or name not in SIGNATURES:
            return None
        bound = bind(SIGNATURES[name], call.args, lambda _: False)
        if isinstance(bound, str):
            return None
        given = bound.args.get("mesh")
        if given is not None:
            mesh = self.mesh(given.value, site.scope)
        else:
            mesh = self._shared()
        spec = _spec(self._value(bound, "partition_spec", site.scope))
        if spec is None:
            told = f"its spec is not literal here; {placements.RULE}"
            return Sharding(call, bound, mesh, None, None, told)
        try:
            self._check_rank(bound, spec, site.scope)
            if mesh is None or mesh.axes is None:
                told = f"placements: {placements.by_axis(spec)}"
                return Sharding(call, bound, mesh, spec, None, told)
            text = placements.text(placements.placements(mesh.axes, spec))
        except placements.SpecError as error:
            return Sharding(call, bound, mesh, spec, None, f"no placements: {error}", wrong=True)
        return Sharding(call, bound, mesh, spec, text, f"placements on this mesh: {text}")

    def _check_rank(self, bound: Bound, spec: Sequence[placements.Entry], scope: Scope) -> None:
        arg = bound.args.get("t")
        rank = None if arg is None else self._rank(arg.value, scope)
        if rank is not None and rank != len(spec):
            raise placements.SpecError(
                f"the spec has {len(spec)} entries and the tensor {rank} dimensions"
            )

    def _rank(self, node: cst.BaseExpression, scope: Scope, depth: int = 0) -> int | None:
        """How many dimensions a tensor has, where the file says it in numbers."""
        if depth > 5:
            return None
        if isinstance(node, cst.Call):
            path, func = self.builder.callee(node, scope), node.func
            is_method = isinstance(func, cst.Attribute) and func.attr.value in _SAME_SIZES
            if path is None and is_method and isinstance(func, cst.Attribute):
                return self._rank(func.value, scope, depth + 1)
            return self._made_rank(node, scope) if path in _MADE else None
        if isinstance(node, cst.Attribute) and node.attr.value in ("weight", "bias"):
            return self._layer_rank(node, scope)
        ranks = [self._rank(v, inner, depth + 1) for v, inner in values(self.tree, node, scope)]
        return ranks[0] if ranks and len(set(ranks)) == 1 else None

    def _layer_rank(self, node: cst.Attribute, scope: Scope) -> int | None:
        made = [(node.value, scope)]
        if not isinstance(node.value, cst.Call):
            made = values(self.tree, node.value, scope)
        paths = {
            self.builder.callee(value, inner) if isinstance(value, cst.Call) else None
            for value, inner in made
        }
        path = paths.pop() if len(paths) == 1 else None
        if path is None or not path.startswith("torch.nn."):
            return None
        rank = _LAYERS.get(path.rpartition(".")[2])
        return 1 if rank is not None and node.attr.value == "bias" else rank

    def _made_rank(self, call: cst.Call, scope: Scope) -> int | None:
        if any(arg.star for arg in call.args):
            return None
        sizes = [arg.value for arg in call.args if arg.keyword is None]
        if len(sizes) == 1:
            value = constant(self.tree, sizes[0], scope)
            if isinstance(value, (tuple, list)):
                return len(value)
            return 1 if isinstance(value, int) else None
        return len(sizes) or None


def explain(sites: Iterable[Site], found: Shardings) -> None:
    """Put the placements, and the arguments of FSDP2, into the messages of what is left."""
    for site in sites:
        if site.fixable:
            continue
        told = None
        if site in found.of:
            told = found.of[site].told
        elif site in found.meshes:
            told = mesh_told(found.meshes[site])
        elif site in found.wrappings:
            told = found.wrappings[site].told()
        elif (becomes := method(site.path)) is not None:
            told = f"in FSDP2 it is {becomes}"
        if told is not None:
            site.message = f"{site.message or site.rule.message}; {told}"


def mesh_told(mesh: Mesh) -> str | None:
    """What a constant shape asks of the launch."""
    if mesh.devices is None:
        return None
    return f"its constant shape needs a world size of {mesh.devices}"


def _sizes(value: Value) -> tuple[int | None, ...] | None:
    if not isinstance(value, (tuple, list)):
        return None
    return tuple(item if isinstance(item, int) else None for item in value)


def _product(
    inner: tuple[int | None, ...] | None, outer: tuple[int | None, ...] | None, has_outer: bool
) -> tuple[int | None, ...] | None:
    """The full shape of a mesh over several slices."""
    if inner is None or not has_outer:
        return inner
    if outer is None or len(outer) != len(inner):
        return (None,) * len(inner)
    pairs = zip(inner, outer, strict=True)
    return tuple(None if a is None or b is None else a * b for a, b in pairs)


def _axes(names: Value, sizes: tuple[int | None, ...] | None) -> tuple[str | None, ...] | None:
    """The names of the axes; None where they are not known, or cannot be those of the shape."""
    if names is None:
        return None if sizes is None else (None,) * len(sizes)
    if not isinstance(names, (tuple, list)):
        return None
    texts = tuple(name for name in names if isinstance(name, str))
    if len(texts) != len(names) or len(set(texts)) != len(texts):
        return None
    return texts if sizes is None or len(sizes) == len(texts) else None


def _spec(value: Value) -> tuple[placements.Entry, ...] | None:
    if not isinstance(value, tuple):
        return None
    entries: list[placements.Entry] = []
    for entry in value:
        if isinstance(entry, tuple):
            axes = tuple(axis for axis in entry if isinstance(axis, (int, str)))
            if len(axes) != len(entry):
                return None
            entries.append(axes)
        elif entry is None or isinstance(entry, (int, str)):
            entries.append(entry)
        else:
            return None
    return tuple(entries)
