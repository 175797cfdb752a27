"""What processes say to the queues of a channel, and what time says to them: each is handled by `ChannelState.apply`.

Most of it travels as it is. What concerns one policy alone stands with that policy.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Struct

from rlinf_scheduler.queueing.ids import Trace
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
    trace: Trace | None = None


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
        step: the training step at which the process works that asks, if that was said.
    """

    ticket: int
    queue: Any
    wait: bool = True
    batch_weight: float | int | None = None
    limits: Limits | None = None
    grant: G | None = None
    group_size: int = 0
    step: int | None = None

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
    step: int | None = None


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
