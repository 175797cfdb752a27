"""What is said of weights: by publishers and readers to the index at the job's home, by readers to publishers.

publisher to index    Announce -> Keep, what it is to keep
index to publisher    Keep, when a version has become complete
publisher to index    HeldShards, of another one's shards
reader to index       Find -> Found
reader to publisher   FetchWeights -> replication's `ReaderAnswer`, also of shards that it holds
publisher to another  HoldShards, for shards that it is to hold -> `ReaderAnswer`
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.replication import CarriedBy, Want
from rlinf_scheduler.errors import WeightsError
from rlinf_scheduler.weights.layout import Manifest, TensorPart, WeightsLayout
from rlinf_scheduler.weights.sources import Way

SERVICE = "weights"
FETCH = "weights.fetch"
KEEP = "weights.keep"
HOLD = "weights.hold"
# The index's, a family of its own: its process may publish and fetch, too.
INDEX = "weights_index"
ANNOUNCE = "weights_index.announce"
FIND = "weights_index.find"
LIST = "weights_index.list"
HELD = "weights_index.held"
NO_VERSION = -1


def entry_of(name: str) -> str:
    """Return what weights are called in errors about their publishers."""
    return f"weights/{name}"


def check_growth(name: str, before: int, version: int) -> None:
    """Make sure that a version may follow another one.

    Raises:
        WeightsError: it may not.
    """
    if version <= before:
        raise WeightsError(name, f"version {version} cannot follow version {before}: versions grow")


class PublishingRank(msgspec.Struct, frozen=True, array_like=True):
    """A process that publishes, alone (the group is its process id) or with other ranks; a later launch is larger."""

    endpoint: Endpoint
    process: str
    group: str
    launch: int = 0
    rank: int = 0
    world_size: int = 1


class PackedLayout(msgspec.Struct, frozen=True, array_like=True):
    """A layout as bytes, in pieces that many processes have in common: its manifest, its part_of, and its parts."""

    manifest: bytes
    part_of: bytes
    parts: bytes


class Shards(msgspec.Struct, frozen=True, array_like=True):
    """What a process has of a version.

    Attributes:
        digest: of its layout; manifest: of the tensors of that.
        held_bytes: how much it has, of `total_bytes` of all of these tensors.
        device: the device they lie on; "" for host memory.
        ranks: the version is complete when these have announced it; (): when nothing of its tensors is missing.
    """

    publisher: PublishingRank
    digest: bytes
    manifest: bytes
    held_bytes: int
    total_bytes: int
    device: str = ""
    ranks: tuple[int, ...] = ()


class Announce(msgspec.Struct, frozen=True, array_like=True):
    """A process has put its shards of a version where others can read them; their layout, if that is new."""

    name: str
    version: int
    shards: Shards
    layout: PackedLayout | None = None


class KeptVersions(msgspec.Struct, frozen=True, array_like=True):
    """Which versions a publisher is to keep of those up to the last one that the index has heard of.

    Attributes:
        held: the version of which it is to hold others' shards; holds: and of which processes.
    """

    name: str
    versions: tuple[int, ...]
    up_to: int
    held: int = NO_VERSION
    holds: tuple[Endpoint, ...] = ()


class HoldShards(msgspec.Struct, frozen=True, array_like=True):
    """A question for all that a process has of a version, to be held for it; it is answered if that copies nothing."""

    name: str
    version: int
    holder: Endpoint


class HeldShards(msgspec.Struct, frozen=True, array_like=True):
    """The shards of a version that the process `of` has are held by another one, too."""

    name: str
    version: int
    of: str
    holder: Endpoint


class Find(msgspec.Struct, frozen=True, array_like=True):
    """A question for the newest complete version; the answer comes when there is one, or at the deadline.

    Attributes:
        min_version: the least version that will do; NO_VERSION if any does.
        exact: only `min_version` itself will do.
        known: the digest of the layouts that the reader has from an answer before.
        lost: processes that the reader cannot reach any more.
        launch: that of the group whose version it has; 0 if it has none.
    """

    name: str
    min_version: int
    exact: bool
    timeout_s: float
    known: bytes = b""
    lost: tuple[str, ...] = ()
    launch: int = 0


class Source(msgspec.Struct, frozen=True, array_like=True):
    """Who gives shards of a version; whose they are (`of`: its id if it is gone), on which device, in which layout."""

    endpoint: Endpoint
    process: str
    device: str
    layout: int
    of: str = ""


class Layouts(msgspec.Struct, frozen=True, array_like=True):
    """Several layouts, in which what they have in common is there once."""

    pieces: list[bytes]
    numbers: list[tuple[int, int, int]]


class FoundVersion(msgspec.Struct, frozen=True, array_like=True):
    """The newest complete version.

    Attributes:
        version: which; NO_VERSION if there is none.
        sources: who has it; () if it will not do.
        digest: of all layouts, in their order.
        layouts: these; None if the reader knows them.
        lacks: why a newer one is not complete; "" if there is none.
    """

    version: int
    sources: tuple[Source, ...] = ()
    digest: bytes = b""
    layouts: Layouts | None = None
    lacks: str = ""
    launch: int = 0


class FetchWeights(msgspec.Struct, array_like=True):
    """A question for shards of a version: on devices that the reader can read, or held for a process that is gone."""

    name: str
    version: int
    want: Want
    devices: tuple[str, ...] = ()
    of: str = ""


class ReadVersion(msgspec.Struct, frozen=True, array_like=True):
    """What a process has read of weights.

    Attributes:
        flows: from which processes, how many bytes, and by which way.
        carriers: how each of these has come, and why not by something better.
    """

    version: int
    flows: tuple[tuple[str, int, Way], ...]
    carriers: tuple[CarriedBy, ...] = ()

    def bytes_by_way(self) -> dict[str, int]:
        """Return how many bytes came by which way."""
        return {way: sum(size for _, size, each in self.flows if each == way) for _, _, way in self.flows}


class WeightsUse(msgspec.Struct, frozen=True, array_like=True):
    """What each process has read last of some weights, and how it has given them to other machines."""

    readers: dict[str, ReadVersion]
    copies: dict[str, dict[str, int]]


class DigestedLayout(NamedTuple):
    """A layout, and what is said of it in every announcement: see `Shards`."""

    layout: WeightsLayout
    packed: PackedLayout
    digest: bytes
    manifest: bytes
    held_bytes: int
    total_bytes: int


_encode = msgspec.msgpack.Encoder().encode
_decode_manifest = msgspec.msgpack.Decoder(Manifest).decode
_decode_parts = msgspec.msgpack.Decoder(tuple[TensorPart, ...]).decode
_decode_numbers = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def digested(layout: WeightsLayout) -> DigestedLayout:
    """Return a layout with all that is announced of it."""
    raw = [_encode(each) for each in (layout.manifest, layout.part_of, layout.parts)]
    packed = PackedLayout(*(zlib.compress(each, 1) for each in raw))
    manifest = digest_of(raw[:1])
    return DigestedLayout(
        layout, packed, digest_of(raw), manifest, layout.num_bytes, layout.manifest.num_bytes
    )


def digest_of(pieces: Sequence[bytes]) -> bytes:
    """Return the digest of several pieces."""
    digest = blake2b(digest_size=16)
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest.digest()


def together(layouts: Sequence[PackedLayout]) -> Layouts:
    """Return several layouts with what they have in common once."""
    pieces: dict[bytes, int] = {}

    def number(piece: bytes) -> int:
        return pieces.setdefault(piece, len(pieces))

    numbers = [(number(each.manifest), number(each.part_of), number(each.parts)) for each in layouts]
    return Layouts(list(pieces), numbers)


def apart(layouts: Layouts) -> list[WeightsLayout]:
    """Return the layouts of `together`, unpacked."""
    at = layouts.pieces
    return [unpacked(PackedLayout(*(at[number] for number in numbers))) for numbers in layouts.numbers]


@lru_cache(maxsize=2048)
def unpacked(packed: PackedLayout) -> WeightsLayout:
    """Return a layout; manifests that are the same are the same object."""
    parts = _decode_parts(zlib.decompress(packed.parts))
    return WeightsLayout(_manifest(packed.manifest), parts, _numbers(packed.part_of))


@lru_cache(maxsize=64)
def _manifest(packed: bytes) -> Manifest:
    return _decode_manifest(zlib.decompress(packed))


@lru_cache(maxsize=64)
def _numbers(packed: bytes) -> tuple[int, ...]:
    return _decode_numbers(zlib.decompress(packed))
