"""Connections to channels whose operations are noted, for this rank to be run again; and what answers from that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

from msgspec.structs import astuple, replace

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.operation import ANSWER_S, ChannelOperation
from rlinf_scheduler.channel.question import Question
from rlinf_scheduler.channel.requests import Requests
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.operation import OperationPromise
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.queueing import QueueName
from rlinf_scheduler.tape.player import Player
from rlinf_scheduler.tape.tape import Note, Tape


def delivery_of(told: Sequence[Any], frames: Sequence[Buffer]) -> Delivery:
    """A delivery as it was noted: what was told of it, field by field, and all its items' frames."""
    return Delivery.of_frames(wire.Delivered(*told), frames)


def what_of(operation: ChannelOperation, channel: str) -> tuple[str, str]:
    """Return the name of an operation in a recording: its kind and its queue; the same in each run."""
    return operation.kind, f"{channel} {operation.queue_name!r}"


class RecordedConnection:
    """Does what its connection does, and notes what that brings, in the thread that takes it.

    Args:
        connection: to the channel.
        tape: what notes it.

    Attributes:
        requests: what is asked beside operations.
    """

    def __init__(self, connection: ChannelConnection, tape: Tape) -> None:
        self.connection = connection
        self.requests = RecordedRequests(connection.requests, connection.ref.spec.name, tape)
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def run(
        self,
        operation: ChannelOperation,
        encoded: Encoded | None = None,
        load: Callable[[Delivery], Any] | None = None,
    ) -> Any:
        """Run an operation until it is over."""
        note = self._begin(operation, encoded)

        def load_noted(items: Delivery) -> Any:
            _took(note, items)
            return load(items) if load is not None else items

        try:
            value = self.connection.run(operation, encoded, None if load is None else load_noted)
        except BaseException as error:
            note.failed(error)
            raise
        if load is None:
            note.took()
        return value

    def start(self, operation: ChannelOperation, encoded: Encoded | None = None) -> OperationPromise:
        """Start an operation; its end comes to the promise."""
        note = self._begin(operation, encoded)
        promise = self.connection.start(operation, encoded)
        note.follow(promise)
        if encoded is not None or operation.goes_on:
            promise.add_done_callback(lambda done: _took_nothing(note, done))
        elif operation.is_own_end:
            promise.add_done_callback(lambda done: _took_end(note, done))
        else:
            promise.note = note
        return promise

    def note_moved(self, operation: ChannelOperation, items: Delivery) -> None:
        """Note that somebody is about to take the items of a handle, or of a block."""
        promise = operation.find_promise()
        if isinstance(promise, OperationPromise) and promise.note is not None:
            _took(promise.note, items)
        self.connection.note_moved(operation, items)

    def hold(self, operation: ChannelOperation) -> OperationPromise:
        """Run a get until it is over, and take nothing."""
        note = self._begin(operation)
        try:
            promise = self.connection.hold(operation)
        except BaseException as error:
            note.failed(error)
            raise
        note.follow(promise)
        _took_end(note, promise)
        return promise

    def peek(self, queue: QueueName, number: int, max_bytes: int = 0) -> list[ReceivedPayload]:
        """Return copies of the first items of a queue; they stay where they are."""
        note = self._tape.begin("peek", self.connection.ref.spec.name)
        try:
            found = self.connection.peek(queue, number, max_bytes)
        except BaseException as error:
            note.failed(error)
            raise
        parts = [item.frames() for item in found]
        note.took(lambda: [frame for part in parts for frame in part], [len(part) for part in parts])
        return found

    def _begin(self, operation: ChannelOperation, encoded: Encoded | None = None) -> Note:
        what = what_of(operation, self.connection.ref.spec.name)
        # A question has the number and the address of who asks in it: another one each time.
        return self._tape.begin(
            *what, None if operation.item is not None and operation.item.question else encoded
        )


