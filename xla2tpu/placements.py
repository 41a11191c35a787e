"""DTensor placements from the mesh and the partition spec of an SPMD program.

A partition spec has an entry for each dimension of the tensor, which names axes of the mesh;
placements have an entry for each axis of the mesh, which names a dimension of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Axis = int | str
Entry = Axis | None | tuple[Axis, ...]
RULE = "for each axis of the mesh Shard(d) where dimension d of the spec names it, else Replicate()"


class SpecError(Exception):
    """There are no placements; the message says why. ``strided``: the layout exists in XLA."""

    def __init__(self, message: str, strided: bool = False) -> None:
        super().__init__(message)
        self.strided = strided


def named(spec: Sequence[Entry]) -> Iterator[tuple[Axis, int]]:
    """The axes in the order of the spec, each with the dimension that it shards."""
    for dimension, entry in enumerate(spec):
        for axis in entry if isinstance(entry, tuple) else (entry,):
            if axis is not None:
                yield axis, dimension


def placements(axes: Sequence[str | None], spec: Sequence[Entry]) -> list[int | None]:
    """For each axis of the mesh the dimension that is sharded over it, None where none is.

    ``axes`` are the names, None for an axis without one. Raises `SpecError`.
    """
    found: list[int | None] = [None] * len(axes)
    last: dict[int, int] = {}
    for axis, dimension in named(spec):
        index = _index(axes, axis)
        if found[index] is not None:
            raise SpecError(f"the spec names {_shown(axis)} twice, which XLA refuses")
        found[index] = dimension
        if last.get(dimension, -1) > index:
            raise SpecError(
                f"dimension {dimension} is sharded over axes against their order in the mesh, for"
                " which there is no plain Shard: make the mesh with its axes in the spec's order",
                strided=True,
            )
        last[dimension] = index
    return found


def _index(axes: Sequence[str | None], axis: Axis) -> int:
    if isinstance(axis, str):
        if axis not in axes:
            raise SpecError(f"the mesh has no axis {_shown(axis)}")
        return list(axes).index(axis)
    if not 0 <= axis < len(axes):
        raise SpecError(f"the mesh has no axis {axis}: an integer in a spec is the index of one")
    return axis


def text(found: Sequence[int | None]) -> str:
    """The placements as a list in Python."""
    return "[" + ", ".join("Replicate()" if d is None else f"Shard({d})" for d in found) + "]"


def by_axis(spec: Sequence[Entry]) -> str:
    """The placements axis by axis, where the order of the axes in the mesh is not known.

    Raises `SpecError`.
    """
    pairs = list(named(spec))
    axes = [axis for axis, _ in pairs]
    for axis in axes:
        if axes.count(axis) > 1:
            raise SpecError(f"the spec names {_shown(axis)} twice, which XLA refuses")
        if isinstance(axis, int) and axis < 0:
            raise SpecError(
                f"the mesh has no axis {axis}: an integer in a spec is the index of one"
            )
    if not pairs:
        return "Replicate() on every axis of the mesh"
    parts = ", ".join(f"Shard({dimension}) on {_shown(axis)}" for axis, dimension in pairs)
    several = any(isinstance(entry, tuple) and len(entry) > 1 for entry in spec)
    order = "; right if the mesh has the axes of one dimension in this order" if several else ""
    return f"{parts}, Replicate() on other axes{order}"


def _shown(axis: Axis) -> str:
    return f'"{axis}"' if isinstance(axis, str) else f"axis {axis}"
