"""The server of one channel: carries messages to and from the state machine of `queueing`.

Everything runs on the messenger's I/O thread, one event after the other, so there are no locks and nothing
waits. Payloads are held and passed on, never decoded; those in shared memory are not even touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.arrival_watch import ArrivalWatch
from rlinf.scheduler.channel.byte_bound import ByteBound
from rlinf.scheduler.channel.checkpoint import SavedChannel
from rlinf.scheduler.channel.counting import ClientCounts, channel_vitals
from rlinf.scheduler.channel.device_items import why_gone
from rlinf.scheduler.channel.explaining import Explainer
from rlinf.scheduler.channel.heap import Heap
from rlinf.scheduler.channel.held import HeldAt
from rlinf.scheduler.channel.journal_records import ReadImage, ServerRecord
from rlinf.scheduler.channel.lease_desk import LeaseDesk
from rlinf.scheduler.channel.operation import is_marked
from rlinf.scheduler.channel.outside import Outside
from rlinf.scheduler.channel.producer_desk import ProducerDesk
from rlinf.scheduler.channel.question import ANSWER, Unanswerable
from rlinf.scheduler.channel.record_desk import RecordDesk
from rlinf.scheduler.channel.remote_items import RemoteItem, RemoteItems
from rlinf.scheduler.channel.save_desk import SaveDesk
from rlinf.scheduler.channel.shortcut import DIRECT_BYTES
from rlinf.scheduler.channel.shortcut_door import ShortcutDoor, ShortcutEnd
from rlinf.scheduler.channel.spec import ChannelRef, ChannelSpec
from rlinf.scheduler.channel.subscription_desk import SubscriptionDesk
from rlinf.scheduler.channel.users import Users, channel_note
from rlinf.scheduler.comm.directory import DirectoryClient
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.failure import sendable
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.guarded import run_guarded
from rlinf.scheduler.comm.peer import Request
from rlinf.scheduler.comm.reports import Reporter
from rlinf.scheduler.comm.shm.parcel import Arrived, is_here
from rlinf.scheduler.comm.timekeeping import TIMES
from rlinf.scheduler.errors import SharedMemoryUnreadable
from rlinf.scheduler.observe.notes import ChannelNote
from rlinf.scheduler.observe.vitals import ChannelVitals
from rlinf.scheduler.queueing import (
    NO_LIMITS,
    Accept,
    Bury,
    ChannelState,
    Deliver,
    DirectOperations,
    Grant,
    Instruction,
    Item,
    LeaseTerms,
    Limits,
    Producers,
    Refuse,
    Ripen,
    ShardPlan,
    Snapshot,
    StartClock,
    StopClock,
    marks_tell,
    rounded,
)
from rlinf.scheduler.wording import counted

logger = Reporter(__name__)

# A client that cannot open shared memory for a moment gets bytes for so long, and longer each time.
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
# The part, the lease, the group and the slot of a delivery that has none of them.
_NOTHING = (None, None, None, None)
# Of many operations at once, others learn what came of the first ones while the rest is done.
NEWS_EVERY = 64


class _Client:
    """One process that uses the channel, and the news that have gathered for it."""

    __slots__ = (
        "accepted",
        "answers",
        "bytes_until",
        "direct",
        "endpoint",
        "frames",
        "name",
        "num_got",
        "num_put",
        "pause_s",
        "unreadable",
        "who",
    )

    def __init__(self, client: str, endpoint: Endpoint, name: str) -> None:
        self.endpoint = endpoint
        self.name = name
        # As the origins of its items name it: one object for all of them.
        self.who = name, client
        # Items accepted from it, and delivered to it, by this process.
        self.num_put = self.num_got = 0
        self.accepted: list[int] = []
        self.answers: list[wire.Granted | wire.Delivered | wire.Handed | wire.Refused] = []
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
        claims: further names that it has there.
        saved: what it holds in the beginning.
        image: what another server knew, for this one to go on with, and everything that it held.
        beside: what checkpoints and recordings are taken by, if not `messenger`.

    Attributes:
        on_stopped: called once on the I/O thread when the server has left; the process may end then.
    """

    def __init__(
        self,
        messenger: Outside,
        spec: ChannelSpec,
        directory: DirectoryClient | None = None,
        claims: Sequence[str] = (),
        saved: SavedChannel | None = None,
        image: ReadImage | None = None,
        beside: Outside | None = None,
    ) -> None:
        self.spec = spec
        self.on_stopped: Callable[[], None] | None = None
        self._directory = directory
        self._names = (*claims, spec.address)
        self._messenger = messenger
        self._bound = ByteBound(spec)
        self._state = ChannelState(
            spec.maxsize,
            total_bytes=self._bound.max_bytes,
            max_attempts=spec.max_attempts,
            max_leased=spec.max_leased,
        )
        self._remote = RemoteItems(messenger, self._on_lost_items)
        self._leases = LeaseDesk(messenger, self._state, self._carry_out, self._remote.bring)
        self._arrivals = ArrivalWatch(messenger, spec.name, self._state, self._carry_out)
        producers = Producers(spec.producers)
        if saved is not None:
            self._state.set_clock(messenger.now())
            self._state.restore(saved.head.state, saved.items)
            producers.restore(saved.head.producers)
        self._places = producers
        self._users = Users()
        self._explainer = Explainer(
            messenger,
            self._state,
            self._bound.max_bytes,
            producers,
            self._remote,
            counts_producers=spec.producers > 0,
        )
        self._producers = ProducerDesk(messenger.call_later, spec, producers, self._on_producers_done)
        self._subscriptions = SubscriptionDesk(
            messenger.call_later,
            self._state,
            self._bound.max_bytes,
            spec.successor_s,
            self._on_subscription_over,
        )
        if saved is not None:
            self._subscriptions.resume()
        # What is saved is no part of what happens to a channel.
        self._saves = SaveDesk(beside or messenger, spec, self._state, producers, self._bound.max_bytes)
        self._records = RecordDesk(spec.name, (beside or messenger).submit)
        self._heap = Heap(messenger.call_later)
        self._clients: dict[str, _Client] = {}
        self._with_news: dict[_Client, None] = {}
        self._flush_due = False
        self._stopped = False
        self._news_service = wire.service(spec.channel_id, wire.NEWS)
        self._door = ShortcutDoor(messenger, self._on_direct, self._on_left)
        self._operations: dict[type, Callable[[str, Any, Iterator[Buffer]], list[Instruction]]] = {
            wire.Put: self._put,
            wire.Puts: self._puts,
            wire.Fill: self._fill,
            wire.Get: self._get,
            wire.Gets: self._gets,
            wire.Admit: self._admit,
            wire.SetVersion: self._set_version,
            wire.Resend: self._resend,
            wire.Withdraw: lambda client, operation, _: self._state.withdraw(client, operation.ticket),
            wire.Recall: self._recall,
        }
        if image is not None:
            self._resume(image)
        messenger.on_peer_lost(self._lose)
        messenger.serve(wire.service(spec.channel_id, wire.OPERATIONS), self._on_operations, wire.Operations)
        messenger.serve(wire.service(spec.channel_id, wire.CONTROL), self._on_control, wire.Control)

    def _resume(self, image: ReadImage) -> None:
        """Go on with what another server knew."""
        producers, lease_dues, arrivals, clients = image.server
        self._state.restore(image.state, image.items)
        self._places.resume(producers)
        self._clients = {client: _Client(client, *about) for client, about in clients.items()}
        self._leases.resume(lease_dues)
        self._producers.resume()
        self._subscriptions.resume()
        if arrivals is not None:
            self._arrivals.since = {(client, ticket): since for client, ticket, since in arrivals}
            self._arrivals.begin()
        self._carry_out(self._state.ripening())

    def note(self) -> ChannelNote:
        """What goes on in the channel."""
        names = {client: known.name for client, known in self._clients.items()}
        found = self._explainer.explain(names)
        return channel_note(self.spec.name, found, self._users, names, self._messenger.now())

    def vitals(self) -> ChannelVitals:
        """What is in the channel and went through it, in a few numbers."""
        clients = self._clients.items()
        return channel_vitals(
            self.spec,
            self._state,
            [ClientCounts(client, each.name, each.num_put, each.num_got) for client, each in clients],
            num_got=self._explainer.num_delivered,
            max_bytes=self._bound.max_bytes,
            now=self._messenger.now(),
        )

    def answer(self, request: Request) -> None:
        """Answer what is no part of what happens to the channel, between two turns; of `OfSaves` or `OfReports`."""
        self._on_control(request)

    def look(self) -> tuple[Snapshot, ServerRecord]:
        """What it holds and knows, between two turns."""
        arrivals = [(*delivery, since) for delivery, since in self._arrivals.since.items()]
        record = ServerRecord(
            self._places.record(),
            self._leases.dues,
            arrivals if self._arrivals.began else None,
            {client: (known.endpoint, known.name) for client, known in self._clients.items()},
        )
        return self._state.snapshot(), record

    @property
    def ref(self) -> ChannelRef:
        """How the channel is reached."""
        return ChannelRef(self.spec, self._messenger.endpoint)

    def end_recording(self) -> None:
        """Record no more, and have what is recorded written; on the I/O thread."""
        self._records.close()

    def is_recording_behind(self) -> bool:
        """Whether something is recorded and not written yet: its process stays until it is."""
        return self._records.is_behind

    def stop(self) -> None:
        """Leave: what waits fails with ChannelLost, and what is held is dropped."""
        self._messenger.submit(self._stop)

    # -- messages --------------------------------------------------------------------------------

    def _on_operations(self, request: Request) -> None:
        client = request.peer_id
        known = self._clients.get(client)
        if known is None:
            return  # it was lost in between, and everything it had begun was undone
        self._explainer.tick()
        message: wire.Operations = request.head
        if message.confirmed:
            self._carry_out(self._state.confirm_run(client, message.confirmed))
        for ticket in message.arrived:
            self._carry_out(self._state.arrive(client, ticket))
        run_guarded(self._users.note, client, message.operations, self._explainer.now)
        frames = iter(request.frames)
        count = 0
        for operation in message.operations:
            self._run(client, operation, frames)
            count += len(wire.tickets_of(operation))
            if count >= NEWS_EVERY and self._flush_due:
                count = 0
                self._flush()
        for _, direct in known.direct.read():
            self._run_direct(client, direct)

    def _on_direct(self, end: ShortcutEnd, direct: wire.Direct) -> None:
        """An operation came by a shortcut."""
        self._explainer.tick()
        operation = direct.operation
        if self._clients[end.client].direct.arrive(end, operation.ticket, direct, direct.after):
            self._run_direct(end.client, direct)

    def _run_direct(self, client: str, direct: wire.Direct) -> None:
        run_guarded(self._users.note, client, (direct.operation,), self._explainer.now)
        self._run(client, direct.operation, iter(direct.frames))

    def _on_left(self, end: ShortcutEnd) -> None:
        self._clients[end.client].direct.leave(end)

    def _run(self, client: str, operation: wire.OperationMessage, frames: Iterator[Buffer]) -> None:
        try:
            self._carry_out(self._operations[type(operation)](client, operation, frames))
        except Exception as error:  # the others in this message are not to wait in vain
            if not isinstance(error, ValueError):
                logger.exception("channel '%s': an operation failed", self.spec.name)
            self._refuse(client, wire.tickets_of(operation), error)

    def _refuse(self, client: str, tickets: Iterable[int], error: Exception) -> None:
        for ticket in tickets:
            end = self._clients[client].direct.end(ticket)
            self._tell(client, wire.Refused(ticket, wire.INVALID, str(error) or repr(error)), end)

    def _puts(self, client: str, run: wire.Puts, frames: Iterator[Buffer]) -> list[Instruction]:
        who = self._clients[client].who
        puts: list[tuple[int, Item]] = []
        # The tickets first: when there are no more, no frame is taken.
        parts: Iterator[Any] = zip(run.tickets, run.weights, *[frames] * run.num_frames, strict=False)
        num_here = 0
        for ticket, weight, *part in parts:
            num_here += 1
            try:
                arrived = Arrived(part)
                item = Item(arrived, weight, arrived.size_bytes)
                item.origin = (who, ticket, None)
                puts.append((ticket, item))
            except Exception as error:
                logger.exception("channel '%s': an item cannot be received", self.spec.name)
                self._refuse(client, (ticket,), error)
        left = self._run_together(
            client,
            [ticket for ticket, _ in puts],
            lambda out: self._state.put_run(client, wire.as_name(run.queue), puts, out),
        )
        for ticket, item in islice(puts, len(puts) - len(left), None):
            put = wire.Put(ticket, run.queue, rounded(item.weight), True, run.num_frames)
            self._run(client, put, iter(item.payload.frames()))
        if num_here < len(run.tickets):
            self._refuse(client, run.tickets[num_here:], ValueError("its bytes are missing"))
        return self._bound.note(self._state)

    def _gets(self, client: str, run: wire.Gets, frames: Iterator[Buffer]) -> list[Instruction]:
        self._records.expect(client, run)
        left = self._run_together(
            client,
            run.tickets,
            lambda out: self._state.get_run(client, wire.as_name(run.queue), run.tickets, out),
        )
        for ticket in left:
            self._run(client, wire.Get(ticket, run.queue, True, None), frames)
        return []

    def _run_together(
        self, client: str, tickets: Sequence[int], run: Callable[[list[Instruction]], int]
    ) -> Sequence[int]:
        """Carry out what follows from a run; those of its operations that are still to be done, one by one."""
        out: list[Instruction] = []
        try:
            left = tickets[run(out) :]
        except (
            Exception
        ) as error:  # it fails alone: those before it are done, and those behind it are not tried yet
            logger.exception("channel '%s': an operation failed", self.spec.name)
            told = {each.ticket for each in out if not isinstance(each, Bury) and each.client == client}
            left = [each for each in tickets if each not in told and not self._state.knows(client, each)]
            self._refuse(client, left[:1], error)
            left = left[1:]
        self._carry_out(out)
        return left

    def _put(self, client: str, put: wire.Put, frames: Iterator[Buffer]) -> list[Instruction]:
        if put.size_bytes is not None:
            return self._reserve(client, put, put.size_bytes)
        its_frames = list(islice(frames, put.num_frames))
        try:
            item = self._receive(client, its_frames)
        except SharedMemoryUnreadable as error:
            known = self._clients[client]
            end = known.direct.end(put.ticket)
            if end is not None:
                end.answer(wire.DirectAnswer(wire.Again(put.ticket, str(error)), []))
                return []
            # It keeps its place, and comes as bytes.
            known.unreadable[put.ticket] = str(error)
            return self._reserve(client, put, 0)
        return self._enter(client, put, item, item.size_bytes)

    def _reserve(self, client: str, put: wire.Put, size_bytes: int) -> list[Instruction]:
        return self._enter(client, put, None, size_bytes)

    def _enter(
        self, client: str, put: wire.Put, item: Arrived | RemoteItem | None, size_bytes: int
    ) -> list[Instruction]:
        """An item is put, or (None) announced."""
        out = self._state.put(
            client,
            put.ticket,
            wire.as_name(put.queue),
            item,
            put.weight,
            size_bytes,
            priority=put.priority,
            question=put.question,
            group=wire.as_group(put.group),
            version=put.version,
            slot=put.slot,
            origin=(self._clients[client].who, put.ticket, put.trace),
            wait=put.wait,
            complete=item is not None,
        )
        return out or self._bound.note(self._state)

    def _receive(self, client: str, frames: list[Buffer]) -> Arrived | RemoteItem:
        """The item of a put; its bytes may stay where they are."""
        if is_here(frames):
            return Arrived(frames)
        at = HeldAt.from_frames(frames)
        if at is None:
            return self._messenger.parcels.receive(frames, to_load=False)
        return self._remote.receive(at, self._clients[client].name)

    def _fill(self, client: str, fill: wire.Fill, frames: Iterator[Buffer]) -> list[Instruction]:
        its_frames = list(islice(frames, fill.num_frames))
        try:
            item = self._receive(client, its_frames)
        except SharedMemoryUnreadable as error:
            self._tell(client, wire.Granted(fill.ticket, str(error)))
            return []
        return self._state.fill(client, fill.ticket, item, item.size_bytes)

    def _resend(self, client: str, resend: wire.Resend, _frames: Iterator[Buffer]) -> list[Instruction]:
        self._records.repeat(client, resend.ticket)
        known = self._clients[client]
        now = self._messenger.now()
        if now >= known.bytes_until:
            known.bytes_until = now + known.pause_s
            known.pause_s = min(2 * known.pause_s, MAX_PAUSE_S)
        out = self._state.deliver_again(client, resend.ticket)
        items = [item for each in out if isinstance(each, Deliver) for item in each.items]
        if not any(isinstance(item.payload, RemoteItem) for item in items):
            return out
        # What this client cannot fetch comes by way of this process.
        self._remote.bring(items, lambda: self._carry_out(self._state.deliver_again(client, resend.ticket)))
        return []

    def _recall(self, client: str, recall: wire.Recall, _frames: Iterator[Buffer]) -> list[Instruction]:
        """Say what became of an operation that came by a shortcut; nobody listens there any more."""
        return self._clients[client].direct.recall(client, recall.ticket, self._state, self._door.read_all)

    def _get(self, client: str, get: wire.Get, _frames: Iterator[Buffer]) -> list[Instruction]:
        self._records.expect(client, get)
        queue = wire.as_name(get.queue)
        if get.shard is not None:
            index, done_step, *plan = msgspec.structs.astuple(get.shard)
            return self._state.get_part(
                client, get.ticket, queue, ShardPlan(*plan), index, done_step, wait=get.wait
            )
        if get.lease is not None:
            return self._lease(client, get, get.lease)
        if get.group_size:
            return self._state.get_group(client, get.ticket, queue, get.group_size, wait=get.wait)
        if get.batch_weight is None and get.limits is None:
            return self._state.get(client, get.ticket, queue, wait=get.wait)
        limits = NO_LIMITS if get.limits is None else Limits(*msgspec.structs.astuple(get.limits))
        return self._state.get_batch(client, get.ticket, queue, get.batch_weight, limits, wait=get.wait)

    def _admit(self, client: str, admit: wire.Admit, _frames: Iterator[Buffer]) -> list[Instruction]:
        queue = wire.as_name(admit.queue)
        return self._state.admit(client, admit.ticket, queue, admit.max_lag, wait=admit.wait)

    def _set_version(
        self, client: str, said: wire.SetVersion, _frames: Iterator[Buffer]
    ) -> list[Instruction]:
        about = said.version, said.batch_items
        queue = wire.as_name(said.queue)
        return self._state.set_version(client, said.ticket, queue, *about, begins=said.begins, wait=said.wait)

    def _lease(self, client: str, get: wire.Get, lease: wire.LeaseRequest) -> list[Instruction]:
        terms = LeaseTerms(lease.ttl_s, lease.consumer)
        limits = None if get.limits is None else Limits(*msgspec.structs.astuple(get.limits))
        queue = wire.as_name(get.queue)
        size = get.group_size
        return self._state.lease(
            client, get.ticket, queue, terms, get.batch_weight, limits, group_size=size, wait=get.wait
        )

    # -- instructions ----------------------------------------------------------------------------

    def _carry_out(self, instructions: list[Instruction]) -> None:
        self._remote.settle()
        # Who waits for an item first: who put one is only told that it is here.
        for instruction in instructions:
            if isinstance(instruction, Deliver):
                self._carry_out_delivery(instruction)
            elif not isinstance(instruction, Accept):
                self._carry_out_other(instruction)
        for instruction in instructions:
            if isinstance(instruction, Accept):
                client, ticket = instruction
                known = self._clients[client]
                known.num_put += 1
                end = known.direct.accept(ticket) if known.direct.unanswered else None
                if end is None or not end.answer(wire.DirectAnswer(wire.Accepted(ticket), [])):
                    self._with_news_for(known).accepted.append(ticket)

    def _carry_out_delivery(self, instruction: Deliver) -> None:
        known = self._clients[instruction.client]
        end = known.direct.end(instruction.ticket) if known.direct.unanswered else None
        num_items = len(instruction.items)
        known.num_got += num_items
        self._explainer.num_delivered += num_items
        self._arrivals.note_delivery()
        try:
            ids = self._records.note(instruction, known.name)
            if end is not None and _deliver_directly(end, instruction, ids):
                return
            end = None
            self._deliver(known, instruction, ids)
        except Exception as error:  # what else has happened is to be told all the same
            logger.exception("channel '%s': items cannot be delivered", self.spec.name)
            client, ticket = instruction[:2]
            self._tell(client, wire.Refused(ticket, wire.INVALID, str(error) or repr(error)), end)
            self._messenger.submit(partial(self._give_back, client, ticket))

    def _give_back(self, client: str, ticket: int) -> None:
        """Nobody has what was delivered to an operation."""
        self._carry_out(self._state.withdraw(client, ticket))

    def _carry_out_other(self, instruction: Instruction) -> None:
        if isinstance(instruction, Grant):
            client, ticket = instruction
            self._tell(client, wire.Granted(ticket, self._clients[client].unreadable.pop(ticket, "")))
        elif isinstance(instruction, Refuse):
            client, ticket, reason, state = instruction
            known = self._clients[client]
            known.unreadable.pop(ticket, None)
            self._records.forget(client, ticket)
            self._tell(client, wire.Refused(ticket, reason.value, state), known.direct.end(ticket))
        elif isinstance(instruction, Bury):
            self._tell_asker(instruction)
        elif isinstance(instruction, Ripen):
            ripen = partial(self._ripen, instruction.client, instruction.ticket)
            self._messenger.call_later(instruction.after_s, ripen)
        elif isinstance(instruction, StartClock | StopClock):
            self._leases.keep_time(instruction)

    def _tell_asker(self, buried: Bury) -> None:
        """Nobody will answer a question."""
        known = self._clients.get(buried.client)
        if known is not None:
            reason = sendable(buried.reason)
            notice = Unanswerable(buried.ticket, buried.attempts, buried.consumer, reason)
            self._messenger.notify(known.endpoint, ANSWER, notice)

    def _ripen(self, client: str, ticket: int) -> None:
        self._carry_out(self._state.ripen(client, ticket))

    def _deliver(self, known: _Client, instruction: Deliver, ids: list[Any] | None) -> None:
        self._with_news_for(known)
        if ids is None and TIMES.spool is None and _hand_over(known, instruction):
            return
        as_bytes = known.bytes_until > 0 and self._messenger.now() < known.bytes_until
        counts = []
        sent: list[Buffer] = []
        is_read = not marks_tell(instruction.items)
        for item in instruction.items:
            arrived: Arrived | RemoteItem = item.payload
            if as_bytes or isinstance(arrived, RemoteItem) or arrived.lease is None:
                frames = arrived.frames()
            else:
                # What is written into a part, or into what is on lease, is not to be seen by who has it next; what
                # others read too, not by them.
                may_return = instruction.part is not None or instruction.lease is not None or is_read
                shared = may_return or self._saves.holds(item)
                frames = self._messenger.parcels.frames_for(arrived, known.endpoint, shared=shared)
            counts.append(len(frames))
            sent += frames
        # All or none: the frames of others follow.
        known.answers.append(_delivered(instruction, counts, ids))
        known.frames += sent

    def _tell(self, client: str, answer: wire.Granted | wire.Refused, end: ShortcutEnd | None = None) -> None:
        if end is None or isinstance(answer, wire.Granted) or not end.answer(wire.DirectAnswer(answer, [])):
            self._with_news_for(self._clients[client]).answers.append(answer)

    def _with_news_for(self, known: _Client) -> _Client:
        """Return the client, and make sure that it gets its news when everything at hand has been read."""
        self._with_news[known] = None
        if not self._flush_due:
            self._flush_due = True
            self._messenger.submit(self._flush)
        return known

    def _flush(self) -> None:
        self._flush_due = False
        self._heap.note(self._state.bounded_bytes)
        clients, self._with_news = self._with_news, {}
        for client in sorted(clients, key=lambda client: not client.frames):
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
                self._clients[request.peer_id] = _Client(request.peer_id, endpoint, request.peer_name)
                request.reply(None)
            case wire.Close():
                self._arrivals.begin()
                self._carry_out(self._state.close())
                request.reply(None)
            case wire.EndQueue() | wire.Flush() | wire.Retract():
                self._carry_out(self._change(request.peer_id, request.head))
                request.reply(None)
            case wire.Join() | wire.Leave() | wire.Subscribe() | wire.Unsubscribe():
                request.reply(self._be_member(request.peer_id, request.head))
            case _ if isinstance(request.head, wire.OfLeases):
                self._leases.answer(request)
            case _ if isinstance(request.head, wire.OfSaves):
                self._saves.answer(request)
            case wire.Delete():
                self._delete(request)
            case _ if isinstance(request.head, wire.OfReports):
                self._report(request)
            case wire.Invite():
                known = request.peer_id in self._clients
                request.reply(self._door.invite(request.peer_id) if known else wire.Invitation("", b""))

    def _report(self, request: Request) -> None:
        if isinstance(request.head, wire.Record):
            self._records.answer(request)
        else:
            names = {client: known.name for client, known in self._clients.items()}
            request.reply(self._explainer.answer(request.head, names))

    def _be_member(
        self, client: str, message: wire.Join | wire.Leave | wire.Subscribe | wire.Unsubscribe
    ) -> wire.Joined | None:
        if isinstance(message, wire.Join | wire.Leave):
            return self._producers.answer(client, message)
        return self._subscriptions.answer(client, message)

    def _change(self, client: str, message: wire.EndQueue | wire.Flush | wire.Retract) -> list[Instruction]:
        queue = wire.as_name(message.queue)
        if isinstance(message, wire.Retract):
            return self._state.retract(client, queue, message.number)
        if isinstance(message, wire.Flush):
            return self._state.flush(queue)
        self._arrivals.begin()
        return self._state.end(queue)

    def _on_producers_done(self) -> None:
        self._arrivals.begin()
        self._carry_out(self._state.end_all())

    def _on_subscription_over(self, name: str, num_left: int, out: list[Instruction]) -> None:
        if num_left:
            logger.warning(
                "channel '%s': nobody reads subscription '%s' any more; %d items that it has not given out are dropped",
                self.spec.name,
                name,
                num_left,
            )
        self._carry_out(out)

    def _delete(self, request: Request) -> None:
        """Refuse puts, free the name, answer, and leave."""
        self._carry_out(self._state.close())

        def leave(_unregistered: Any = None) -> None:
            self.end_recording()  # whoever deletes it may read that next
            request.reply(None)
            self._stop()

        if self._directory is None:
            leave()
        else:
            freed = [self._directory.unregister_async(name) for name in self._names]
            # The directory answers in order.
            freed[-1].add_done_callback(leave)

    # -- ends ------------------------------------------------------------------------------------

    def _on_lost_items(self, why: Callable[[object], str]) -> None:
        """The process that held some items, on their node or its device, is gone."""
        gone: dict[int, str] = {}
        num_before = self._state.num_lost
        out = self._state.lose_items(partial(_noted, why, gone))
        if gone:
            self._say_lost(gone, self._state.num_lost - num_before)
        self._carry_out(out)

    def _say_lost(self, gone: dict[int, str], num_lost: int) -> None:
        told = "; ".join(f"{counted(count, 'item')} {each}" for each, count in Counter(gone.values()).items())
        rest = len(gone) - num_lost
        others = f", {rest} with consumers or subscriptions, or dead letters" if rest else ""
        logger.warning(
            "channel '%s': %s; %d of these in queues, which are lost%s",
            self.spec.name,
            told,
            num_lost,
            others,
        )

    def _lose(self, process_id: str) -> None:
        known = self._clients.pop(process_id, None)
        if known is not None:
            self._users.lose(process_id, known.name)
            self._with_news.pop(known, None)
            self._door.drop(process_id)
            deliveries = self._state.deliveries(process_id)
            # It had these, and may have written into them, and did not come to say so.
            taken = {ticket for ticket, items in deliveries if is_marked(item.payload for item in items)}
            self._carry_out(self._state.lose(process_id, taken))
            if self.spec.device_items:
                # It looks into shared memory, which may fail: the rest is done all the same.
                run_guarded(self._on_lost_items, partial(why_gone, process_id, known.name))
            self._records.lose(process_id)
            self._producers.lose(process_id)
            self._subscriptions.lose(process_id)
            self._saves.lose(process_id)

    def _stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._flush()
        self._door.close()
        self._leases.close()
        self._records.close()
        self._remote.close()
        self._arrivals.close()
        self._messenger.off_peer_lost(self._lose)
        self._messenger.unserve(wire.service(self.spec.channel_id, wire.OPERATIONS))
        self._messenger.unserve(wire.service(self.spec.channel_id, wire.CONTROL))
        for client in self._clients.values():
            self._messenger.notify(client.endpoint, self._news_service, wire.News([], [], left=True))
        self._clients.clear()
        # Others know it too: it is emptied, not replaced.
        self._state.clear()
        if self.on_stopped is not None:
            self.on_stopped()


