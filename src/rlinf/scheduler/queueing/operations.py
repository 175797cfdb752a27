"""Gets and puts that are not over, whose they are, and what all queues of a channel have together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rlinf.scheduler.queueing.groups import GroupName
from rlinf.scheduler.queueing.instructions import Instruction, OnLease
from rlinf.scheduler.queueing.item import Item
from rlinf.scheduler.queueing.queue_name import QueueName
from rlinf.scheduler.queueing.sharding import Part
from rlinf.scheduler.queueing.wanted import LeaseTerms, Wanted, WantedGroup
from rlinf.scheduler.queueing.watch import Watch

if TYPE_CHECKING:
    from rlinf.scheduler.queueing.named_queue import NamedQueue


class Client:
    """One process that uses the channel, and its unfinished operations by ticket."""

    __slots__ = ("name", "num_leased", "operations", "parked")

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_leased = 0  # items
        # Its getters that wait until it has fewer items on lease.
        self.parked: dict[Getter, None] = {}
        self.operations: dict[int, Getter | Putter] = {}


class Getter:
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
        client: Client,
        ticket: int,
        queue: NamedQueue,
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
        self.since = queue.tally.now
        self.arrived = False  # the items are in the client's process; they may still come back


class Putter:
    """A put that waits for room, or that has room and waits for its bytes or for an earlier put's bytes."""

    __slots__ = ("client", "complete", "has_room", "item", "queue", "seen_by", "since", "ticket")

    def __init__(self, client: Client, ticket: int, queue: NamedQueue, item: Item, *, complete: bool) -> None:
        self.client = client
        self.ticket = ticket
        self.queue = queue
        self.item = item
        self.since = queue.tally.now
        self.complete = complete  # the payload is here
        self.has_room = False
        self.seen_by: tuple[Tap, ...] = ()  # where it has room too


class Lender(Protocol):
    """Who knows what a channel has given out on lease (see `Leases`)."""

    def next_number(self) -> int:
        """Number what it gives out."""

    def is_at_bound(self, client: Client) -> bool:
        """Whether a client has as many items on lease as it may."""

    def begin(self, getter: Getter, terms: LeaseTerms, items: list[Item], out: list[Instruction]) -> None:
        """Give items to a getter."""


class Tap(Protocol):
    """What a subscription reads (see `TapQueue`)."""

    name: QueueName
    reserved: int
    reserved_bytes: int

    def has_room(self, size_bytes: int) -> bool:
        """Whether it can see an item of this size."""

    def see(self, item: Item) -> None:
        """An item has entered a queue."""

    def settle(self, closed: bool, out: list[Instruction]) -> None:
        """Serve who reads it."""


class Tally:
    """What all queues of a channel accepted so far, and what they hold together.

    Args:
        max_bytes: how many bytes they may hold; 0 is unbounded.
        leases: of all of them.

    Attributes:
        now: the clock of the state's shell, in seconds; for reports only.
        watches: each is told what enters which queue.
        num_lost: of the items accepted, those that are lost; lost_bytes: their size.
        has_losses: some bytes are gone, of items here or of such as may come back.
        touched: subscriptions for which something may have changed.
    """

    __slots__ = (
        "crowded",
        "has_losses",
        "held_bytes",
        "leases",
        "lost_bytes",
        "max_bytes",
        "now",
        "num_gets",
        "num_items",
        "num_lost",
        "size_bytes",
        "touched",
        "watches",
    )

    def __init__(self, max_bytes: int, leases: Lender) -> None:
        self.leases = leases
        self.now = 0.0
        self.num_gets = 0
        self.num_items = 0
        self.size_bytes = 0
        self.num_lost = self.lost_bytes = 0
        self.has_losses = False
        self.max_bytes = max_bytes
        self.held_bytes = 0
        # Queues with puts that may wait for what other queues hold.
        self.crowded: dict[NamedQueue, None] = {}
        self.touched: dict[Tap, None] = {}
        self.watches: list[Watch] = []
