"""Leave to make an item, as its producer holds it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.batch import Delivery
from rlinf.scheduler.channel.connection import ChannelConnection
from rlinf.scheduler.channel.operation import Operation
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.errors import CommError
from rlinf.scheduler.queueing import QueueName


class Slot:
    """Leave to make one item, which is used up by `channel.put(item, slot=slot)`; what `Channel.admit` returns.

    It is its owner's, who asked for it, until an item was put with it. It goes back, and to the next one who waits,
    when a `with` block is left without a put, when the owner drops it, and when the owner's process dies. It can be
    sent to other processes, which put with it; the owner keeps its own until the item is put.

    Attributes:
        queue_name: the queue for which it is.
        version: make the item with this version of the policy, or a newer one.
        number: which slot of the channel; no other one has it.
    """

    def __init__(self, channel_id: str, queue_name: QueueName, number: int, version: int) -> None:
        self.channel_id = channel_id
        self.queue_name = queue_name
        self.number = number
        self.version = version
        # It, and a put that is under way with it, keep what says that somebody wants it.
        self._hold: Promise[Any] | None = None
        self._connection: ChannelConnection | None = None
        self._operation: Operation | None = None
        self._was_put_with = False

    @classmethod
    def granted(cls, connection: ChannelConnection, operation: Operation, promise: Promise[Any]) -> Slot:
        """The slot that an `admit` was given."""
        delivery: Delivery = promise.result(0)
        note = delivery.told.slot or wire.SlotNote(0, 0)
        slot = cls(connection.ref.spec.channel_id, operation.queue_name, note.number, note.version)
        slot._hold, slot._connection, slot._operation = promise, connection, operation
        return slot

    def give_back(self) -> None:
        """Give it back, unless an item was put with it or is about to be; without waiting."""
        if self._operation is not None and self._connection is not None and not self._was_put_with:
            with suppress(CommError):  # a forked child has none of its parent's
                self._connection.drop(self._operation)
        self._hold = None

    def use(self) -> Promise[Any] | None:
        """A put with it begins; until its end it keeps what this returns. Not for users."""
        self._was_put_with = True
        return self._hold

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def __reduce__(self) -> tuple[type[Slot], tuple[str, QueueName, int, int]]:
        return Slot, (self.channel_id, self.queue_name, self.number, self.version)

    def __repr__(self) -> str:
        return f"<Slot {self.number} of queue {self.queue_name!r}: version {self.version}>"
