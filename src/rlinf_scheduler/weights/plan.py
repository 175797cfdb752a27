"""Which tensors a reader fetches, and which bytes of a version it reads from whom. Pure.

Each byte of a reader's tensors comes from one process: from the nearest that has it (on the same device, on the same
node, anywhere), and from several that are as near in turn, so replicas share the work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from typing import NamedTuple, TypeAlias, TypedDict

import numpy as np

from rlinf_scheduler.errors import WeightsError
from rlinf_scheduler.weights.layout import Index, Manifest, PlacedBox, TensorPart, WeightsLayout
from rlinf_scheduler.weights.sources import (
    LENGTH,
    BoxCopy,
    Ints,
    Match,
    MemoryPlace,
    Problem,
    Sources,
    Way,
    way,
)
from rlinf_scheduler.wording import did_you_mean


class Rows(NamedTuple):
    """Rows of a published tensor.

    Attributes:
        key: which tensor.
        start: the first row.
        stop: the row behind the last one; None: to its end.
    """

    key: str
    start: int = 0
    stop: int | None = None

    def __str__(self) -> str:
        if self.start == 0 and self.stop is None:
            return f"'{self.key}'"
        return f"rows {self.start} to {'the end' if self.stop is None else self.stop} of '{self.key}'"


# From where a tensor of a reader comes: a published one, rows of one, or several along the first dimension.
Origin: TypeAlias = str | Rows | Sequence[str | Rows]
Origins: TypeAlias = Mapping[str, tuple[Rows, ...]]
Keys: TypeAlias = str | Iterable[str] | None
Rename: TypeAlias = Mapping[str, str] | Callable[[str], str] | None
Fuse: TypeAlias = Mapping[str, Origin] | None


class FetchOptions(TypedDict, total=False):
    """What `Worker.fetch_weights` takes by name of which tensors are fetched; each may be left out."""

    keys: Keys
    rename: Rename
    fuse: Fuse
    strict: bool


class Selection:
    """The tensors of a reader that are fetched.

    Args:
        name: of the weights, for messages.
        tensors: the keys of all of its tensors.
        keys: which of them: a key, or a pattern in which `*` stands for any text ("model.layers.3.*"), or several;
            None: all.
        rename: as which key each is published.
        fuse: of which published tensors one consists.
        there: whose tensors these are, for messages.

    Attributes:
        patterns: what `keys` said; None: all.
        keys: those that are fetched.
        origins: from where each comes, if not from the tensor of its own name.

    Raises:
        WeightsError: nothing there has one of the keys.
    """

    def __init__(
        self,
        name: str,
        tensors: Collection[str],
        keys: Keys = None,
        rename: Rename = None,
        fuse: Fuse = None,
        *,
        there: str = "the destination",
    ) -> None:
        self.patterns = None if keys is None else frozenset([keys] if isinstance(keys, str) else keys)
        wild = [each for each in self.patterns or () if set(each) & set("*?[")]
        self._wild = re.compile("|".join(map(translate, wild)) or "(?!)")
        self.keys = [key for key in tensors if self.has(key)]
        found = set(self.keys)
        for pattern in sorted(self.patterns or ()):
            if pattern not in found and not any(fnmatchcase(key, pattern) for key in self.keys):
                hint = did_you_mean(pattern, tensors) or f"its {len(tensors)} begin with {[*tensors][:3]}"
                raise WeightsError(name, f"no key of {there} is {pattern!r}, of keys=; {hint}")
        whence = {key: _origin(key, rename, fuse or {}) for key in self.keys}
        self.origins: Origins = {key: rows for key, rows in whence.items() if rows != (Rows(key),)}

    def has(self, key: str) -> bool:
        """Whether a key is one of those that are fetched."""
        return self.patterns is None or key in self.patterns or self._wild.match(key) is not None


def _rows_of(origin: Origin) -> list[Rows]:
    several = [origin] if isinstance(origin, str | Rows) else origin
    return [Rows(each) if isinstance(each, str) else each for each in several]


def _origin(key: str, rename: Rename, fuse: Mapping[str, Origin]) -> tuple[Rows, ...]:
    entry = _entry_of(key, fuse)
    if entry is None:
        return (Rows(_renamed(key, rename)),)
    rows = _rows_of(fuse[entry])
    return tuple(each._replace(key=_renamed(_replaced(key, entry, each.key), rename)) for each in rows)


def _renamed(key: str, rename: Rename) -> str:
    if rename is None or callable(rename):
        return key if rename is None else rename(key)
    entry = _entry_of(key, rename)
    return key if entry is None else _replaced(key, entry, rename[entry])


def _entry_of(key: str, entries: Collection[str]) -> str | None:
    """Return the entry that is the key, or else the first that stands in it, as whole names between dots."""
    return key if key in entries else next((each for each in entries if f".{each}." in f".{key}."), None)


def _replaced(key: str, entry: str, by: str) -> str:
    """Replace whole names between dots.

    >>> _replaced("layers.0.qkv_proj.weight", "qkv_proj", "q_proj")
    'layers.0.q_proj.weight'
    """
    return f".{key}.".replace(f".{entry}.", f".{by}.", 1)[1:-1]


# Each of several processes that have the same gives so many stretches of the model to a reader.
STRIPES = 8


class TensorRead(NamedTuple):
    """What a reader copies into one of its tensors from a published one, of one source, by its number."""

    key: str
    into: str
    source: int
    source_shape: Index
    copies: tuple[BoxCopy, ...]


class Flow(NamedTuple):
    """How many bytes, as published, one reader reads from one source, and by which way."""

    source: int
    num_bytes: int
    way: Way


class ByteRun(NamedTuple):
    """Bytes that lie at regular distances in two local tensors.

    Attributes:
        num_bytes: how many lie together in both.
        counts: how many such runs there are, in each dimension, the outer one first; () if it is one.
        source_strides: how far apart they are in the source's tensor, in bytes, in each of these dimensions.
    """

    source_offset: int
    target_offset: int
    num_bytes: int
    counts: Index
    source_strides: Index
    target_strides: Index


class _Shift(NamedTuple):
    """From rows of a reader's tensor to rows of a published one: those from `begin` to `end` begin there at `to`."""

    begin: int
    end: int
    to: int


