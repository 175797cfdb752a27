"""One data-parallel rank's part of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.batch import ShardBatch
from rlinf.scheduler.channel.operation import Operation
from rlinf.scheduler.errors import ChannelClosed
from rlinf.scheduler.queueing import QueueName, ShardPlan


class Shard:
    """Batches of one rank, step by step, until the queue ends; all ranks see the same number of them.

    A batch is done with when the next one is asked for. Whoever makes a new one of these for the same rank, because
    the earlier one died, say, gets the batch that was not done with again, as the same step.

    Args:
        take: runs an operation to its end, and returns its batch.
        queue_name: the queue.
        index: the rank, from 0.
        plan: how the queue is divided.

    Attributes:
        done_step: the last step that is done with; -1 before the first.
    """

    def __init__(
        self, take: Callable[[Operation], ShardBatch], queue_name: QueueName, index: int, plan: ShardPlan
    ) -> None:
        self._take = take
        self._queue_name = queue_name
        self._index = index
        self._plan = plan
        self._last_step = -1
        self.done_step = -1

    def next_batch(self, timeout_s: float | None = None) -> ShardBatch:
        """Be done with the batch before, and wait for the next one.

        Args:
            timeout_s: how long, in seconds.

        Raises:
            BatchTimeout: it was not there in time; the text says which shards lag.
            ChannelClosed: the queue has ended, and no shard gets another batch.
            ChannelError: another one has asked for this shard meanwhile.
            ChannelArgumentError: other shards divide the queue in another way.
        """
        self.done_step = self._last_step
        operation = Operation("get_batch", self._queue_name, timeout_s)
        operation.shard = wire.Shard(self._index, self.done_step, *self._plan)
        batch = self._take(operation)
        self._last_step = batch.step
        return batch

    def __iter__(self) -> Iterator[ShardBatch]:
        """Take batch after batch, until the queue has ended."""
        while True:
            try:
                batch = self.next_batch()
            except ChannelClosed:
                return
            yield batch
