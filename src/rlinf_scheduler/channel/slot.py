"""Leave to make an item, with its copies in other processes."""

from __future__ import annotations

import secrets
from contextlib import suppress
from functools import partial
from typing import Any

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.client_parts import ClientParts
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.channel.copies import READING, SENT_COPIES, Ends, forget
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import SchedulerError
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.version_gate import OnSlot
from rlinf_scheduler.queueing.versions import AskForSlot, HoldSlot, LetGoOfSlot
from rlinf_scheduler.session import current_session

KEY_BITS = 62
UNUSED = (
    "channel '%s': slot %d was dropped, and no item was put with it: it went back, and others have it. Keep a slot "
    "until put(item, slot=slot), or give it back by slot.give_back(). (This is said once.)"
)


class AdmitOperation(ChannelOperation):
    """Asking for a slot.

    Attributes:
        max_lag: how many versions later its item may be taken.
        was_sent: copies of its slot are, or were, on their way.
    """

    __slots__ = ("max_lag", "was_sent")
    is_plain = False
    has_hooks = True
    is_own_end = True
    max_lag: int

    def opening(self, _num_frames: int = 0, _size_bytes: int | None = None) -> wire.OperationMessage:
        """How it begins at the server."""
        return AskForSlot(self.ticket, self.queue_name, self.wait, self.max_lag)

    def delivered(self, client: ClientParts, _told: wire.Delivered) -> None:
        """Have it looked after whether anybody keeps it."""
        client.deliveries.look_later()


class Slot:
    """Leave to make one item, which is used up by `channel.put(item, slot=slot)`; what `Channel.admit` returns.

    It can be sent to other processes, which put with it. It lives as long as any copy of it: in a process, in a queue,
    given out, or on its way. When the last one is dropped, its `with` block left without a put, or its process dead, it
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
        self._operation: AdmitOperation | None = None
        # Of a copy: how this process calls it. Of one in an item that may go back: the one that was sent, until that is
        # done with; and where it stands what is said then.
        self._key = self._source = 0
        self._ends: Ends | None = None
        self._place = 0
        self._is_over = False  # as far as this copy is concerned
        self._is_used = False  # by a put that may be under way
        self._is_left = False  # it goes back unless an item was put with it
        self._was_sent = False

    @classmethod
    def granted(cls, connection: ChannelConnection, operation: AdmitOperation, promise: Promise[Any]) -> Slot:
        """The slot that an `admit` was given."""
        delivery: Delivery = promise.result(0)
        note = OnSlot(*delivery.told.grant)
        slot = cls(connection.ref, operation.queue_name, note.number, note.version)
        slot._hold, slot._connection, slot._operation = promise, connection, operation
        return slot

    @classmethod
    def sent(cls, ref: ChannelRef, queue_name: QueueName, number: int, version: int, source: int) -> Slot:
        """The copy that somebody has sent, here."""
        slot = cls(ref, queue_name, number, version)
        ends, taken = READING.ends, source if READING.takes else 0
        with suppress(SchedulerError):  # there may be no job, or no channel any more
            connection = slot._connection = current_session().service(ChannelConnections).to(ref)
            slot._key = secrets.randbits(KEY_BITS)
            if ends is not None and taken:
                slot._ends, slot._place, slot._source, taken = ends, READING.place, taken, 0
                message = LetGoOfSlot(queue_name, number, 0, source)
                ends.setdefault(slot._place, []).append(partial(forget, [(connection, message)]))
            slot._tell(HoldSlot(queue_name, number, slot._key, False, taken))
        return slot

    @property
    def channel_id(self) -> str:
        """Tells its channel from others of the same name."""
        return self._ref.spec.channel_id

    def give_back(self) -> None:
        """Let go of it, unless an item was put with it, or is about to be and then is; without waiting."""
        self._is_left = True  # before it is looked whether a put has it: else that lets go of it
        if not (self._is_over or self._is_used):
            self._let_go(self._source)

    def use(self) -> Slot:
        """A put with it begins; until its end it keeps what this returns. Not for users."""
        self._is_used = True
        return self

    def unused(self) -> None:
        """A put with it has put nothing. Not for users."""
        self._is_used = False
        if self._is_left and not self._is_over:
            self._let_go(self._source)

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
            self._tell(LetGoOfSlot(self.queue_name, self.number, self._key, source))
        self._hold = None

    def _tell(self, message: HoldSlot | LetGoOfSlot) -> None:
        if self._connection is not None:
            with suppress(SchedulerError):
                self._connection.requests.tell(message)

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ends is None:  # else it is known at the end of that
            self.give_back()

    def __del__(self) -> None:
        if getattr(self, "_is_over", True):
            return
        self._let_go(0)
        # Of a copy that was sent, this process cannot know: another one may have put with it.
        is_told = self._operation is not None and not (self._is_used or self._was_sent)
        if is_told and self._connection is not None:
            with suppress(SchedulerError):
                self._connection.warn_once(UNUSED, self.number)

    def __reduce__(self) -> tuple[Any, ...]:
        key = secrets.randbits(KEY_BITS)
        self._was_sent = True
        if self._operation is not None:
            self._operation.was_sent = True
        self._tell(HoldSlot(self.queue_name, self.number, key, True))
        if self._connection is not None:
            SENT_COPIES.add(self._connection, LetGoOfSlot(self.queue_name, self.number, 0, key))
        return Slot.sent, (self._ref, self.queue_name, self.number, self.version, key)

    def __repr__(self) -> str:
        return f"<Slot {self.number} of queue {self.queue_name!r}: version {self.version}>"
