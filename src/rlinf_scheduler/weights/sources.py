"""The layouts of all that publish a version as one, and what a reader has in common with it. Pure.

Tensors that are cut alike (the same shape, the same parts in the same processes) are one *cut*, so what is found out
about one is known of all: a model of ten thousand tensors has some ten cuts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from rlinf_scheduler.weights.layout import Box, Index, TensorPart, WeightsLayout, item_size, uncovered

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
PlanT = TypeVar("PlanT")
Way: TypeAlias = Literal["device", "node", "network"]

# The whole length of a model, of which each tensor has its position.
LENGTH = 1 << 20
# So many pairs of targets and places share the plans of one version.
MAX_PLANS = 64


class MemoryPlace(NamedTuple):
    """Where the tensors of a process lie: on which machine and device; "" for host memory."""

    node: str
    device: str = ""


class Problem(NamedTuple):
    """What is wrong with the layouts of one tensor, with boxes and processes."""

    key: str
    text: str


class Missing(Problem):
    """Nobody has some of a tensor, which may come yet."""


class BoxCopy(NamedTuple):
    """One box to copy from one local tensor, of a source, to another one, of a reader."""

    source_start: Index
    target_start: Index
    shape: Index


class TensorCut:
    """How a tensor is cut over all sources: its boxes, in groups of those that the same processes have."""

    def __init__(self, shape: Index, parts: Sequence[tuple[int, TensorPart]]) -> None:
        self.shape = shape
        self.parts = dict(parts)
        self._local: dict[tuple[Box, int], Index] = {}
        owners: dict[Box, list[int]] = {}
        for number, part in parts:
            for piece in part.pieces:
                owners.setdefault(piece.box, []).append(number)
                self._local[piece.box, number] = piece.local_start
        self.boxes = sorted(owners)
        groups: dict[tuple[int, ...], int] = {}
        numbers = [groups.setdefault(tuple(owners[box]), len(groups)) for box in self.boxes]
        self.groups = tuple(groups)
        self.group_of: Ints = np.array(numbers, np.int64)
        corners = len(self.boxes), len(shape)
        self.low: Ints = np.array([box.start for box in self.boxes], np.int64).reshape(corners)
        self.high: Ints = np.array([box.end for box in self.boxes], np.int64).reshape(corners)
        self._nearest: dict[MemoryPlace, tuple[tuple[int, ...], ...]] = {}
        # The process that has a group, where it is one.
        self.only: Ints = np.array([each[0] if len(each) == 1 else -1 for each in groups], np.int64)

    def problem(self, names: Sequence[str]) -> Problem | None:
        """Say why it is no whole tensor, for no key; None if it is."""
        if missing := uncovered(self.shape, self.boxes):
            return Missing("", f"nobody has {', '.join(map(str, missing))}")
        if sum(box.size for box in self.boxes) == math.prod(self.shape):
            return None
        one, other = next(
            (first, second)
            for index, first in enumerate(self.boxes)
            for second in self.boxes[index + 1 :]
            if first.overlaps(second)
        )
        have = [f"{box} of {_named(self.groups[self._group(box)], names)}" for box in (one, other)]
        return Problem("", f"shards overlap and are not the same: {' and '.join(have)}")

    def nearest(self, place: MemoryPlace, places: Sequence[MemoryPlace]) -> tuple[tuple[int, ...], ...]:
        """Return for each group the processes that have it and are nearest to a place."""
        found = self._nearest.get(place)
        if found is None:
            found = tuple(_nearest(group, place, places) for group in self.groups)
            self._nearest[place] = found
        return found

    def local_start(self, box: int, number: int) -> Index:
        """Return where a box lies in the local tensor of a process."""
        return self._local[self.boxes[box], number]

    def _group(self, box: Box) -> int:
        return int(self.group_of[self.boxes.index(box)])


class Match:
    """What a part of a reader has in common with the boxes of a cut.

    Attributes:
        groups: the groups of boxes of which it has something.
        sizes: how many elements it has of each of these.
    """

    def __init__(self, cut: TensorCut, part: TensorPart) -> None:
        self._cut = cut
        rows: list[tuple[Ints, ...]] = []
        for piece in part.pieces:
            start = np.array(piece.start, np.int64)
            low = np.maximum(cut.low, start)
            size = np.minimum(cut.high, start + np.array(piece.shape, np.int64)) - low
            hit = np.flatnonzero((size > 0).all(axis=1))
            here = low[hit] - start + np.array(piece.local_start, np.int64)
            rows.append((hit, low[hit] - cut.low[hit], here, size[hit]))
        self._box, self._within, self._target, self._shape = map(np.concatenate, zip(*rows, strict=True))
        order = np.argsort(cut.group_of[self._box], kind="stable")
        self._box, self._within = self._box[order], self._within[order]
        self._target, self._shape = self._target[order], self._shape[order]
        self.groups, self._first = np.unique(cut.group_of[self._box], return_index=True)
        self.sizes: Ints = np.add.reduceat(self._shape.prod(axis=1), self._first)
        self._copies: dict[tuple[int, int], tuple[BoxCopy, ...]] = {}

    def copies(self, index: int, number: int) -> tuple[BoxCopy, ...]:
        """Return the boxes of the `index`-th of its groups, copied from one process that has them."""
        found = self._copies.get((index, number))
        if found is None:
            found = self._copies[index, number] = tuple(_merged(list(self._of(index, number))))
        return found

    def _of(self, index: int, number: int) -> Iterator[BoxCopy]:
        end = self._first[index + 1] if index + 1 < len(self._first) else len(self._box)
        for row in range(self._first[index], end):
            there = np.array(self._cut.local_start(int(self._box[row]), number), np.int64)
            three = there + self._within[row], self._target[row], self._shape[row]
            yield BoxCopy(*(tuple(each.tolist()) for each in three))


class Sources:
    """The layouts of all processes that publish a version, as one.

    Args:
        layouts: of each process; its number is its place in this sequence.
        places: where each is.
        names: what each is called in messages, where that is more than its number.

    Attributes:
        problems: tensors of which something is missing or overlaps, or that are not the same everywhere.
        indices: the number of each tensor, by its key; then what each is, whole.
        cuts: the ways in which tensors are cut.
        positions: where each tensor begins in the model, of its `LENGTH`, by bytes.
    """

    def __init__(
        self, layouts: Sequence[WeightsLayout], places: Sequence[MemoryPlace], names: Sequence[str] = ()
    ) -> None:
        self.places = tuple(places)
        self._names = tuple(names)
        self.layouts = tuple(layouts)
        self.indices: dict[str, int] = {}
        self.dtypes: list[str] = []
        self.shapes: list[Index] = []
        self.problems: list[Problem] = []
        self.cuts: list[TensorCut] = []
        self.cut_of: Ints = np.array(self._classify(self._numbered()), np.int64)
        self._find_problems()
        self.item_sizes: Ints = np.array([item_size(dtype) for dtype in self.dtypes], np.int64)
        sizes = np.array([math.prod(shape) for shape in self.shapes], np.int64) * self.item_sizes
        before = np.cumsum(sizes) - sizes
        self.positions: Ints = before * LENGTH // max(int(sizes.sum()), 1)
        self._matches: dict[tuple[int, TensorPart], Match] = {}
        self._plans: dict[Any, Any] = {}

    def plan_of(self, key: object, make: Callable[[], PlanT]) -> PlanT:
        """Return the plan that was made for the same before, or make it."""
        plan: PlanT | None = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans[key] = make()
        return plan

    def match(self, cut: int, part: TensorPart) -> Match:
        """Return what is common to a cut, by its number, and a part of a reader, which is not empty."""
        found = self._matches.get((cut, part))
        if found is None:
            found = self._matches[cut, part] = Match(self.cuts[cut], part)
        return found

    def _numbered(self) -> list[Ints]:
        """Number the tensors of all layouts; return for each layout the numbers of its own."""
        seen: dict[int, Ints] = {}
        for rank, each in enumerate(self.layouts):
            if id(each.manifest) not in seen:
                numbers = [self._number(rank, *row) for row in each.manifest.rows()]
                seen[id(each.manifest)] = np.array(numbers, np.int64)
        return [seen[id(each.manifest)] for each in self.layouts]

    def _number(self, rank: int, key: str, dtype: str, shape: Index) -> int:
        index = self.indices.setdefault(key, len(self.dtypes))
        if index == len(self.dtypes):
            self.dtypes.append(dtype)
            self.shapes.append(shape)
        elif (self.dtypes[index], self.shapes[index]) != (dtype, shape):
            had = f"{self.dtypes[index]} {self.shapes[index]}"
            self.problems.append(
                Problem(key, f"it is {dtype} {shape} in {_named([rank], self._names)}, and {had} in others")
            )
        return index

    def _classify(self, numbers: Sequence[Ints]) -> list[int]:
        """Find which tensors are cut alike; the number of the cut of each."""
        parts: dict[TensorPart, int] = {}
        table = np.full((len(self.dtypes), len(self.layouts)), -1, np.int32)
        for rank, (each, indices) in enumerate(zip(self.layouts, numbers, strict=True)):
            known = np.array([parts.setdefault(part, len(parts)) for part in each.parts], np.int32)
            if len(indices):
                table[indices, rank] = known[np.array(each.part_of, np.int64)]
        of_number = tuple(parts)
        seen: dict[bytes, int] = {}
        cut_of: list[int] = []
        for shape, row in zip(self.shapes, table, strict=True):
            number = seen.setdefault(row.tobytes(), len(self.cuts))
            if number == len(self.cuts):
                held = [(int(rank), of_number[row[rank]]) for rank in np.flatnonzero(row >= 0)]
                self.cuts.append(TensorCut(shape, [each for each in held if each[1].shape == shape]))
            cut_of.append(number)
        return cut_of

    def _find_problems(self) -> None:
        told = [cut.problem(self._names) for cut in self.cuts]
        for key, index in self.indices.items():
            if problem := told[self.cut_of[index]]:
                self.problems.append(problem._replace(key=key))


def way(reader: MemoryPlace, source: MemoryPlace) -> Way:
    """Return by which way bytes come from one place to another."""
    if reader.node != source.node:
        return "network"
    return "device" if reader.device and reader.device == source.device else "node"


def _nearest(group: tuple[int, ...], place: MemoryPlace, places: Sequence[MemoryPlace]) -> tuple[int, ...]:
    if len(group) == 1:
        return group
    ways = [way(place, places[number]) for number in group]
    best = next((each for each in ("device", "node") if each in ways), "network")
    return tuple(number for number, each in zip(group, ways, strict=True) if each == best)


def _named(numbers: Sequence[int], names: Sequence[str]) -> str:
    them = [f"'{names[number]}'" if names else str(number) for number in numbers[:4]]
    shown = ", ".join(them) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")
    return f"process{'es' if len(numbers) > 1 else ''} {shown}"


def _merged(copies: list[BoxCopy]) -> list[BoxCopy]:
    """Join boxes that lie beside each other in both tensors."""
    for dim in range(len(copies[0].shape)) if len(copies) > 1 else ():
        copies.sort(key=lambda copy: _across(copy, dim))
        joined = copies[:1]
        for copy in copies[1:]:
            last = joined[-1]
            if _follows(last, copy, dim):
                size = last.shape[dim] + copy.shape[dim]
                joined[-1] = last._replace(shape=(*last.shape[:dim], size, *last.shape[dim + 1 :]))
            else:
                joined.append(copy)
        copies = joined
    return copies


def _follows(last: BoxCopy, copy: BoxCopy, dim: int) -> bool:
    size = last.shape[dim]
    return (
        copy.source_start[dim] == last.source_start[dim] + size
        and copy.target_start[dim] == last.target_start[dim] + size
        and _across(last, dim)[:3] == _across(copy, dim)[:3]
    )


def _across(copy: BoxCopy, dim: int) -> tuple[Index, ...]:
    """Return a key by which boxes that may be joined along a dimension come after each other."""
    return (*(each[:dim] + each[dim + 1 :] for each in copy), (copy.source_start[dim],))
