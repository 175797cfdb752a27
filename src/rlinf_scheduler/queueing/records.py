"""What there is to know of a channel's queues, as plain records: what a checkpoint holds, and a journal starts from.

Items are described here; their payloads stand apart, in a list, and a description says at which place.
A new field goes to the end of its record and has a default, so that what was written without it can be read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rlinf_scheduler.queueing.sharding import ShardPlan
from rlinf_scheduler.queueing.wanted import LeaseTerms, Limits


class ItemRecord(NamedTuple):
    """One item.

    Attributes:
        payload: the place of its payload among those that belong to the record.
        given: of a queue that admits: the present version was given it.
        since: when it entered, by the clock of the state's shell; 0 at rest.
        shared: subscriptions see its payload too.
        origin: who put it and what it was made of.
    """

    payload: int
    order: int
    weight: int | float
    size_bytes: int
    priority: int = 0
    group: Any = None
    attempts: int = 0
    question: tuple[str, int] | None = None
    version: int | None = None
    latest: int = 0
    given: bool = False
    since: float = 0.0
    shared: bool = False
    origin: Any = None


class DeliveryRecord(NamedTuple):
    """Items that were delivered to a client, and neither confirmed nor settled.

    Attributes:
        client: its name; "" for items that come back after a delay.
        ticket: its operation's.
        items: they.
        complete: a batch is what was asked for.
        group: that was asked for.
        arrived: they are in the client's process.
        generation: of the lease; 0 for none.
        places: of a lease: where each item stood in the delivery.
        ttl_s: of a lease: how long it lasts.
        consumer: of a lease: who has it.
        part: of a shard: what was delivered, in the place of items.
        since: when it was asked for, or on lease since.
    """

    client: str
    ticket: int
    items: list[ItemRecord]
    complete: bool = True
    group: Any = None
    arrived: bool = False
    generation: int = 0
    places: list[int] = []  # noqa: RUF012 - never changed
    ttl_s: float = 0.0
    consumer: str = ""
    part: PartRecord | None = None
    since: float = 0.0


class GetRecord(NamedTuple):
    """A get that waits.

    Attributes:
        client: whose it is.
        ticket: its operation's.
        since: when it was asked for.
        weight: of a batch; None without.
        limits: of a batch; None of what is none.
        group_size: of a group; 0 for none.
        terms: of the lease that it asks for.
        ripens: the least of its batch is there; waited: and its `max_wait_s` is over.
        parked: it is passed over, as its client has as much on lease as it may.
        shard: which shard asks for its part; -1 for none.
        number: its place in the line of getters.
    """

    client: str
    ticket: int
    since: float
    weight: int | float | None = None
    limits: Limits | None = None
    group_size: int = 0
    terms: LeaseTerms | None = None
    ripens: bool = False
    waited: bool = False
    parked: bool = False
    shard: int = -1
    number: int = 0


class PutRecord(NamedTuple):
    """A put that is not over.

    Attributes:
        client: whose it is.
        ticket: its operation's.
        since: when it was asked for.
        item: what is put.
        complete: its bytes are here.
        has_room: it has a place, and waits for its bytes or for an earlier put's.
        slot: with which it is put; 0 for none.
    """

    client: str
    ticket: int
    since: float
    item: ItemRecord
    complete: bool
    has_room: bool
    slot: int = 0


class ClientRecord(NamedTuple):
    """A client: the tickets of its operations, and of those that are passed over, each in order."""

    name: str
    tickets: list[int]
    parked: list[int]


class PartRecord(NamedTuple):
    """A shard's part of a step that it has not done with; `client` and `ticket`: of whoever has it in hand."""

    step: int
    items: list[ItemRecord]
    imbalance: float
    complete: bool
    client: str = ""
    ticket: int = 0


class ShardingRecord(NamedTuple):
    """A queue that is divided for data-parallel ranks: how, how far, and the parts of each that are not done with."""

    plan: ShardPlan
    next_step: int
    num_dealt: int
    shards: list[list[PartRecord]]


class SlotRecord(NamedTuple):
    """A slot that somebody has, the client and the ticket ("" and 0: nobody any more); see `GrantedSlot`."""

    number: int
    client: str
    ticket: int
    version: int
    latest: int
    since: float = 0.0
    copies: list[tuple[str, int]] = []  # noqa: RUF012 - never changed
    gone: list[int] = []  # noqa: RUF012 - never changed


