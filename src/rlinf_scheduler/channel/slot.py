"""Leave to make an item, as its producer holds it, and its copies in other processes."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from threading import get_ident, local
from typing import Any

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.arguments import DEFAULT_QUEUE
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.channel.operation import Operation
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ChannelArgumentError, SchedulerError
from rlinf_scheduler.queueing import QueueName
from rlinf_scheduler.session import current_session

KEY_BITS = 62


class _Reading(local):
    """How this thread reads items: whether they are its own from now on; under which lease, and at which place."""

    takes = True
    lease: Operation | None = None
    place = 0


class SentCopies:
    """The last copies of slots that were pickled in this process, so that a put which fails says that it sent none.

    Attributes:
        number: how many there were.
    """

    def __init__(self) -> None:
        self.number = 0
        self._last: deque[tuple[int, ChannelConnection, control_wire.LetGoOfSlot]] = deque(maxlen=256)

    def add(self, connection: ChannelConnection, message: control_wire.LetGoOfSlot) -> None:
        """A copy was made, that this message is to be sent of if it goes nowhere."""
        self._last.append((get_ident(), connection, message))
        self.number += 1

    def since(self, number: int) -> list[tuple[ChannelConnection, control_wire.LetGoOfSlot]]:
        """Return those that this thread has made after so many."""
        count = min(self.number - number, len(self._last))
        here = get_ident()
        return [each[1:] for each in islice(self._last, len(self._last) - count, None) if each[0] == here]


_reading = _Reading()
SENT_COPIES = SentCopies()


def forget(copies: Iterable[tuple[ChannelConnection, control_wire.LetGoOfSlot]]) -> None:
    """Say that copies were not sent: the put that was to send them has put nothing."""
    for connection, message in copies:
        with suppress(SchedulerError):
            connection.tell(message)


def read_at(place: int) -> None:
    """Note that the next item to be read has this place in its lease."""
    _reading.place = place


@contextmanager
def read_on_lease(lease: Operation) -> Iterator[None]:
    """Read items in this block that are the reader's once the lease is acknowledged."""
    _reading.lease = lease
    try:
        yield
    finally:
        _reading.lease = None


@contextmanager
def only_looked_at() -> Iterator[None]:
    """Read items in this block that stay where they are."""
    _reading.takes = False
    try:
        yield
    finally:
        _reading.takes = True


