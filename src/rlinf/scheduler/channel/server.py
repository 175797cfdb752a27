"""The server of one channel: carries messages to and from the state machine of `queueing`.

Everything runs on the messenger's I/O thread, one event after the other, so there are no locks and nothing
waits. Payloads are held and passed on, never decoded; those in shared memory are not even touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.spec import ChannelRef, ChannelSpec
from rlinf.scheduler.comm.directory import DirectoryClient
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.loop import Timer
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcel import Arrived
from rlinf.scheduler.comm.peer import Request
from rlinf.scheduler.errors import (
    ChannelError,
    ChannelExists,
    CommError,
    NameTaken,
    SharedMemoryUnreadable,
)
from rlinf.scheduler.queueing import Accept, ChannelState, Deliver, Grant, Instruction, Refuse

# Threads with ways of their own, of all processes together; further ones use what their process has.
MAX_LANES = 128


class _Client:
    """One process that uses the channel, and the news that have gathered for it."""

    __slots__ = ("accepted", "endpoint", "frames", "news", "wants_bytes")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.accepted: list[int] = []
        self.news: list[list[Any]] = []
        self.frames: list[Buffer] = []
        self.wants_bytes = False  # it could not open shared memory that it was sent


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
        self._state = ChannelState(spec.maxsize)
        self._clients: dict[str, _Client] = {}
        # Those clients that are single threads (see `lane`); each is a descriptor.
        self._lanes: set[str] = set()
        self._with_news: dict[str, _Client] = {}
        self._timers: dict[tuple[str, int], Timer] = {}
        self._flush_due = False
        self._stopped = False
        self._news_service = wire.news_service(spec.channel_id)
        self._operations: dict[int, Callable[[str, list[Any], Iterator[Buffer]], list[Instruction]]] = {
            wire.PUT: self._put,
            wire.RESERVE: self._reserve,
            wire.FILL: self._fill,
            wire.GET: self._get,
            wire.RESEND: self._resend,
            wire.CANCEL: lambda client, op, _: self._state.cancel(client, op[1]),
            wire.ARRIVED: lambda client, op, _: self._state.arrive(client, op[1]),
            wire.GIVE_BACK: lambda client, op, _: self._state.give_back(client, op[1]),
        }
        messenger.on_peer_lost(self._lose)
        messenger.serve(wire.operations_service(spec.channel_id), self._on_operations)
        messenger.serve(wire.control_service(spec.channel_id), self._on_control)

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
        if client not in self._clients:
            return  # it was lost in between, and everything it had begun was undone
        confirmed, operations = request.head
        for ticket in confirmed:
            self._carry_out(self._state.confirm(client, ticket))
        frames = iter(request.frames)
        for operation in operations:
            try:
                instructions = self._operations[operation[0]](client, operation, frames)
            except (ValueError, SharedMemoryUnreadable) as error:
                instructions = []
                reason = wire.INVALID if isinstance(error, ValueError) else wire.UNREADABLE
                self._tell(client, [wire.REFUSED, operation[1], reason, str(error)])
            self._carry_out(instructions)

    def _put(self, client: str, operation: list[Any], frames: Iterator[Buffer]) -> list[Instruction]:
        _, ticket, queue_name, weight, wait_s, num_frames = operation
        item = self._messenger.parcels.receive(list(islice(frames, num_frames)), to_load=False)
        wait = wait_s != wire.NOWAIT
        instructions = self._state.put(client, ticket, queue_name, item, weight, item.size_bytes, wait=wait)
        self._limit(client, ticket, wait_s)
        return instructions

    def _reserve(self, client: str, operation: list[Any], _frames: Iterator[Buffer]) -> list[Instruction]:
        _, ticket, queue_name, weight, wait_s, size = operation
        wait = wait_s != wire.NOWAIT
        instructions = self._state.reserve(client, ticket, queue_name, weight, size, wait=wait)
        self._limit(client, ticket, wait_s)
        return instructions

    def _fill(self, client: str, operation: list[Any], frames: Iterator[Buffer]) -> list[Instruction]:
        _, ticket, num_frames = operation
        item = self._messenger.parcels.receive(list(islice(frames, num_frames)), to_load=False)
        return self._state.fill(client, ticket, item)

    def _resend(self, client: str, operation: list[Any], _frames: Iterator[Buffer]) -> list[Instruction]:
        ticket = operation[1]
        self._clients[client].wants_bytes = True
        items = self._state.items_in_delivery(client, ticket)
        return [Deliver(client, ticket, items)] if items else []

    def _get(self, client: str, operation: list[Any], _frames: Iterator[Buffer]) -> list[Instruction]:
        _, ticket, queue_name, wait_s, batch_weight = operation
        wait = wait_s != wire.NOWAIT
        if batch_weight is None:
            instructions = self._state.get(client, ticket, queue_name, wait=wait)
        else:
            instructions = self._state.get_batch(client, ticket, queue_name, batch_weight, wait=wait)
        self._limit(client, ticket, wait_s)
        return instructions

    # -- deadlines -------------------------------------------------------------------------------

    def _limit(self, client: str, ticket: int, wait_s: float | None) -> None:
        """Start the clock of an operation that has to wait."""
        if wait_s is not None and wait_s >= 0 and self._state.is_waiting(client, ticket):
            expire = partial(self._expire, client, ticket)
            self._timers[client, ticket] = self._messenger.call_later(wait_s, expire)

    def _expire(self, client: str, ticket: int) -> None:
        del self._timers[client, ticket]
        instructions = self._state.cancel(client, ticket)
        if instructions and isinstance(instructions[0], Refuse):
            self._tell(client, [wire.REFUSED, ticket, wire.TIMED_OUT, instructions[0].state])
        self._carry_out(instructions[1:])

    def _stop_clock(self, client: str, ticket: int) -> None:
        timer = self._timers.pop((client, ticket), None)
        if timer is not None:
            timer.cancel()

    # -- instructions ----------------------------------------------------------------------------

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            client, ticket = instruction[0], instruction[1]
            if self._timers and not isinstance(instruction, Grant):
                self._stop_clock(client, ticket)
            if isinstance(instruction, Accept):
                self._with_news_for(client).accepted.append(ticket)
            elif isinstance(instruction, Deliver):
                self._deliver(instruction)
            elif isinstance(instruction, Grant):
                self._tell(client, [wire.GRANTED, ticket])
            else:
                self._tell(client, [wire.REFUSED, ticket, instruction.reason.value, instruction.state])

    def _deliver(self, instruction: Deliver) -> None:
        counts = []
        known = self._with_news_for(instruction.client)
        for item in instruction.items:
            arrived: Arrived = item.payload
            frames = (
                arrived.frames()
                if known.wants_bytes
                else self._messenger.parcels.frames_for(arrived, known.endpoint)
            )
            counts.append(len(frames))
            known.frames.extend(frames)
        known.news.append([wire.DELIVERED, instruction.ticket, counts])

    def _tell(self, client: str, news: list[Any]) -> None:
        self._with_news_for(client).news.append(news)

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
        # Who waits for an item first: who put one is only told that it is here.
        for client in sorted(clients.values(), key=lambda client: not client.frames):
            head = [client.accepted, client.news]
            frames = client.frames
            client.accepted, client.news, client.frames = [], [], []
            # Nobody writes into frames that the state machine holds.
            self._messenger.notify(client.endpoint, self._news_service, head, frames, snapshot=False)

    # -- control ---------------------------------------------------------------------------------

    def _on_control(self, request: Request) -> None:
        operation, *args = request.head
        if operation == "open lane" and len(self._lanes) >= MAX_LANES:
            raise ChannelError(self.spec.name, f"it serves {MAX_LANES} threads on ways of their own already")
        if operation == "open lane":
            self._lanes.add(request.peer_id)
            operation = "open"
        if operation == "open":
            self._clients[request.peer_id] = _Client(Endpoint.from_wire(args[0]))
            request.reply(None)
        elif operation == "close":
            self._carry_out(self._state.close())
            request.reply(None)
        elif operation == "delete":
            self._delete(request)
        elif operation == "query":
            request.reply([self._state.num_items(args[0]), self._state.is_full(args[0])])
        elif operation == "stats":
            request.reply(self._stats())
        else:
            raise ChannelError(self.spec.name, f"there is no operation '{operation}'")

    def _delete(self, request: Request) -> None:
        """Refuse puts, free the name, answer, and leave."""
        self._carry_out(self._state.close())

        def leave(_unregistered: Future[Any] | None = None) -> None:
            request.reply(None)
            self._stop()

        if self._directory is None:
            leave()
        else:
            self._directory.unregister_async(self.spec.address).add_done_callback(leave)

    def _stats(self) -> list[Any]:
        state = self._state
        depths = [
            [d.name, d.num_items, d.weight, d.size_bytes, d.num_getters, d.num_putters, d.num_delivering]
            for d in state.depths()
        ]
        return [state.num_accepted, state.accepted_bytes, state.closed, depths]

    # -- ends ------------------------------------------------------------------------------------

    def _lose(self, process_id: str) -> None:
        self._lanes.discard(process_id)
        if self._clients.pop(process_id, None) is not None:
            self._with_news.pop(process_id, None)
            self._carry_out(self._state.lose(process_id))

    def _stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._flush()
        self._messenger.unserve(wire.operations_service(self.spec.channel_id))
        self._messenger.unserve(wire.control_service(self.spec.channel_id))
        for timer in self._timers.values():
            timer.cancel()
        for client in self._clients.values():
            self._messenger.notify(client.endpoint, self._news_service, None)
        self._clients.clear()
        self._state = ChannelState(self.spec.maxsize)
        if self.on_stopped is not None:
            self.on_stopped()


def host_channel(
    messenger: Messenger,
    directory: DirectoryClient,
    spec: ChannelSpec,
    about: Mapping[str, Any] | None = None,
    on_stopped: Callable[[], None] | None = None,
) -> ChannelServer:
    """Start the server of a channel in this process and make it known.

    Args:
        messenger: this process's messenger.
        directory: where the channel becomes known.
        spec: the channel.
        about: what the directory shall know besides, msgpack-able.
        on_stopped: called once on the I/O thread when the channel was deleted or stopped: nobody needs this
            process for it any more.

    Raises:
        ChannelExists: the name is taken.
    """
    server = ChannelServer(messenger, spec, directory)
    server.on_stopped = on_stopped
    try:
        directory.register(spec.address, messenger.endpoint, {**(about or {}), **spec.to_info()})
    except CommError as error:
        server.on_stopped = None  # it has never begun
        server.stop()
        if isinstance(error, NameTaken):
            raise ChannelExists(spec.name, str(error)) from error
        raise
    return server
