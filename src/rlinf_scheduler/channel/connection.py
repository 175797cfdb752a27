"""The channel connection: what one process has of one channel, as its users' threads see it.

All `Channel` objects of a process that mean the same channel share a connection. A user's thread encodes an item,
hands its operation over, and waits; everything else happens on the messenger's I/O thread (see `client`), which is the
only one that touches what is under way. So an interruption of the user's thread finds nothing half done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.client import ChannelClient
from rlinf_scheduler.channel.holding import HELD_BYTES, SMALL_BYTES, InlinePayload
from rlinf_scheduler.channel.operation import ANSWER_S, ChannelOperation
from rlinf_scheduler.channel.refusals import gone_error, unanswered_error
from rlinf_scheduler.channel.requests import IO_THREAD_S, STUCK
from rlinf_scheduler.channel.sender import ServerTransport
from rlinf_scheduler.channel.spec import ChannelRef, group_ranks
from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.operation import OperationPromise
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payloads import WAIT_S
from rlinf_scheduler.comm.waits import CHANNEL, Cause, Wait, awaited
from rlinf_scheduler.errors import ChannelLost, CodecError
from rlinf_scheduler.observe.reasons import explain
from rlinf_scheduler.observe.timekeeping import GET, PUT, TIMES
from rlinf_scheduler.queueing.members import Resize
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import GroupMembers

logger = Reporter(__name__)


# Returned for an operation that has not begun.
USUAL_WAY: Any = object()


class BeginAnew(Exception):
    """An operation has put or taken nothing past the I/O thread, and is to begin anew."""


class DirectWay(Protocol):
    """A way of a user's thread to the channel's server, past the I/O threads."""

    def run(self, operation: ChannelOperation, encoded: Encoded | None) -> Any:
        """Run an operation until it is over, and return what it brings; `USUAL_WAY`: that is how it has to go.

        Raises:
            ChannelError: what it failed with.
            BeginAnew: it has put or taken nothing.
        """


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
        client: its part on the I/O thread.
        direct_way: a way past that, for threads that block; None: there is none.
        now: the clock of its messenger, in seconds.
        device_of: says which tensors of items may stay on their device; None: none may.
        requests: what is asked beside operations.
        groups: the groups whose ranks something of it is divided among, or counts.
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
        self.client = ChannelClient(session, ref, transport, lambda: on_lost(self))
        self.wake = self.client.wake
        self.requests = self.client.requests
        self._warned: set[str] = set()
        self._causes: dict[str, Cause] = {}
        self._on_devices = self.client.on_devices
        self.device_of = None if self._on_devices is None else self._on_devices.device_of
        self.direct_way: DirectWay | None = None
        self.groups: dict[str, None] = {ref.spec.producer_group: None}

    @property
    def lost(self) -> ChannelLost | None:
        """Why the channel cannot be used by it any more; None as long as it can."""
        return self.client.lost

    def tell_resized(self, members: GroupMembers) -> None:
        """Tell the server of a group's new ranks, if it is to know."""
        if members.group in self.groups:
            self.requests.tell(Resize(group_ranks(members)))

    @property
    def draining(self) -> Promise[str]:
        """Done when this process is to take no more work; from any thread."""
        return self.client.draining

    @property
    def held_by(self) -> str:
        """The name of the process that holds the channel, as far as it is known here."""
        return self._messenger.peer_name(self.ref.endpoint.process_id)

    def awaits(self, operation: ChannelOperation) -> Wait:
        """Return what the caller of an operation waits for; from any thread."""
        return operation.wait_at(self.ref.spec.name, self.held_by)

    def cause(self, operation: ChannelOperation) -> Cause:
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
        operation: ChannelOperation,
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
        self.client.check_may_block()
        self._messenger.check_process()
        operation.blocks = True
        try:
            value = USUAL_WAY if self.direct_way is None else self.direct_way.run(operation, encoded)
            if value is USUAL_WAY:
                if encoded is not None and operation.payload is None:
                    self.pack(operation, encoded, blocks=True)
                value = self.wait(operation, self.client.begin)
            items = value
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
        except BeginAnew:
            return self.run(operation.renewed(), encoded, load)
        except CodecError:
            # Back in the queue it would stand in everybody's way.
            operation.taken = True
            raise
        except BaseException as error:
            if not operation.taken:
                operation.dropped = True
                gone = self.client.query_outcome if operation.is_direct else self.client.drop
                self.client.hand_over(gone, operation)
            self.explain(error, operation.timeout_s, operation.waited_s)
            raise

    def start(self, operation: ChannelOperation, encoded: Encoded | None = None) -> OperationPromise:
        """Start an operation; its end comes to the promise."""
        if encoded is not None:
            self.pack(operation, encoded, blocks=False)
        operation.owner, operation.channel = self, self.ref.spec.name
        if encoded is not None or operation.goes_on:  # without its handle
            promise = OperationPromise(operation)
            operation.promise_to(promise)
        else:
            promise = OperationPromise(operation, is_watched=True)
            operation.promise_to(promise, self.client.dropped)
        self.client.hand_over(self.client.begin, operation)
        if TIMES.notes_moves and encoded is not None:
            self.note_moved(operation, None)
        return promise

    def note_moved(self, operation: ChannelOperation, items: Delivery | None) -> None:
        """Note what was put, or (with `items`) taken: for the trace of the job, and by which thread."""
        if not TIMES.notes_moves:
            return
        name, began = self.ref.spec.name, TIMES.now() - operation.waited_s
        if operation.kind == "put":
            origin = self._session.name, operation.ticket
            version = None if operation.item is None else operation.item.version
            TIMES.note_moved(PUT, began, operation.kind, name, (origin,), _versions((version,)))
        elif items is not None and items.told.origins is not None:
            origins = tuple(origin for origin in items.told.origins if origin is not None)
            TIMES.note_moved(GET, began, operation.kind, name, origins, _versions(items.told.versions or ()))

    def hold(self, operation: ChannelOperation) -> OperationPromise:
        """Run a get until it is over, and take nothing: with the promise the items go back, before what is asked next.

        Raises:
            ChannelUnanswered: nobody has answered. What the get failed with is raised by the promise.
        """
        self.client.check_may_block()
        promise = self.start(operation)
        try:
            self._await_end(operation, promise)
        except BaseException:
            del promise  # an error keeps this frame
            raise
        return promise

    def pack(self, operation: ChannelOperation, encoded: Encoded, *, blocks: bool) -> None:
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
        is_held = self.client.hands_over and encoded.size_bytes >= HELD_BYTES
        peer = None if is_held else self.ref.endpoint
        operation.payload = self._messenger.payloads.pack(encoded, peer, snapshot=True, wait_s=room_s)

    def wait(self, operation: ChannelOperation, step: Callable[[ChannelOperation], None]) -> Any:
        """Have the I/O thread do a step, and wait until it ends an operation."""
        promise: Promise[Any] = Promise()
        # Before the step, which may end it; what has come for it already is not lost.
        self.client.inbox.append((operation.await_by, promise))
        self.client.hand_over(step, operation)
        self._await_end(operation, promise)
        return promise.result(0)

    @awaited(_awaits)
    def _await_end(self, operation: ChannelOperation, promise: Promise[Any]) -> None:
        left_s = operation.left_s
        if not promise.wait(None if left_s is None else left_s + operation.grace_s + IO_THREAD_S):
            raise unanswered_error(self.ref.spec.name, operation, STUCK)

    def look_after(self, operation: ChannelOperation) -> None:
        """Somebody is about to take the items of a handle: confirm them soon."""
        deliveries = self.client.deliveries
        self.client.inbox.append((deliveries.touch, operation))
        # Read only here: if the I/O thread is to look anyhow, it need not be woken.
        if not deliveries.looks_soon:
            self.client.hand_over(deliveries.touch, operation)

    def drop(self, operation: ChannelOperation) -> None:
        """Nobody waits for an operation any more; what it brought and was not taken goes back."""
        operation.dropped = True
        self.client.hand_over(self.client.drop, operation)

    def give_back(self, operation: ChannelOperation) -> None:
        """Give back what an operation brought; it is on its way when this returns."""
        given: Promise[None] = Promise()

        def drop(what: ChannelOperation) -> None:
            try:
                self.client.drop(what)
            finally:
                given.set_result(None)

        self.client.hand_over(drop, operation)
        given.wait(ANSWER_S)

    def warn_once(self, text: str, *about: Any) -> None:
        """Log a warning, once for each text, on the I/O thread: somebody drops something, wherever that is."""
        if text not in self._warned:
            self._warned.add(text)
            self.client.hand_over(lambda about: logger.warning(text, self.ref.spec.name, *about), about)

    def withdraw(self, operation: ChannelOperation, promise: OperationPromise) -> None:
        """Give an operation up that was started."""
        self.client.hand_over(self.client.cancel, operation)
        if self._messenger.on_io_thread():
            self.client.drain()
        elif operation.kind != "put":
            promise.wait(ANSWER_S)

    def lose(self, reason: str) -> None:
        """End everything: the channel's server cannot be reached any more. On the I/O thread."""
        self.client.lose(gone_error(self.ref.spec.name, reason))

    def leave(self, reason: str) -> None:
        """Confirm what was taken, and end everything: this process leaves the cluster. From any thread."""
        left: Promise[None] = Promise()

        def leave(_nothing: None) -> None:
            try:
                self.client.leave(reason)
            finally:
                left.set_result(None)

        self.client.hand_over(leave, None)
        if self._messenger.on_io_thread():
            self.client.drain()
        else:
            left.wait(ANSWER_S)

    def abandon(self, reason: str) -> None:
        """Make it unusable in a forked child; the parent's operations go on."""
        self.client.abandon(ChannelLost(self.ref.spec.name, reason))


def _versions(versions: Sequence[int | None]) -> tuple[tuple[int | None, int], ...]:
    """Return how many items each version has made; nothing where nobody said of any."""
    return tuple(Counter(versions).items()) if any(each is not None for each in versions) else ()
