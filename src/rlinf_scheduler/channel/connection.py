"""The channel connection: what one process has of one channel, as its users' threads see it.

All `Channel` objects of a process that mean the same channel share a connection. A user's thread encodes an item,
hands its operation over, and waits; everything else happens on the messenger's I/O thread (see `client`), which is the
only one that touches what is under way. So an interruption of the user's thread finds nothing half done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.client import ChannelClient
from rlinf_scheduler.channel.deliveries import CONFIRM_DELAY_S
from rlinf_scheduler.channel.holding import HELD_BYTES, SMALL_BYTES, InlinePayload
from rlinf_scheduler.channel.operation import ANSWER_S, Operation
from rlinf_scheduler.channel.operation_promise import OperationPromise
from rlinf_scheduler.channel.peeking import copies_of_first
from rlinf_scheduler.channel.refusals import ending_error, gone_error, unanswered_error
from rlinf_scheduler.channel.requests import IO_THREAD_S, STUCK
from rlinf_scheduler.channel.sender import ServerTransport
from rlinf_scheduler.channel.shortcut import (
    DIRECT_BYTES,
    MAX_DATAGRAM_BYTES,
    NUM_SKIPPED,
    Shortcut,
    ShortcutBroken,
    encode_call,
)
from rlinf_scheduler.channel.shortcut_opening import MIN_OPERATIONS, ShortcutRequest
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.comm.cancellation import current_scope
from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.comm.framing import Buffer, flat
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.payloads import WAIT_S
from rlinf_scheduler.comm.waits import CHANNEL, Cause, Wait, awaited
from rlinf_scheduler.errors import ChannelLost, CodecError
from rlinf_scheduler.observe.reasons import explain
from rlinf_scheduler.observe.timekeeping import GET, PUT, TIMES
from rlinf_scheduler.queueing import Ending, QueueName
from rlinf_scheduler.session import Session

logger = Reporter(__name__)


class _BeginAnew(Exception):
    """An operation has put or taken nothing by a shortcut, and is to go the usual way."""


def _awaits(local: dict[str, Any]) -> Wait:
    """What the thread waits for that runs an operation."""
    connection: ChannelConnection = local["self"]
    return connection.awaits(local["operation"])


class ChannelConnection:
    """A connection to the channel `ref`; made by the first operation that is handed over.

    Args:
        transport: leads to its server.
        on_lost: called with it on the I/O thread when its server is gone.

    Attributes:
        now: the clock of its messenger, in seconds.
        device_of: says which tensors of items may stay on their device; None: none may.
        requests: what is asked beside operations.
    """

    def __init__(
        self,
        session: Session,
        ref: ChannelRef,
        transport: ServerTransport,
        on_lost: Callable[[ChannelConnection], None],
    ) -> None:
        self.ref = ref
        self._session = session
        self._messenger = messenger = session.messenger
        self.now = messenger.now
        self._client = ChannelClient(session, ref, transport, lambda: on_lost(self))
        self.requests = self._client.requests
        self._warned: set[str] = set()
        self._causes: dict[str, Cause] = {}
        self._on_devices = self._client.on_devices
        self.device_of = None if self._on_devices is None else self._on_devices.devices.device_of
        # Each thread's shortcut, or what it has done about one.
        self._own = threading.local()
        self._same_machine = messenger.endpoint.machine_id == ref.endpoint.machine_id

    @property
    def lost(self) -> ChannelLost | None:
        """Why the channel cannot be used by it any more; None as long as it can."""
        return self._client.lost

    @property
    def held_by(self) -> str:
        """The name of the process that holds the channel, as far as it is known here."""
        return self._messenger.peer_name(self.ref.endpoint.process_id)

    def awaits(self, operation: Operation) -> Wait:
        """Return what the caller of an operation waits for; from any thread."""
        return operation.awaits(self.ref.spec.name, self.held_by)

    def cause(self, operation: Operation) -> Cause:
        """Return the cause under which a wait for an operation is counted."""
        cause = self._causes.get(operation.kind)
        if cause is None:
            cause = self._causes[operation.kind] = Cause(CHANNEL, operation.kind, self.ref.spec.name)
        return cause

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself."""
        explain(self._session, error, limit_s, waited_s)

    @awaited(_awaits)
    def run(
        self,
        operation: Operation,
        encoded: Encoded | None = None,
        load: Callable[[Delivery], Any] | None = None,
    ) -> Any:
        """Run an operation until it is over.

        Args:
            operation: what to do.
            encoded: the item of a put.
            load: makes the result of the items of a get.

        Raises:
            ChannelError: what it failed with.
            CodecError: an item cannot be read here; it is taken all the same.
        """
        self._client.check_may_block()
        self._messenger.check_process()
        operation.blocks = True
        give_up = self._client.drop
        try:
            shortcut = self._take_shortcut(operation)
            call = None if shortcut is None else self._call(shortcut, operation, encoded)
            if shortcut is None or call is None:
                value = items = self._run_by_io_thread(operation, encoded)
            else:
                give_up = self._client.query_outcome
                value = items = self._exchange(shortcut, call, operation)
            if TIMES.notes_moves:
                self.note_moved(operation, items)
            if load is not None:
                # What they lie in is held until the mark is set.
                value = load(items)
            # Stores and a return: nothing can come in between. Before them, the items go back; after them, they are
            # the caller's.
            operation.mark[0] = 1
            operation.taken = True
            return value  # noqa: TRY300 - see above
        except _BeginAnew:
            return self.run(operation.renewed(), encoded, load)
        except CodecError:
            # Back in the queue it would stand in everybody's way.
            operation.taken = True
            raise
        except BaseException as error:
            if not operation.taken:
                operation.dropped = True
                self._client.hand_over(give_up, operation)
            self.explain(error, operation.timeout_s, operation.waited_s)
            raise

    def start(self, operation: Operation, encoded: Encoded | None = None) -> OperationPromise:
        """Start an operation; its end comes to the promise."""
        if encoded is not None:
            self._pack(operation, encoded, blocks=False)
        if encoded is not None or operation.goes_on:  # without its handle
            promise = OperationPromise(self, operation)
            operation.promise_to(promise)
        else:
            promise = OperationPromise(self, operation, self._client.wake)
            operation.promise_to(promise, self._client.dropped)
        self._client.hand_over(self._client.begin, operation)
        if TIMES.notes_moves and encoded is not None:
            self.note_moved(operation, None)
        return promise

    def note_moved(self, operation: Operation, items: Delivery | None) -> None:
        """Note what was put, or (with `items`) taken: for the trace of the job, and by which thread."""
        if not TIMES.notes_moves:
            return
        name, began = self.ref.spec.name, TIMES.now() - operation.waited_s
        if operation.kind == "put":
            origin = self._session.name, operation.ticket
            TIMES.note_moved(PUT, began, operation.kind, name, (origin,))
        elif items is not None and items.told.origins is not None:
            origins = tuple(origin for origin in items.told.origins if origin is not None)
            TIMES.note_moved(GET, began, operation.kind, name, origins)

    def hold(self, operation: Operation) -> OperationPromise:
        """Run a get until it is over, and take nothing: with the promise the items go back, before what is asked next.

        Raises:
            ChannelUnanswered: nobody has answered. What the get failed with is raised by the promise.
        """
        self._client.check_may_block()
        promise = self.start(operation)
        try:
            self._await_end(operation, promise)
        except BaseException:
            del promise  # an error keeps this frame
            raise
        return promise

    def peek(self, queue: QueueName, number: int, max_bytes: int = 0) -> list[ReceivedPayload]:
        """Return copies of the first items of a queue; they stay where they are (see `peeking`)."""
        peek, name = control_wire.Peek(queue, number, max_bytes), self.ref.spec.name
        return copies_of_first(self.requests, self._messenger, self._on_devices, name, peek)

    def _pack(self, operation: Operation, encoded: Encoded, *, blocks: bool) -> None:
        """Give a put its item as it will travel.

        Args:
            operation: the put.
            encoded: the item.
            blocks: its caller may wait for room in shared memory, up to its deadline.
        """
        if self._on_devices is not None:
            operation.payload = self._on_devices.stage(encoded, operation.left_s)
            if operation.payload is not None:
                return
        if encoded.size_bytes <= SMALL_BYTES:  # as most are
            operation.payload = InlinePayload(encoded.snapshot(), encoded.size_bytes)
            return
        room_s = 0.0
        if blocks and operation.wait:
            left_s = operation.left_s
            room_s = WAIT_S if left_s is None else min(WAIT_S, left_s)
        # A snapshot even for a caller who waits: a wait that ends early leaves bytes behind that are still to be sent.
        # What stays on this node lies in shared memory, whether the channel's process can read it or not.
        is_held = self._client.hands_over and encoded.size_bytes >= HELD_BYTES
        peer = None if is_held else self.ref.endpoint
        operation.payload = self._messenger.payloads.pack(encoded, peer, snapshot=True, wait_s=room_s)

    def _run_by_io_thread(self, operation: Operation, encoded: Encoded | None) -> Any:
        if encoded is not None and operation.payload is None:
            self._pack(operation, encoded, blocks=True)
        return self._wait(operation, self._client.begin)

    def _wait(self, operation: Operation, step: Callable[[Operation], None]) -> Any:
        """Have the I/O thread do a step, and wait until it ends an operation."""
        promise: Promise[Any] = Promise()
        # Before the step, which may end it; what has come for it already is not lost.
        self._client.inbox.append((operation.await_by, promise))
        self._client.hand_over(step, operation)
        self._await_end(operation, promise)
        return promise.result(0)

    @awaited(_awaits)
    def _await_end(self, operation: Operation, promise: Promise[Any]) -> None:
        left_s = operation.left_s
        if not promise.wait(None if left_s is None else left_s + operation.grace_s + IO_THREAD_S):
            raise unanswered_error(self.ref.spec.name, operation, STUCK)

    def look_after(self, operation: Operation) -> None:
        """Somebody is about to take the items of a handle: confirm them soon."""
        deliveries = self._client.deliveries
        self._client.inbox.append((deliveries.touch, operation))
        # Read only here: if the I/O thread is to look anyhow, it need not be woken.
        if not deliveries.looks_soon:
            self._client.hand_over(deliveries.touch, operation)

    def drop(self, operation: Operation) -> None:
        """Nobody waits for an operation any more; what it brought and was not taken goes back."""
        operation.dropped = True
        self._client.hand_over(self._client.drop, operation)

    def give_back(self, operation: Operation) -> None:
        """Give back what an operation brought; it is on its way when this returns."""
        given: Promise[None] = Promise()

        def drop(what: Operation) -> None:
            try:
                self._client.drop(what)
            finally:
                given.set_result(None)

        self._client.hand_over(drop, operation)
        given.wait(ANSWER_S)

    def warn_once(self, text: str, *about: Any) -> None:
        """Log a warning, once for each text, on the I/O thread: somebody drops something, wherever that is."""
        if text not in self._warned:
            self._warned.add(text)
            self._client.hand_over(lambda about: logger.warning(text, self.ref.spec.name, *about), about)

    # -- shortcuts -------------------------------------------------------------------------------

    def _take_shortcut(self, operation: Operation) -> Shortcut | None:
        """This thread's shortcut, to be given back; None if it has none, or the operation is not one for it."""
        if not self._same_machine:
            return None
        # Out of everybody's hands: a signal handler that comes now finds none.
        own = self._own.__dict__
        shortcut: Shortcut | None = own.pop("shortcut", None)
        if shortcut is None:
            return self._ask_for_shortcut(own)
        if shortcut.skips and operation.kind != "put":
            shortcut.skips -= 1
            own["shortcut"] = shortcut
            return None
        return shortcut

    def _call(self, shortcut: Shortcut, operation: Operation, encoded: Encoded | None) -> bytes | None:
        """What to send by a shortcut; None, and the shortcut is given back, if it has to go the usual way."""
        call = None
        frames: list[Buffer] | None = []
        if encoded is not None:
            frames = self._frames(operation, encoded)
        after = self._client.sent_before()
        opening = operation.opening(0 if frames is None else len(frames))
        if after is not None and frames is not None and isinstance(opening, wire.Put | wire.Get):
            call = encode_call(after, opening, frames)
        if call is None or len(call) > MAX_DATAGRAM_BYTES:
            self._own.__dict__["shortcut"] = shortcut
            return None
        return call

    def _frames(self, operation: Operation, encoded: Encoded) -> list[Buffer] | None:
        stays = self._on_devices is not None and self._on_devices.devices.is_worth_it(encoded)
        if encoded.size_bytes <= DIRECT_BYTES and not stays:
            return [flat(frame) for frame in encoded.frames()]
        self._pack(operation, encoded, blocks=True)
        payload = operation.payload
        if payload is None or not payload.goes_as_descriptor(self.ref.endpoint):
            return None
        return payload.frames_for(self.ref.endpoint)

    def _exchange(self, shortcut: Shortcut, call: bytes, operation: Operation) -> Any:
        """Send an operation by a shortcut, and wait for its end."""
        client = self._client
        if operation.kind != "put":
            # Known before it goes: what it brings is confirmed, or goes back.
            client.direct.append(operation)
            if not client.deliveries.looks_soon:
                self._client.wake()
        began = TIMES.now()
        answer = self._answer_by(shortcut, call, operation)
        said = None if answer is None else answer.answer
        by = said.by if type(said) is wire.Delivered else ""
        TIMES.note_wait(began, self.cause(operation), by)
        if answer is None:
            return self._wait_for_outcome(operation)
        self._own.__dict__["shortcut"] = shortcut
        if type(said) is wire.Accepted:
            return None
        return self._read(answer, shortcut, operation)

    def _read(self, answer: wire.DirectAnswer, shortcut: Shortcut, operation: Operation) -> Any:
        """Return what a shortcut's answer brings, or raise what it says."""
        match answer.answer:
            case wire.Delivered() as delivered:
                if operation.waited_s > CONFIRM_DELAY_S:
                    # It came after a while: nothing may follow soon that the confirmation could travel with.
                    self._client.hand_over(self._client.deliveries.wake, None)
                if len(delivered.num_frames) != 1:
                    return Delivery.of_frames(delivered, answer.frames)
                items = Delivery((ReceivedPayload([*answer.frames]),))  # as mostly
                items.told = delivered
                return items
            case wire.Elsewhere():
                shortcut.skips = NUM_SKIPPED
                return self._wait(operation, self._client.expect)
            case wire.Refused(_, reason, state):
                operation.taken = True
                raise ending_error(self.ref.spec.name, operation, Ending.REFUSED, (reason, state))
            case wire.Again(_, problem):
                self._messenger.payloads.distrust(self.ref.endpoint.process_id, problem)
                raise _BeginAnew

    def _answer_by(self, shortcut: Shortcut, call: bytes, operation: Operation) -> wire.DirectAnswer | None:
        try:
            return _exchange_in_scope(shortcut, call, operation)
        except (TimeoutError, ShortcutBroken) as error:
            if raised_by_signal_handler(error):
                raise
            return None

    def _wait_for_outcome(self, operation: Operation) -> Any:
        try:
            return self._wait(operation, self._client.query_outcome)
        except CancelledError as error:
            if raised_by_signal_handler(error):
                raise
            raise _BeginAnew from None

    def _ask_for_shortcut(self, own: dict[str, Any]) -> Shortcut | None:
        # Out of everybody's hands, too.
        request: ShortcutRequest = own.pop("request", None) or ShortcutRequest()
        if request.shortcut is not None:
            return request.shortcut
        own["request"] = request
        request.num_operations += 1
        if request.num_operations == MIN_OPERATIONS:
            self._client.hand_over(self._client.shortcuts.begin, request)
        return None

    def withdraw(self, operation: Operation, promise: OperationPromise) -> None:
        """Give an operation up that was started."""
        self._client.hand_over(self._client.cancel, operation)
        if self._messenger.on_io_thread():
            self._client.drain()
        elif operation.kind != "put":
            promise.wait(ANSWER_S)

    def lose(self, reason: str) -> None:
        """End everything: the channel's server cannot be reached any more. On the I/O thread."""
        self._client.lose(gone_error(self.ref.spec.name, reason))

    def leave(self, reason: str) -> None:
        """Confirm what was taken, and end everything: this process leaves the cluster. From any thread."""
        left: Promise[None] = Promise()

        def leave(_nothing: None) -> None:
            try:
                self._client.leave(reason)
            finally:
                left.set_result(None)

        self._client.hand_over(leave, None)
        if self._messenger.on_io_thread():
            self._client.drain()
        else:
            left.wait(ANSWER_S)

    def abandon(self, reason: str) -> None:
        """Make it unusable in a forked child; the parent's operations go on."""
        self._client.abandon(ChannelLost(self.ref.spec.name, reason))


def _exchange_in_scope(shortcut: Shortcut, call: bytes, operation: Operation) -> wire.DirectAnswer:
    """As `Shortcut.exchange`; it is broken when the call that this thread works at is cancelled."""
    scope = current_scope()
    if scope is None:
        return shortcut.exchange(call, operation.ticket, operation.left_s)
    try:
        scope.begin_wait(shortcut.end)
        return shortcut.exchange(call, operation.ticket, operation.left_s)
    finally:
        scope.end_wait(shortcut.end)
