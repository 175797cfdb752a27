"""Batches of what is there: a process with rows asks a channel, and each answer goes back to its asker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rlinf_scheduler.channel.arguments import DEFAULT_QUEUE
from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.errors import ChannelClosed, ChannelTimeout, RouteError
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.routing.rows import count_rows, merge_rows, split_rows

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.channel import Channel, ChannelRequest
    from rlinf_scheduler.routing.transfer import Merge, Split

_NO_ROWS = "a batch without rows asks nothing"


def ask_rows(
    channel: Channel,
    batch: Any,
    queue_name: QueueName = DEFAULT_QUEUE,
    async_op: bool = False,
    timeout_s: float | None = None,
    *,
    rows: int | None = None,
) -> Any:
    """Ask the servers of a channel about a batch, and return the answer, which has a row for each of the batch's.

    Args:
        channel: which a `RowServer` serves.
        batch: as of `count_rows`.
        queue_name: the queue.
        async_op: return a handle at once, whose result is the answer.
        timeout_s: how long to wait for the answer, in seconds.
        rows: how many rows the batch has; None: `count_rows`.

    Raises:
        RouteError: the batch has no rows; nothing was asked.
        ChannelError: as of `Channel.ask`.
    """
    number = count_rows(batch) if rows is None else rows
    if number < 1:
        raise RouteError("", "", _NO_ROWS)
    if async_op:
        return channel.ask(batch, number, queue_name, async_op=True, timeout_s=timeout_s)
    return channel.ask(batch, number, queue_name, timeout_s=timeout_s)


class RowBatch:
    """The rows of several askers, to be answered together.

    Attributes:
        rows: of all of them, one after the other.
        sizes: how many rows each has.
        asked_by: the askers, e.g. "env:3"; one of several questions stands there as often.
    """

    def __init__(self, requests: Sequence[ChannelRequest], sizes: Sequence[int], merge: Merge | None) -> None:
        """Used by `RowServer`."""
        self._requests = requests
        self._num_answered = 0
        self.sizes = tuple(sizes)
        self.asked_by = tuple(request.asked_by for request in requests)
        self.rows: Any = (merge or merge_rows)([request.item for request in requests])

    def __len__(self) -> int:
        """How many rows it has."""
        return sum(self.sizes)

    def reply(self, answer: Any, split: Split | None = None) -> None:
        """Give each asker its rows of an answer.

        Args:
            answer: has a row for each of `rows`.
            split: makes the parts of it that have so many rows; None: `split_rows`.

        Raises:
            RouteError: it has other rows; nobody was answered.
            ChannelArgumentError: it was answered before.
        """
        parts = (split or split_rows)(answer, list(self.sizes))
        if len(parts) != len(self._requests):
            raise RouteError(
                "", "", f"split= has made {len(parts)} parts of an answer to {len(self._requests)}"
            )
        for request, part in zip(self._requests, parts, strict=True):
            request.reply(part)
            self._num_answered += 1

    def fail(self, error: BaseException) -> None:
        """Answer with an error, which those askers raise that have no answer.

        Raises:
            ChannelArgumentError: all have one.
        """
        for request in self._requests[self._num_answered :] or self._requests:
            request.fail(error)
            self._num_answered += 1

    def answer(self, function: Callable[[Any], Any]) -> bool:
        """Answer with `function(rows)`, or with what it raises; whether it raised nothing."""
        try:
            answer = function(self.rows)
            self.reply(answer)
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            self.fail(error)
            return False
        return True


class RowServer:
    """Makes batches of what askers have put into a channel by then, for one process that answers.

        for batch in RowServer(requests, max_rows=64, max_wait_s=0.02):
            batch.reply(policy(batch.rows))

    Any number of processes serve a channel. A batch that is dropped without an answer, or whose process dies, is
    given to another one; see `Channel.next_requests`.

    Args:
        channel: the channel.
        max_rows: a batch has at most so many rows, or is one asker's that has more. An asker for whom it has no room is
            the first in this server's next one.
        max_wait_s: how long a batch that has any rows waits for more, in seconds.
        queue_name: the queue.
        merge: makes one batch of the askers'; None: `merge_rows`. If they do not fit each other, all get the error.
        count: says how many rows an asker has; None: `count_rows`.
    """

    def __init__(
        self,
        channel: Channel,
        max_rows: int,
        max_wait_s: float = 0.0,
        *,
        queue_name: QueueName = DEFAULT_QUEUE,
        merge: Merge | None = None,
        count: Callable[[Any], int] | None = None,
    ) -> None:
        if type(max_rows) is not int or max_rows < 1:
            raise RouteError("", "", f"max_rows={max_rows!r}: a whole number from 1 on")
        self._channel = channel
        self._max_rows = max_rows
        self._max_wait_s = max_wait_s
        self._queue_name = queue_name
        self._merge = merge
        self._count = count or count_rows
        # Whom the batch before had no room for.
        self._left: list[tuple[ChannelRequest, int]] = []

    def next(self, timeout_s: float | None = None) -> RowBatch:
        """Return the rows that are there, as soon as there are any.

        Args:
            timeout_s: how long to wait for the first of them, in seconds; None: as long as it takes.

        Raises:
            ChannelTimeout: nobody has asked in time.
            ChannelClosed: the channel is closed, and nobody is left to be answered.
        """
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            taken = self._take(None if ends is None else max(0.0, ends - time.monotonic()))
            requests, sizes = [request for request, _ in taken], [number for _, number in taken]
            try:
                return RowBatch(requests, sizes, self._merge)
            except RouteError as error:
                # Their rows do not fit each other: nobody else could merge them, either.
                for request in requests:
                    request.fail(error)

    def __iter__(self) -> Iterator[RowBatch]:
        """Give batches until the channel is closed, and everybody has an answer."""
        while True:
            try:
                batch = self.next()
            except ChannelClosed:
                return
            yield batch
            del batch

    def _take(self, timeout_s: float | None) -> list[tuple[ChannelRequest, int]]:
        """Requests with their rows: at most `max_rows` together, or one."""
        found, self._left = self._left, []
        room = self._max_rows - sum(number for _, number in found)
        try:
            while room > 0 and not (found := [*found, *self._ask(room, timeout_s, is_first=not found)]):
                pass  # what was asked had no rows, and has its answer
        except (ChannelTimeout, ChannelClosed):
            if not found:
                raise
        rows = 0
        for place, (_, number) in enumerate(found):
            rows += number
            if rows > self._max_rows and place:
                self._left = found[place:]
                return found[:place]
        return found

    def _ask(self, room: int, timeout_s: float | None, *, is_first: bool) -> list[tuple[ChannelRequest, int]]:
        requests = self._channel.next_requests(
            room,
            self._queue_name,
            batch_weight=room,
            max_wait_s=self._max_wait_s if is_first else 0.0,
            timeout_s=timeout_s if is_first else self._max_wait_s,
        )
        return [(request, number) for request in requests if (number := self._rows_of(request)) > 0]

    def _rows_of(self, request: ChannelRequest) -> int:
        """How many rows a request has; 0 if it was answered that it has none."""
        try:
            rows = self._count(request.item)
        except RouteError as error:
            request.fail(error)
            return 0
        if rows < 1:
            request.fail(RouteError("", "", _NO_ROWS))
        return rows
