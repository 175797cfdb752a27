"""One process's connection to one channel: starts operations, gathers them into messages, ends them.

All `Channel` objects of a process that mean the same channel share a connection. Operations may start in any
thread; their ends come on the messenger's I/O thread. No thread belongs to a connection or to an operation.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.lane import Lane, LaneBroken, Lanes, NoAnswer
from rlinf.scheduler.channel.operation import (
    BlockingOperation,
    HandleOperation,
    Operation,
    OperationFuture,
    PendingOperation,
)
from rlinf.scheduler.channel.refusals import refusal_error
from rlinf.scheduler.channel.spec import ChannelRef
from rlinf.scheduler.comm.codec import encode
from rlinf.scheduler.comm.framing import Buffer, total_bytes
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcel import Arrived
from rlinf.scheduler.comm.parcels import WAIT_S, Parcel
from rlinf.scheduler.comm.peer import Reply, Request
from rlinf.scheduler.errors import (
    ChannelError,
    ChannelLost,
    ChannelUnanswered,
    CodecError,
    CommError,
    CommTimeout,
    SharedMemoryUnreadable,
)

logger = logging.getLogger(__name__)

# Confirmations wait this long for an operation to travel with; until then a dead consumer's item comes back.
CONFIRM_DELAY_S = 0.002
# How much later than its deadline an operation's end may come before its server counts as not answering.
GRACE_S = 10.0
CONTROL_TIMEOUT_S = 60.0
MAX_OPERATIONS = 1024
# What a lane carries goes in one piece.
LANE_BYTES = 8 << 10
MAX_BYTES = 1 << 20
_NO_ANSWER = "the channel's server does not answer"

# One count for the whole process: a ticket of a lost connection can never mean an operation of the next one.
_next_ticket = itertools.count(1).__next__


class Connection:
    """A connection to the channel `ref`; made at once, used when the other side has answered."""

    def __init__(self, messenger: Messenger, ref: ChannelRef) -> None:
        self.ref = ref
        self.lost: ChannelLost | None = None
        self._messenger = messenger
        self._service = wire.operations_service(ref.spec.channel_id)
        self._control = wire.control_service(ref.spec.channel_id)
        self._news = wire.news_service(ref.spec.channel_id)
        self._pending: dict[int, PendingOperation] = {}
        # Handles that have items which nobody has looked at; the items may still go back.
        self._untaken: dict[int, Operation] = {}
        self._arrived: deque[int] = deque()
        self._confirmed: deque[int] = deque()
        # Items of puts that the server has not answered: what lies in shared memory must stay there until then.
        self._parcels: dict[int, Parcel] = {}
        self._outbox: deque[tuple[list[Any], Sequence[Buffer], int]] = deque()
        self._lanes = Lanes(lambda timeout_s: Lane(messenger, ref, CONFIRM_DELAY_S, timeout_s))
        # What was withdrawn or given back is known to the server when it has answered a later ticket than this.
        self._barrier = 0
        self._send_lock = threading.Lock()
        self._flush_due = False
        self._timer_due = False
        messenger.unserve(self._news)
        messenger.serve(self._news, self._on_news)
        opened = messenger.request(ref.endpoint, self._control, ["open", messenger.endpoint.to_wire()])
        opened.add_done_callback(self._on_opened)

    # -- operations ------------------------------------------------------------------------------

    def pack(self, item: Any, *, blocks: bool, wait_s: float | None) -> Parcel:
        """Return an item of a put as it will travel.

        Args:
            item: any picklable object.
            blocks: the caller waits for the end of the put, so that the item stays as it is meanwhile.
            wait_s: the put's deadline.

        Raises:
            CodecError: the item cannot be pickled.
        """
        room_s = 0.0
        if blocks and wait_s != wire.NOWAIT and not self._messenger.on_io_thread():
            room_s = WAIT_S if wait_s is None else min(WAIT_S, wait_s)
        # A snapshot even for a caller who waits: a wait that ends early leaves bytes behind that are still to be sent.
        return self._messenger.parcels.pack(encode(item), self.ref.endpoint, snapshot=True, wait_s=room_s)

    def put(self, operation: PendingOperation, parcel: Parcel, weight: float, wait_s: float | None) -> None:
        """Start a put; one that moves many bytes to a bounded queue is announced first."""
        ticket = operation.ticket = _next_ticket()
        self._parcels[ticket] = parcel
        size = parcel.size_bytes
        if (
            size > wire.INLINE_BYTES
            and self.ref.spec.maxsize
            and not parcel.goes_as_descriptor(self.ref.endpoint)
        ):
            self._start(operation, [wire.RESERVE, ticket, operation.queue_name, weight, wait_s, size])
        else:
            frames = parcel.frames_for(self.ref.endpoint)
            head = [wire.PUT, ticket, operation.queue_name, weight, wait_s, len(frames)]
            self._start(operation, head, frames)

    def get(self, operation: PendingOperation, wait_s: float | None) -> None:
        """Start a get or a batch."""
        ticket = operation.ticket = _next_ticket()
        self._start(operation, [wire.GET, ticket, operation.queue_name, wait_s, operation.batch_weight])

    def run_put(
        self, queue_name: str, timeout_s: float | None, parcel: Parcel, weight: float, wait_s: float | None
    ) -> None:
        """Put an item and wait in this thread until the queue holds it.

        Raises:
            ChannelError: what it failed with.
        """
        lane = self._lane(timeout_s)
        frames = parcel.frames_for(self.ref.endpoint) if lane is not None else []
        if lane is None or total_bytes(frames) > LANE_BYTES:
            blocking = BlockingOperation("put", queue_name, timeout_s)
            self.put(blocking, parcel, weight, wait_s)
            self.wait(blocking)
            return
        operation = Operation("put", queue_name, timeout_s)
        ticket = operation.ticket = _next_ticket()
        head = [wire.PUT, ticket, queue_name, weight, wait_s, len(frames)]
        try:
            outcome = lane.run(operation, head, frames, _limit_s(timeout_s))
        except LaneBroken as error:
            self.ask("query", queue_name, timeout_s=GRACE_S)  # raises if its process is gone
            raise self._unanswered(operation) from error
        except NoAnswer as error:
            raise self._unanswered(operation) from error
        if outcome.error is not None:
            raise outcome.error

    def run_get(
        self,
        operation: BlockingOperation,
        wait_s: float | None,
        load: Callable[[list[Arrived]], Any],
    ) -> Any:
        """Get an item or a batch, and wait for it in this thread.

        Raises:
            ChannelError: what it failed with.
            CodecError: an item cannot be read here; it is taken all the same.
        """
        lane = self._lane(operation.timeout_s)
        if lane is not None:
            with contextlib.suppress(LaneBroken):  # it has taken nothing
                return self._get_on(lane, operation, wait_s, load)
        self.get(operation, wait_s)
        return self._read(operation, load)

    def _get_on(
        self,
        lane: Lane,
        operation: Operation,
        wait_s: float | None,
        load: Callable[[list[Arrived]], Any],
    ) -> Any:
        ticket = operation.ticket = _next_ticket()
        head = [wire.GET, ticket, operation.queue_name, wait_s, operation.batch_weight]
        settled = False
        try:
            outcome = lane.run(operation, head, [], _limit_s(operation.timeout_s))
            if outcome.error is not None:
                settled = True
                raise outcome.error
            value = load(outcome.items)
            lane.confirm(ticket, at_once=_any_in_shared_memory(outcome.items))
            settled = True
        except NoAnswer as error:
            raise self._unanswered(operation) from error
        except CodecError:
            # Back in the queue it would stand in everybody's way.
            lane.confirm(ticket, at_once=False)
            settled = True
            raise
        finally:
            if not settled:
                # Interrupted somewhere: the items go back with the lane.
                lane.close()
        return value

    def _lane(self, timeout_s: float | None) -> Lane | None:
        """This thread's own way to the server, if nothing that was begun before can be overtaken on it."""
        endpoint = self.ref.endpoint
        if self._pending or self._parcels or self._outbox or self._barrier or self.lost is not None:
            return None
        if endpoint.machine_id != self._messenger.endpoint.machine_id or not endpoint.unix_path:
            return None
        return (
            None if endpoint.process_id == self._messenger.endpoint.process_id else self._lanes.get(timeout_s)
        )

    def wait(self, operation: BlockingOperation) -> Any:
        """Wait in this thread for the end of an operation; its value.

        Raises:
            ChannelError: what it failed with.
        """
        try:
            ended = operation.wait(_limit_s(operation.timeout_s))
        except BaseException:
            self._abandon(operation)
            raise
        if not ended:
            self._abandon(operation)
            raise self._unanswered(operation)
        if operation.error is not None:
            raise operation.error
        return operation.value

    def _read(self, operation: BlockingOperation, load: Callable[[list[Arrived]], Any]) -> Any:
        """Wait in this thread for the items of a get; they are the caller's once they are loaded.

        Raises:
            ChannelError: what it failed with.
            CodecError: an item cannot be read here; it is taken all the same.
        """
        items: list[Arrived] = self.wait(operation)
        settled = False
        try:
            operation.value = None  # only its owner keeps an item in shared memory
            value = load(items)
            self._confirm_before_use(operation.ticket, items)
            settled = True
        except CodecError:
            # Back in the queue it would stand in everybody's way.
            self.confirm(operation.ticket)
            settled = True
            raise
        finally:
            if not settled:
                self._undo(wire.GIVE_BACK, operation.ticket)
        return value

    def future(self, operation: HandleOperation) -> OperationFuture:
        """Return the future of an operation's end; to be called before it starts."""
        future = OperationFuture(partial(self._withdraw, operation))
        operation.attach(future, lambda _: self._on_dropped(operation))
        return future

    def take(self, operation: Operation, items: list[Arrived]) -> None:
        """Make the items of a handle its owner's."""
        if self._untaken.pop(operation.ticket, None) is not None:
            self._confirm_before_use(operation.ticket, items)

    def confirm(self, ticket: int) -> None:
        """Tell the server, soon, that the items of a delivery were taken."""
        self._confirmed.append(ticket)
        self._flush_later()

    def _confirm_before_use(self, ticket: int, items: list[Arrived]) -> None:
        """Confirm what was loaded, and do not wait with it for what the new owner may write into."""
        self.confirm(ticket)
        if _any_in_shared_memory(items):
            self.flush()

    def ask(self, *head: Any, timeout_s: float = CONTROL_TIMEOUT_S) -> Any:
        """Ask the server something, after all operations that were started before; wait for the answer.

        Raises:
            ChannelLost: the server is gone.
            ChannelUnanswered: it does not answer.
        """
        self.check_may_block()
        self._lanes.flush()
        self.flush()
        asked = self._messenger.request(self.ref.endpoint, self._control, list(head), timeout_s=timeout_s)
        try:
            return asked.result().head
        except CommTimeout as error:
            name = self.ref.spec.name
            raise ChannelUnanswered(name, "*", head[0], error.waited_s, _NO_ANSWER) from error
        except CommError as error:
            raise self._gone(str(error)) from error

    def settle_puts(self, timeout_s: float) -> None:
        """Wait until the server has all that was put, before this process goes and takes its shared memory with it."""
        if self._parcels:
            with contextlib.suppress(ChannelError):
                self.ask("query", "", timeout_s=timeout_s)

    def check_may_block(self) -> None:
        """Raise if this thread must not wait, because the answer comes on it.

        Raises:
            ChannelError: this is the I/O thread.
        """
        if self._messenger.on_io_thread():
            problem = "a callback on the I/O thread cannot wait for it; use async_op=True"
            raise ChannelError(self.ref.spec.name, problem)

    # -- sending ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send everything that has gathered; from any thread."""
        with self._send_lock:
            self._flush_due = False
            while self._outbox or self._confirmed:
                head, frames = self._next_message()
                # Frames of handles were copied when the put began; a blocked caller does not touch its own.
                self._messenger.notify(self.ref.endpoint, self._service, head, frames, snapshot=False)

    def _next_message(self) -> tuple[list[Any], list[Buffer]]:
        confirmed = [self._confirmed.popleft() for _ in range(min(len(self._confirmed), MAX_OPERATIONS))]
        operations: list[list[Any]] = []
        frames: list[Buffer] = []
        size = 0
        while self._outbox and len(operations) < MAX_OPERATIONS and size < MAX_BYTES:
            operation, its_frames, its_size = self._outbox.popleft()
            operations.append(operation)
            frames.extend(its_frames)
            size += its_size
        return [confirmed, operations], frames

    def _start(self, operation: PendingOperation, head: list[Any], frames: Sequence[Buffer] = ()) -> None:
        self._pending[operation.ticket] = operation
        if self.lost is not None:
            self._parcels.pop(operation.ticket, None)
            self._fail(operation.ticket, self.lost)
            return
        self._outbox.append((head, frames, total_bytes(frames)))
        if isinstance(operation, BlockingOperation):
            self.flush()
            return
        if isinstance(operation, HandleOperation) and operation.timeout_s is not None:
            expire = partial(self._on_unanswered, operation)
            operation.timer = self._messenger.call_later(operation.timeout_s + GRACE_S, expire)
        self._flush_soon()

    def _post(self, *head: Any) -> None:
        """Send a small notice soon. Takes no lock: the garbage collector may call this anywhere."""
        if self.lost is None:
            self._outbox.append((list(head), (), 0))
            self._flush_soon()

    def _undo(self, kind: int, ticket: int) -> None:
        """Withdraw an operation or give its items back, soon."""
        self._barrier = _next_ticket()
        self._post(kind, ticket)

    def _flush_soon(self) -> None:
        # What user threads start before the I/O thread gets its turn leaves in one message.
        if not self._flush_due:
            self._flush_due = True
            self._messenger.submit(self.flush)

    def _flush_later(self) -> None:
        if not self._timer_due:
            self._timer_due = True
            self._messenger.call_later(CONFIRM_DELAY_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_due = False
        if self.lost is not None:
            return
        while self._arrived:
            ticket = self._arrived.popleft()
            if ticket in self._untaken:
                self._post(wire.ARRIVED, ticket)
        self.flush()

    # -- receiving -------------------------------------------------------------------------------

    def _on_news(self, request: Request) -> None:
        if request.peer_id != self.ref.endpoint.process_id or self.lost is not None:
            return
        if request.head is None:
            self.lose("its server left")
            return
        accepted, news = request.head
        for ticket in accepted:
            self._pass_barrier(ticket)
            self._parcels.pop(ticket, None)
            operation = self._pending.pop(ticket, None)
            if operation is not None:
                operation.succeed(None)
        frames = iter(request.frames)
        for kind, ticket, *rest in news:
            self._pass_barrier(ticket)
            if kind == wire.DELIVERED:
                self._on_delivered(ticket, rest[0], frames)
            elif kind == wire.REFUSED:
                self._on_refused(ticket, *rest)
            else:
                self._on_granted(ticket)

    def _pass_barrier(self, ticket: int) -> None:
        if self._barrier and ticket > self._barrier:
            self._barrier = 0

    def _on_delivered(self, ticket: int, counts: list[int], frames: Iterator[Buffer]) -> None:
        # All that is the delivery's, before anything can go wrong: the rest belongs to others.
        parts = [list(islice(frames, count)) for count in counts]
        try:
            items = [self._messenger.parcels.receive(part) for part in parts]
        except SharedMemoryUnreadable as error:
            logger.warning("channel '%s': %s; its items are asked for as bytes", self.ref.spec.name, error)
            self._post(wire.RESEND, ticket)
            return
        operation = self._pending.pop(ticket, None)
        if isinstance(operation, HandleOperation):
            self._untaken[ticket] = operation
            self._arrived.append(ticket)
            self._flush_later()
        if operation is None or not operation.succeed(items):
            self._untaken.pop(ticket, None)
            self._undo(wire.GIVE_BACK, ticket)

    def _on_granted(self, ticket: int) -> None:
        parcel = self._parcels.get(ticket)
        if ticket in self._pending and parcel is not None:
            frames = parcel.frames_for(self.ref.endpoint)
            self._outbox.append(([wire.FILL, ticket, len(frames)], frames, total_bytes(frames)))
            self._flush_soon()

    def _on_refused(self, ticket: int, reason: str, state: str) -> None:
        self._parcels.pop(ticket, None)
        if reason == wire.UNREADABLE:
            self._messenger.parcels.distrust(self.ref.endpoint.process_id, state)
        operation = self._pending.get(ticket)
        if operation is not None:
            self._fail(ticket, refusal_error(self.ref.spec.name, operation, reason, state))

    # -- ends ------------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """End everything: the channel's server cannot be reached any more."""
        if self.lost is None:
            # In this order: whoever sees `lost` may make the next connection, which takes the service over.
            self._messenger.unserve(self._news)
            self.lost = self._gone(reason)
            self._outbox.clear()
            self._parcels.clear()
            for ticket in list(self._pending):
                self._fail(ticket, self._gone(reason))
            self._lanes.shut()

    def abandon(self, reason: str) -> None:
        """Make it unusable in a forked child; the parent's operations go on."""
        self.lost = ChannelLost(self.ref.spec.name, reason)
        self._lanes.abandon()

    def _gone(self, reason: str) -> ChannelLost:
        return ChannelLost(self.ref.spec.name, f"the process that held it is gone: {reason}")

    def _on_opened(self, opened: Future[Reply]) -> None:
        error = None if opened.cancelled() else opened.exception()
        if error is not None:
            self.lose(str(error))

    def _fail(self, ticket: int, error: BaseException) -> None:
        operation = self._pending.pop(ticket, None)
        if operation is not None:
            operation.fail(error)

    def _abandon(self, operation: BlockingOperation) -> None:
        """Nobody waits any more for an operation: withdraw it, or give back what it got."""
        if self._pending.pop(operation.ticket, None) is not None:
            self._undo(wire.CANCEL, operation.ticket)
        elif operation.value is not None:
            self._undo(wire.GIVE_BACK, operation.ticket)

    def _withdraw(self, operation: Operation) -> bool:
        """Try to undo an operation; True if that is certain now."""
        if operation.kind == "put":
            if operation.ticket in self._pending:
                self._undo(wire.CANCEL, operation.ticket)
            return False
        if self._pending.pop(operation.ticket, None) is None:
            return False
        self._undo(wire.CANCEL, operation.ticket)
        return True

    def _on_dropped(self, operation: Operation) -> None:
        """The handle of a get is gone: nobody can take its items."""
        if not self._withdraw(operation) and self._untaken.pop(operation.ticket, None) is not None:
            self._undo(wire.GIVE_BACK, operation.ticket)

    def _on_unanswered(self, operation: Operation) -> None:
        if operation.ticket in self._pending:
            self._undo(wire.CANCEL, operation.ticket)
            self._fail(operation.ticket, self._unanswered(operation))

    def _unanswered(self, operation: Operation) -> ChannelUnanswered:
        name = self.ref.spec.name
        return ChannelUnanswered(name, operation.queue_name, operation.kind, operation.waited_s, _NO_ANSWER)


def _limit_s(timeout_s: float | None) -> float | None:
    """How long to wait for the server's word on an operation."""
    return None if timeout_s is None else timeout_s + GRACE_S


def _any_in_shared_memory(items: list[Arrived]) -> bool:
    return any(item.loan is not None for item in items)