class RecordedRequests:
    """Asks what these requests do, and notes what is answered.

    Args:
        requests: to the channel's server.
        channel: its name.
        tape: what notes it.
    """

    def __init__(self, requests: Requests, channel: str, tape: Tape) -> None:
        self._requests = requests
        self._channel = channel
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self._requests, name)

    def ask(
        self, message: control_wire.Control, kind: type[Any] | None = None, timeout_s: float = ANSWER_S
    ) -> Any:
        """Ask the server something, after all operations that were started before; wait for the answer."""
        what = type(message).__name__.lower()
        return self._tape.run(what, self._channel, lambda: self._requests.ask(message, kind, timeout_s))

    def begin(self, message: control_wire.Control, kind: type[Any] | None, timeout_s: float) -> Promise[Any]:
        """As `ask`, and return at once; the reply is to come."""
        answer = self._requests.begin(message, kind, timeout_s)
        return self._noted(type(message).__name__.lower(), answer)

    def request(
        self, what: str, step: Any, operation: ChannelOperation, answer: Promise[Any]
    ) -> Promise[Any]:
        """Have a feature do a step on the I/O thread, whose reply comes to `answer`."""
        return self._noted(what, self._requests.request(what, step, operation, answer))

    def read(self, message: control_wire.Control, what: str) -> Any:
        """The reply that has an item in its frames; raises as `ask`, and as `land`."""
        note = self._tape.begin("read_dead", self._channel)
        try:
            reply = self._requests.read(message, what)
        except BaseException as error:
            note.failed(error)
            raise
        note.took(lambda: reply.frames, reply.head)
        return reply

    def _noted(self, what: str, answer: Promise[Any]) -> Promise[Any]:
        note = self._tape.begin(what, self._channel)
        note.follow(answer)

        def took(done: Promise[Any]) -> None:
            if not done.cancelled() and done.exception(0) is None:
                reply = done.result(0)
                note.took(lambda: reply.frames, reply.head)

        answer.add_done_callback(took)
        return answer


def _took_nothing(note: Note, promise: Promise[Any]) -> None:
    if not promise.cancelled() and promise.exception(0) is None:
        note.took()


def _took_end(note: Note, promise: Promise[Any]) -> None:
    if not promise.cancelled() and promise.exception(0) is None:
        _took(note, promise.result(0))


def _took(note: Note, items: Delivery) -> None:
    parts = [item.frames() for item in items]
    told = replace(items.told, num_frames=[len(part) for part in parts])
    note.took(lambda: [frame for part in parts for frame in part], astuple(told))


class ReplayedConnections:
    """Stands for `ChannelConnections`.

    Args:
        now: the clock of this process, in seconds.
    """

    def __init__(self, player: Player, now: Callable[[], float]) -> None:
        self._player = player
        self._now = now
        self._by_id: dict[str, ReplayedConnection] = {}

    def to(self, ref: ChannelRef) -> ReplayedConnection:
        """Return the connection to a channel."""
        return self._by_id.setdefault(ref.spec.channel_id, ReplayedConnection(self._player, ref, self._now))


class ReplayedConnection:
    """Stands for `ChannelConnection`.

    Args:
        now: the clock of this process, in seconds.

    Attributes:
        ref, now: see above.
        lost: a recording is always there.
        device_of: nothing of it is on a device.
    """

    lost = None
    device_of = None

    def __init__(self, player: Player, ref: ChannelRef, now: Callable[[], float]) -> None:
        self.ref = ref
        self.now = now
        self.requests = ReplayedRequests(player, ref.spec.name)
        self._name = ref.spec.name
        self._player = player

    def run(
        self,
        operation: ChannelOperation,
        encoded: Encoded | None = None,
        load: Callable[[Delivery], Any] | None = None,
    ) -> Any:
        """Run an operation until it is over."""
        what = what_of(operation, self._name)
        if load is None:
            self._player.give(*what, _comparable(operation, encoded))
            return None
        return load(_delivery(self._player.take(*what)))

    def start(self, operation: ChannelOperation, encoded: Encoded | None = None) -> Promise[Any]:
        """Start an operation; its end comes to the promise."""
        what = what_of(operation, self._name)
        promise: Promise[Any]
        if encoded is not None or operation.goes_on:
            promise = self._player.given(*what, _comparable(operation, encoded))
        else:
            promise = self._player.promised(*what, _delivery, now=operation.is_own_end)
        operation.promise_to(promise)
        return promise

    def hold(self, operation: ChannelOperation) -> Promise[Any]:
        """Run a get until it is over, and take nothing."""
        return self.start(operation)

    def peek(self, queue: QueueName, number: int, max_bytes: int = 0) -> list[ReceivedPayload]:
        """Return copies of the first items of a queue; they stay where they are."""
        del queue, number, max_bytes
        counts, frames = self._player.take("peek", self._name)
        left = iter(frames)
        return [ReceivedPayload(list(islice(left, count))) for count in counts]

    def look_after(self, operation: ChannelOperation) -> None:
        """Somebody is about to take the items of a handle: confirm them soon."""

    def note_moved(self, operation: ChannelOperation, items: Delivery | None) -> None:
        """Do nothing: nobody traces a replay."""

    def drop(self, operation: ChannelOperation) -> None:
        """Nobody waits for an operation any more; what it brought and was not taken goes back."""

    def give_back(self, operation: ChannelOperation) -> None:
        """Give back what an operation brought; it is on its way when this returns."""

    def warn_once(self, text: str, *about: Any) -> None:
        """Do nothing: it was said when it happened."""


