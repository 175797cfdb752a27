"""A channel inside one process: no server and no copies, and each process that has it has queues of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any, Never

from rlinf_scheduler.channel.arguments import DEFAULT_QUEUE, checked_timeout, checked_weight
from rlinf_scheduler.channel.channel import Channel
from rlinf_scheduler.channel.inspecting import NUM_SHOWN, shown
from rlinf_scheduler.channel.local_queues import Local, LocalQueues, channel_queues
from rlinf_scheduler.channel.operation import Operation
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.errors import ChannelArgumentError, ChannelEmpty
from rlinf_scheduler.queueing import ChannelState, ChannelStats, QueueName


class LocalChannel(Channel):
    """A channel for the threads and tasks of one process, with the same queues: `Channel.create(name, local=True)`.

    It needs no cluster. What is put is what is got, the very object, not a copy. A process that gets the channel as an
    argument, or in anything that it unpickles, has it with queues of its own, which begin empty: what one call of a
    rank puts there, a later call of that rank gets. They last until the process ends, or deletes them.

    It has `put`, `get`, `get_batch`, `get_group` with all their options but slots, `drain`, `peek`, `qsize`, `empty`,
    `full`, `stats`, `end`, `flush`, `close`, `delete`, and iteration. What a server is needed for is refused.
    """

    def __init__(self, spec: ChannelSpec) -> None:
        self._spec = spec
        self._name = spec.name
        self._clock: Callable[[], float] | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is a channel inside one process: True."""
        return True

    @property
    def maxsize(self) -> int:
        """How many items each of its queues holds; 0 is unbounded."""
        return self._spec.maxsize

    def qsize(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> int:
        """Return how many items a queue holds, in this process."""
        queue = self._queue(queue_name, key)
        return self._queues.ask("qsize", lambda state: state.queues.num_items(queue), queue)

    def empty(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> bool:
        """Return whether a queue holds nothing, in this process."""
        return self.qsize(queue_name, key=key) == 0

    def full(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> bool:
        """Return whether a put to a queue would have to wait."""
        queue = self._queue(queue_name, key)
        return self._queues.ask("full", lambda state: state.queues.is_full(queue), queue)

    def peek(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> Any:
        """Return the item that the next getter would take, and leave it where it is.

        Raises:
            ChannelEmpty: there is none.
        """
        queue = self._queue(queue_name, key)
        found = self._queues.ask("peek", lambda state: state.queues.first_items(queue, 1), queue)
        if not found:
            raise ChannelEmpty(self._name, f"queue {queue!r} has nothing")
        return found[0].payload

    def stats(self) -> ChannelStats:
        """Return what went through the channel and what is in it, in this process; sizes in bytes are not known."""
        return self._queues.ask("stats", lambda state: state.queues.stats().listing(state.queues.depths()))

    def end(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        timeout_s: float | None = None,
        *,
        key: QueueName | None = None,
    ) -> None:
        """Say that nothing will be put into a queue any more: what it holds is delivered, then ChannelClosed raised.

        Puts that wait for room still enter; nothing is waited for, so `timeout_s` has no effect.
        """
        checked_timeout(self._name, timeout_s)
        self._queues.change("end", methodcaller("end", self._queue(queue_name, key)))

    def flush(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> None:
        """Let batches take what a queue holds now, whether it reaches their weight or not."""
        self._queues.change("flush", methodcaller("flush", self._queue(queue_name, key)))

    def close(self) -> None:
        """Refuse puts from now on, waiting ones too; getters take what is there, then get ChannelClosed."""
        self._queues.change("close", methodcaller("close"))

    def delete(self, timeout_s: float | None = None) -> None:
        """Drop what this process has of the channel; what waits fails with ChannelLost, and so do later operations."""
        checked_timeout(self._name, timeout_s)
        self._queues.delete()

    @property
    def _now(self) -> Callable[[], float]:
        now = self._clock
        if now is None:
            now = self._clock = self._queues.now
        return now

    @property
    def _queues(self) -> LocalQueues:
        return channel_queues(self._spec)

    def _put(
        self, item: Any, weight: float, operation: Operation, async_op: bool
    ) -> AsyncHandle[None] | None:
        operation.channel = self._name
        operation.weight = checked_weight(self._name, weight)
        if async_op:
            return AsyncHandle(self._queues.start(operation, item), None, operation.describe)
        self._queues.run(operation, item, _only_item)
        return None

    def _get(self, operation: Operation, async_op: bool) -> Any:
        operation.channel = self._name
        load: Callable[[Local], Any] = Local.batch if operation.is_batch else _only_item
        queues = self._queues
        if not async_op:
            return queues.run(operation, None, load)
        return AsyncHandle(queues.start(operation), partial(queues.take, operation, load), operation.describe)

    def _use(self, slot: object, operation: Operation) -> None:
        raise self._refusal("put(slot=)", "slots")

    def _connection(self) -> Never:
        problem = "a local channel has no server, which this needs: create it without local="
        raise ChannelArgumentError(self._name, problem)

    def _refusal(self, operation: str, what: str) -> ChannelArgumentError:
        problem = f"{operation}: a local channel has no {what}; one that a process holds has: create it without local="
        return ChannelArgumentError(self._name, problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalChannel, (self._spec,)

    def __str__(self) -> str:
        """Return what its queues hold, and the first items of the default queue."""
        return f"local channel '{self._name}': {self._queues.ask('str', _described)}"

    def __repr__(self) -> str:
        return f"<LocalChannel '{self._name}' maxsize={self.maxsize}>"


def _described(state: ChannelState) -> str:
    stats = state.queues.stats()
    text = f"{stats.num_items} items in {stats.num_queues} queues"
    items = state.queues.first_items(DEFAULT_QUEUE, NUM_SHOWN)
    return text + shown([item.payload for item in items], state.queues.num_items(DEFAULT_QUEUE))


def _only_item(delivered: Local) -> Any:
    return delivered.items[0]


def _refused(operation: str, what: str) -> Callable[..., Never]:
    def refuse(self: LocalChannel, *_args: object, **_options: object) -> Never:
        raise self._refusal(operation, what)

    refuse.__name__ = operation
    refuse.__doc__ = f"Raise ChannelArgumentError: a local channel has no {what}."
    return refuse


for _base in Channel.__mro__:
    for _name, _what in vars(_base).get("_of_server", ()):
        setattr(LocalChannel, _name, _refused(_name, _what))
Channel._make_local = LocalChannel
