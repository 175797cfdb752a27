"""Items that were given out on lease too often, for the people that look after them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.errors import ChannelError
from rlinf_scheduler.queueing import QueueName


class DeadLetter:
    """An item that was given out `max_attempts` times and never acknowledged. The channel keeps it, read or not.

    Attributes:
        queue_name: where it came from.
        size_bytes: how large the item is.
        attempts: how often it was given out.
        reason: why the last attempt came to nothing.
        last_consumer: who made it, as `rollout:3`.
    """

    def __init__(self, connection: ChannelConnection, letter: control_wire.DeadNote) -> None:
        self.queue_name: QueueName = wire.as_name(letter.queue)
        self.size_bytes = letter.size_bytes
        self.attempts = letter.attempts
        self.reason = letter.reason
        self.last_consumer = letter.consumer
        self._connection = connection
        self._number = letter.number

    @cached_property
    def item(self) -> Any:
        """The item, fetched when it is looked at first.

        Raises:
            ChannelError: it was put back, or discarded.
            ChannelUnanswered: the channel's process did not answer within 5 s.
            CodecError: it cannot be read here.
            CommError: it lies on a device, whose process cannot be reached.
        """
        reply = self._connection.read_dead(self._number)
        self._check(reply.head)
        return ReceivedPayload(reply.frames).load()

    def put_back(self) -> None:
        """Put the item to the head of its queue, to be given out as often as in the beginning.

        Raises:
            ChannelError, ChannelUnanswered: as of `item`; or it would be older than it may be.
        """
        self._check(self._connection.ask(control_wire.MoveDead(self._number, True), control_wire.Done))

    def discard(self) -> None:
        """Drop the item for good.

        Raises:
            ChannelError, ChannelUnanswered: as of `item`.
        """
        self._check(self._connection.ask(control_wire.MoveDead(self._number, False), control_wire.Done))

    def _check(self, done: control_wire.Done) -> None:
        if done.problem:
            name = self._connection.ref.spec.name
            raise ChannelError(name, f"a dead letter of queue {self.queue_name!r}: {done.problem}")

    def __repr__(self) -> str:
        return (
            f"<DeadLetter of queue {self.queue_name!r}: {self.attempts} attempts, the last by "
            f"{self.last_consumer}: {self.reason}>"
        )
