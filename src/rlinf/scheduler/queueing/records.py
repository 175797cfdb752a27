"""What there is to know of a channel's queues, as plain records: what a checkpoint holds, and a journal starts from.

Items are described here; their payloads stand apart, in a list, and a description says at which place.
A new field goes to the end of its record and has a default, so that what was written without it can be read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rlinf.scheduler.queueing.queue_name import Tapped
from rlinf.scheduler.queueing.sharding import ShardPlan


class ItemRecord(NamedTuple):
    """One item.

    Attributes:
        payload: the place of its payload among those that belong to the record.
        given: of a queue that admits: the present version was given it.
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


class PartRecord(NamedTuple):
    """A shard's part of a step that it has not done with."""

    step: int
    items: list[ItemRecord]
    imbalance: float
    complete: bool


class ShardingRecord(NamedTuple):
    """A queue that is divided for data-parallel ranks: how, how far, and the parts of each that are not done with."""

    plan: ShardPlan
    next_step: int
    num_dealt: int
    shards: list[list[PartRecord]]


class SlotRecord(NamedTuple):
    """A slot that somebody has, the client and the ticket; see `GrantedSlot`."""

    number: int
    client: str
    ticket: int
    version: int
    latest: int


class AdmissionRecord(NamedTuple):
    """A queue that admits: its version (None before the first), how many items one takes, how many it was given."""

    version: int | None
    batch_items: int
    num_given: int
    worst_lag: int
    slots: list[SlotRecord]


class QueueRecord(NamedTuple):
    """One queue.

    Attributes:
        name: its name.
        num_entered: how many items ever entered it: the order of the next one.
        flushed: items of a smaller order do not wait for others.
        returned: what was taken and came back, in order.
        items: what never left, in order.
        passes: where items have priorities: how many have passed an older one since; None where they have none.
        deliveries: what consumers have, on lease or on its way, and what comes back after a delay.
        sharding: its shards; None where it has none.
        admission: its version and slots; None where it gives none.
    """

    name: Any
    num_entered: int
    flushed: int
    returned: list[ItemRecord]
    items: list[ItemRecord]
    passes: int | None = None
    deliveries: list[DeliveryRecord] = []  # noqa: RUF012 - never changed
    sharding: ShardingRecord | None = None
    admission: AdmissionRecord | None = None


class DeadRecord(NamedTuple):
    """A dead letter."""

    number: int
    queue: Any
    item: ItemRecord
    attempts: int
    reason: str
    consumer: str


class ProducersRecord(NamedTuple):
    """Who has something to put: places, how many are done, who is at work, and who has failed and has no successor."""

    num_places: int
    num_done: int
    at_work: list[tuple[str, int, str]]
    vacant: list[tuple[int, str]]


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


def as_name(name: Any) -> Any:
    """Return the name of a queue or a group as it was before it travelled: lists were tuples, a dict a `Tapped`."""
    if type(name) is dict:
        return Tapped(**name)
    return tuple(as_name(part) for part in name) if type(name) is list else name
