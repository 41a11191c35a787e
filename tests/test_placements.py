"""Placements from partition specs: by the words of the spec, and against DTensor itself.

DTensor is asked for the part of each rank in a process group that only pretends to be one. What
XLA does with a spec is told here a second time, in a few lines of its own: a dimension is cut into
as many pieces as the axes have devices, and the first axis that is named counts slowest.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence

import pytest

from xla2tpu.placements import Entry, SpecError, by_axis, named, placements, text

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

AB, ABC = ("a", "b"), ("a", "b", "c")


@pytest.mark.parametrize(
    ("axes", "spec", "wanted"),
    [
        (("x",), (None, None), "[Replicate()]"),
        (("x",), ("x", None), "[Shard(0)]"),
        (("x",), (0, None), "[Shard(0)]"),
        (("x",), (None, "x"), "[Shard(1)]"),
        (("x",), (), "[Replicate()]"),
        (AB, ("a", None), "[Shard(0), Replicate()]"),
        (AB, (None, "b"), "[Replicate(), Shard(1)]"),
        (AB, ("a", "b"), "[Shard(0), Shard(1)]"),
        (AB, ("b", "a"), "[Shard(1), Shard(0)]"),
        (AB, (1, 0), "[Shard(1), Shard(0)]"),
        (AB, (("a", "b"), None), "[Shard(0), Shard(0)]"),
        (AB, (("a", 1), None), "[Shard(0), Shard(0)]"),
        (AB, (None, ("b",)), "[Replicate(), Shard(1)]"),
        ((None, None), (None, 1), "[Replicate(), Shard(1)]"),
        (("data", "x", "model"), ("data", None, "model"), "[Shard(0), Replicate(), Shard(2)]"),
        (ABC, (("a", "c"), "b"), "[Shard(0), Shard(1), Shard(0)]"),
    ],
)
def test_placements(axes: Sequence[str | None], spec: Sequence[Entry], wanted: str) -> None:
    assert text(placements(axes, spec)) == wanted


@pytest.mark.parametrize(
    ("spec", "words", "strided"),
    [
        ((("b", "a"), None), "against their order in the mesh", True),
        (((1, 0), None), "against their order in the mesh", True),
        (("a", "a"), 'names "a" twice', False),
        (("a", 0), "names axis 0 twice", False),
        ((("a", "a"), None), 'names "a" twice', False),
        (("x", None), 'the mesh has no axis "x"', False),
        ((2, None), "the mesh has no axis 2", False),
        ((-1, None), "the mesh has no axis -1", False),
    ],
)
def test_no_placements(spec: Sequence[Entry], words: str, strided: bool) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        placements(AB, spec)
    assert caught.value.strided is strided


def test_by_axis() -> None:
    assert by_axis(("model", None)) == 'Shard(0) on "model", Replicate() on other axes'
    assert by_axis((None, 0)) == "Shard(1) on axis 0, Replicate() on other axes"
    assert by_axis((None,)) == "Replicate() on every axis of the mesh"
    several = 'Shard(0) on "a", Shard(0) on "b", Replicate() on other axes; right if the mesh has'
    assert by_axis((("a", "b"), None)).startswith(several)
    for spec in (("a", "a"), (-1,)):
        with pytest.raises(SpecError):
            by_axis(spec)


# -- against DTensor -------------------------------------------------------------------------------

Part = tuple[tuple[int, ...], tuple[int, ...]]


def specs(axes: Sequence[str], rank: int) -> Iterator[tuple[Entry, ...]]:
    """All specs of a tensor with ``rank`` dimensions that name each axis at most once."""
    tuples = (c for n in range(2, len(axes) + 1) for c in itertools.permutations(axes, n))
    entries: list[Entry] = [None, *axes, *tuples]
    for spec in itertools.product(entries, repeat=rank):
        names = [axis for axis, _ in named(spec)]
        if len(names) == len(set(names)):
            yield spec


def part_by_spec(
    shape: Sequence[int], axes: Sequence[str], mesh: Sequence[int], at: Sequence[int],
    spec: Sequence[Entry],
) -> Part:  # fmt: skip
    """Sizes and offsets of the part of the device ``at`` a place of the mesh, as XLA cuts."""
    sizes, offsets = [], []
    for size, entry in zip(shape, spec, strict=True):
        number, pieces = 0, 1
        for axis in entry if isinstance(entry, tuple) else (entry,):
            if axis is not None:
                index = list(axes).index(str(axis))
                number, pieces = number * mesh[index] + at[index], pieces * mesh[index]
        length = math.ceil(size / pieces)
        start = min(number * length, size)
        sizes.append(min(length, size - start))
        offsets.append(start)
    return tuple(sizes), tuple(offsets)


def parts_by_dtensor(
    shape: Sequence[int], mesh: Sequence[int], every: Sequence[Sequence[int | None]]
) -> list[list[Part]]:
    """For each list of placements the parts of all ranks, as DTensor has them."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    from torch.testing._internal.distributed.fake_pg import FakeStore

    found: list[list[Part]] = [[] for _ in every]
    for rank in range(math.prod(mesh)):
        dist.init_process_group("fake", rank=rank, world_size=math.prod(mesh), store=FakeStore())
        try:
            devices = init_device_mesh("cpu", tuple(mesh))
            for parts, dims in zip(found, every, strict=True):
                how = [Replicate() if d is None else Shard(d) for d in dims]
                sizes, offsets = compute_local_shape_and_global_offset(shape, devices, how)
                parts.append((tuple(sizes), tuple(offsets)))
        finally:
            dist.destroy_process_group()
    return found


@pytest.mark.parametrize(
    ("mesh", "shape"),
    [
        ((4,), (8,)),
        ((4,), (8, 4)),
        ((4,), (5, 7)),
        ((2, 4), (8,)),
        ((2, 4), (16, 8)),
        ((2, 2), (8, 4, 12)),
        ((2, 2, 2), (8,)),
        ((2, 2, 2), (8, 16)),
        ((2, 1, 4), (8, 8, 16)),
    ],
)
def test_parts_are_those_of_dtensor(mesh: tuple[int, ...], shape: tuple[int, ...]) -> None:
    pytest.importorskip("torch")
    axes = ABC[: len(mesh)]
    places = list(itertools.product(*map(range, mesh)))
    good, strided = [], []
    for spec in specs(axes, len(shape)):
        try:
            good.append((spec, placements(axes, spec)))
        except SpecError:
            strided.append(spec)
    assert good
    assert all(any(isinstance(entry, tuple) for entry in spec) for spec in strided)
    found = parts_by_dtensor(shape, mesh, [dims for _, dims in good])
    for (spec, _), parts in zip(good, found, strict=True):
        assert parts == [part_by_spec(shape, axes, mesh, at, spec) for at in places], spec
    if min(mesh) > 1 and strided:
        # What is refused has a layout that no placements of these two sorts give.
        dims = [None, *range(len(shape))]
        every = list(itertools.product(dims, repeat=len(mesh)))
        all_parts = parts_by_dtensor(shape, mesh, every)
        for spec in strided:
            assert [part_by_spec(shape, axes, mesh, at, spec) for at in places] not in all_parts
