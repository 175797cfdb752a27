"""What is written in the journal of a durable channel: turns of its server, and now and then all that there is.

All that there is (`ChannelSnapshot`) is looked at between two turns, quickly, and written down beside them by another
thread: what was looked at does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from rlinf_scheduler import record_log
from rlinf_scheduler.channel.durable_wire import StreamEnvelope
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import JOIN_BYTES, Buffer
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.policies import ChannelData
from rlinf_scheduler.queueing.producers import ProducerPlaces
from rlinf_scheduler.queueing.snapshot import Snapshot, with_rest

# So many frames are looked at together, whether they are small.
JOINED = 100


class HoldingBegun(msgspec.Struct, tag=0, array_like=True):
    """A process has begun to hold the channel, in a job."""

    epoch: int
    job: str


class ClientJoined(msgspec.Struct, tag=1, array_like=True):
    """A client is there."""

    client: str
    name: str
    line: str


class ClientLost(msgspec.Struct, tag=2, array_like=True):
    """A client is gone."""

    client: str


class ReceivedEnvelope(msgspec.Struct, tag=3, array_like=True):
    """A client has said something, with frames of these sizes; for the rest see `durable_wire.Said`."""

    client: str
    number: int
    heard: int
    envelope: StreamEnvelope
    sizes: list[int]


class Fired(msgspec.Struct, tag=4, array_like=True):
    """A timer has rung: what it was to call, with which arguments."""

    name: str
    args: list[Any]


Record = HoldingBegun | ClientJoined | ClientLost | ReceivedEnvelope | Fired


class JournaledCommit(msgspec.Struct, array_like=True):
    """The events of one turn of the I/O thread: a record of the journal. `now`: by the channel's own clock."""

    now: float
    records: list[Record]

    def frames_of(self, record: record_log.Record) -> list[Buffer]:
        """The frames of all that came, one after the other, in the record of this commit."""
        came = (each.sizes for each in self.records if isinstance(each, ReceivedEnvelope))
        return record.cut(size for sizes in came for size in sizes)


class ServerRecord(NamedTuple):
    """The state of a channel's server besides its queues.

    Attributes:
        producers: those of the channel.
        dues: when the time of what was given out, or is delayed, is over, and how often that was put off.
        arrivals: since when each delivery is on its way; None as long as no queue has ended.
        clients: where each is, and its name.
    """

    producers: ProducerPlaces
    dues: dict[int, tuple[float, int]]
    arrivals: list[tuple[str, int, float]] | None
    clients: dict[str, tuple[Endpoint, str]]


class ClientStream(NamedTuple):
    """The messages from and to one client.

    Attributes:
        line: which of its lines it uses.
        heard: the number of the last that it has said.
        num_said: how much it was told.
        kept: of that, what it may not have, by number; the frames stand for their places in the snapshot.
    """

    client: str
    name: str
    line: str
    heard: int
    num_said: int
    kept: list[tuple[int, StreamEnvelope, list[int]]]


class WorldRecord(NamedTuple):
    """The state between the server and the world.

    Attributes:
        lines: what was said from and to each client.
        epoch: of the process that wrote it.
        job: in which that was.
        now: by the channel's clock.
        timers: what is to be called, with which arguments, and when.
    """

    lines: list[ClientStream]
    epoch: int
    job: str
    now: float
    timers: list[tuple[str, list[Any], float]]


class ChannelSnapshot(msgspec.Struct, array_like=True):
    """All that there is of a durable channel, between two turns.

    Attributes:
        state: its queues, without what never left them.
        rest: that, a little at a time (see `Snapshot.rest_items`).
        counts: how many frames each payload has that the queues speak of,
        places: and which, of all payloads one after the other.
        server: what the server knows besides.
        world: what stands around it.
    """

    state: ChannelData
    rest: list[tuple[int, list[Item]]]
    counts: list[int]
    places: list[int]
    server: ServerRecord
    world: WorldRecord
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class LoadedSnapshot:
    """A snapshot that was read: the queues and the payloads of their items, and the rest with its frames."""

    state: ChannelData
    items: list[ReceivedPayload]
    server: ServerRecord
    world: WorldRecord
    frames: list[Buffer]


def write_snapshot(
    snapshot: Snapshot, server: ServerRecord, world: WorldRecord, said: Sequence[Sequence[Sequence[Buffer]]]
) -> tuple[bytes, Iterator[Buffer]]:
    """A snapshot as bytes, whose frames come as they are taken: small ones are copied, a few at a time.

    In any thread, and others go on meanwhile: nothing here takes long at a time.

    Args:
        snapshot: of the queues.
        server: what the server knows besides.
        world: what stands around it.
        said: the frames of what is kept for each client.
    """
    frames = _Frames()
    counts: list[int] = []
    places: list[int] = []
    for item in snapshot.items:
        its_places = () if item.payload is None else frames.places(item.payload.frames())
        counts.append(len(its_places))
        places.extend(its_places)
    lines = [
        line._replace(
            kept=[(*kept[:2], frames.places(its)) for kept, its in zip(line.kept, each, strict=True)]
        )
        for line, each in zip(world.lines, said, strict=True)
    ]
    rest: Any = [
        (number, msgspec.Raw(msgspec.msgpack.encode(items))) for number, items in snapshot.rest_items()
    ]
    sizes = [len(piece) for piece in frames.pieces]
    whole = ChannelSnapshot(snapshot.state, rest, counts, places, server, world._replace(lines=lines), sizes)
    return msgspec.msgpack.encode(whole), _joined(frames.pieces)


def load_snapshot(record: record_log.Record) -> LoadedSnapshot:
    """Read what `write_snapshot` wrote.

    Raises:
        msgspec.DecodeError: it is none.
    """
    whole = msgspec.msgpack.decode(record.head, type=ChannelSnapshot)
    pieces = record.cut(whole.sizes)
    places = iter(whole.places)
    items = [ReceivedPayload([pieces[place] for place in islice(places, count)]) for count in whole.counts]
    return LoadedSnapshot(with_rest(whole.state, whole.rest), items, whole.server, whole.world, pieces)


class _Frames:
    """Frames, each once."""

    def __init__(self) -> None:
        self.pieces: list[Buffer] = []
        self._places: dict[int, int] = {}

    def places(self, frames: Sequence[Buffer]) -> list[int]:
        return [self._place(frame) for frame in frames]

    def _place(self, frame: Buffer) -> int:
        place = self._places.setdefault(id(frame), len(self.pieces))
        if place == len(self.pieces):
            self.pieces.append(frame)
        return place


def _joined(pieces: list[Buffer]) -> Iterator[Buffer]:
    """The same bytes in fewer pieces, where they are small."""
    for begin in range(0, len(pieces), JOINED):
        some = pieces[begin : begin + JOINED]
        if sum(map(len, some)) <= JOIN_BYTES:
            yield b"".join(some)
        else:
            yield from some
