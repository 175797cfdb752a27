"""What the state machine asks its shell to do. Tuples: one is made for every operation of a channel."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol

from rlinf_scheduler.queueing.groups import GroupName
from rlinf_scheduler.queueing.item import Item, QueueName


class Instruction(Protocol):
    """What the shell is to do for a client: one of these, or of those of a policy."""

    @property
    def client(self) -> str:
        """Whose it is."""

    @property
    def ticket(self) -> int:
        """Of which of its operations."""


class Given(Protocol):
    """How a policy gives the items of a getter."""

    def told(self, items: list[Item]) -> tuple[Any, ...]:
        """Return it as the getter is told."""


class Reason(Enum):
    """Why an operation was refused."""

    FULL = "full"  # put without waiting: no room
    EMPTY = "empty"  # get without waiting: nothing there, or others came first
    CLOSED = "closed"  # the channel is closed (and, for getters, drained)
    ENDED = "ended"  # the queue has ended (and, for getters, is drained)
    SUCCEEDED = "succeeded"  # another one asks for the same now
    IMPOSSIBLE = "impossible"  # a batch that no future put can complete
    SPENT = "spent"  # put with a slot that is over
    TOO_EARLY = "too early"  # the version may not move on: items would be older than they may be
    OVERSIZE = "oversize"  # a batch, before which an item stands that is more than it is to be
    LOST = "lost"  # items that it would have had are gone, with the node that held their bytes
    CANCELLED = "cancelled"  # its own client withdrew it


class Accept(NamedTuple):
    """The queue holds the item of this put: tell its producer."""

    client: str
    ticket: int


class Grant(NamedTuple):
    """There is room for the item that was announced: ask its producer for the bytes, then apply `Fill`."""

    client: str
    ticket: int


class Deliver(NamedTuple):
    """Send these items to the getter, then `confirm` it (taken) or apply `Withdraw` (not taken).

    A batch that is not `complete` is what was left when its queue had ended or was flushed. What is lent is not
    confirmed: its consumer says what became of it.
    """

    client: str
    ticket: int
    items: list[Item]
    complete: bool = True
    grant: Given | None = None  # how they are given, as was asked; None: for good
    group: GroupName | None = None  # that the items belong to, where a group was asked for
    queue: QueueName | None = None  # where the items were


class Refuse(NamedTuple):
    """The operation failed; nothing was put or taken. `state` says what its queue looks like, in a phrase."""

    client: str
    ticket: int
    reason: Reason
    state: str


class Ripen(NamedTuple):
    """Apply `Linger` after so many seconds: a batch may have what is there then."""

    client: str
    ticket: int
    after_s: float


class Bury(NamedTuple):
    """A question became a dead letter: tell its asker, who knows it by `ticket`, that nobody will answer."""

    client: str
    ticket: int
    attempts: int
    consumer: str
    reason: str


# As the classes make them, without a call of Python code: of most operations there is one of these.
accepted = partial(tuple.__new__, Accept)
delivered = partial(tuple.__new__, Deliver)
