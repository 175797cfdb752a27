"""The server of one channel: carries messages to and from the state machine of `queueing`.

Everything runs on the messenger's I/O thread, one event after the other, so there are no locks and nothing
waits. Payloads are held and passed on, never decoded; those in shared memory are not even touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.arrival_watch import ArrivalWatch
from rlinf_scheduler.channel.byte_bound import ByteBound
from rlinf_scheduler.channel.checkpoint import SavedChannel
from rlinf_scheduler.channel.counting import ClientCounts, channel_vitals
from rlinf_scheduler.channel.device_items import why_gone
from rlinf_scheduler.channel.explaining import Explainer
from rlinf_scheduler.channel.heap import Heap
from rlinf_scheduler.channel.journal_records import ReadImage, ServerRecord
from rlinf_scheduler.channel.known_client import KnownClient
from rlinf_scheduler.channel.lease_desk import LeaseDesk
from rlinf_scheduler.channel.news_desk import NewsDesk, deliver_directly
from rlinf_scheduler.channel.operation import is_marked
from rlinf_scheduler.channel.operation_desk import OperationDesk
from rlinf_scheduler.channel.producer_desk import ProducerDesk
from rlinf_scheduler.channel.question import ANSWER, Unanswerable
from rlinf_scheduler.channel.record_desk import RecordDesk
from rlinf_scheduler.channel.remote_items import RemoteItems
from rlinf_scheduler.channel.run_desk import RunDesk
from rlinf_scheduler.channel.save_desk import SaveDesk
from rlinf_scheduler.channel.shortcut_door import ShortcutDoor, ShortcutEnd
from rlinf_scheduler.channel.spec import ChannelRef, ChannelSpec
from rlinf_scheduler.channel.subscription_desk import SubscriptionDesk
from rlinf_scheduler.channel.users import Users, channel_note
from rlinf_scheduler.comm.directory import DirectoryClient
from rlinf_scheduler.comm.failure import sendable
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import run_guarded
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.runtime import Runtime
from rlinf_scheduler.observe.notes import ChannelNote
from rlinf_scheduler.observe.vitals import ChannelVitals
from rlinf_scheduler.queueing import (
    Accept,
    Bury,
    ChannelState,
    Deliver,
    Grant,
    Instruction,
    Producers,
    Refuse,
    Ripen,
    Snapshot,
    StartClock,
    StopClock,
)
from rlinf_scheduler.wording import counted

logger = Reporter(__name__)

# Of many operations at once, others learn what came of the first ones while the rest is done.
NEWS_EVERY = 64


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
        messenger: Runtime,
        spec: ChannelSpec,
        directory: DirectoryClient | None = None,
        claims: Sequence[str] = (),
        saved: SavedChannel | None = None,
        image: ReadImage | None = None,
        beside: Runtime | None = None,
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
            priority_wait_s=spec.priority_wait_s,
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
            submit=(beside or messenger).submit,
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
        self._records = RecordDesk(spec.name, beside or messenger)
        self._clients: dict[str, KnownClient] = {}
        self._stopped = False
        self._door = ShortcutDoor(messenger, self._on_direct, self._on_left)
        heap, state = Heap(messenger.call_later), self._state
        self._news = NewsDesk(
            messenger,
            spec.channel_id,
            self._saves.holds,
            lambda: heap.note(state.bounded_bytes),
            self._give_back,
        )
        self._operations = OperationDesk(
            messenger,
            state,
            self._clients,
            self._bound,
            self._remote,
            self._records,
            self._news,
            self._carry_out,
            self._door.read_all,
        )
        self._runs = RunDesk(
            spec.name,
            state,
            self._clients,
            self._bound,
            self._records,
            self._carry_out,
            self._run,
            self._refuse,
        )
        if image is not None:
            self._resume(image)
        messenger.on_peer_lost(self._lose)
        messenger.serve(wire.service(spec.channel_id, wire.OPERATIONS), self._on_operations, wire.Operations)
        messenger.serve(wire.service(spec.channel_id, wire.CONTROL), self._on_control, control_wire.Control)

    def _resume(self, image: ReadImage) -> None:
        """Go on with what another server knew."""
        producers, lease_dues, arrivals, clients = image.server
        self._state.restore(image.state, image.items)
        self._places.resume(producers)
        self._clients |= {client: KnownClient(client, *about) for client, about in clients.items()}
        self._leases.resume(lease_dues)
        self._producers.resume()
        self._subscriptions.resume()
        if arrivals is not None:
            self._arrivals.since = {(client, ticket): since for client, ticket, since in arrivals}
            self._arrivals.begin()
        self._carry_out(self._state.ripening())

    def note(self) -> ChannelNote:
        """Return the channel's state, for the reports of the job."""
        names = {client: known.name for client, known in self._clients.items()}
        about = ChannelNote(self.spec.name, self._messenger.name, producers=self._explainer.producers)
        return channel_note(about, self._state, self._users, names, self._messenger.now())

    def vitals(self) -> ChannelVitals:
        """Return the channel's counts: what it holds, and what went through it."""
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
        """Return its whole state, between two turns."""
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

    def end_recording(self, then: Callable[[], None]) -> None:
        """Record no more, and have `then` called once what is recorded is written, or that takes long."""
        self._records.close(then)

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
            if count >= NEWS_EVERY and self._news.is_due:
                count = 0
                self._news.flush()
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
            if isinstance(operation, wire.Puts):
                out = self._runs.puts(client, operation, frames)
            elif isinstance(operation, wire.Gets):
                out = self._runs.gets(client, operation, frames)
            else:
                out = self._operations.take(client, operation, frames)
            self._carry_out(out)
        except Exception as error:  # the others in this message are not to wait in vain
            if not isinstance(error, ValueError):
                logger.exception("channel '%s': an operation failed", self.spec.name)
            self._refuse(client, wire.tickets_of(operation), error)

    def _refuse(self, client: str, tickets: Iterable[int], error: Exception) -> None:
        known = self._clients[client]
        for ticket in tickets:
            self._records.forget(client, ticket)
            refused = wire.Refused(ticket, wire.INVALID, str(error) or repr(error))
            self._news.tell(known, refused, known.direct.end(ticket))

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
                    self._news.gather_for(known).accepted.append(ticket)

    def _carry_out_delivery(self, instruction: Deliver) -> None:
        known = self._clients[instruction.client]
        end = known.direct.end(instruction.ticket) if known.direct.unanswered else None
        num_items = len(instruction.items)
        known.num_got += num_items
        self._explainer.num_delivered += num_items
        self._arrivals.note_delivery()
        try:
            ids = self._records.note(instruction, known.name)
            if end is not None and deliver_directly(end, instruction, ids):
                return
            end = None
            self._news.deliver(known, instruction, ids)
        except Exception as error:  # what else has happened is to be told all the same
            logger.exception("channel '%s': items cannot be delivered", self.spec.name)
            client, ticket = instruction[:2]
            self._news.tell(known, wire.Refused(ticket, wire.INVALID, str(error) or repr(error)), end)
            self._messenger.submit(partial(self._give_back, client, ticket))

    def _give_back(self, client: str, ticket: int) -> None:
        """Nobody has what was delivered to an operation."""
        self._carry_out(self._state.withdraw(client, ticket))

    def _carry_out_other(self, instruction: Instruction) -> None:
        if isinstance(instruction, Grant):
            client, ticket = instruction
            known = self._clients[client]
            self._news.tell(known, wire.Granted(ticket, known.unreadable.pop(ticket, "")))
        elif isinstance(instruction, Refuse):
            client, ticket, reason, state = instruction
            known = self._clients[client]
            known.unreadable.pop(ticket, None)
            self._records.forget(client, ticket)
            self._news.tell(known, wire.Refused(ticket, reason.value, state), known.direct.end(ticket))
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
        self._explainer.tick()
        self._carry_out(self._state.ripen(client, ticket))

    # -- control ---------------------------------------------------------------------------------

    def _on_control(self, request: Request) -> None:
        match request.head:
            case control_wire.Open(endpoint):
                request.check_claim(endpoint.process_id, f"it is the client '{endpoint.process_id}'")
                self._door.drop(request.peer_id)
                self._clients[request.peer_id] = KnownClient(request.peer_id, endpoint, request.peer_name)
                request.reply(None)
            case control_wire.Close():
                self._explainer.tick()
                self._arrivals.begin()
                self._carry_out(self._state.close())
                request.reply(None)
            case (
                control_wire.EndQueue()
                | control_wire.Flush()
                | control_wire.Retract()
                | control_wire.HoldSlot()
                | control_wire.LetGoOfSlot()
            ):
                self._carry_out(self._change(request.peer_id, request.head))
                request.reply(None)
            case (
                control_wire.Join()
                | control_wire.Leave()
                | control_wire.Subscribe()
                | control_wire.Unsubscribe()
            ):
                request.reply(self._be_member(request.peer_id, request.head))
            case _ if isinstance(request.head, control_wire.OfLeases):
                self._leases.answer(request)
            case _ if isinstance(request.head, control_wire.OfSaves):
                self._saves.answer(request)
            case control_wire.Delete():
                self._delete(request)
            case _ if isinstance(request.head, control_wire.OfReports):
                self._report(request)
            case control_wire.Invite():
                known = request.peer_id in self._clients
                request.reply(
                    self._door.invite(request.peer_id) if known else control_wire.Invitation("", b"")
                )

    def _report(self, request: Request) -> None:
        if isinstance(request.head, control_wire.Record):
            self._records.answer(request)
        else:
            names = {client: known.name for client, known in self._clients.items()}
            self._explainer.answer(request, names)

    def _be_member(
        self,
        client: str,
        message: control_wire.Join | control_wire.Leave | control_wire.Subscribe | control_wire.Unsubscribe,
    ) -> control_wire.Joined | None:
        if isinstance(message, control_wire.Join | control_wire.Leave):
            return self._producers.answer(client, message)
        return self._subscriptions.answer(client, message)

    def _change(
        self,
        client: str,
        message: control_wire.EndQueue
        | control_wire.Flush
        | control_wire.Retract
        | control_wire.HoldSlot
        | control_wire.LetGoOfSlot,
    ) -> list[Instruction]:
        self._explainer.tick()
        queue = wire.as_name(message.queue)
        if isinstance(message, control_wire.HoldSlot):
            holder = "" if message.sent else client
            return self._state.hold_slot(holder, queue, message.slot, message.key, message.source)
        if isinstance(message, control_wire.LetGoOfSlot):
            return self._state.let_go_of_slot(client, queue, message.slot, message.key, message.source)
        if isinstance(message, control_wire.Retract):
            return self._state.retract(client, queue, message.number)
        if isinstance(message, control_wire.Flush):
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

        def leave() -> None:
            request.reply(None)
            self._stop()

        if self._directory is None:
            leave()
        else:
            freed = [self._directory.unregister_async(name) for name in self._names]
            # The directory answers in order. Whoever deletes it may read what was recorded next.
            freed[-1].add_done_callback(lambda _: self.end_recording(leave))

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
            self._news.forget(known)
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
        self._news.flush()
        self._door.close()
        self._leases.close()
        self._records.close(_nothing)
        self._remote.close()
        self._arrivals.close()
        self._messenger.off_peer_lost(self._lose)
        self._messenger.unserve(wire.service(self.spec.channel_id, wire.OPERATIONS))
        self._messenger.unserve(wire.service(self.spec.channel_id, wire.CONTROL))
        for client in self._clients.values():
            self._news.leave(client)
        self._clients.clear()
        # Others know it too: it is emptied, not replaced.
        self._state.clear()
        if self.on_stopped is not None:
            self.on_stopped()


def _nothing() -> None:
    """Nobody waits for it."""


def _noted(why: Callable[[object], str], gone: dict[int, str], payload: object) -> str:
    """As `why`, and noted; a payload that several have is one item."""
    text = why(payload)
    if text:
        gone[id(payload)] = text
    return text
