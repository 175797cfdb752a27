"""What a queue holds, and how a queue is called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec import Struct

# When an item was given out, in a queue that has versions: not at all (any more), or for good.
NOT_GIVEN, SETTLED = -1, -3


@dataclass(frozen=True, slots=True)
class SubscriptionName:
    """The name of the queue that a subscription reads; no user can give it to a queue.

    Attributes:
        subscription: its name.
    """

    subscription: str

    def __repr__(self) -> str:
        return f"{self.subscription!r} (a subscription)"


# A string, an int, or a tuple of such names and of None; or what a subscription reads.
QueueName: TypeAlias = str | int | tuple[Any, ...] | SubscriptionName


def as_name(name: Any) -> Any:
    """Return a queue's or a group's name as it was before it travelled, when lists were tuples."""
    if type(name) is dict:
        return SubscriptionName(**name)
    return tuple(as_name(part) for part in name) if isinstance(name, tuple | list) else name


class Item(Struct, eq=False, array_like=True):
    """One item of a queue.

    Attributes:
        payload: whatever the shell holds for it; never looked at. In a snapshot its place among all payloads.
        weight: what it counts in batches, a finite number.
        size_bytes: its size, for accounting only.
        priority: items of a higher one come first.
        group: what it belongs to; None for nothing.
        question: who waits for an answer to it, and the asker's number of it; None if nobody does.
        version: of the policy that made it; None if nobody said.
        origin: who put it and what it was made of; never looked at.
        slot: the number of the slot with which it is being put; 0 for none.
        order: its place among all items that ever entered its queue; kept when it is given back.
        since: when it entered its queue, on the clock of the state's shell.
        attempts: how often it was given out and may have come back.
        latest: the last version that may take it, in a queue that has versions.
        given_in: the epoch of the version to which it was given there.
        shared: subscriptions see its payload too.
        lost: why its bytes are gone, and whose they were, in a phrase; empty as long as they are not.
    """

    payload: Any
    weight: int | float = 0
    size_bytes: int = 0
    priority: int = 0
    group: Any = None
    question: tuple[str, int] | None = None
    version: int | None = None
    origin: Any = None
    slot: int = 0
    order: int = -1
    since: float = 0.0
    attempts: int = 0
    latest: int = 0
    given_in: int = NOT_GIVEN
    shared: bool = False
    lost: str = ""

    @property
    def is_special(self) -> bool:
        """Whether it may leave its queue out of turn."""
        return self.priority != 0 or self.group is not None

    def for_subscription(self) -> Item:
        """Return the same payload as another item, which nobody answers."""
        self.shared = True
        return Item(
            self.payload,
            self.weight,
            self.size_bytes,
            self.priority,
            self.group,
            version=self.version,
            origin=self.origin,
            since=self.since,
            shared=True,
        )

    def __repr__(self) -> str:
        return f"Item(order={self.order}, weight={self.weight}, size_bytes={self.size_bytes})"


def marks_tell(items: Iterable[Item]) -> bool:
    """Return whether a mark on what was delivered tells that its consumer has taken it.

    What subscriptions read too they mark as well, so that tells nothing; and who is given it must not write into any of
    it, for it may be given out again.
    """
    for item in items:  # noqa: SIM110 - of every delivery, and mostly of one item: no generator
        if item.shared:
            return False
    return True
