"""Meshes of processes with shards of a model, drawn by hypothesis, and what lies in their memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from rlinf_scheduler.weights.layout import (
    Index,
    Placement,
    Replicate,
    Sharded,
    WeightsLayout,
    layout,
    sharded,
)


class Mesh(NamedTuple):
    """A mesh, and how it cuts one tensor."""

    sizes: Index
    placements: tuple[Placement, ...]

    @property
    def coordinates(self) -> list[Index]:
        """Of each of its processes, by their numbers."""
        return list(itertools.product(*map(range, self.sizes)))

    @staticmethod
    def drawn(shape: Index, sizes: Index | None = None) -> st.SearchStrategy[Mesh]:
        """Draw one for a tensor of a shape."""
        dims = st.integers(0, len(shape) - 1) if shape else st.nothing()
        cuts = st.builds(Sharded, dims, st.sampled_from([1, 1, 2, 3])) if shape else st.nothing()
        placements = st.one_of(st.just(Replicate()), cuts)
        drawn_sizes = mesh_sizes() if sizes is None else st.just(sizes)
        return drawn_sizes.flatmap(
            lambda each: st.tuples(*[placements] * len(each)).map(lambda cut: Mesh(each, cut))
        )


def mesh_sizes() -> st.SearchStrategy[Index]:
    """Draw how many processes a mesh has in each of its dimensions."""
    return st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)


def within(start: Index, shape: Index) -> tuple[slice, ...]:
    """Return the slices of a box."""
    return tuple(slice(a, a + b) for a, b in zip(start, shape, strict=True))


@st.composite
def layouts(draw: Any, shapes: Mapping[str, Index], dtype: str = "<i8") -> list[WeightsLayout]:
    """Draw what each process of a mesh has of tensors, each of which is cut in its own way."""
    sizes = draw(mesh_sizes())
    cuts = {key: draw(Mesh.drawn(shape, sizes)).placements for key, shape in shapes.items()}
    return [
        layout((key, dtype, sharded(shape, sizes, each, cuts[key])) for key, shape in shapes.items())
        for each in itertools.product(*map(range, sizes))
    ]


def memory(held: WeightsLayout, model: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the local tensors of a process, cut out of the whole ones."""
    local = {}
    for index, key in enumerate(held.manifest.keys):
        part = held.part(index)
        local[key] = np.full(part.local_shape, -1, model[key].dtype)
        for piece in part.pieces:
            local[key][within(piece.local_start, piece.shape)] = model[key][within(piece.start, piece.shape)]
    return local