class Wants:
    """What readers with the same tensors want of a version; see `plan`.

    Args:
        sources: the version.
        manifest: the reader's tensors.
        origins: from where a tensor of a reader comes, by its key: from a published one that is called otherwise, rows
            of one, or several that follow each other along the first dimension (a fused parameter). A tensor that is
            not named comes from the one of its own name.

    Attributes:
        problems: why something cannot be had.
    """

    def __init__(
        self, sources: Sources, manifest: Manifest, origins: Mapping[str, Origin] | None = None
    ) -> None:
        self._sources = sources
        self._manifest = manifest
        self.problems: list[Problem] = []
        self._shifts = {_Shift(0, 0, 0): 0}  # the first one stands for none
        rows: list[tuple[int, int, int]] = []
        for index, (key, _, shape) in enumerate(manifest.rows()):
            found = self._rows(shape, _rows_of((origins or {}).get(key, key)))
            if isinstance(found, str):
                self.problems.append(Problem(key, found))
            else:
                rows += [(index, number, shift) for number, shift in found]
        table = np.array(rows, np.int64).reshape(-1, 3)
        # One row for each published tensor that something of a reader's tensor comes from.
        self._into, self._from, self._shift = table[:, 0], table[:, 1], table[:, 2]
        self._parts: dict[tuple[int, int, TensorPart], TensorPart] = {}

    def plan(
        self, layout: WeightsLayout, place: MemoryPlace, reader: int = 0, readers: int = 1
    ) -> ReaderPlan:
        """Return the plan of one reader: the `reader`-th of so many `readers` that share the sources between them."""
        part_of = np.array(layout.part_of, np.int64)[self._into]
        cut_of = self._sources.cut_of[self._from]
        digits = [cut_of, part_of, self._shift, self._sources.item_sizes[self._from]]
        bases = [int(each.max()) + 1 if len(each) else 1 for each in digits]
        codes, group_of = np.unique(np.ravel_multi_index(digits, bases), return_inverse=True)
        groups = [
            _Group(self._sources, cut, self._shifted(cut, shift, layout.parts[part]), item_bytes, place)
            for cut, part, shift, item_bytes in np.stack(np.unravel_index(codes, bases), axis=1).tolist()
        ]
        share = _Share(place, reader, readers)
        return ReaderPlan(self._sources, self._manifest, groups, group_of, self._into, self._from, share)

    def _rows(self, shape: Index, origin: Sequence[Rows]) -> list[tuple[int, int]] | str:
        """Find which published tensors one comes from, and by which shift; or why it cannot be had."""
        found, at = [], 0
        for each in origin:
            index = self._sources.indices.get(each.key)
            if index is None:
                return f"nobody publishes '{each.key}'"
            there = self._sources.shapes[index]
            if each == Rows(each.key) and there == shape and len(origin) == 1:
                return [(index, 0)]
            if not shape or len(there) != len(shape) or there[1:] != shape[1:]:
                return f"it has shape {shape}, and '{each.key}' {there}"
            stop = there[0] if each.stop is None else each.stop
            if not 0 <= each.start <= stop <= there[0]:
                return f"there are no {each}, which has shape {there}"
            shift = _Shift(at, at + stop - each.start, each.start)
            found.append((index, self._shifts.setdefault(shift, len(self._shifts))))
            at = shift.end
        if at != shape[0]:
            return f"it has shape {shape}, and {' and '.join(map(str, origin))} {at} rows"
        return found

    def _shifted(self, cut: int, shift: int, part: TensorPart) -> TensorPart:
        """Return a part of a reader in the coordinates of a published tensor."""
        if shift == 0:
            return part
        found = self._parts.get((cut, shift, part))
        if found is None:
            pieces = tuple(_clipped(part, tuple(self._shifts)[shift]))
            found = TensorPart(self._sources.cuts[cut].shape, part.local_shape, pieces)
            self._parts[cut, shift, part] = found
        return found


