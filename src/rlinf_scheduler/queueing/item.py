"""What a queue holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlinf_scheduler.queueing.weights import Exact, exact


class Item:
    """One item of a queue.

    Attributes:
        payload: whatever the shell holds for it; never looked at.
        weight: its weight, as an exact number.
        size_bytes: its size, for accounting only.
        priority: items of a higher one come first.
        group: what it belongs to; None for nothing.
        question: who waits for an answer to it, and the asker's number of it; None if nobody does.
        attempts: how often it was given out on lease.
        lost: why its bytes are gone, and whose they were, in a phrase; empty as long as they are not.
        since: when it entered its queue, on the clock of the state's shell.
        shared: subscriptions see its payload too.
        version: of the policy that made it; None if nobody said.
        latest: the last version that may take it, in a queue that admits (see `Admission`).
        slot: with which it is being put there.
        given_in: when it was given out there (see `Admission`).
        origin: who put it and what it was made of; never looked at.
        order: its place among all items that ever entered its queue; kept when it is given back.
    """

    __slots__ = (
        "attempts",
        "given_in",
        "group",
        "latest",
        "lost",
        "order",
        "origin",
        "payload",
        "priority",
        "question",
        "shared",
        "since",
        "size_bytes",
        "slot",
        "version",
        "weight",
    )

    def __init__(
        self, payload: Any, weight: float = 0, size_bytes: int = 0, priority: int = 0, group: Any = None
    ) -> None:
        self.payload = payload
        self.weight: Exact = weight if type(weight) is int else exact(weight)
        self.size_bytes = size_bytes
        self.priority = priority
        self.question: tuple[str, int] | None = None
        self.attempts = 0
        self.lost = ""
        self.since = 0.0
        self.shared = False
        self.group = group
        self.version: int | None = None
        self.latest = 0
        self.slot: Any = None
        self.given_in = -1
        self.origin: Any = None
        self.order = -1

    @property
    def is_special(self) -> bool:
        """Whether it may leave its queue out of turn."""
        return self.priority != 0 or self.group is not None

    def for_subscription(self) -> Item:
        """The same payload as another item, which has a fate of its own; nobody answers it."""
        twin = Item(self.payload, 0, self.size_bytes, self.priority, self.group)
        twin.weight, twin.since, twin.version, twin.origin = (
            self.weight,
            self.since,
            self.version,
            self.origin,
        )
        self.shared = twin.shared = True
        return twin

    def __repr__(self) -> str:
        return f"Item(order={self.order}, weight={self.weight}, size_bytes={self.size_bytes})"


def marks_tell(items: Iterable[Item]) -> bool:
    """Whether a mark on what was delivered tells that its consumer has taken it.

    What subscriptions read too they mark as well, so that tells nothing; and who is given it must not write into any of
    it, for it may be given out again.
    """
    for item in items:  # noqa: SIM110 - of every delivery, and mostly of one item: no generator
        if item.shared:
            return False
    return True
