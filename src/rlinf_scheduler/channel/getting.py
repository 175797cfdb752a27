"""Taking items: one, a batch, a group, a data-parallel rank's part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, overload

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.access import ChannelAccess
from rlinf_scheduler.channel.arguments import (
    DEFAULT_QUEUE,
    checked_batch_weight,
    checked_group_size,
    checked_limits,
    checked_plan,
    checked_timeout,
)
from rlinf_scheduler.channel.batch import Batch, GroupBatch
from rlinf_scheduler.channel.operation import Operation
from rlinf_scheduler.channel.shard import Shard
from rlinf_scheduler.comm.handle import AsyncHandle, Later, Now, Seconds
from rlinf_scheduler.errors import ChannelArgumentError, ChannelClosed, ChannelEmpty
from rlinf_scheduler.keywords import called_directly
from rlinf_scheduler.queueing import QueueName

Cost = str | tuple[float, float] | Sequence[tuple[float, float]] | Callable[[float], float]


class Getting(ChannelAccess):
    """The part of `Channel` that takes items for good."""

    @overload
    def get(
        self,
        queue_name: QueueName = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        key: QueueName | None = ...,
    ) -> Any: ...
    @overload
    def get(
        self,
        queue_name: QueueName = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        key: QueueName | None = ...,
    ) -> AsyncHandle[Any]: ...

    @called_directly("Channel")
    def get(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        *,
        key: QueueName | None = None,
    ) -> Any:
        """Take the item at the head of a queue, when there is one and it is this getter's turn.

        Raises:
            ChannelTimeout: nothing came in time.
            ChannelClosed: the channel is closed, and the queue is drained.
            CodecError: the item cannot be read here, its class is missing, say. It is taken all the same.
        """
        queue = self._queue(queue_name, key)
        return self._get(Operation("get", queue, checked_timeout(self._name, timeout_s), self._now), async_op)

    @called_directly("Channel")
    def get_nowait(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> Any:
        """Take the item at the head of a queue if there is one now.

        Raises:
            ChannelEmpty: there is none, or getters that came before wait for it.
            ChannelUnanswered: the channel's process did not answer within 5 s; nothing was taken.
            ChannelClosed: the channel is closed, and the queue is drained.
        """
        queue = self._queue(queue_name, key)
        return self._get(Operation("get", queue, None, self._now, wait=False), False)

    @overload
    def get_batch(
        self,
        batch_weight: float | None = ...,
        queue_name: QueueName = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        max_items: int | None = ...,
        max_bytes: int | None = ...,
        min_items: int = ...,
        max_wait_s: Seconds = ...,
        oversize: Literal["alone", "raise"] | None = ...,
        key: QueueName | None = ...,
        target_weight: float | None = ...,
    ) -> Batch: ...
    @overload
    def get_batch(
        self,
        batch_weight: float | None = ...,
        queue_name: QueueName = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        max_items: int | None = ...,
        max_bytes: int | None = ...,
        min_items: int = ...,
        max_wait_s: Seconds = ...,
        oversize: Literal["alone", "raise"] | None = ...,
        key: QueueName | None = ...,
        target_weight: float | None = ...,
    ) -> AsyncHandle[Batch]: ...

    @called_directly("Channel")
    def get_batch(
        self,
        batch_weight: float | None = None,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        *,
        max_items: int | None = None,
        max_bytes: int | None = None,
        min_items: int = 1,
        max_wait_s: float | None = None,
        oversize: Literal["alone", "raise"] | None = None,
        key: QueueName | None = None,
        target_weight: float | None = None,
    ) -> Any:
        """Take the first items of a queue whose weights reach `batch_weight`, all at once, as a list.

        Nothing is taken before the batch is ready: its weight is reached, one of its bounds is, or `max_wait_s` is
        over. Without a `batch_weight` it is what is there, as soon as that is `min_items`, and with `max_wait_s` as
        soon as a bound is reached too. When the queue has ended, or the channel is closed, what is left comes
        as a last batch. The list's `complete` is False for this, and for what has not reached its weight when
        `max_wait_s` was over.

        Args:
            batch_weight: the weight that it has to reach.
            queue_name: the queue.
            async_op: see the class, like the rest.
            timeout_s: seconds.
            max_items: at most so many items; any number by default.
            max_bytes: at most so many bytes; any number by default.
            min_items: at least so many items.
            max_wait_s: how long a batch that has `min_items` waits for more, in seconds; None as long as it takes for
                its weight, and not at all without one.
            oversize: what becomes of an item that alone is heavier than `batch_weight`, or larger than `max_bytes`. By
                default a batch is as heavy as the item makes it with which the weight is reached, and one that is too
                large is a batch of its own. "alone": a batch ends before any such item, and it is a batch of its own.
                "raise": a batch ends before it, and the next `get_batch` raises; the item stays where it is.
            key: another name of `queue_name`.
            target_weight: another name of `batch_weight`.

        Raises:
            BatchTimeout: the batch was not ready in time, a ChannelTimeout.
            ChannelClosed: the queue has ended, or the channel is closed, and the queue is drained.
            BatchImpossible: the queue is full, and what it holds makes no such batch; or an oversize item is next.
            BatchUndecodable: items cannot be read here, by a class that is missing, say. They are taken, like
                the others, which the error holds.
        """
        queue = self._queue(queue_name, key)
        limits = checked_limits(
            self._name, self.maxsize, max_items, max_bytes, min_items, max_wait_s, oversize
        )
        target = checked_batch_weight(self._name, batch_weight, target_weight, limits)
        limit_s = checked_timeout(self._name, timeout_s)
        operation = Operation("get_batch", queue, limit_s, self._now, batch_weight=target, limits=limits)
        return self._get(operation, async_op)

    @overload
    def get_group(
        self,
        size: int,
        queue_name: QueueName = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        key: QueueName | None = ...,
    ) -> GroupBatch: ...
    @overload
    def get_group(
        self,
        size: int,
        queue_name: QueueName = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        key: QueueName | None = ...,
    ) -> AsyncHandle[GroupBatch]: ...

    @called_directly("Channel")
    def get_group(
        self,
        size: int,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        *,
        key: QueueName | None = None,
    ) -> Any:
        """Take `size` items that were put with the same `group`, all at once, as a list: all samples of a prompt.

        It is the group that has had so many first, wherever its items stand among others. Of a group that has more,
        the first ones come. When the queue has ended, was flushed, or the channel is closed, what is left comes group
        by group, with `complete` False. Items without a group are left to `get` and `get_batch`, which take any.

        Args:
            size: how many items make a group complete.
            queue_name: the queue.
            async_op: see the class, like the rest.
            timeout_s: seconds.
            key: another name of `queue_name`.

        Raises:
            BatchTimeout: no group was complete in time; the text, and `stats()`, say what is there.
            ChannelClosed: the queue has ended, or the channel is closed, and no group is left.
            BatchImpossible: the queue is full, and none of its groups is complete.
            BatchUndecodable: items cannot be read here, see `get_batch`.
        """
        queue = self._queue(queue_name, key)
        operation = Operation("get_group", queue, checked_timeout(self._name, timeout_s), self._now)
        operation.group_size = checked_group_size(self._name, self.maxsize, size)
        return self._get(operation, async_op)

    @called_directly("Channel")
    def drain(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> Batch:
        """Take everything that a queue holds now, which may be nothing.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s; nothing was taken.
            BatchUndecodable: items cannot be read here, see `get_batch`.
        """
        queue = self._queue(queue_name, key)
        everything = wire.BatchLimits(1, 0, 0, None)
        operation = Operation("get_batch", queue, None, self._now, wait=False, limits=everything)
        try:
            batch: Batch = self._get(operation, False)
        except (ChannelEmpty, ChannelClosed):
            return Batch()
        return batch

    def shard(
        self,
        index: int,
        num_shards: int,
        *,
        policy: str = "round_robin",
        batch_weight: float | None = None,
        batch_items: int | None = None,
        cost: Cost | None = None,
        equal_counts: bool = False,
        queue_name: QueueName = DEFAULT_QUEUE,
        key: QueueName | None = None,
    ) -> Shard:
        """Return one data-parallel rank's part of a queue, to be iterated: one batch a step.

        The channel divides each step among all ranks, which say the same here but for their `index`. So every rank sees
        the same number of batches, some perhaps empty, and the same end.

            for batch in channel.shard(self.rank, self.world_size, policy="balanced", batch_items=512):
                self.train(batch)

        Args:
            index: the rank, from 0.
            num_shards: how many ranks there are.
            policy: "round_robin", in turn as the items came; "least_loaded", each item to the rank that has the least
                to do; "balanced", Karmarkar and Karp's partition of the step.
            batch_weight: the weight of a step, of all ranks together.
            batch_items: its number of items. With neither, a step is what is there at `flush`, or when the queue ends.
            cost: what an item costs: None for its weight, "quadratic" for its square, (a, b) for
                a * weight + b * weight ** 2, a list of points (weight, cost) with straight lines between them, such as
                measured times, or a function of the weight, of which such a list is made here.
            equal_counts: of "balanced": ranks get the same number of items, or one less.
            queue_name: the queue.
            key: another name of `queue_name`.
        """
        queue = self._queue(queue_name, key)
        plan = checked_plan(self._name, num_shards, policy, batch_weight, batch_items, cost, equal_counts)
        if type(index) is not int or not 0 <= index < num_shards:
            raise ChannelArgumentError(self._name, f"there is no shard {index!r} of {num_shards}")
        take = partial(self._get, async_op=False)
        return Shard(self._name, self._now, take, self._settle_part, queue, index, plan)

    def _settle_part(self, message: control_wire.DonePart) -> str:
        done: control_wire.Done = self._connection().ask(message, control_wire.Done)
        return done.problem

    def __iter__(self) -> Iterator[Any]:
        """Take the items of the default queue, until the channel is closed and drained."""
        while True:
            try:
                item = self.get()
            except ChannelClosed:
                return
            yield item

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Take the items of the default queue, until the channel is closed and drained."""
        while True:
            try:
                item = await self.get(async_op=True)
            except ChannelClosed:
                return
            yield item
