"""Holds back what has arrived over an emulated link until it would be there.

That is done where all messages of a process come in, whether their bytes came by a socket or lie in shared memory: what
is on a link has arrived, and nobody has been given it. What carries data is held: messages of `send` and `broadcast`,
items that a channel delivers, answers to questions in one, weights that are read. What steers the job passes at once:
calls, heartbeats, the directory, acknowledgements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.held import HELD, HeldAt
from rlinf_scheduler.channel.question import ANSWER
from rlinf_scheduler.comm import framing
from rlinf_scheduler.comm.framing import Buffer, Message
from rlinf_scheduler.comm.peer import Reply, decode_head
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication.records import ReaderAnswer
from rlinf_scheduler.comm.requests import Peer
from rlinf_scheduler.comm.shm.payload import DESCRIPTOR
from rlinf_scheduler.comm.shm.sent_payload import Descriptor
from rlinf_scheduler.comm.waits import CHANNEL, MESSAGE, WEIGHTS
from rlinf_scheduler.emulation.network import BOOK, PLACE, Booked, BookTransfer, TellPlace
from rlinf_scheduler.mailbox import records as mail
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.process_stats import Activity, LinkNote
from rlinf_scheduler.observe.timekeeping import TIMES
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import size_text

# How long the home may take to note where a process is.
PLACE_TIMEOUT_S = 30.0
# A frame that says where bytes are has no more than so many.
_MAX_POINTER_BYTES = 64 << 10
_CHANNEL = "channel/"


class Load(NamedTuple):
    """What one process sends in a message.

    Attributes:
        transfer: its name, if others get the same; else "".
    """

    source: str
    size_bytes: int
    transfer: str = ""


class Cargo(NamedTuple):
    """What a message carries.

    Attributes:
        lane: messages of one lane of a peer keep their order.
        kind: of the waits that it ends.
        loads: what crosses links.
    """

    lane: str
    kind: str
    loads: Sequence[Load]


@dataclass(slots=True, eq=False)
class _Crossing:
    """A load that is on a link; when it is there, once that is booked."""

    load: Load
    bytes_per_s: float = 0.0
    due: float | None = None


@dataclass(slots=True, eq=False)
class _Held:
    """A message that is not there yet."""

    peer: Peer
    message: Message
    kind: str
    arrived: float
    crossings: list[_Crossing] = field(default_factory=list)

    @property
    def due(self) -> float | None:
        """When it is there; None as long as that is not known."""
        dues = [each.due for each in self.crossings]
        return max([self.arrived, *(each for each in dues if each is not None)]) if None not in dues else None


class EmulatedArrivals:
    """Holds back what arrives at this process; a service of its session. On the I/O thread, but for its making."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = messenger = session.messenger
        self._lanes: dict[str, dict[str, deque[_Held]]] = {}
        # What is known of the links from others, by their names.
        self._known: dict[str, Booked] = {}
        messenger.on_peer_lost(self._forget)
        session.service(OwnActivity).add(self._add_links)
        messenger.arrivals = self

    def hold(self, peer: Peer, messages: list[Message]) -> list[Message]:
        """Return what is to be delivered now; the rest is given to `Messenger.deliver` when it is due."""
        return [message for message in messages if not self._holds(peer, message)]

    def _holds(self, peer: Peer, message: Message) -> bool:
        cargo = cargo_of(peer, message)
        if cargo is None:
            return message.envelope.kind == framing.CANCEL and self._cancels(peer, message)
        loads = [load for load in cargo.loads if self._is_linked(load.source)]
        lane = self._lanes.get(peer.process_id, {}).get(cargo.lane)
        if not loads and not lane:
            return False
        held = _Held(peer, message, cargo.kind, self._messenger.now(), [_Crossing(load) for load in loads])
        self._lanes.setdefault(peer.process_id, {}).setdefault(cargo.lane, deque()).append(held)
        for crossing in held.crossings:
            self._book(held, crossing, cargo.lane)
        self._go_on_from(held, cargo.lane)
        return True

    def _is_linked(self, source: str) -> bool:
        known = self._known.get(source)
        return known is None or known.is_linked

    def _cancels(self, peer: Peer, message: Message) -> bool:
        """Put the end of a request that is held behind it."""
        ident = message.envelope.ident
        for lane in self._lanes.get(peer.process_id, {}).values():
            if any(held.message.envelope.ident == ident for held in lane):
                lane.append(_Held(peer, message, MESSAGE, self._messenger.now()))
                return True
        return False

    # -- links -----------------------------------------------------------------------------------

    def _book(self, held: _Held, crossing: _Crossing, lane: str) -> None:
        known = self._known.get(crossing.load.source)
        if known is not None and not known.bytes_per_s:
            crossing.due = held.arrived + known.wait_s
            return
        if known is not None:
            crossing.bytes_per_s = known.bytes_per_s
        asked = self._messenger.request(
            self._session.home, BOOK, BookTransfer(*crossing.load), reply_type=Booked
        )
        asked.add_done_callback(partial(self._booked, held, crossing, lane))

    def _booked(self, held: _Held, crossing: _Crossing, lane: str, asked: Promise[Reply]) -> None:
        if asked.cancelled() or asked.exception() is not None:
            crossing.due = held.arrived  # the home is gone, and with it the job
        else:
            booked: Booked = asked.result().head
            self._known[crossing.load.source] = booked
            crossing.bytes_per_s = booked.bytes_per_s
            crossing.due = held.arrived + booked.wait_s
        self._go_on_from(held, lane)

    def _go_on_from(self, held: _Held, name: str) -> None:
        """Go on with a lane if a message is the next one there, of which something has changed."""
        lane = self._lanes.get(held.peer.process_id, {}).get(name)
        if lane and lane[0] is held:
            self._go_on(held.peer.process_id, name)

    def _go_on(self, process_id: str, name: str) -> None:
        """Deliver what is there of a lane, and look again when the next one is due."""
        while lane := self._lanes.get(process_id, {}).get(name):
            held = lane[0]
            due = held.due
            if due is None:
                return
            left_s = due - self._messenger.now()
            if left_s > 0:
                self._messenger.call_later(left_s, partial(self._go_on, process_id, name))
                return
            lane.popleft()
            if not lane:
                self._end_lane(process_id, name)
            self._note(held)
            self._messenger.deliver(held.peer, [held.message])

    def _end_lane(self, process_id: str, name: str) -> None:
        lanes = self._lanes[process_id]
        del lanes[name]
        if not lanes:
            del self._lanes[process_id]

    def _forget(self, process_id: str) -> None:
        """A process is gone, and what it had on its way."""
        self._lanes.pop(process_id, None)
        self._known.clear()  # its successor may be elsewhere

    # -- what is told ----------------------------------------------------------------------------

    def _note(self, held: _Held) -> None:
        for source, size_bytes, _ in (crossing.load for crossing in held.crossings):
            if self._is_linked(source):
                name = f"the emulated link {source} -> {self._session.name}: {size_text(size_bytes)}"
                TIMES.note_link(held.arrived, name, source)

    def on_their_way(self) -> tuple[LinkNote, ...]:
        """What is on its way to this process; from any thread."""
        now = self._messenger.now()
        return tuple(
            LinkNote(
                crossing.load.source,
                held.kind,
                crossing.load.size_bytes,
                crossing.bytes_per_s,
                None if crossing.due is None else crossing.due - now,
            )
            for lanes in tuple(self._lanes.values())
            for lane in tuple(lanes.values())
            for held in tuple(lane)
            for crossing in held.crossings
            if self._is_linked(crossing.load.source)
        )

    def _add_links(self, doing: Activity) -> Activity:
        return replace(doing, links=self.on_their_way())