class ReplayedRequests:
    """Stands for `Requests`.

    Args:
        channel: the name of the channel.
    """

    def __init__(self, player: Player, channel: str) -> None:
        self._player = player
        self._name = channel

    def ask(
        self, message: control_wire.Control, kind: type[Any] | None = None, timeout_s: float = ANSWER_S
    ) -> Any:
        """Ask the server something, after all operations that were started before; wait for the answer."""
        del kind, timeout_s
        return self._player.take(type(message).__name__.lower(), self._name)[0]

    def begin(self, message: control_wire.Control, kind: type[Any] | None, timeout_s: float) -> Promise[Any]:
        """As `ask`, and return at once; the reply is to come."""
        del kind, timeout_s
        return self._replied(type(message).__name__.lower())

    def request(
        self, what: str, step: Any, operation: ChannelOperation, answer: Promise[Any]
    ) -> Promise[Any]:
        """Have a feature do a step on the I/O thread, whose reply comes to `answer`."""
        del step, operation, answer
        return self._replied(what)

    def read(self, message: control_wire.Control, what: str) -> Any:
        """The reply that has an item in its frames; raises as `ask`, and as `land`."""
        del message, what
        return self._replied("read_dead").result(0)

    def answer_to(self, answer: Promise[Any], what: str, timeout_s: float = ANSWER_S) -> Any:
        """Wait for the reply to something that was asked."""
        del what, timeout_s
        return answer.result(0)

    def tell(self, message: control_wire.Control) -> None:
        """Send the server something without waiting for its answer."""

    def finish_puts(self, operation: str, timeout_s: float | None) -> None:
        """Wait until every put that this process has begun is over."""

    def _replied(self, what: str) -> Promise[Any]:
        return self._player.promised(
            what, self._name, lambda brought: SimpleNamespace(head=brought[0], frames=brought[1]), now=True
        )


class ReplayedAsking:
    """Stands for `Asking`.

    Args:
        endpoint: of this process.
    """

    def __init__(self, player: Player, endpoint: Endpoint) -> None:
        self._player = player
        self._endpoint = endpoint

    def begin(
        self, connection: ReplayedConnection, queue: QueueName, item: Any
    ) -> tuple[Question, Promise[Any]]:
        """A question about `item`, to be put into the channel, and its answer to come."""
        answer = self._player.promised("answer", f"{connection.ref.spec.name} {queue!r}")
        # Any number: that of a question is never compared.
        return Question(1, self._endpoint, self._player.recorded.address, item), answer

    @staticmethod
    def handle(pending: Promise[Any]) -> AsyncHandle[Any]:
        """The handle of an answer; it keeps what says that somebody wants it."""
        return AsyncHandle(pending, lambda brought: ReceivedPayload(brought[1]).load(), "ask")

    def follow(self, put: AsyncHandle[None], pending: Promise[Any], timeout_s: float | None) -> None:
        """Let a question that is not in its queue yet fail as its put does, and at its deadline."""

    def give_up(self, pending: Promise[Any]) -> None:
        """Nobody waits for an answer any more; from any thread."""


def _comparable(operation: ChannelOperation, encoded: Encoded | None) -> Callable[[], Encoded] | None:
    return (
        None
        if encoded is None or (operation.item is not None and operation.item.question)
        else lambda: encoded
    )


def _delivery(brought: tuple[tuple[Any, ...], list[bytearray]]) -> Delivery:
    return delivery_of(*brought)
