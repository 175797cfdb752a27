"""What has changed from one version to the next, as bytes, and the next one made of it. Pure.

    head    msgpack of a `DeltaHead`
    counts  u32 for each chunk: how many of its elements have changed
    places  for each chunk that has changed: a u16 for each element that has, or a bit for each that there is
    values  these elements

Frames are compared by their bits, in chunks that stay in the processor's cache. Where all elements of a chunk take
less than the changed ones with their places, they are sent instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.framing import Buffer, Bytes
from rlinf_scheduler.weights.held import NO_PART, decode_rows
from rlinf_scheduler.weights.layout import item_size

# So many elements: a place in a chunk is 16 bits.
CHUNK = 1 << 16
# One chunk of so many is compared first: whether it pays at all.
SAMPLE_EVERY = 16
# GMAC, with a key that everybody knows: the quickest checksum that there is, and one that swapped, negated or
# otherwise related values do not deceive. It runs at memory speed, five times as fast as CRC-32.
_tag = partial(AESGCM(bytes(16)).encrypt, bytes(12), b"")

Elements: TypeAlias = np.ndarray[Any, Any]


class WrongDelta(ValueError):
    """A delta does not fit: it is of another base, or damaged."""


class DeltaHead(msgspec.Struct, frozen=True, array_like=True):
    """What a delta says of each frame of the version that it makes: its size, that of an element, and a checksum."""

    sizes: tuple[int, ...]
    units: tuple[int, ...]
    digests: tuple[bytes, ...]


_decode_head = msgspec.msgpack.Decoder(DeltaHead).decode


class _Chunk(NamedTuple):
    """The same elements of the version before and of the new one."""

    old: Elements
    new: Elements


class _Places(NamedTuple):
    """How the elements of a chunk that have changed are sent: the bytes of their places, then so many elements."""

    num_bytes: int
    num_values: int
    is_bitmap: bool


@lru_cache(maxsize=1 << 12)
def _places(num_changed: int, size: int, unit: int) -> _Places:
    """Return the shortest form, of so many of the `size` elements of a chunk; without places they are all there."""
    bitmap = -(-size // 8)
    shortest = min(2 * num_changed, bitmap)
    if shortest + num_changed * unit >= size * unit:
        return _Places(0, size, is_bitmap=False)
    return _Places(shortest, num_changed, is_bitmap=bitmap < 2 * num_changed)


def units_of(head: Buffer) -> list[int]:
    """Return how many bytes an element has of each frame of weights, from their head."""
    rows = [row for row in decode_rows(head) if row.part != NO_PART]
    sizes = {row.part: item_size(row.dtype) for row in rows}
    return [1, *(sizes[part] for part in range(len(sizes)))]


def diff(
    old: Sequence[Buffer],
    new: Sequence[Buffer],
    limit_bytes: int,
    is_over: Callable[[], bool] = lambda: False,
) -> Encoded | None:
    """Return what has changed between two versions of which the frames have the same sizes.

    None if it would take more than `limit_bytes`; mostly that is known after a sixteenth of the time. Also None once
    `is_over` says that nobody wants it any more.
    """
    sizes = tuple(map(len, new))
    units = [_unit(unit, size) for unit, size in zip(units_of(new[0]), sizes, strict=True)]
    if _estimate(old, new, units) > limit_bytes:
        return None
    return _Difference(sizes, units, limit_bytes).of(old, new, is_over)


def _estimate(old: Sequence[Buffer], new: Sequence[Buffer], units: Sequence[int]) -> int:
    """Return how long the difference is, as far as some chunks tell."""
    num_bytes = seen = position = 0
    for before, after, unit in zip(old, new, units, strict=True):
        for chunk in _chunks(before, after, unit, first=-position % SAMPLE_EVERY, step=SAMPLE_EVERY):
            num_changed = int(np.count_nonzero(chunk.old != chunk.new))
            places = _places(num_changed, len(chunk.new), unit)
            num_bytes += (places.num_bytes + places.num_values * unit) if num_changed else 0
            seen += chunk.new.nbytes
        position += -(-len(after) // (unit * CHUNK))
    return num_bytes * sum(map(len, new)) // seen if seen else 0


class _Difference:
    """Collects what has changed, until it is too long."""

    def __init__(self, sizes: tuple[int, ...], units: Sequence[int], limit_bytes: int) -> None:
        self._sizes, self._units = sizes, units
        self._places, self._values = (np.empty(limit_bytes, np.uint8) for _ in range(2))
        self._places_end = self._values_end = 0
        self._counts: list[int] = []
        self._is_changed = np.empty(CHUNK, np.bool_)

    def of(self, old: Sequence[Buffer], new: Sequence[Buffer], is_over: Callable[[], bool]) -> Encoded | None:
        """Return it; None if it is too long, or over."""
        digests = []
        for before, after, unit in zip(old, new, self._units, strict=True):
            tags = []
            for chunk in _chunks(before, after, unit):
                if is_over() or not self._add(chunk, unit):
                    return None
                tags.append(_tag(chunk.new.view(np.uint8).data))
            digests.append(_digest(tags))
        head = DeltaHead(self._sizes, tuple(self._units), tuple(digests))
        counts = np.array(self._counts, "<u4").view(np.uint8)
        frames = [counts, self._places[: self._places_end], self._values[: self._values_end]]
        return Encoded(msgspec.msgpack.encode(head), [each.data for each in frames])

    def _add(self, chunk: _Chunk, unit: int) -> bool:
        size = len(chunk.new)
        is_changed = np.not_equal(chunk.old, chunk.new, out=self._is_changed[:size])
        num_changed = int(np.count_nonzero(is_changed))
        self._counts.append(num_changed)
        if not num_changed:
            return True
        places = _places(num_changed, size, unit)
        places_end = self._places_end + places.num_bytes
        values_end = self._values_end + places.num_values * unit
        if places_end + values_end > len(self._values):
            return False
        values = chunk.new
        if places.num_bytes:
            numbers = np.flatnonzero(is_changed)
            values = chunk.new[numbers]
            packed = np.packbits(is_changed) if places.is_bitmap else numbers.astype("<u2").view(np.uint8)
            self._places[self._places_end : places_end] = packed
        self._values[self._values_end : values_end] = values.view(np.uint8)
        self._places_end, self._values_end = places_end, values_end
        return True


def apply(delta: Sequence[Buffer], base: Sequence[Buffer], target: Sequence[Buffer]) -> None:
    """Make the version that a delta is of, in memory that nobody reads yet.

    Raises:
        WrongDelta: that is not what has come of it.
    """
    try:
        _apply(delta, base, target)
    except WrongDelta:
        raise
    except (ValueError, IndexError, StopIteration, msgspec.MsgspecError) as error:
        raise WrongDelta("it is damaged") from error


def _apply(delta: Sequence[Buffer], base: Sequence[Buffer], target: Sequence[Buffer]) -> None:
    head = _decode_head(delta[0])
    counts, places, values = (np.frombuffer(each, np.uint8) for each in delta[1:])
    changes = _Changes(counts.view("<u4").tolist(), places, values)
    if not head.sizes == tuple(map(len, base)) == tuple(map(len, target)):
        raise WrongDelta("the version before has other tensors")
    if not {*head.units} <= {1, 2, 4, 8}:
        raise WrongDelta("it is damaged")
    for before, after, unit, digest in zip(base, target, head.units, head.digests, strict=True):
        tags = [changes.write(chunk, unit) for chunk in _chunks(before, after, unit)]
        if _digest(tags) != digest:
            raise WrongDelta("a checksum is wrong")


class _Changes:
    """What a delta has for the chunks that follow."""

    def __init__(self, counts: Sequence[int], places: Bytes, values: Bytes) -> None:
        self._counts = iter(counts)
        self._places, self._values = places, values

    def write(self, chunk: _Chunk, unit: int) -> bytes:
        """Write the next chunk of the new version; return its checksum."""
        num_changed, size = next(self._counts), len(chunk.new)
        places = _places(num_changed, size, unit)
        if not num_changed or places.num_bytes:
            chunk.new[:] = chunk.old
        if num_changed:
            where, self._places = self._places[: places.num_bytes], self._places[places.num_bytes :]
            end = places.num_values * unit
            values, self._values = self._values[:end].view(chunk.new.dtype), self._values[end:]
            if not places.num_bytes:
                chunk.new[:] = values
            elif places.is_bitmap:
                # As what they are, bools: of integers `flatnonzero` takes ten times as long.
                chunk.new[np.flatnonzero(np.unpackbits(where, count=size).view(np.bool_))] = values
            else:
                chunk.new[where.view("<u2").astype(np.intp)] = values
        return _tag(chunk.new.view(np.uint8).data)


def _chunks(old: Buffer, new: Buffer, unit: int, first: int = 0, step: int = 1) -> Iterator[_Chunk]:
    """Yield the chunks of two frames of one size, from the `first` one on, one of `step`."""
    before, after = (np.frombuffer(each, f"<u{unit}") for each in (old, new))
    for begin in range(first * CHUNK, len(after), step * CHUNK):
        yield _Chunk(before[begin : begin + CHUNK], after[begin : begin + CHUNK])


def _unit(unit: int, size: int) -> int:
    """Return as how large an integer elements of so many bytes are compared."""
    return next(each for each in (8, 4, 2, 1) if unit % each == 0 and size % each == 0)


def _digest(tags: Sequence[bytes]) -> bytes:
    return blake2b(b"".join(tags), digest_size=16).digest()
