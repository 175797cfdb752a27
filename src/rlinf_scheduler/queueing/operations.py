"""What processes do on a channel, as long as it is not over, each with the queue that it is done on."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from rlinf_scheduler.queueing.groups import GroupName
from rlinf_scheduler.queueing.instructions import OnLease
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.sharding import Part
from rlinf_scheduler.queueing.tally import Tally
from rlinf_scheduler.queueing.wanted import LeaseTerms, Wanted, WantedGroup


class Timed(Protocol):
    """A queue that an operation is done on; it knows the time."""

    tally: Tally


QueueT = TypeVar("QueueT", bound=Timed)


class Client(Generic[QueueT]):
    """One process that uses the channel, and its unfinished operations by ticket."""

    __slots__ = ("leasing", "name", "num_leased", "operations", "parked")

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_leased = 0  # items
        # How many of its getters that want leases stand in line, by queue; those in `parked` do not.
        self.leasing: dict[QueueT, int] = {}
        # Its getters that wait until it has fewer items on lease.
        self.parked: dict[Getter[QueueT], None] = {}
        self.operations: dict[int, Getter[QueueT] | Putter[QueueT]] = {}

    def lines_up(self, getter: Getter[QueueT]) -> None:
        """A getter of its own that wants a lease stands in line."""
        self.leasing[getter.queue] = self.leasing.get(getter.queue, 0) + 1

    def leaves(self, getter: Getter[QueueT]) -> None:
        """It does not any more."""
        left = self.leasing.pop(getter.queue) - 1
        if left:
            self.leasing[getter.queue] = left


class Getter(Generic[QueueT]):
    """A `get` (wanted None), `get_batch` or `get_group`: waiting while `items` is None, in delivery after."""

    __slots__ = (
        "arrived",
        "client",
        "complete",
        "group",
        "is_shard",
        "items",
        "lease",
        "number",
        "part",
        "queue",
        "ripens",
        "since",
        "terms",
        "ticket",
        "waited",
        "wanted",
    )

    def __init__(
        self,
        client: Client[QueueT],
        ticket: int,
        queue: QueueT,
        wanted: Wanted | WantedGroup | None,
        terms: LeaseTerms | None = None,
    ) -> None:
        self.client = client
        self.ticket = ticket
        self.queue = queue
        self.wanted = wanted
        self.number = 0  # its place in the line of getters, for one that was passed over
        self.ripens = False  # the least of a batch is there: its `max_wait_s` has begun
        self.waited = False  # and is over
        self.is_shard = False  # it asks for a shard's part, and is not in the line
        self.part: Part | None = None
        self.terms = terms  # of the lease that it asks for
        self.lease: OnLease | None = None
        self.group: GroupName | None = None  # that was delivered
        self.items: list[Item] | None = None
        self.complete = True  # its items are what was asked for, and not what is left
        self.since = queue.tally.clock.now
        self.arrived = False  # the items are in the client's process; they may still come back


class Putter(Generic[QueueT]):
    """A put that waits for room, or that has room and waits for its bytes or for an earlier put's bytes."""

    __slots__ = ("client", "complete", "has_room", "item", "queue", "since", "ticket")

    def __init__(
        self, client: Client[QueueT], ticket: int, queue: QueueT, item: Item, *, complete: bool
    ) -> None:
        self.client = client
        self.ticket = ticket
        self.queue = queue
        self.item = item
        self.since = queue.tally.clock.now
        self.complete = complete  # the payload is here
        self.has_room = False


# As a queue sees its own.
AnyClient: TypeAlias = Client[Any]
AnyGetter: TypeAlias = Getter[Any]
AnyPutter: TypeAlias = Putter[Any]
