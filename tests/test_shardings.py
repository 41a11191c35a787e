"""What the findings on meshes, annotations and wrappers say of their counterparts."""

from __future__ import annotations

import pytest

from xla2tpu.engine import run_source
from xla2tpu.model import Mode, Settings

HEAD = """\
import functools

import numpy as np
import torch
import torch.nn as nn
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.distributed.spmd import Mesh
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

n = xr.global_runtime_device_count()
ids = np.arange(n)
"""


def told(source: str, rule: str = "XLA804") -> list[str]:
    """What is said behind the message of the rule itself, place by place."""
    settings = Settings(mode=Mode.CHECK, root="/nowhere")
    result = run_source((HEAD + source).encode(), "/nowhere/train.py", settings)
    assert result.error is None
    found = [f.message for f in result.findings if f.rule == rule]
    return [message.partition("; ")[2] for message in found]


ON_MESH = "placements on this mesh: "
MARKED = "xs.mark_sharding(x, mesh, {})\n"
AB = 'mesh = Mesh(ids, (n // 2, 2), ("a", "b"))\n'
BY_NAME = 'placements: Shard(0) on "a", Replicate() on other axes'


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (AB + MARKED.format('("a", None)'), "[Shard(0), Replicate()]"),
        (AB + MARKED.format("(1, 0)"), "[Shard(1), Shard(0)]"),
        (AB + MARKED.format('(None,) * 2 + ("b",)'), "[Replicate(), Shard(2)]"),
        (AB + 'spec = ("a", "b")\n' + MARKED.format("spec"), "[Shard(0), Shard(1)]"),
        (
            AB + 'xs.mark_sharding(t=x, partition_spec=("b",), mesh=mesh)\n',
            "[Replicate(), Shard(0)]",
        ),
        (AB + 'y = xs.mark_sharding_with_gradients(x, mesh, ("b",))\n', "[Replicate(), Shard(0)]"),
        (AB + 'y = xs.MarkShardingFunction.apply(x, mesh, ("b",))\n', "[Replicate(), Shard(0)]"),
        (AB + 'y = xs.annotate_custom_sharding(x, mesh, ("b",))\n', "[Replicate(), Shard(0)]"),
        ("mesh = xs.Mesh(ids, (n, 1))\n" + MARKED.format("(0, 1)"), "[Shard(0), Shard(1)]"),
        ('mesh = xs.get_1d_mesh("a")\n' + MARKED.format('("a",)'), "[Shard(0)]"),
        ("mesh = xs.get_1d_mesh()\n" + MARKED.format("(None, 0)"), "[Shard(1)]"),
        ('xs.mark_sharding(x, xs.get_1d_mesh("a"), (None, "a"))\n', "[Shard(1)]"),
        ('names = ("a",)\nmesh = Mesh(ids, (n,), names)\n' + MARKED.format('("a",)'), "[Shard(0)]"),
        (
            'mesh = Mesh(ids, shape, ("a", "b"))\n' + MARKED.format('("b",)'),
            "[Replicate(), Shard(0)]",
        ),
        (
            "mesh = xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1),"
            ' axis_names=("a", "b"))\n' + MARKED.format('("b",)'),
            "[Replicate(), Shard(0)]",
        ),
        (
            'xs.set_global_mesh(Mesh(ids, (n,), ("a",)))\nmesh = xs.get_global_mesh()\n'
            + MARKED.format('("a",)'),
            "[Shard(0)]",
        ),
        (
            'def make():\n    return Mesh(ids, (n,), ("a",))\nmesh = make()\n'
            + MARKED.format('("a",)'),
            "[Shard(0)]",
        ),
        (
            "class Net(nn.Module):\n    def __init__(self):\n        self.mesh = None\n"
            '        self.mesh = Mesh(ids, (n,), ("a",))\n    def forward(self, x):\n'
            '        xs.mark_sharding(x, self.mesh, ("a", None))\n',
            "[Shard(0)]",
        ),
        (
            'mesh = Mesh(ids, (n,), ("b",))\nmesh = Mesh(ids, (n,), ("a",))\n'
            + MARKED.format('("a",)'),
            "[Shard(0)]",
        ),
        (
            "x = torch.zeros(2, n).to(d)\n" + AB + MARKED.format('("a", "b")'),
            "[Shard(0), Shard(1)]",
        ),
        ("x = torch.zeros(f())\n" + AB + MARKED.format('("a", "b")'), "[Shard(0), Shard(1)]"),
    ],
)
def test_placements_on_a_mesh(source: str, wanted: str) -> None:
    assert told(source) == [ON_MESH + wanted]


