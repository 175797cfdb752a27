"""The server of one channel: carries messages to and from the state machine of `queueing`.

Everything runs on the I/O thread of its runtime, one event after the other, so there are no locks and nothing waits.
Payloads are held and passed on, never decoded; those in shared memory are not even touched.

It has a table of handlers by type: of what clients say, and of what the state machine asks for. Besides plain puts and
gets these are `features`, each built when the first message of its comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.clients import KnownClient, Users
from rlinf_scheduler.channel.operation import is_consumed
from rlinf_scheduler.channel.outbox import ResponseOutbox
from rlinf_scheduler.channel.remote_items import RemoteItems, lose_items
from rlinf_scheduler.channel.spec import ChannelRef, ChannelSpec, max_bytes_of, state_of
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import run_guarded
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.runtime import Runtime, timer
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import (
    Accept,
    Arrive,
    Deliver,
    Grant,
    Instruction,
    Linger,
    Lose,
    Refuse,
    Ripen,
)
from rlinf_scheduler.rooms import of_room

logger = Reporter(__name__)

# Of many operations at once, others learn the outcome of the first ones while the rest is done.
FLUSH_EVERY = 64
# Rates are of so many seconds, sampled so often.
RATES_S = 10.0
SAMPLE_S = 0.5

FeatureT = TypeVar("FeatureT")
Features = Mapping[type, Callable[["ChannelServer"], object]]


class ChannelServer:
    """Holds one channel.

    Args:
        runtime: serves the channel.
        features: by type of message or instruction, the feature that handles it.
        beside: the runtime of what is no part of what happens to the channel, if another one: checkpoints.

    Attributes:
        clients: the processes that use them, by process id.
        handlers: the handlers of operations (of a client, an operation and frames), requests and instructions, by type.
        max_bytes: how many bytes the queues may hold; 0 is unbounded.
        now: the time of the last event.
        samples: of the last seconds: a time, and how many items were put and delivered until then.
        on_delivery: called when items go to a getter.
        on_open: called with the process id of a client that begins, perhaps once more.
        on_lost: called with the process id of a client that is gone.
        on_stop: called once, when it stops.
        on_stopped: called once on the I/O thread when the server has left; the process may end then.
        on_delete: called when the channel is deleted, with what is to follow when its name is free.
        describe_producers: names the producers that are not done; "" where producers are not counted.
        epoch: no other process has held the channel before, or will after this one.
    """

    def __init__(
        self, runtime: Runtime, spec: ChannelSpec, features: Features, beside: Runtime | None = None
    ) -> None:
        self.runtime = runtime
        self.spec = spec
        self.beside = beside or runtime
        self.max_bytes = max_bytes_of(spec)
        self.state = state_of(spec, self.max_bytes)
        self.clients: dict[str, KnownClient] = {}
        self.users = Users()
        self.outbox = ResponseOutbox(runtime, spec.channel_id, self.state, self._give_back)
        self.remote: RemoteItems | None = None
        self.on_delivery: list[Callable[[], None]] = []
        self.on_open: list[Callable[[str], None]] = []
        self.on_lost: list[Callable[[str], None]] = []
        self.on_stop: list[Callable[[], None]] = []
        self.on_stopped: Callable[[], None] | None = None
        self.on_delete: Callable[[Callable[[], None]], None] = lambda then: then()
        self.describe_producers: Callable[[], str] = lambda: ""
        self.now = runtime.now()
        self.num_delivered = self.epoch = 0
        self.samples: deque[tuple[float, int, int]] = deque(maxlen=int(RATES_S / SAMPLE_S) + 1)
        self._next_sample = 0.0
        self._stopped = False
        # Found now: what has to be loaded for it would hold up the I/O thread when a client dies.
        self._why_gone = of_room("devices.items:why_gone") if spec.device_items else None
        self._built: dict[Callable[[ChannelServer], object], object] = {}
        self.handlers = _Handlers(self, features)
        self.handlers |= {
            control_wire.Open: self._open,
            control_wire.Delete: self._delete,
            Grant: self._grant,
            Refuse: self._pass_refusal,
            Ripen: self._ripen_later,
        }
        if spec.producers or spec.producer_group:
            self.feature(features[control_wire.Join])
        runtime.on_peer_lost(self._lose)
        runtime.serve(wire.service(spec.channel_id, wire.OPERATIONS), self._on_operations, wire.Operations)
        runtime.serve(wire.service(spec.channel_id, wire.CONTROL), self.answer, control_wire.Control)

    # -- features --------------------------------------------------------------------------------

    def feature(self, kind: Callable[[ChannelServer], FeatureT]) -> FeatureT:
        """Return a feature; it is built if it is not there."""
        found: Any = self._built.get(kind)
        if found is None:
            found = self._built[kind] = kind(self)
        return found  # type: ignore[no-any-return]

    def find(self, kind: Callable[[ChannelServer], FeatureT]) -> FeatureT | None:
        """Return a feature; None if nobody has needed it yet."""
        found: Any = self._built.get(kind)
        return found  # type: ignore[no-any-return]

    # -- messages --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Set the time of an event that is about to happen."""
        now = self.now = self.runtime.now()
        self.state.set_clock(now)
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_S
            self.samples.append(self.sample(now))

    def sample(self, now: float) -> tuple[float, int, int]:
        """Return what rates are made of: the time, and how many items were put and delivered until now."""
        return now, self.state.queues.tally.num_items, self.num_delivered

    def answer(self, request: Request) -> None:
        """Handle a request, of `control_wire.Control`."""
        self.handlers[type(request.head)](request)

    def _on_operations(self, request: Request) -> None:
        client = request.peer_id
        known = self.clients.get(client)
        if known is None:
            return  # it was lost in between, and everything it had begun was undone
        self.tick()
        message: wire.Operations = request.head
        if message.confirmed:
            self.carry_out(self.state.confirm(client, message.confirmed))
        for ticket in message.arrived:
            self.carry_out(self.state.apply(Arrive(ticket), client))
        if message.operations:
            run_guarded(self.users.note, client, message.operations, self.now)
        frames = iter(request.frames)
        count = 0
        for operation in message.operations:
            self.run(known, operation, frames)
            count += len(wire.tickets_of(operation))
            if count >= FLUSH_EVERY and self.outbox.is_due:
                count = 0
                self.outbox.flush()
        for _, direct in known.direct.read():
            self.run_direct(known, direct)

    def run_direct(self, known: KnownClient, direct: wire.Direct) -> None:
        """Do an operation that came by a shortcut."""
        run_guarded(self.users.note, known.client, (direct.operation,), self.now)
        self.run(known, direct.operation, iter(direct.frames))

    def run(self, known: KnownClient, operation: wire.OperationMessage, frames: Iterator[Buffer]) -> None:
        """Do an operation, whose frames are the next ones."""
        try:
            self.carry_out(self.handlers[type(operation)](known, operation, frames))
        except Exception as error:  # the others in this message are not to wait in vain
            if not isinstance(error, ValueError):
                logger.exception("channel '%s': an operation failed", self.spec.name)
            self.refuse(known, wire.tickets_of(operation), error)

    def apply_operation(
        self, known: KnownClient, operation: wire.OperationMessage, _frames: Iterator[Buffer]
    ) -> list[Instruction]:
        """Hand an operation on to the queues."""
        return self.state.apply(operation, known.client)

    def apply_request(self, request: Request) -> None:
        """Have the queues do what a client asks for; answer why not, if they do not."""
        self.tick()
        try:
            out = self.state.apply(request.head, request.peer_id)
        except ValueError as error:
            request.reply(control_wire.Done(str(error)))
            return
        self.carry_out(out)
        request.reply(control_wire.Done(""))

    def refuse(self, known: KnownClient, tickets: Iterable[int], error: Exception) -> None:
        """Respond that operations have failed."""
        for ticket in tickets:
            refused = wire.Refused(ticket, wire.INVALID, str(error) or repr(error))
            self.outbox.respond(known, refused, known.direct.end(ticket))

    def _open(self, request: Request) -> None:
        endpoint = request.head.endpoint
        request.check_claim(endpoint.process_id, f"it is the client '{endpoint.process_id}'")
        for begin in self.on_open:
            begin(request.peer_id)
        self.clients[request.peer_id] = KnownClient(request.peer_id, endpoint, request.peer_name)
        request.reply(None)

    # -- instructions ----------------------------------------------------------------------------

    def carry_out(self, instructions: list[Instruction]) -> None:
        """Do what the state machine asks for."""
        if self.remote is not None:
            self.remote.settle()
        # Those who wait for an item first: a producer is only told that it is here.
        for instruction in instructions:
            if isinstance(instruction, Deliver):
                self._deliver(instruction)
            elif not isinstance(instruction, Accept):
                self.handlers[type(instruction)](instruction)
        for instruction in instructions:
            if isinstance(instruction, Accept):
                client, ticket = instruction
                known = self.clients[client]
                known.num_put += 1
                end = known.direct.accept(ticket) if known.direct.unanswered else None
                if end is None or not end.answer(wire.DirectAnswer(wire.Accepted(ticket), [])):
                    self.outbox.gather_for(known).accepted.append(ticket)

    def _deliver(self, instruction: Deliver) -> None:
        known = self.clients[instruction.client]
        end = known.direct.end(instruction.ticket) if known.direct.unanswered else None
        num_items = len(instruction.items)
        known.num_got += num_items
        self.num_delivered += num_items
        try:
            for observe in self.on_delivery:
                observe()
            if end is not None and end.deliver(instruction):
                return
            end = None
            self.outbox.deliver(known, instruction)
        except Exception as error:  # the rest of what has happened is to be told all the same
            logger.exception("channel '%s': items cannot be delivered", self.spec.name)
            client, ticket = instruction[:2]
            self.outbox.respond(known, wire.Refused(ticket, wire.INVALID, str(error) or repr(error)), end)
            self.runtime.submit(partial(self._give_back, client, ticket))

    def _give_back(self, client: str, ticket: int) -> None:
        """Take back what was delivered to an operation: nobody has it."""
        self.carry_out(self.state.apply(wire.Withdraw(ticket), client))

    def _grant(self, instruction: Grant) -> None:
        client, ticket = instruction
        known = self.clients[client]
        self.outbox.respond(known, wire.Granted(ticket, known.unreadable.pop(ticket, "")))

    def _pass_refusal(self, instruction: Refuse) -> None:
        client, ticket, reason, state = instruction
        known = self.clients[client]
        known.unreadable.pop(ticket, None)
        self.outbox.respond(known, wire.Refused(ticket, reason.value, state), known.direct.end(ticket))

    def _ripen_later(self, instruction: Ripen) -> None:
        ripen = partial(self._ripen, instruction.client, instruction.ticket)
        self.runtime.call_later(instruction.after_s, ripen)

    @timer("ripen")
    def _ripen(self, client: str, ticket: int) -> None:
        self.tick()
        self.carry_out(self.state.apply(Linger(ticket), client))

    # -- items that lie elsewhere ----------------------------------------------------------------

    def remote_items(self) -> RemoteItems:
        """Return what is known of items that other nodes hold."""
        if self.remote is None:
            self.remote = RemoteItems(self.runtime, self._lose_items)
            self.on_stop.append(self.remote.close)
        return self.remote

    def bring(self, items: list[Item], then: Callable[[str], None], timeout_s: float | None = None) -> None:
        """Fetch those of some items that other nodes hold, as of `RemoteItems.bring`."""
        if self.remote is None:
            then("")
        else:
            self.remote.bring(items, then, timeout_s)

    def _lose_items(self, why: Callable[[object], str]) -> None:
        lose_items(self.spec.name, self.state, self.carry_out, why)

    # -- reports ---------------------------------------------------------------------------------

    @property
    def names(self) -> dict[str, str]:
        """The names of the clients, by process id."""
        return {client: known.name for client, known in self.clients.items()}

    @property
    def ref(self) -> ChannelRef:
        """How the channel is reached."""
        return ChannelRef(self.spec, self.runtime.endpoint)

    # -- ends ------------------------------------------------------------------------------------

    def _lose(self, process_id: str) -> None:
        known = self.clients.pop(process_id, None)
        if known is None:
            return
        self.users.lose(process_id, known.name)
        self.outbox.forget(known)
        deliveries = self.state.queues.deliveries(process_id)
        # It had these, and may have written into them, and did not come to say so.
        taken = {ticket for ticket, items in deliveries if is_consumed(item.payload for item in items)}
        self.carry_out(self.state.apply(Lose(taken), process_id))
        if self._why_gone is not None:
            # It looks into shared memory, which may fail: the rest is done all the same.
            run_guarded(self._lose_items, partial(self._why_gone, process_id, known.name))
        for lose in self.on_lost:
            lose(process_id)

    def _delete(self, request: Request) -> None:
        """Refuse puts, free the name, answer, and leave."""
        self.carry_out(self.state.apply(control_wire.Close()))

        def leave() -> None:
            request.reply(None)
            self._stop()

        self.on_delete(leave)

    def stop(self) -> None:
        """Leave: operations that wait fail with ChannelLost, and items are dropped."""
        self.runtime.submit(self._stop)

    def _stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.outbox.flush()
        for stop in self.on_stop:
            stop()
        self.runtime.off_peer_lost(self._lose)
        self.runtime.unserve(wire.service(self.spec.channel_id, wire.OPERATIONS))
        self.runtime.unserve(wire.service(self.spec.channel_id, wire.CONTROL))
        for client in self.clients.values():
            self.outbox.leave(client)
        self.clients.clear()
        # Others know it too: it is emptied, not replaced.
        self.state.clear()
        if self.on_stopped is not None:
            self.on_stopped()


class _Handlers(dict[type, Callable[..., Any]]):
    """Handlers by type; where there is none yet a feature registers its own, or the queues do it alone."""

    def __init__(self, server: ChannelServer, features: Features) -> None:
        super().__init__()
        self._server = server
        self._features = features

    def __missing__(self, kind: type) -> Callable[..., Any]:
        server, feature = self._server, self._features.get(kind)
        if feature is not None:
            server.feature(feature)
        else:
            is_operation = kind in wire.OPERATION_TYPES
            self[kind] = server.apply_operation if is_operation else server.apply_request
        return self[kind]
