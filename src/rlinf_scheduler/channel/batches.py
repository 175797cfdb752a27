"""Taking several items at once: batches and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from rlinf_scheduler.channel.access import ChannelAccess
from rlinf_scheduler.channel.arguments import (
    DEFAULT_QUEUE,
    checked,
    checked_count,
    checked_timeout,
    sendable,
)
from rlinf_scheduler.channel.batch import Batch, BatchOperation, GroupBatch
from rlinf_scheduler.checks import called_directly
from rlinf_scheduler.comm.handle import AsyncHandle, Later, Now, Seconds
from rlinf_scheduler.errors import ChannelArgumentError, ChannelClosed, ChannelEmpty
from rlinf_scheduler.queueing.item import QueueName, check_batch_weight
from rlinf_scheduler.queueing.wanted import Limits

if TYPE_CHECKING:
    from rlinf_scheduler.channel.batch import BatchLimitOptions


class Batching(ChannelAccess):
    """The part of `Channel` that takes batches and groups."""

    @overload
    def get_batch(
        self,
        batch_weight: float | None = ...,
        queue_name: QueueName = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        oversize: Literal["alone", "raise"] | None = ...,
        key: QueueName | None = ...,
        target_weight: float | None = ...,
        **limits: Unpack[BatchLimitOptions],
    ) -> Batch: ...
    @overload
    def get_batch(
        self,
        batch_weight: float | None = ...,
        queue_name: QueueName = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        oversize: Literal["alone", "raise"] | None = ...,
        key: QueueName | None = ...,
        target_weight: float | None = ...,
        **limits: Unpack[BatchLimitOptions],
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
        operation = BatchOperation("get_batch", queue, limit_s, self._now)
        operation.batch_weight, operation.limits = target, limits
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
        operation = BatchOperation("get_group", queue, checked_timeout(self._name, timeout_s), self._now)
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
        operation = BatchOperation("get_batch", queue, None, self._now, wait=False)
        operation.limits = Limits(1, 0, 0, None)
        try:
            batch: Batch = self._get(operation, False)
        except (ChannelEmpty, ChannelClosed):
            return Batch()
        return batch


def checked_group_size(channel: str, maxsize: int, size: Any) -> int:
    """Return how many items a group has."""
    number = checked_count(channel, "size", size)
    if 0 < maxsize < number:
        problem = f"no group has {number} items where a queue holds at most {maxsize}"
        raise ChannelArgumentError(channel, problem)
    return number


def checked_batch_weight(
    channel: str, batch_weight: Any, target_weight: Any, limits: Limits | None
) -> float | None:
    """Return the weight that is meant by `batch_weight` and its other name `target_weight`; None with limits only."""
    given = target_weight if batch_weight is None else batch_weight
    if given is None and limits is not None:
        return None
    if (batch_weight is None) == (target_weight is None):
        problem = (
            "get_batch takes batch_weight, or target_weight, which is another name of it, or max_items, max_bytes, "
            "min_items, max_wait_s"
        )
        raise ChannelArgumentError(channel, problem)
    return sendable(checked(channel, check_batch_weight, given))


def checked_limits(
    channel: str,
    maxsize: int,
    max_items: Any,
    max_bytes: Any,
    min_items: Any,
    max_wait_s: Any,
    oversize: Any = None,
) -> Limits | None:
    """Return what a batch has to be besides its weight; None if nothing was said."""
    if oversize not in (None, "alone", "raise"):
        raise ChannelArgumentError(channel, f"oversize is None, 'alone' or 'raise', not {oversize!r}")
    if max_items is None and max_bytes is None and min_items == 1 and max_wait_s is None and not oversize:
        return None
    limits = Limits(
        checked_count(channel, "min_items", min_items),
        0 if max_items is None else checked_count(channel, "max_items", max_items),
        0 if max_bytes is None else checked_count(channel, "max_bytes", max_bytes),
        checked_timeout(channel, max_wait_s, "max_wait_s"),
        oversize or "",
    )
    if 0 < limits.max_items < limits.min_items:
        problem = f"no batch has at least {min_items} and at most {max_items} items"
        raise ChannelArgumentError(channel, problem)
    if 0 < maxsize < limits.min_items:
        problem = f"no batch has {min_items} items where a queue holds at most {maxsize}"
        raise ChannelArgumentError(channel, problem)
    return limits
