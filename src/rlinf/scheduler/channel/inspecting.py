"""Looking at what a channel holds, and who waits for it."""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.access import ChannelAccess
from rlinf.scheduler.channel.arguments import DEFAULT_QUEUE
from rlinf.scheduler.channel.operation import Operation
from rlinf.scheduler.channel.question import Question
from rlinf.scheduler.channel.report import ChannelReport
from rlinf.scheduler.channel.spec import ChannelStats
from rlinf.scheduler.comm.shm.parcel import Arrived
from rlinf.scheduler.errors import ChannelError, CommError
from rlinf.scheduler.queueing import QueueName


class Inspecting(ChannelAccess):
    """The part of `Channel` that moves no item."""

    def qsize(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> int:
        """Return how many items a queue holds.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return self._query(queue_name, key).num_items

    def empty(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> bool:
        """Return whether a queue holds nothing.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return self._query(queue_name, key).num_items == 0

    def full(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> bool:
        """Return whether a put to a queue would have to wait.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return self._query(queue_name, key).is_full

    def stats(self) -> ChannelStats:
        """Return what went through the channel and what is in it.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return ChannelStats.from_wire(self._connection().ask(wire.Stats(), wire.ChannelCounts))

    def explain(self) -> ChannelReport:
        """Return who waits for what and since when, what is held and by whom, rates and bounds; it moves no item.

            print(channel.explain())

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return ChannelReport.from_wire(self._name, self._connection().ask(wire.Explain(), wire.Explanation))

    def peek(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> Any:
        """Return a copy of the item that the next getter would take, and leave it where it is.

        Raises:
            ChannelEmpty: there is none.
            ChannelUnanswered: the channel's process did not answer within 5 s.
            ChannelClosed: the queue has ended, or the channel is closed, and the queue is drained.
            CodecError: the item cannot be read here.
        """
        queue = self._queue(queue_name, key)
        return self._connection().look(Operation("get", queue, None, wait=False), _load_copy)

    def __str__(self) -> str:
        """Return the first line of `explain`, or what is known here if its process does not answer."""
        try:
            return self.explain().headline
        except (ChannelError, CommError):
            return repr(self)


def _load_copy(items: list[Arrived]) -> Any:
    item = Arrived([bytearray(frame) for frame in items[0].frames()]).load()
    return item.item if type(item) is Question else item