def _noted(why: Callable[[object], str], gone: dict[int, str], payload: object) -> str:
    """As `why`, and noted; a payload that several have is one item."""
    text = why(payload)
    if text:
        gone[id(payload)] = text
    return text


def _hand_over(known: _Client, instruction: Deliver) -> bool:
    """Let a delivery travel with those before it that are alike; whether there is nothing to be said of it alone."""
    items = instruction.items
    if len(items) != 1 or not instruction.complete or instruction[4:8] != _NOTHING:
        return False
    item = items[0]
    arrived = item.payload
    if item.version is not None or isinstance(arrived, RemoteItem) or arrived.lease is not None:
        return False
    frames = arrived.frames()
    by = "" if item.origin is None else item.origin[0][0]
    last = known.answers[-1] if known.answers else None
    if type(last) is wire.Handed and last.num_frames == len(frames) and last.by == by:
        last.tickets.append(instruction.ticket)
    else:
        known.answers.append(wire.Handed(len(frames), by, [instruction.ticket]))
    known.frames += frames
    return True


def _delivered(instruction: Deliver, counts: list[int], ids: list[Any] | None) -> wire.Delivered:
    _, ticket, items, complete, part, lease, group, slot, _ = instruction
    delivered = wire.Delivered(ticket, counts, complete, group=group, ids=ids)
    if lease is not None:
        delivered.lease = wire.LeaseNote(lease.generation, lease.attempts)
    if part is not None:
        weights = [rounded(item.weight) for item in items]
        delivered.part = wire.ShardPart(part.step, weights, part.imbalance)
    if slot is not None:
        delivered.slot = wire.SlotNote(slot.number, slot.version)
    versions = [item.version for item in items]
    if versions.count(None) < len(versions):
        delivered.versions = versions
    if items:
        last = items[-1].origin
        delivered.by = "" if last is None else last[0][0]
        if TIMES.spool is not None:
            origins = [item.origin for item in items]
            delivered.origins = [None if each is None else (each[0][0], each[1]) for each in origins]
    return delivered


def _deliver_directly(end: ShortcutEnd, instruction: Deliver, ids: list[Any] | None) -> bool:
    """Deliver by a shortcut what is small; of anything else say there that it comes as news."""
    items: list[Arrived | RemoteItem] = [item.payload for item in instruction.items]
    in_message = not any(item.lease or isinstance(item, RemoteItem) for item in items)
    if in_message and sum(item.size_bytes for item in items) <= DIRECT_BYTES:
        parts = [item.frames() for item in items]
        frames: list[Any] = [frame for part in parts for frame in part]
        counts = [len(part) for part in parts]
        delivered = _delivered(instruction, counts, ids)
        if end.answer(wire.DirectAnswer(delivered, frames)):
            return True
    end.answer(wire.DirectAnswer(wire.Elsewhere(instruction.ticket), []))
    return False
