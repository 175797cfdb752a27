"""What processes and time say to the queues of a channel, each handled by `ChannelState.apply`; and what these answer.

Most of it travels as it is. What concerns one policy alone stands with that policy. An instruction is a tuple: one is
made for every operation of a channel.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from functools import partial
from typing import Annotated, Any, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Meta, Struct

from rlinf_scheduler.queueing.item import Item, QueueName
from rlinf_scheduler.queueing.out_of_turn import GroupName
from rlinf_scheduler.queueing.wanted import NO_LIMITS, Limits, Wanted, WantedGroup

# How the items of a get are to leave, as a policy has it.
G = TypeVar("G")


class Put(Struct, tag=0, array_like=True, gc=False):
    """Put an item -> accepted, `Refused`, or `Granted` if the server cannot read its shared memory.

    One of `size_bytes` is announced, and has no frames -> `Granted` or `Refused`.
    """

    ticket: int
    queue: Any
    weight: float | int = 0
    wait: bool = True
    num_frames: int = 0
    priority: int = 0
    question: int = 0
    group: Any = None
    version: int | None = None
    slot: int = 0
    size_bytes: int | None = None


class Puts(Struct, tag=9, array_like=True, gc=False):
    """As so many `Put`s in a row, of small items that travel as bytes, which wait and say nothing but a weight."""

    queue: Any
    num_frames: int
    tickets: list[int]
    weights: list[Annotated[int, Meta(ge=0)]]


class Fill(Struct, tag=2, array_like=True, gc=False):
    """The bytes of an announced item, of this size if that was not known -> accepted or `Refused`."""

    ticket: int
    num_frames: int = 0
    size_bytes: int | None = None


class Get(Struct, Generic[G], tag=3, array_like=True, gc=False):
    """Get one item, a batch (of a weight, limits, or both), or a group -> `Delivered` or `Refused`.

    Attributes:
        grant: how its items are to leave; None as its own, once they are confirmed.
    """

    ticket: int
    queue: Any
    wait: bool = True
    batch_weight: float | int | None = None
    limits: Limits | None = None
    grant: G | None = None
    group_size: int = 0

    @property
    def wanted(self) -> Wanted | WantedGroup | None:
        """The batch, or the group, that it asks for.

        Raises:
            ValueError: a group has less than one item, or the batch weight is not a finite number above 0.
        """
        if self.group_size:
            return WantedGroup.checked(self.group_size)
        if self.batch_weight is None and self.limits is None:
            return None
        return Wanted.checked(self.batch_weight, NO_LIMITS if self.limits is None else self.limits)


class Gets(Struct, tag=10, array_like=True, gc=False):
    """As so many `Get`s in a row, which wait for one item each."""

    queue: Any
    tickets: list[int]


class Withdraw(Struct, tag=4, array_like=True, gc=False):
    """Nobody wants an operation any more -> `Refused`, unless it was over before."""

    ticket: int


class Resend(Struct, tag=5, array_like=True, gc=False):
    """A delivery lies in shared memory that the client cannot open -> `Delivered`, as bytes."""

    ticket: int


class Retract(Struct, tag=32, array_like=True):
    """Nobody wants the answer to a question of the client any more -> `Done`."""

    queue: Any
    number: int


class EndQueue(Struct, tag=6, array_like=True):
    """End a queue -> `Done`."""

    queue: Any


class Flush(Struct, tag=7, array_like=True):
    """Let batches take what a queue holds now -> `Done`."""

    queue: Any


class Close(Struct, tag=1, array_like=True):
    """Refuse puts from now on -> `Done`."""


class Arrive(Struct):
    """The items of a delivery are in the client's process, not yet taken by anybody there."""

    ticket: int


class Linger(Struct):
    """A batch has waited as long as it was to wait for more than the least of it."""

    ticket: int


class Lose(Struct):
    """A client is gone: its waits and unfinished puts are dropped, items in delivery given back.

    Attributes:
        taken: the tickets of those deliveries that are confirmed instead; their items were taken.
    """

    taken: Collection[int] = ()


class EndAll(Struct):
    """End every queue, also those that nobody has used yet."""


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
    LEFT = "left"  # its rank has left the group, and had all that was for it
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
