"""What is in the journal of a durable channel, to be read by the next process: turns of its server, and all there is.

All that there is (`ChannelSnapshot`) is looked at between two turns, quickly, and written down beside them by another
thread: what was looked at does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from rlinf_scheduler import record_log
from rlinf_scheduler.channel.spec import ChannelSpec, max_bytes_of
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import JOIN_BYTES, Buffer
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.durable.journal import Journal
from rlinf_scheduler.durable.streams import StreamEnvelope
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.policies import ChannelData
from rlinf_scheduler.queueing.producers import ProducerPlaces
from rlinf_scheduler.queueing.snapshot import Snapshot, with_rest
from rlinf_scheduler.version import __version__

# Its rules are to be raised when the queues decide otherwise of what clients said, or records change.
VERSION = f"{__version__}, rules 4"
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
    """A client has said something, with frames of these sizes; for the rest see `streams.Said`."""

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


class FoundCommit(NamedTuple):
    """A turn of the channel before, and the frames of all that came in it."""

    commit: JournaledCommit
    frames: list[Buffer]


@dataclass(slots=True)
class FoundJournal:
    """The contents of a journal.

    Attributes:
        is_there: there is one.
        snapshot: what it was written whole with; None if that was nothing.
        commits: what has happened since, each with its frames, read as it is taken: it may be more than memory holds.
    """

    spec: ChannelSpec
    is_there: bool = False
    snapshot: LoadedSnapshot | None = None
    commits: Iterator[FoundCommit] = field(default_factory=lambda: iter(()))


def read_journal(journal: Journal, spec: ChannelSpec) -> FoundJournal:
    """Read how a journal begins: which channel it is of, and what it was written whole with.

    Raises:
        ChannelJournalError: it is damaged, of another channel, or written by another version of this library; that may
            show only when its turns are taken.
    """
    if spec.restore and journal.exists:
        raise journal.damaged("is there already: a checkpoint is restored into a channel that is new")
    spec = msgspec.structs.replace(spec, restore="")
    if not journal.exists:
        # A share of this machine's memory is fixed now: it decides who waits, and must not change.
        return FoundJournal(msgspec.structs.replace(spec, max_bytes=max_bytes_of(spec)))
    records = journal.read()
    spec = _checked(journal, next(records), spec)
    snapshot = next(records)
    try:
        loaded = load_snapshot(snapshot) if snapshot.head else None
        return FoundJournal(spec, True, loaded, _commits(journal, records))
    except msgspec.MsgspecError as error:
        raise journal.damaged(f"cannot be read: {error}") from error


def _commits(journal: Journal, records: Iterator[record_log.Record]) -> Iterator[FoundCommit]:
    for record in records:
        try:
            commit = msgspec.msgpack.decode(record.head, type=JournaledCommit)
        except msgspec.MsgspecError as error:
            raise journal.damaged(f"cannot be read: {error}") from error
        yield FoundCommit(commit, commit.frames_of(record))


def _checked(journal: Journal, header: record_log.Record, spec: ChannelSpec) -> ChannelSpec:
    try:
        version, raw = msgspec.msgpack.decode(header.head, type=tuple[str, msgspec.Raw])
        version = version.replace("unknown", "0.1.0")  # which said so where it was not installed
        # What has happened is to follow by the same rules again.
        if version != VERSION:
            problem = f"was written by version {version} of this library, and this is {VERSION}"
            # What those saved is not read any more, either.
            too_old = version.endswith(("rules 1", "rules 2"))
            what_to_do = "save what it holds with that one, and restore it with this one"
            raise journal.damaged(
                f"{problem}; {'let what it holds be taken with that one' if too_old else what_to_do}"
            )
        known = msgspec.msgpack.decode(raw, type=ChannelSpec)
    except msgspec.MsgspecError as error:
        raise journal.damaged("is not the journal of a channel of this version") from error
    if spec.max_bytes is None:
        spec = msgspec.structs.replace(spec, max_bytes=known.max_bytes)
    differences = known.differences(spec)
    if differences:
        raise journal.damaged(f"is of a channel that was created with {differences}")
    return spec


def header_of(spec: ChannelSpec) -> bytes:
    """Return the header of a journal."""
    return msgspec.msgpack.encode((VERSION, spec))


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