class Slot:
    """Leave to make one item, which is used up by `channel.put(item, slot=slot)`; what `Channel.admit` returns.

    It can be sent to other processes, which put with it. It lives as long as any copy of it: in a process, in a queue,
    on lease, or on its way. When the last one is dropped, its `with` block left without a put, or its process dead, it
    goes back, and to the next one who waits.

    Attributes:
        queue_name: the queue for which it is.
        version: make the item with this version of the policy, or a newer one.
        number: which slot of the channel; no other one has it.
    """

    def __init__(self, ref: ChannelRef, queue_name: QueueName, number: int, version: int) -> None:
        self._ref = ref
        self.queue_name = queue_name
        self.number = number
        self.version = version
        # It, and a put that is under way with it, keep what says that somebody wants it.
        self._hold: Promise[Any] | None = None
        self._connection: ChannelConnection | None = None
        self._operation: Operation | None = None
        # Of a copy: how this process calls it. Of one on lease: the one that was sent, until the lease is over; and the
        # lease, and its place there.
        self._key = self._source = 0
        self._lease: Operation | None = None
        self._place = 0
        self._is_over = False  # as far as this copy is concerned
        self._is_used = False  # by a put that may be under way
        self._was_sent = False

    @classmethod
    def granted(cls, connection: ChannelConnection, operation: Operation, promise: Promise[Any]) -> Slot:
        """The slot that an `admit` was given."""
        delivery: Delivery = promise.result(0)
        note = delivery.told.slot or wire.SlotNote(0, 0)
        slot = cls(connection.ref, operation.queue_name, note.number, note.version)
        slot._hold, slot._connection, slot._operation = promise, connection, operation
        return slot

    @classmethod
    def sent(cls, ref: ChannelRef, queue_name: QueueName, number: int, version: int, source: int) -> Slot:
        """The copy that somebody has sent, here."""
        slot = cls(ref, queue_name, number, version)
        lease, taken = _reading.lease, source if _reading.takes else 0
        with suppress(SchedulerError):  # there may be no job, or no channel any more
            connection = slot._connection = current_session().service(ChannelConnections).to(ref)
            slot._key = secrets.randbits(KEY_BITS)
            if lease is not None and taken:
                slot._lease, slot._place, slot._source, taken = lease, _reading.place, taken, 0
                message = control_wire.LetGoOfSlot(queue_name, number, 0, source)
                lease.copies.setdefault(slot._place, []).append(partial(forget, [(connection, message)]))
            slot._tell(control_wire.HoldSlot(queue_name, number, slot._key, False, taken))
        return slot

    @property
    def channel_id(self) -> str:
        """Tells its channel from others of the same name."""
        return self._ref.spec.channel_id

    def give_back(self) -> None:
        """Let go of it, unless an item was put with it or is about to be; without waiting."""
        if not (self._is_over or self._is_used):
            self._let_go(self._source)

    def use(self) -> Slot:
        """A put with it begins; until its end it keeps what this returns. Not for users."""
        self._is_used = True
        return self

    def unused(self) -> None:
        """A put with it has put nothing. Not for users."""
        self._is_used = False

    def used(self) -> None:
        """An item was put with it. Not for users."""
        self._is_over = True
        if self._hold is not None:
            self._hold.consumed.taken = True  # by the channel

    def _let_go(self, source: int) -> None:
        self._is_over = True
        if self._operation is not None and self._connection is not None:
            with suppress(SchedulerError):  # a forked child has none of its parent's
                self._connection.drop(self._operation)
        elif self._key:
            self._tell(control_wire.LetGoOfSlot(self.queue_name, self.number, self._key, source))
        self._hold = None

    def _tell(self, message: control_wire.HoldSlot | control_wire.LetGoOfSlot) -> None:
        if self._connection is not None:
            with suppress(SchedulerError):
                self._connection.tell(message)

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lease is None:  # else it is known at the end of that
            self.give_back()

    def __del__(self) -> None:
        if getattr(self, "_is_over", True):
            return
        is_wanted = self._lease is not None and self._place in self._lease.copies
        self._let_go(0)
        if self._connection is not None and not (self._is_used or self._was_sent or is_wanted):
            with suppress(SchedulerError):
                self._connection.say_unused(self.number)

    def __reduce__(self) -> tuple[Any, ...]:
        key = secrets.randbits(KEY_BITS)
        self._was_sent = True
        self._tell(control_wire.HoldSlot(self.queue_name, self.number, key, True))
        if self._connection is not None:
            SENT_COPIES.add(self._connection, control_wire.LetGoOfSlot(self.queue_name, self.number, 0, key))
        return Slot.sent, (self._ref, self.queue_name, self.number, self.version, key)

    def __repr__(self) -> str:
        return f"<Slot {self.number} of queue {self.queue_name!r}: version {self.version}>"


def use_slot(slot: Any, operation: Operation, ref: ChannelRef) -> None:
    """Let a put into a channel be one with a slot.

    Raises:
        ChannelArgumentError: it is none, or of another channel or queue.
    """
    name = ref.spec.name
    if type(slot) is not Slot:
        raise ChannelArgumentError(name, f"slot is what `admit` returns, not {slot!r}")
    if slot.channel_id != ref.spec.channel_id:
        raise ChannelArgumentError(name, f"{slot!r} is of another channel")
    if operation.queue_name not in (DEFAULT_QUEUE, slot.queue_name):
        raise ChannelArgumentError(name, f"{slot!r} is not for queue {operation.queue_name!r}")
    operation.queue_name = slot.queue_name
    operation.slot, operation.held = slot.number, slot.use()