class _Share(NamedTuple):
    """Where a reader is, and which of the processes that are as near it takes."""

    place: MemoryPlace
    reader: int
    readers: int

    def turns(self, positions: Ints, count: int) -> Ints:
        """Return for tensors at these positions of a model whose turn it is, of so many processes."""
        first = self.reader * max(count // self.readers, 1)
        return (positions * (count * STRIPES) // LENGTH + first) % count


class _Group:
    """What a reader wants of tensors that are cut alike."""

    __slots__ = ("cut", "item_bytes", "match", "nearest")

    def __init__(
        self, sources: Sources, cut: int, part: TensorPart, item_bytes: int, place: MemoryPlace
    ) -> None:
        self.cut = sources.cuts[cut]
        self.item_bytes = item_bytes
        self.match: Match | None = sources.match(cut, part) if part.pieces else None
        self.nearest = self.cut.nearest(place, sources.places)


class ReaderPlan:
    """What one reader reads from whom; see `Wants.plan`.

    Attributes:
        flows: how much comes from whom, by the number of the source.
    """

    def __init__(
        self,
        sources: Sources,
        manifest: Manifest,
        groups: Sequence[_Group],
        group_of: Ints,
        into: Ints,
        whence: Ints,
        share: _Share,
    ) -> None:
        self._sources = sources
        self._manifest = manifest
        self._groups = groups
        self._group_of, self._into, self._from = group_of, into, whence
        self._share = share
        self.flows = tuple(self._count())

    def reads(self) -> Iterator[TensorRead]:
        """Yield what is read, tensor by tensor, each byte of the reader's once."""
        keys = tuple(self._sources.indices)
        rows = zip(self._group_of.tolist(), self._into.tolist(), self._from.tolist(), strict=True)
        for number, into, index in rows:
            alike = self._groups[number]
            if alike.match is None:
                continue
            position = self._sources.positions[index]
            for at, group in enumerate(alike.match.groups.tolist()):
                those = alike.nearest[group]
                source = those[0]
                if len(those) > 1:
                    source = those[(group + int(self._share.turns(position, len(those)))) % len(those)]
                shape = alike.cut.parts[source].local_shape
                copies = alike.match.copies(at, source)
                yield TensorRead(keys[index], self._manifest.keys[into], source, shape, copies)

    def _count(self) -> Iterator[Flow]:
        sent = np.zeros(len(self._sources.places), np.int64)
        positions = self._sources.positions[self._from]
        for number, alike in enumerate(self._groups):
            if alike.match is not None:
                self._add(sent, alike, alike.match, positions[self._group_of == number])
        for source in np.flatnonzero(sent).tolist():
            yield Flow(source, int(sent[source]), way(self._share.place, self._sources.places[source]))

    def _add(self, sent: Ints, alike: _Group, match: Match, positions: Ints) -> None:
        """Add what is read of tensors that are cut alike, one at each of these positions."""
        sizes = match.sizes * alike.item_bytes
        only = alike.cut.only[match.groups]
        np.add.at(sent, only[only >= 0], sizes[only >= 0] * len(positions))
        for at in np.flatnonzero(only < 0).tolist():
            group = int(match.groups[at])
            those = np.array(alike.nearest[group])
            turns = (self._share.turns(positions, len(those)) + group) % len(those)
            np.add.at(sent, those, np.bincount(turns, minlength=len(those)) * sizes[at])


def runs(copy: BoxCopy, source_shape: Index, target_shape: Index, item_bytes: int) -> ByteRun:
    """Return the bytes of a copied box as few and as long runs as there are.

    >>> runs(BoxCopy((2, 0), (0, 0), (2, 8)), (4, 8), (2, 8), 4)
    ByteRun(source_offset=64, target_offset=0, num_bytes=64, counts=(), source_strides=(), target_strides=())
    """
    source, target = _strides(source_shape, item_bytes), _strides(target_shape, item_bytes)
    num_bytes = item_bytes
    dims: list[
        tuple[int, int, int]
    ] = []  # of what does not lie together: how many, how far apart there and here
    for count, there, here in zip(reversed(copy.shape), reversed(source), reversed(target), strict=True):
        if count == 1:
            continue
        if not dims and there == here == num_bytes:
            num_bytes *= count
        elif dims and there == dims[-1][0] * dims[-1][1] and here == dims[-1][0] * dims[-1][2]:
            dims[-1] = (dims[-1][0] * count, dims[-1][1], dims[-1][2])
        else:
            dims.append((count, there, here))
    dims.reverse()
    return ByteRun(
        sum(a * b for a, b in zip(copy.source_start, source, strict=True)),
        sum(a * b for a, b in zip(copy.target_start, target, strict=True)),
        num_bytes,
        *(tuple(each[column] for each in dims) for column in range(3)),
    )


def _strides(shape: Index, item_bytes: int) -> Index:
    strides = [item_bytes]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides[: len(shape)]))


def _clipped(part: TensorPart, by: _Shift) -> Iterator[PlacedBox]:
    """Yield what lies between two rows, in the coordinates of the published tensor."""
    for piece in part.pieces:
        first = piece.start[0]
        low, high = max(first, by.begin), min(first + piece.shape[0], by.end)
        if low < high:
            yield PlacedBox(
                (low - by.begin + by.to, *piece.start[1:]),
                (high - low, *piece.shape[1:]),
                (piece.local_start[0] + low - first, *piece.local_start[1:]),
            )
