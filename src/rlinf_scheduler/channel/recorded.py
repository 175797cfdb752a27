"""A connection to a channel whose operations are noted, for this rank to be run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import astuple, replace

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.operation import ANSWER_S, Operation, OperationPromise
from rlinf_scheduler.channel.requests import Requests
from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.queueing import QueueName
from rlinf_scheduler.tape.tape import Note, Tape


def delivery_of(told: Sequence[Any], frames: Sequence[Buffer]) -> Delivery:
    """A delivery as it was noted: what was told of it, field by field, and all its items' frames."""
    return Delivery.of_frames(wire.Delivered(*told), frames)


def what_of(operation: Operation, channel: str) -> tuple[str, str]:
    """Return the name of an operation in a recording: its kind and its queue; the same in each run."""
    return operation.kind, f"{channel} {operation.queue_name!r}"


class RecordedConnection:
    """Does what its connection does, and notes what that brings, in the thread that takes it.

    Args:
        connection: to the channel.
        tape: what notes it.

    Attributes:
        connection: see above.
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
        operation: Operation,
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

    def start(self, operation: Operation, encoded: Encoded | None = None) -> OperationPromise:
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

    def note_moved(self, operation: Operation, items: Delivery) -> None:
        """Note that somebody is about to take the items of a handle, or of a block."""
        promise = operation.find_promise()
        if isinstance(promise, OperationPromise) and promise.note is not None:
            _took(promise.note, items)
        self.connection.note_moved(operation, items)

    def hold(self, operation: Operation) -> OperationPromise:
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

    def _begin(self, operation: Operation, encoded: Encoded | None = None) -> Note:
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

    def request(self, what: str, step: Any, operation: Operation, answer: Promise[Any]) -> Promise[Any]:
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