@pytest.mark.parametrize(
    "before",
    [
        "",
        "def f(mesh):\n    pass\n",
        'mesh = Mesh(ids, (n,), names)\nnames = ["a"]\n',
        'mesh = Mesh(ids, (n, 1), ("a",))\n',
        'mesh = Mesh(ids, (n, 1), ("a", "a"))\n',
        'mesh = Mesh(ids, (n,), ("a",)) if n else Mesh(ids, (n, 1), ("b", "a"))\n',
        'if n:\n    mesh = Mesh(ids, (n,), ("a",))\nelse:\n    mesh = Mesh(ids, (n,), ("b",))\n',
        "for mesh in meshes:\n    pass\n",
        "mesh = Mesh(*arguments)\n",
        'def f():\n    if n:\n        return\n    return Mesh(ids, (n,), ("a",))\nmesh = f()\n',
        '@decorated\ndef make():\n    return Mesh(ids, (n,), ("a",))\nmesh = make()\n',
        "mesh = xs.get_global_mesh()\n",
        'mesh = Mesh(ids, (n,), ("a",))\ndef f():\n    global mesh\n    mesh = other\n',
    ],
)
def test_a_mesh_that_is_not_known(before: str) -> None:
    assert told(before + MARKED.format('("a", None)')) == [BY_NAME]


def test_a_mesh_that_is_set_from_outside() -> None:
    source = (
        "class Net(nn.Module):\n    def __init__(self):\n"
        '        self.mesh = Mesh(ids, (n,), ("a",))\n    def forward(self, x):\n'
        '        xs.mark_sharding(x, self.mesh, ("a", None))\n'
    )
    assert told(source) == [ON_MESH + "[Shard(0)]"]
    assert told(source + "net = Net()\nnet.mesh = other\n") == [BY_NAME]


@pytest.mark.parametrize(
    "spec", ["spec", '("a", name)', '["a", None]', '("a", ("b", 1.0))', "tuple(x)", "(*x, None)"]
)
def test_a_spec_that_is_not_known(spec: str) -> None:
    (found,) = told(AB + MARKED.format(spec))
    assert found.startswith("its spec is not literal here; for each axis of the mesh Shard(d)")


@pytest.mark.parametrize(
    ("before", "spec", "words"),
    [
        ("", '(("b", "a"), None)', "dimension 0 is sharded over axes against their order"),
        ("", '("a", "a")', 'the spec names "a" twice'),
        ("", '("c",)', 'the mesh has no axis "c"'),
        ("", "(-1,)", "the mesh has no axis -1"),
        ("x = torch.zeros(2, 2)\n", '("a",)', "the spec has 1 entries and the tensor 2"),
        ("x = torch.zeros((2, k))\n", '("a",)', "the spec has 1 entries and the tensor 2"),
        ("x = nn.Linear(2, 2).bias\n", '("a", "b")', "the spec has 2 entries and the tensor"),
        ("l = nn.Linear(2, 2)\nx = l.weight\n", '("a",)', "the spec has 1 entries and the"),
    ],
)
def test_no_placements(before: str, spec: str, words: str) -> None:
    (found,) = told(before + AB + MARKED.format(spec))
    assert found.startswith(f"no placements: {words}")


