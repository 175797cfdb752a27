"""Taking items until it is said what became of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Unpack

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.access import ChannelAccess
from rlinf_scheduler.channel.arguments import (
    DEFAULT_QUEUE,
    checked_batch_weight,
    checked_group_size,
    checked_limits,
    checked_seconds,
    checked_timeout,
    or_forever,
)
from rlinf_scheduler.channel.batch import Batch, Delivery
from rlinf_scheduler.channel.dead_letter import DeadLetter
from rlinf_scheduler.channel.lease import LeaseContext, LeaseLoop
from rlinf_scheduler.channel.operation import Operation
from rlinf_scheduler.channel.slot import read_on_lease
from rlinf_scheduler.errors import ChannelArgumentError
from rlinf_scheduler.queueing import QueueName
from rlinf_scheduler.session import current_session

if TYPE_CHECKING:
    from rlinf_scheduler.channel.options import LeaseOptions

LEASE_S = 60.0


class Leasing(ChannelAccess):
    """The part of `Channel` whose items come back unless they are acknowledged."""

    def lease(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        *,
        batch_weight: float | None = None,
        max_items: int | None = None,
        max_bytes: int | None = None,
        min_items: int = 1,
        max_wait_s: float | None = None,
        group_size: int | None = None,
        ttl_s: float = LEASE_S,
        work_deadline_s: float | None = None,
        timeout_s: float | None = None,
        key: QueueName | None = None,
        target_weight: float | None = None,
    ) -> LeaseContext:
        """Return what takes an item, a batch or a group for the time of a `with` block; the channel keeps it till then.

            with channel.lease() as lease:
                train(lease.item)

        At the end of the block it is acknowledged, and forgotten. If the block ends by an exception, or this process
        dies, it comes back at the head of its queue, and is given to the next consumer: each item is given out at
        least once, and only first deliveries are in order. So it is where this process hangs or is stopped for
        `ttl_s`. As long as it lives it keeps the lease alive by itself, for at most `work_deadline_s`.

        Args:
            queue_name: the queue.
            batch_weight: for a batch, as in `get_batch`, like the next four. Without any of them it is one item.
            max_items: at most so many items.
            max_bytes: at most so many bytes.
            min_items: at least so many items.
            max_wait_s: how long a batch that has `min_items` waits for more, in seconds.
            group_size: for a group, as `get_group`, instead of a batch.
            ttl_s: how long the items stay with a process that is not heard of, in seconds.
            work_deadline_s: how long they stay with one that lives and does not come to an end, in seconds; None as
                long as it takes.
            timeout_s: how long to wait for them, in seconds.
            key: another name of `queue_name`.
            target_weight: another name of `batch_weight`.

        Raises (when the block is entered):
            ChannelTimeout: nothing came in time; BatchTimeout for a batch.
            ChannelClosed: the queue has ended, or the channel is closed, and nothing is left or can come back.
            BatchImpossible: as of `get_batch`.
            CodecError: the item cannot be read here, and was given back; BatchUndecodable for a batch.

        Raises (when it ends):
            LeaseExpired: the items are not on lease any more; others have them, or will.
        """
        queue = self._queue(queue_name, key)
        limits = checked_limits(self._name, self.maxsize, max_items, max_bytes, min_items, max_wait_s)
        target = None
        if batch_weight is not None or target_weight is not None:
            target = checked_batch_weight(self._name, batch_weight, target_weight, limits)
        limit_s = checked_timeout(self._name, timeout_s)
        operation = Operation("lease", queue, limit_s, self._now)
        operation.batch_weight, operation.limits = target, limits
        if group_size is not None:
            if target is not None or limits is not None:
                raise ChannelArgumentError(self._name, "a lease is of a batch, or of a group_size")
            operation.group_size = checked_group_size(self._name, self.maxsize, group_size)
        terms = wire.LeaseRequest(checked_seconds(self._name, "ttl_s", ttl_s), current_session().name)
        operation.lease = terms
        if work_deadline_s is not None:
            work_deadline_s = checked_seconds(self._name, "work_deadline_s", work_deadline_s)
        operation.keep_s = or_forever(work_deadline_s)
        operation.copies, operation.settlements = {}, deque()

        def load(items: Delivery) -> Batch:
            with read_on_lease(operation):
                return self._load_leased(items)

        return LeaseContext(self._connection(), operation, load)

    def leases(self, queue_name: QueueName = DEFAULT_QUEUE, **options: Unpack[LeaseOptions]) -> LeaseLoop:
        """Return one lease after the other, until the queue ends, for `for` and `async for`.

            for lease in channel.leases():
                train(lease.item)

        Each is acknowledged when the next one is asked for. What the loop is left with before, by an error or by
        `break`, is given back, unless it was acknowledged (`lease.ack()`). That counts as an attempt, for a loop cannot
        tell why it is left; `lease.release()` before a `break` makes it none.

        Args:
            queue_name: the queue.
            options: those of `lease`.

        Raises (while it is iterated):
            ChannelTimeout, LeaseExpired and others: as of `lease`.
        """
        self.lease(queue_name, **options)  # what is wrong with them is said at once
        return LeaseLoop(lambda: self.lease(queue_name, **options))

    def dead_letters(
        self, queue_name: QueueName | None = None, *, key: QueueName | None = None
    ) -> list[DeadLetter]:
        """Return the items that were given out `max_attempts` times and never acknowledged; they stay where they are.

        Args:
            queue_name: of which queue; None for all.
            key: another name of `queue_name`.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        queue = None
        if queue_name is not None or key is not None:
            queue = self._queue(DEFAULT_QUEUE if queue_name is None else queue_name, key)
        connection = self._connection()
        letters: control_wire.DeadNotes = connection.ask(control_wire.ListDead(queue), control_wire.DeadNotes)
        return [DeadLetter(connection, letter) for letter in letters.letters]
