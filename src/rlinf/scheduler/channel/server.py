"""The server of one channel: carries messages to and from the state machine of `queueing`.

Everything runs on the messenger's I/O thread, one event after the other, so there are no locks and nothing
waits. Payloads are held and passed on, never decoded; those in shared memory are not even touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.byte_bound import ByteBound
from rlinf.scheduler.channel.operation import is_marked
from rlinf.scheduler.channel.producer_desk import ProducerDesk
from rlinf.scheduler.channel.shortcut import DIRECT_BYTES
from rlinf.scheduler.channel.shortcut_door import ShortcutDoor, ShortcutEnd
from rlinf.scheduler.channel.spec import ChannelRef, ChannelSpec
from rlinf.scheduler.comm.directory import DirectoryClient
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.peer import Request, run_guarded
from rlinf.scheduler.comm.reports import Reporter
from rlinf.scheduler.comm.shm.parcel import Arrived
from rlinf.scheduler.errors import ChannelExists, CommError, NameTaken, SharedMemoryUnreadable
from rlinf.scheduler.queueing import (
    NO_LIMITS,
    Accept,
    ChannelState,
    Deliver,
    DirectOperations,
    Grant,
    Instruction,
    Limits,
    Ripen,
    ShardPlan,
    rounded,
)
from rlinf.scheduler.session import Session

logger = Reporter(__name__)

# A client that cannot open shared memory for a moment gets bytes for so long, and longer each time.
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0


class _Client:
    """One process that uses the channel, and the news that have gathered for it."""

    __slots__ = (
        "accepted",
        "answers",
        "bytes_until",
        "direct",
        "endpoint",
        "frames",
        "pause_s",
        "unreadable",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.accepted: list[int] = []
        self.answers: list[wire.Granted | wire.Delivered | wire.Refused] = []
        self.frames: list[Buffer] = []
        # Its puts that lie in shared memory which cannot be read here, and why.
        self.unreadable: dict[int, str] = {}
        # It could not open shared memory that it was sent: until then it gets bytes.
        self.bytes_until = 0.0
        self.pause_s = MIN_PAUSE_S
        self.direct: DirectOperations[ShortcutEnd, wire.Direct] = DirectOperations()


class ChannelServer:
    """Holds one channel.

    Args:
        messenger: serves the channel; the server lives on its I/O thread.
        spec: the channel.
        directory: where the channel is known, to free its name when it is deleted; None where it is not.

    Attributes:
        on_stopped: called once on the I/O thread when the server has left; the process may end then.
    """

    def __init__(
        self, messenger: Messenger, spec: ChannelSpec, directory: DirectoryClient | None = None
    ) -> None:
        self.spec = spec
        self.on_stopped: Callable[[], None] | None = None
        self._directory = directory
        self._messenger = messenger
        self._bound = ByteBound(spec)
        self._state = ChannelState(spec.maxsize, total_bytes=self._bound.max_bytes)
        self._producers = ProducerDesk(messenger, spec, self._on_producers_done)
        self._clients: dict[str, _Client] = {}
        self._with_news: dict[str, _Client] = {}
        self._flush_due = False
        self._stopped = False
        self._news_service = wire.news_service(spec.channel_id)
        self._door = ShortcutDoor(messenger, self._on_direct, self._on_left)
        self._operations: dict[type, Callable[[str, Any, Iterator[Buffer]], list[Instruction]]] = {
            wire.Put: self._put,
            wire.Reserve: self._reserve,
            wire.Fill: self._fill,
            wire.Get: self._get,
            wire.Resend: self._resend,
            wire.Withdraw: lambda client, operation, _: self._state.withdraw(client, operation.ticket),
            wire.Recall: self._recall,
        }
        messenger.on_peer_lost(self._lose)
        messenger.serve(wire.operations_service(spec.channel_id), self._on_operations, wire.Operations)
        messenger.serve(wire.control_service(spec.channel_id), self._on_control, wire.Control)

    @property
    def ref(self) -> ChannelRef:
        """How the channel is reached."""
        return ChannelRef(self.spec, self._messenger.endpoint)

    def stop(self) -> None:
        """Leave: what waits fails with ChannelLost, and what is held is dropped."""
        self._messenger.submit(self._stop)

    # -- messages --------------------------------------------------------------------------------

    def _on_operations(self, request: Request) -> None:
        client = request.peer_id
        known = self._clients.get(client)
        if known is None:
            return  # it was lost in between, and everything it had begun was undone
        message: wire.Operations = request.head
        for ticket in message.confirmed:
            self._carry_out(self._state.confirm(client, ticket))
        for ticket in message.arrived:
            self._carry_out(self._state.arrive(client, ticket))
        frames = iter(request.frames)
        for operation in message.operations:
            self._run(client, operation, frames)
        for _, direct in known.direct.read():
            self._run(client, direct.operation, iter(direct.frames))

    def _on_direct(self, end: ShortcutEnd, direct: wire.Direct) -> None:
        """An operation came by a shortcut."""
        operation = direct.operation
        if self._clients[end.client].direct.arrive(end, operation.ticket, direct, direct.after):
            self._run(end.client, operation, iter(direct.frames))

    def _on_left(self, end: ShortcutEnd) -> None:
        self._clients[end.client].direct.leave(end)

    def _run(self, client: str, operation: wire.Operation, frames: Iterator[Buffer]) -> None:
        try:
            self._carry_out(self._operations[type(operation)](client, operation, frames))
        except Exception as error:  # the others in this message are not to wait in vain
            if not isinstance(error, ValueError):
                logger.exception("channel '%s': an operation failed", self.spec.name)
            end = self._clients[client].direct.end(operation.ticket)
            self._tell(client, wire.Refused(operation.ticket, wire.INVALID, str(error) or repr(error)), end)

    def _put(self, client: str, put: wire.Put, frames: Iterator[Buffer]) -> list[Instruction]:
        queue = wire.as_name(put.queue)
        its_frames = list(islice(frames, put.num_frames))
        try:
            item = self._messenger.parcels.receive(its_frames, to_load=False)
        except SharedMemoryUnreadable as error:
            known = self._clients[client]
            end = known.direct.end(put.ticket)
            if end is not None:
                end.answer(wire.Answer(wire.Again(put.ticket, str(error)), []))
                return []
            # It keeps its place, and comes as bytes.
            known.unreadable[put.ticket] = str(error)
            return self._state.reserve(
                client, put.ticket, queue, put.weight, 0, priority=put.priority, wait=put.wait
            )
        size_bytes, priority = item.size_bytes, put.priority
        out = self._state.put(
            client, put.ticket, queue, item, put.weight, size_bytes, priority=priority, wait=put.wait
        )
        return out or self._bound.note(self._state)

    def _reserve(self, client: str, put: wire.Reserve, _frames: Iterator[Buffer]) -> list[Instruction]:
        queue, size_bytes, priority = wire.as_name(put.queue), put.size_bytes, put.priority
        out = self._state.reserve(
            client, put.ticket, queue, put.weight, size_bytes, priority=priority, wait=put.wait
        )
        return out or self._bound.note(self._state)

    def _fill(self, client: str, fill: wire.Fill, frames: Iterator[Buffer]) -> list[Instruction]:
        its_frames = list(islice(frames, fill.num_frames))
        try:
            item = self._messenger.parcels.receive(its_frames, to_load=False)
        except SharedMemoryUnreadable as error:
            self._tell(client, wire.Granted(fill.ticket, str(error)))
            return []
        return self._state.fill(client, fill.ticket, item, item.size_bytes)

    def _resend(self, client: str, resend: wire.Resend, _frames: Iterator[Buffer]) -> list[Instruction]:
        known = self._clients[client]
        now = time.monotonic()
        if now >= known.bytes_until:
            known.bytes_until = now + known.pause_s
            known.pause_s = min(2 * known.pause_s, MAX_PAUSE_S)
        return self._state.deliver_again(client, resend.ticket)

    def _recall(self, client: str, recall: wire.Recall, _frames: Iterator[Buffer]) -> list[Instruction]:
        """Say what became of an operation that came by a shortcut; nobody listens there any more."""
        return self._clients[client].direct.recall(client, recall.ticket, self._state, self._door.read_all)

    def _get(self, client: str, get: wire.Get, _frames: Iterator[Buffer]) -> list[Instruction]:
        queue = wire.as_name(get.queue)
        if get.shard is not None:
            index, done_step, *plan = msgspec.structs.astuple(get.shard)
            return self._state.get_part(
                client, get.ticket, queue, ShardPlan(*plan), index, done_step, wait=get.wait
            )
        if get.batch_weight is None and get.limits is None:
            return self._state.get(client, get.ticket, queue, wait=get.wait)
        limits = NO_LIMITS if get.limits is None else Limits(*msgspec.structs.astuple(get.limits))
        return self._state.get_batch(client, get.ticket, queue, get.batch_weight, limits, wait=get.wait)

    # -- instructions ----------------------------------------------------------------------------

    def _carry_out(self, instructions: list[Instruction]) -> None:
        # Who waits for an item first: who put one is only told that it is here.
        if len(instructions) > 1:
            instructions.sort(key=_is_accept)
        for instruction in instructions:
            client, ticket = instruction[0], instruction[1]
            if isinstance(instruction, Ripen):
                self._messenger.call_later(instruction.after_s, partial(self._ripen, client, ticket))
                continue
            known = self._clients[client]
            if isinstance(instruction, Accept):
                end = known.direct.accept(ticket)
                if end is None or not end.answer(wire.Answer(wire.Accepted(ticket), [])):
                    self._with_news_for(client).accepted.append(ticket)
                continue
            end = known.direct.end(ticket)
            if isinstance(instruction, Deliver):
                if end is None or not _deliver_directly(end, instruction):
                    self._deliver(instruction)
            elif isinstance(instruction, Grant):
                self._tell(client, wire.Granted(ticket, known.unreadable.pop(ticket, "")))
            else:
                known.unreadable.pop(ticket, None)
                self._tell(client, wire.Refused(ticket, instruction.reason.value, instruction.state), end)

    def _ripen(self, client: str, ticket: int) -> None:
        self._carry_out(self._state.ripen(client, ticket))

    def _deliver(self, instruction: Deliver) -> None:
        known = self._with_news_for(instruction.client)
        as_bytes = known.bytes_until > 0 and time.monotonic() < known.bytes_until
        counts = []
        for item in instruction.items:
            arrived: Arrived = item.payload
            if as_bytes:
                frames = arrived.frames()
            else:
                # What a rank writes into its part is not to be seen by its successor.
                shared = instruction.part is not None
                frames = self._messenger.parcels.frames_for(arrived, known.endpoint, shared=shared)
            counts.append(len(frames))
            known.frames.extend(frames)
        known.answers.append(_delivered(instruction, counts))

    def _tell(self, client: str, answer: wire.Granted | wire.Refused, end: ShortcutEnd | None = None) -> None:
        if end is None or isinstance(answer, wire.Granted) or not end.answer(wire.Answer(answer, [])):
            self._with_news_for(client).answers.append(answer)

    def _with_news_for(self, client: str) -> _Client:
        """Return the client, and make sure that it gets its news when everything at hand has been read."""
        known = self._clients[client]
        self._with_news[client] = known
        if not self._flush_due:
            self._flush_due = True
            self._messenger.submit(self._flush)
        return known

    def _flush(self) -> None:
        self._flush_due = False
        clients, self._with_news = self._with_news, {}
        for client in sorted(clients.values(), key=lambda client: not client.frames):
            run_guarded(self._send_news, client)

    def _send_news(self, client: _Client) -> None:
        news = wire.News(client.accepted, client.answers)
        frames = client.frames
        client.accepted, client.answers, client.frames = [], [], []
        # Nobody writes into frames that the state machine holds.
        self._messenger.notify(client.endpoint, self._news_service, news, frames, snapshot=False)

    # -- control ---------------------------------------------------------------------------------

    def _on_control(self, request: Request) -> None:
        match request.head:
            case wire.Open(endpoint):
                request.check_claim(endpoint.process_id, f"it is the client '{endpoint.process_id}'")
                self._door.drop(request.peer_id)
                self._clients[request.peer_id] = _Client(endpoint)
                request.reply(None)
            case wire.Close():
                self._carry_out(self._state.close())
                request.reply(None)
            case wire.EndQueue() | wire.Flush():
                self._carry_out(self._change(request.head))
                request.reply(None)
            case wire.Join() | wire.Leave():
                request.reply(self._producers.answer(request.peer_id, request.head))
            case wire.Delete():
                self._delete(request)
            case wire.Query(queue):
                name = wire.as_name(queue)
                request.reply(wire.QueueState(self._state.num_items(name), self._state.is_full(name)))
            case wire.Stats():
                request.reply(self._stats())
            case wire.Invite():
                known = request.peer_id in self._clients
                request.reply(self._door.invite(request.peer_id) if known else wire.Invitation("", b""))

    def _change(self, message: wire.EndQueue | wire.Flush) -> list[Instruction]:
        queue = wire.as_name(message.queue)
        return self._state.flush(queue) if isinstance(message, wire.Flush) else self._state.end(queue)

    def _on_producers_done(self) -> None:
        self._carry_out(self._state.end_all())

    def _delete(self, request: Request) -> None:
        """Refuse puts, free the name, answer, and leave."""
        self._carry_out(self._state.close())

        def leave(_unregistered: Any = None) -> None:
            request.reply(None)
            self._stop()

        if self._directory is None:
            leave()
        else:
            self._directory.unregister_async(self.spec.address).add_done_callback(leave)

    def _stats(self) -> wire.ChannelState:
        state = self._state
        depths = [
            wire.Depth(
                d.name, d.num_items, d.weight, d.size_bytes, d.num_getters, d.num_putters, d.num_delivering
            )
            for d in state.depths()
        ]
        return wire.ChannelState(state.num_accepted, state.accepted_bytes, state.closed, depths)

    # -- ends ------------------------------------------------------------------------------------

    def _lose(self, process_id: str) -> None:
        if self._clients.pop(process_id, None) is not None:
            self._with_news.pop(process_id, None)
            self._door.drop(process_id)
            deliveries = self._state.deliveries(process_id)
            # It had these, and may have written into them, and did not come to say so.
            taken = {ticket for ticket, items in deliveries if is_marked(item.payload for item in items)}
            self._carry_out(self._state.lose(process_id, taken))
            self._producers.lose(process_id)

    def _stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._flush()
        self._door.close()
        self._messenger.off_peer_lost(self._lose)
        self._messenger.unserve(wire.operations_service(self.spec.channel_id))
        self._messenger.unserve(wire.control_service(self.spec.channel_id))
        for client in self._clients.values():
            self._messenger.notify(client.endpoint, self._news_service, wire.News([], [], left=True))
        self._clients.clear()
        self._state = ChannelState()
        if self.on_stopped is not None:
            self.on_stopped()


def _is_accept(instruction: Instruction) -> bool:
    return type(instruction) is Accept


def _delivered(instruction: Deliver, counts: list[int]) -> wire.Delivered:
    part = instruction.part
    if part is None:
        return wire.Delivered(instruction.ticket, counts, instruction.complete)
    about = wire.Part(part.step, [rounded(item.weight) for item in part.items], part.imbalance)
    return wire.Delivered(instruction.ticket, counts, instruction.complete, about)


def _deliver_directly(end: ShortcutEnd, instruction: Deliver) -> bool:
    """Deliver by a shortcut what is small; of anything else say there that it comes as news."""
    items: list[Arrived] = [item.payload for item in instruction.items]
    in_message = not any(item.lease for item in items)
    if in_message and sum(item.size_bytes for item in items) <= DIRECT_BYTES:
        parts = [item.frames() for item in items]
        frames: list[Any] = [frame for part in parts for frame in part]
        counts = [len(part) for part in parts]
        delivered = _delivered(instruction, counts)
        if end.answer(wire.Answer(delivered, frames)):
            return True
    end.answer(wire.Answer(wire.Elsewhere(instruction.ticket), []))
    return False


def host_channel(
    session: Session,
    spec: ChannelSpec,
    about: Mapping[str, Any] | None = None,
    on_stopped: Callable[[], None] | None = None,
) -> ChannelServer:
    """Start the server of a channel in this process and make it known.

    Args:
        session: this process's.
        spec: the channel.
        about: what the directory shall know besides, msgpack-able.
        on_stopped: called once on the I/O thread when the channel was deleted or stopped: nobody needs this
            process for it any more.

    Raises:
        ChannelExists: the name is taken.
    """
    server = ChannelServer(session.messenger, spec, session.directory)
    server.on_stopped = on_stopped
    try:
        info = {**(about or {}), **spec.to_info()}
        session.directory.register(spec.address, session.messenger.endpoint, info)
    except CommError as error:
        server.on_stopped = None  # it has never begun
        server.stop()
        if isinstance(error, NameTaken):
            raise ChannelExists(spec.name, str(error)) from error
        raise
    return server