def emulate_network(session: Session, node_rank: int | None = None) -> None:
    """Let a process get what is sent to it as late as the job's emulated network has it.

    Args:
        node_rank: its node; the home has noted it when this returns.

    Raises:
        CommError: the home does not answer.
    """
    messenger = session.messenger
    if node_rank is not None:
        told = messenger.request(session.home, PLACE, TellPlace(node_rank), timeout_s=PLACE_TIMEOUT_S)
        told.result(PLACE_TIMEOUT_S)
    # Of what a channel here delivers over links.
    TIMES.wants_origins = True
    session.on_close(_want_no_origins)
    session.service(EmulatedArrivals)


def _want_no_origins() -> None:
    TIMES.wants_origins = False


# -- what messages carry -----------------------------------------------------------------------------


def cargo_of(peer: Peer, message: Message) -> Cargo | None:
    """What a message carries; None of one that only steers."""
    kind, ident, service, head, _ = msgspec.structs.astuple(message.envelope)
    if kind in (framing.REPLY, framing.REPLY_TO_CONFIRM):
        asked = peer.requests.pending.get(ident)
        if asked is None or asked.reply_type is not ReaderAnswer or not message.frames:
            return None
        return _what_is_read(peer, ident, head, message.frames)
    if service == mail.PUT:
        return _mail(peer, head, message.frames)
    if service == mail.WITHDRAW:
        return Cargo(mail.SERVICE, MESSAGE, ())
    if service == ANSWER:
        load = Load(peer.title, sum(map(carried_bytes, message.frames)))
        return Cargo(service, CHANNEL, [load] if message.frames else [])
    if service.startswith(_CHANNEL):
        return _channel_responses(peer, service, head, message.frames)
    return None