class Asked(NamedTuple):
    """Somebody waits for a slot."""

    max_lag: int
    since: float


class Move(NamedTuple):
    """Somebody waits for the version to move on, or to begin."""

    version: int
    batch_items: int
    begins: bool
    since: float


class AdmissionRecord(NamedTuple):
    """A queue that admits: its version (None before the first), how many items one takes, how many it was given."""

    version: int | None
    batch_items: int
    num_given: int
    worst_lag: int
    slots: list[SlotRecord]
    asking: list[tuple[str, int, Asked]] = []  # noqa: RUF012 - never changed
    moving: list[tuple[str, int, Move]] = []  # noqa: RUF012 - never changed
    num_returned: int = 0


class TapRecord(NamedTuple):
    """What makes a queue a subscription; see `TapTerms` and `TapQueue`.

    Attributes:
        drops: whether it drops its oldest items when it is full; False only of an earlier version, in which puts
            waited for it.
    """

    queue: Any
    drops: bool
    maxsize: int
    max_bytes: int
    members: list[tuple[str, int]]
    vacancy: int
    num_dropped: int
    removed: bool


class QueueRecord(NamedTuple):
    """One queue.

    Attributes:
        name: its name.
        num_entered: how many items ever entered it: the order of the next one.
        flushed: items of a smaller order do not wait for others.
        returned: what was taken and came back, in order.
        items: what never left, in order.
        passes: of records of earlier versions; nothing is decided by it.
        deliveries: what consumers have, on lease or on its way, and what comes back after a delay.
        sharding: its shards; None where it has none.
        admission: its version and slots; None where it gives none.
        getters: who waits for items, in order.
        putters: the puts that are not over: those with room in the order in which they got it, then the line.
        tap: of a subscription, what it is.
    """

    name: Any
    num_entered: int
    flushed: int
    returned: list[ItemRecord]
    items: list[ItemRecord]
    passes: int | dict[int, int] | None = None
    deliveries: list[DeliveryRecord] = []  # noqa: RUF012 - never changed
    sharding: ShardingRecord | None = None
    admission: AdmissionRecord | None = None
    getters: list[GetRecord] = []  # noqa: RUF012 - never changed
    putters: list[PutRecord] = []  # noqa: RUF012 - never changed
    tap: TapRecord | None = None


class DeadRecord(NamedTuple):
    """A dead letter."""

    number: int
    queue: Any
    item: ItemRecord
    attempts: int
    reason: str
    consumer: str


class ProducersRecord(NamedTuple):
    """Who has something to put: places, how many are done, who is at work, and who has failed and has no successor.

    Attributes:
        last_vacancy: the last number of a place that was left by a failure.
        num_done_before: of those that are done, so many were before a restart.
    """

    num_places: int
    num_done: int
    at_work: list[tuple[str, int, str]]
    vacant: list[tuple[int, str]]
    last_vacancy: int = 0
    num_done_before: int = 0


class StateRecord(NamedTuple):
    """All queues of a channel, and what it counts.

    Attributes:
        queues: in order of appearance.
        dead: dead letters, the oldest first.
        last_number: the last generation of a lease, or number of a dead letter or a slot; none comes again.
        num_accepted: how many items were put since the beginning.
        accepted_bytes: their size.
        closed: nothing can be put any more.
        all_ended: every queue has ended.
        ended: the names of those that were ended alone.
        num_lost: how many of the items put were lost.
        lost_bytes: their size.
        clients: in order of appearance; none at rest.
        crowded: the queues with a put that waits for the bytes of the channel, in order.
        admitting: the queues that admit, in order.
        why_over: of the last leases that ended without their consumers' doing: why.
        now: the clock of the state's shell.
        num_vacancies: how often the last member of a subscription has left.
    """

    queues: list[QueueRecord]
    dead: list[DeadRecord]
    last_number: int
    num_accepted: int
    accepted_bytes: int
    closed: bool = False
    all_ended: bool = False
    ended: list[Any] = []  # noqa: RUF012 - never changed
    num_lost: int = 0
    lost_bytes: int = 0
    clients: list[ClientRecord] = []  # noqa: RUF012 - never changed
    crowded: list[Any] = []  # noqa: RUF012 - never changed
    admitting: list[Any] = []  # noqa: RUF012 - never changed
    why_over: list[tuple[int, str]] = []  # noqa: RUF012 - never changed
    now: float = 0.0
    num_vacancies: int = 0
