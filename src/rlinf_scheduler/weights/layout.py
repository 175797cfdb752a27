"""What a process has of weights, as data: the boxes of each tensor, and where they lie in memory. Pure.

A *box* is a range of indices in every dimension of a tensor. A process holds boxes of a tensor in one local tensor,
row-major and without gaps: a shard of FSDP2 is one box, FSDP2 over tensor parallelism (`_StridedShard`) can be several.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

Index: TypeAlias = tuple[int, ...]


class Box(NamedTuple):
    """A range of indices in every dimension: the first one, and how many."""

    start: Index
    shape: Index

    @property
    def end(self) -> Index:
        """The first index behind it, in each dimension."""
        return tuple(start + size for start, size in zip(self.start, self.shape, strict=True))

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    def overlaps(self, other: Box) -> bool:
        """Whether the two have an element in common."""
        pairs = zip(self.start, self.end, other.start, other.end, strict=True)
        return all(max(a, c) < min(b, d) for a, b, c, d in pairs)

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.end, strict=True)) + "]"


class PlacedBox(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A box of a tensor, and its first index in the local one."""

    start: Index
    shape: Index
    local_start: Index

    @property
    def box(self) -> Box:
        """Which elements of the whole tensor they are."""
        return Box(self.start, self.shape)


class TensorPart(msgspec.Struct, frozen=True, array_like=True):
    """What a process has of one tensor: boxes that do not overlap, in a local tensor; none if nothing is there."""

    shape: Index
    local_shape: Index
    pieces: tuple[PlacedBox, ...]

    @property
    def size(self) -> int:
        """How many elements are there."""
        return sum(math.prod(piece.shape) for piece in self.pieces)


class Replicate(msgspec.Struct, frozen=True, tag="r", array_like=True):
    """Every coordinate of this dimension of a mesh has the same."""


class Sharded(msgspec.Struct, frozen=True, tag="s", array_like=True):
    """A tensor is cut along a dimension, as `torch.chunk` does: the last ones have less, or nothing.

    Attributes:
        dim: of the tensor, from 0.
        split_factor: into so many chunks it was cut before, each of which is cut (torch's `_StridedShard`).
    """

    dim: int
    split_factor: int = 1


Placement: TypeAlias = Replicate | Sharded


def whole(shape: Index) -> TensorPart:
    """Return what a process has that has all of a tensor.

    >>> whole((4, 2)).pieces[0].box
    Box(start=(0, 0), shape=(4, 2))
    """
    zeros = (0,) * len(shape)
    pieces = (PlacedBox(zeros, shape, zeros),) if math.prod(shape) else ()
    return TensorPart(shape, shape, pieces)


def sliced(shape: Index, offsets: Index, local_shape: Index) -> TensorPart:
    """Return what a process has whose local tensor is one box.

    Raises:
        ValueError: the box is not within the tensor; the text says in which dimension.
    """
    if not len(shape) == len(offsets) == len(local_shape):
        raise ValueError(
            f"a slice of {len(local_shape)} dimensions at {len(offsets)} offsets is of a tensor of {len(shape)}"
        )
    for dim, (size, offset, local) in enumerate(zip(shape, offsets, local_shape, strict=True)):
        if offset < 0 or offset + local > size:
            raise ValueError(
                f"rows {offset} to {offset + local} of dimension {dim} are not within its {size}"
            )
    zeros = (0,) * len(shape)
    pieces = (PlacedBox(offsets, local_shape, zeros),) if math.prod(local_shape) else ()
    return TensorPart(shape, local_shape, pieces)


def sharded(shape: Index, mesh: Index, coordinate: Index, placements: Sequence[Placement]) -> TensorPart:
    """Return what a process of a mesh has, as DTensor cuts it.

    Placements apply from the first dimension of the mesh to the last, each to what is left by those before it
    (torch.distributed.tensor, "placement types").

    Args:
        shape: of the whole tensor.
        mesh: how many processes there are in each of its dimensions.
        coordinate: of the process.
        placements: one for each dimension of the mesh.

    >>> [str(p.box) for p in sharded((8,), (2, 2), (1, 0), [Sharded(0, split_factor=2), Sharded(0)]).pieces]
    ['[2:4]']
    """
    axes = [[(0, size)] if size else [] for size in shape]
    for count, index, placement in zip(mesh, coordinate, placements, strict=True):
        if isinstance(placement, Sharded):
            axes[placement.dim] = _chunk(axes[placement.dim], placement.split_factor, count, index)
    return _from_axes(shape, axes)


Segments: TypeAlias = list[tuple[int, int]]