def _what_is_read(peer: Peer, ident: int, head: msgspec.Raw, frames: Sequence[Buffer]) -> Cargo | None:
    answer = _decoded(head, ReaderAnswer)
    if answer is None:
        return None
    # Others of a version's readers get the same; what one rank sends to another has no name.
    piece = f"/{answer.begin}" if answer.begin else ""
    transfer = f"{peer.process_id}/{answer.key.name}/{answer.key.number}{piece}"
    load = Load(peer.title, sum(map(carried_bytes, frames)), transfer)
    return Cargo(f"#{ident}", WEIGHTS if answer.key.name else MESSAGE, [load])


def _mail(peer: Peer, head: msgspec.Raw, frames: Sequence[Buffer]) -> Cargo | None:
    put = _decoded(head, mail.MailPut)
    if put is None:
        return None
    key = put.source.key if put.topic and put.source is not None else None
    transfer = "" if key is None else f"{peer.process_id}/{key.name}/{key.number}"
    # One without bytes says that they can be read: that is what is sent then.
    loads = [Load(peer.title, sum(map(carried_bytes, frames)), transfer)] if frames else []
    return Cargo(mail.SERVICE, MESSAGE, loads)


def _channel_responses(peer: Peer, service: str, head: msgspec.Raw, frames: Sequence[Buffer]) -> Cargo | None:
    if service.endswith(wire.RESPONSES):
        responses = _decoded(head, wire.Responses)
    elif service.endswith(wire.TOLD):
        told = _decoded(head, of_room("durable.streams:OfServer"))
        envelope = getattr(told, "envelope", None)
        responses = None
        if envelope is not None and envelope.service.endswith(wire.RESPONSES):
            responses = _decoded(envelope.head, wire.Responses)
        if responses is None:
            return Cargo(service, CHANNEL, ())
    else:
        return None
    if responses is None:
        return None
    sizes: dict[str, int] = {}
    for source, count in _origins(responses):
        taken, frames = frames[:count], frames[count:]
        sizes[source or peer.title] = sizes.get(source or peer.title, 0) + sum(map(carried_bytes, taken))
    return Cargo(service, CHANNEL, [Load(source, size) for source, size in sizes.items()])


def _origins(responses: wire.Responses) -> Iterator[tuple[str, int]]:
    """The producer of each item that is delivered, and how many frames it has."""
    for answer in responses.others:
        if isinstance(answer, wire.Handed):
            yield answer.by, answer.num_frames * len(answer.tickets)
        elif isinstance(answer, wire.Delivered):
            origins = answer.origins or [None] * len(answer.num_frames)
            for origin, count in zip(origins, answer.num_frames, strict=True):
                yield answer.by if origin is None else origin[0], count


def _decoded(head: msgspec.Raw, kind: Any) -> Any:
    try:
        return decode_head(head, kind)
    except msgspec.DecodeError:
        return None  # its handler says so


def carried_bytes(frame: Buffer) -> int:
    """How many bytes a frame stands for: its own, or those that it says the place of."""
    size_bytes = framing.total_bytes((frame,))
    if size_bytes and size_bytes <= _MAX_POINTER_BYTES:
        read = _POINTERS.get(frame[0])
        if read is not None:
            try:
                return size_bytes + read(frame)
            except (ValueError, msgspec.DecodeError):
                return size_bytes  # it only begins so
    return size_bytes


def _bytes_in_memory(frame: Buffer) -> int:
    return sum(Descriptor.from_frame(frame).frame_sizes)


def _bytes_on_node(frame: Buffer) -> int:
    held = HeldAt.from_frames((frame,))
    return 0 if held is None else held.size_bytes


_POINTERS: dict[int, Callable[[Buffer], int]] = {DESCRIPTOR: _bytes_in_memory, HELD: _bytes_on_node}