def test_other_annotations() -> None:
    assert told(AB + 's = xs.ShardingSpec(mesh, ("a", None))\n', "XLA806") == [
        ON_MESH + "[Shard(0), Replicate()]"
    ]
    source = 'y = xs.enable_manual_sharding(x, ("a",), mesh=mesh)\n'
    source += 'z = xs.disable_manual_sharding(y, (None, "b"), shape)\n'
    found = told(AB + "xs.set_global_mesh(mesh)\n" + source, "XLA805")
    assert found == [ON_MESH + "[Shard(0), Replicate()]", ON_MESH + "[Replicate(), Shard(1)]"]
    assert told("xs.mark_sharding(*x)\nxs.clear_sharding(x)\nf = xs.mark_sharding\n") == [
        "",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        ('Mesh(ids, (4, 2), ("a", "b"))', "its constant shape needs a world size of 8"),
        (
            "xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1))",
            "its constant shape needs a world size of 8",
        ),
        ("Mesh(ids, (n, 2))", ""),
        ("xs.get_1d_mesh()", ""),
    ],
)
def test_the_size_of_a_mesh(made: str, wanted: str) -> None:
    assert told(f"mesh = {made}\n", "XLA803") == [wanted]


FSDP1 = [
    ("FSDP(m)", ""),
    ("FSDP(m, True)", "`reshard_after_forward` stays"),
    (
        "FSDP(m, compute_dtype=d, fp32_reduce_scatter=True)",
        "`compute_dtype` is `mp_policy=MixedPrecisionPolicy(param_dtype=d)`; `fp32_reduce_scatter`"
        " is `mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32)`",
    ),
    ("FSDP(m, fp32_reduce_scatter=False)", "`fp32_reduce_scatter` goes"),
    ("FSDP(m, pin_layout_in_collective_ops=False)", "`pin_layout_in_collective_ops` goes"),
    ("FSDP(m, sharding_groups=g)", "`sharding_groups`: give the DeviceMesh of the group as mesh"),
    (
        "FSDP(m, disable_reshard_on_root=False)",
        "`disable_reshard_on_root` is `reshard_after_forward=True on the root`",
    ),
    (
        "FSDP(m, auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, {Block, Head}))",
        "`auto_wrap_policy` is a loop that calls fully_shard on each block that it chose, then on"
        " the model",
    ),
    (
        "FSDP(m, auto_wrap_policy=functools.partial(\n    transformer_auto_wrap_policy,"
        " transformer_layer_cls={Block, Head}))",
        "`auto_wrap_policy` is a loop that calls fully_shard on each Block, Head, then on the"
        " model",
    ),
]
FSDP2 = [
    ("FSDPv2(m)", ""),
    ("FSDPv2(m, mesh)", '`mesh` is `mesh=mesh["fsdp"]`'),
    (
        'FSDPv2(m, mesh=mesh, extra_data_axis="data")',
        '`extra_data_axis` is `mesh=mesh["data", "fsdp"]`',
    ),
    ("FSDPv2(m, shard_output=f)", "`shard_output` goes (outputs are local tensors)"),
]


@pytest.mark.parametrize(
    ("source", "wanted", "rule"),
    [(*case, "XLA811") for case in FSDP1] + [(*case, "XLA816") for case in FSDP2],
)
def test_wrappers(source: str, wanted: str, rule: str) -> None:
    (found,) = told(f"w = {source}\n", rule)
    assert found == (f"for fully_shard: {wanted}" if wanted else "")


def test_the_mesh_of_a_wrapper() -> None:
    one = 'mesh = xs.Mesh(ids, (n,), ("fsdp",))\nw = FSDPv2(m, mesh=mesh)\n'
    assert told(one, "XLA816") == ["for fully_shard: `mesh` is `mesh=mesh`"]
    two = 'mesh = xs.Mesh(ids, (n, 1), ("fsdp", "tensor"))\nw = FSDPv2(m, mesh=mesh)\n'
    assert told(two, "XLA816") == ['for fully_shard: `mesh` is `mesh=mesh["fsdp"]`']


def test_methods_of_a_wrapped_model() -> None:
    source = "w = FSDP(m)\nw.clip_grad_norm_(1.0)\nw.module.f()\nw.train()\n"
    first, clip, module, train = told(source, "XLA811")
    assert (first, train) == ("", "")
    assert clip.startswith("in FSDP2 it is torch.nn.utils.clip_grad_norm_(")
    assert module == "in FSDP2 it is the model itself: fully_shard works in place"
