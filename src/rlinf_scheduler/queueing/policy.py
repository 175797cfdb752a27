"""What a policy has to say to its channel, for all of its queues. Where it says nothing the plain answer holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from rlinf_scheduler.queueing.item import Item, QueueName
from rlinf_scheduler.queueing.messages import Instruction
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.saved_items import LoadedItems, SavedItems

# Of an operation and its client, and of what comes with it, if anything does.
Handler: TypeAlias = Callable[..., list[Instruction]]


class OperationOver(ValueError):
    """What an operation is about is over."""


class Merger(Protocol):
    """What two snapshots have in common."""

    def missing(self, items: Iterable[Item]) -> list[Item]:
        """Return those items of the first one that the second has not found."""

    def is_over(self, name: QueueName) -> bool:
        """Return whether that is a subscription which nobody reads any more."""


class Policy:
    """What is kept of one policy for all queues of a channel.

    Args:
        bounds: of the channel, those of its policies.
    """

    def __init__(self, queues: QueueSet, bounds: Any) -> None:
        self._queues = queues

    def handlers(self) -> dict[type, Handler]:
        """Return what handles its operations, and gets with a grant of its own, by type."""
        return {}

    def withdraw(self, client: str, ticket: int) -> list[Instruction]:
        """Give up an operation that stands in no queue; return nothing if there is none."""
        return []

    def lose(self, client: str, out: list[Instruction]) -> Iterable[Queue]:
        """Forget a client that is gone, but for its operations; return the queues for which that changes something."""
        return ()

    def forget(self, client: str) -> None:
        """Forget a client that is gone, whose operations are over."""

    def items(self) -> Iterable[Item]:
        """Return the items that it has, which are in no queue."""
        return ()

    def queues(self) -> Iterable[Queue]:
        """Return the queues at which it may be waited for, or something of it is out, without an operation."""
        return ()

    def followers(self, name: QueueName, *, alone: bool) -> Iterable[Queue]:
        """Return the queues that see what enters another one, or (`alone`) only those that see no other."""
        return ()

    # -- snapshots: `state` is `ChannelData`, the data of a queue `QueueData` -----------------------

    def save(self, state: Any, data: Mapping[Queue, Any], items: SavedItems) -> None:
        """Add what it keeps to the data of the channel and of its queues."""

    def remake(self, name: QueueName, data: Any) -> Queue | None:
        """Return a queue whose data says that it is another one by this policy, still empty."""

    def load(self, queues: Sequence[tuple[Queue, Any]], items: LoadedItems) -> None:
        """Have what it kept of queues, each with its data, in which nobody waits yet."""

    def arrange(self, state: Any, items: LoadedItems) -> None:
        """Have what it kept of all queues, in order, when everything else is there."""

    @staticmethod
    def merge(first: Any, state: Any, queues: Sequence[tuple[Any, Any]], merger: Merger) -> None:
        """Add to the data of a second snapshot, at rest, what it kept at the first; `queues` are those of both."""

    def clear(self) -> None:
        """Forget everything."""