def _chunk(segments: Segments, split_factor: int, count: int, index: int) -> Segments:
    """Cut the indices that are left along one dimension into chunks of chunks, and take the `index`-th of each."""
    length = sum(size for _, size in segments)
    first = -(-length // split_factor)
    taken: Segments = []
    for number in range(split_factor):
        begin, end = min(first * number, length), min(first * (number + 1), length)
        second = -(-(end - begin) // count)
        taken += _cut(segments, min(begin + second * index, end), min(begin + second * (index + 1), end))
    return _merged(taken)


def _cut(segments: Segments, begin: int, end: int) -> Iterator[tuple[int, int]]:
    at = 0
    for start, size in segments:
        low, high = max(begin - at, 0), min(end - at, size)
        if low < high:
            yield start + low, high - low
        at += size


def _merged(segments: Iterable[tuple[int, int]]) -> Segments:
    merged: Segments = []
    for start, size in segments:
        if merged and sum(merged[-1]) == start:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((start, size))
    return merged


def _from_axes(shape: Index, axes: Sequence[Segments]) -> TensorPart:
    local_shape = tuple(sum(size for _, size in segments) for segments in axes)
    placed = [list(_placed(segments)) for segments in axes]
    pieces = tuple(
        PlacedBox(*(tuple(column) for column in zip(*boxes, strict=True)))
        for boxes in product(*placed)
        if boxes
    )
    return TensorPart(shape, local_shape, pieces) if shape else whole(shape)


def _placed(segments: Segments) -> Iterator[tuple[int, int, int]]:
    at = 0
    for start, size in segments:
        yield start, size, at
        at += size


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The tensors of a model, or of a stage of it, whole; dtypes are as torch calls them, or numpy ("<f4")."""

    keys: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[Index, ...]

    @property
    def num_bytes(self) -> int:
        """How large they are, whole."""
        return sum(math.prod(shape) * item_size(dtype) for _, dtype, shape in self.rows())

    def rows(self) -> Iterator[tuple[str, str, Index]]:
        """Yield key, dtype and shape of each."""
        return zip(self.keys, self.dtypes, self.shapes, strict=True)


class WeightsLayout(msgspec.Struct, frozen=True, array_like=True):
    """What a process has of the tensors of a manifest: each part that it has of one, once, and the number of each."""

    manifest: Manifest
    parts: tuple[TensorPart, ...]
    part_of: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """How much is there, in bytes."""
        sizes = [part.size for part in self.parts]
        dtypes = self.manifest.dtypes
        return sum(sizes[part] * item_size(dtype) for part, dtype in zip(self.part_of, dtypes, strict=True))

    def part(self, index: int) -> TensorPart:
        """Return what is there of the `index`-th tensor."""
        return self.parts[self.part_of[index]]


def layout(tensors: Iterable[tuple[str, str, TensorPart]]) -> WeightsLayout:
    """Return the layout of tensors given by key, dtype and what is there of them."""
    keys: list[str] = []
    dtypes: list[str] = []
    shapes: list[Index] = []
    numbers: dict[TensorPart, int] = {}
    part_of: list[int] = []
    for key, dtype, part in tensors:
        keys.append(key)
        dtypes.append(dtype)
        shapes.append(part.shape)
        part_of.append(numbers.setdefault(part, len(numbers)))
    return WeightsLayout(Manifest(tuple(keys), tuple(dtypes), tuple(shapes)), tuple(numbers), tuple(part_of))


def uncovered(shape: Index, boxes: Iterable[Box], most: int = 4) -> list[Box]:
    """Return boxes of a tensor that none of `boxes` has, the first `most` of them; none if all of it is there.

    >>> [str(box) for box in uncovered((4, 2), [Box((0, 0), (3, 2))])]
    ['[3:4, 0:2]']
    """
    there = sorted(set(boxes))
    if not math.prod(shape):
        return []
    cuts = [
        sorted({0, size, *(box.start[dim] for box in there), *(box.end[dim] for box in there)})
        for dim, size in enumerate(shape)
    ]
    cells = np.zeros([len(cut) - 1 for cut in cuts] or [1], bool)
    at = [{index: number for number, index in enumerate(cut)} for cut in cuts]
    for box in there:
        cells[tuple(slice(at[d][box.start[d]], at[d][box.end[d]]) for d in range(len(shape))) or 0] = True
    return list(_boxes_of(cells, cuts, most))


def _boxes_of(cells: np.ndarray, cuts: Sequence[Sequence[int]], most: int) -> Iterator[Box]:
    """Yield what is False in `cells` as boxes, each as large as it can be from its first cell on."""
    for _ in range(most):
        if cells.all():
            return
        first = tuple(int(index) for index in np.unravel_index(int(np.argmin(cells)), cells.shape))
        last = list(first)
        for dim in reversed(range(len(cuts))):
            while last[dim] + 1 < cells.shape[dim] and not cells[_span(first, last, dim)].any():
                last[dim] += 1
        cells[tuple(slice(a, b + 1) for a, b in zip(first, last, strict=True))] = True
        if not cuts:
            yield Box((), ())
            return
        start = tuple(cut[a] for cut, a in zip(cuts, first, strict=True))
        yield Box(start, tuple(cut[b + 1] - s for cut, b, s in zip(cuts, last, start, strict=True)))


def _span(first: Index, last: Sequence[int], dim: int) -> tuple[slice, ...]:
    grown = [b + 1 if d == dim else b for d, b in enumerate(last)]
    lows = [last[dim] + 1 if d == dim else a for d, a in enumerate(first)]
    return tuple(slice(a, b + 1) for a, b in zip(lows, grown, strict=True))


@lru_cache(maxsize=256)
def item_size(dtype: str) -> int:
    """Return how many bytes an element has, of a dtype of torch by its name, or of numpy ("<f4").

    >>> [item_size(dtype) for dtype in ("bfloat16", "<f4", "float8_e4m3fn", "bool", "complex64")]
    [2, 4, 1, 1, 8]
    """
    if dtype[0] in "<>|=":
        return int(np.dtype(dtype).itemsize)
    bits = re.search(r"\d+", dtype)
    return 1 if bits is None else max(int(bits[0]) // 8, 1)
