"""What the state machine asks its shell to do. Tuples: one is made for every operation of a channel."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct

from rlinf_scheduler.queueing.groups import GroupName
from rlinf_scheduler.queueing.item import Item, QueueName
from rlinf_scheduler.queueing.weights import rounded


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


class OnLease(NamedTuple):
    """Under which generation items are on lease, and how often each was given out, this time included."""

    generation: int
    attempts: list[int]

    def told(self, _items: list[Item]) -> tuple[Any, ...]:
        """Return it as its getter is told."""
        return self


class OnSlot(NamedTuple):
    """Leave to make an item: which slot, and with which version, at least.

    It is its owner's until an item is put with it, or it is withdrawn.
    """

    number: int
    version: int

    def told(self, _items: list[Item]) -> tuple[Any, ...]:
        """Return it as its getter is told."""
        return self


class Part(Struct, frozen=True, eq=False, array_like=True):
    """A part of one step of a queue that is divided.

    Attributes:
        step: counts from 0.
        items: in the order of their queue.
        weight: their sum.
        imbalance: of the step: the largest part's cost over the mean.
        complete: the step is as large as was wanted; False for what was left.
    """

    step: int
    items: list[Item]
    weight: int | float
    imbalance: float
    complete: bool

    def told(self, items: list[Item]) -> tuple[Any, ...]:
        """Return its step, the weights of its items, and how uneven the step's parts are, as its getter is told."""
        return self.step, [rounded(item.weight) for item in items], self.imbalance


class Deliver(NamedTuple):
    """Send these items to the getter, then `confirm` it (taken) or apply `Withdraw` (not taken).

    A batch that is not `complete` is what was left when its queue had ended or was flushed. What is on lease is not
    confirmed: its consumer says what became of it.
    """

    client: str
    ticket: int
    items: list[Item]
    complete: bool = True
    grant: OnLease | Part | OnSlot | None = None  # how they are given, as was asked; None: for good
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


class StartClock(NamedTuple):
    """Apply `Lapse` after so many seconds. Of two for one generation the later time counts.

    It is of the lease that came with a ticket, or of items that come back after a delay, which are no client's.
    """

    client: str
    ticket: int
    generation: int
    after_s: float


class StopClock(NamedTuple):
    """Do not apply `Lapse` any more."""

    client: str
    ticket: int
    generation: int


class Bury(NamedTuple):
    """A question became a dead letter: tell its asker, who knows it by `ticket`, that nobody will answer."""

    client: str
    ticket: int
    attempts: int
    consumer: str
    reason: str


class Vacate(NamedTuple):
    """The last member of a subscription has left: if it `failed` another may succeed it, else apply `GiveUpTap`."""

    client: str
    ticket: int
    name: str
    vacancy: int
    failed: bool


Instruction = Accept | Grant | Deliver | Refuse | Ripen | StartClock | StopClock | Bury | Vacate
# As the classes make them, without a call of Python code: of most operations there is one of these.
accepted = partial(tuple.__new__, Accept)
delivered = partial(tuple.__new__, Deliver)
