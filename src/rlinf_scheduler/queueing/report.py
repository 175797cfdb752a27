"""What a queue holds and who waits for what, since when: for people who ask why nothing moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from rlinf_scheduler.queueing.admission import Admission
from rlinf_scheduler.queueing.depth import QueueDepth
from rlinf_scheduler.queueing.leases import HeldItems
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.queueing.tap_queue import TapQueue
from rlinf_scheduler.queueing.wanted import WantedGroup
from rlinf_scheduler.queueing.weights import rounded
from rlinf_scheduler.wording import counted

# Of those who wait in a line, so many are named.
NUM_SHOWN = 20


class Unfinished(NamedTuple):
    """An operation that is not over.

    Attributes:
        client: whose it is.
        operation: what it is, e.g. "get_batch of weight 512".
        since: when it began, on the clock of the state's shell, in seconds.
    """

    client: str
    operation: str
    since: float


class QueueSnapshot(NamedTuple):
    """One queue.

    Attributes:
        depth: how much there is.
        oldest_since: when the first item that a getter can take came, in seconds; None without one.
        waiting: gets and puts that wait, the first of each line.
        held: what consumers have: deliveries that nobody has confirmed, and leases.
        limits: the bounds that make puts wait, in words.
        ended: whether it takes no further put.
        shards: how far data-parallel ranks have come; "" where there are none.
        admission: how far its version is, and what is in the making; "" where no slots are given.
        terms: of a subscription, what it is; "" for what is none.
        members: of a subscription, the clients that read it.
    """

    depth: QueueDepth
    oldest_since: float | None
    waiting: list[Unfinished]
    held: list[Unfinished]
    limits: list[str]
    ended: bool
    shards: str
    admission: str = ""
    terms: str = ""
    members: tuple[str, ...] = ()


def report_of(
    queue: NamedQueue, leases: Sequence[HeldItems], deliveries: Sequence[Getter[NamedQueue]]
) -> QueueSnapshot:
    """Report on a queue, of which these items are on lease, and these deliveries not confirmed."""
    head = queue.fifo.head()
    waiting = [
        *waiting_at(queue, NUM_SHOWN),
        *(
            Unfinished(item.question[0], "ask, and nobody has taken the question", item.since)
            for item in queue.fifo.first(NUM_SHOWN)
            if item.question is not None
        ),
        *(() if queue.admission is None else _waiting_for(queue.admission)),
    ]
    held = [
        *(Unfinished(*_of_lease(lease), lease.since) for lease in leases[:NUM_SHOWN]),
        *(Unfinished(each.client.name, _of_delivery(each), each.since) for each in deliveries[:NUM_SHOWN]),
        *(() if queue.admission is None else _of_slots(queue.admission)),
    ]
    since = None if head is None else head.since
    shards = "" if queue.sharding is None else queue.sharding.describe()
    admission = "" if queue.admission is None else queue.admission.describe()
    snapshot = QueueSnapshot(
        queue.depth(), since, waiting, held, _limits_of(queue), queue.ended, shards, admission
    )
    if isinstance(queue, TapQueue):
        members = tuple(client for client, _ in queue.members)
        return snapshot._replace(terms=queue.terms.describe(), members=members)
    return snapshot


def waiting_at(queue: NamedQueue, number: int) -> Iterator[Unfinished]:
    """The gets that wait at a queue, up to so many, and the puts, likewise; the first ones, which are the oldest."""
    shards = queue.sharding.getters if queue.sharding is not None else ()
    for getter in islice(chain(queue.getters, queue.parked, shards), number):
        yield Unfinished(getter.client.name, _of_get(getter), getter.since)
    for putter in islice(chain(queue.putters, *queue.streams.values()), number):
        yield Unfinished(putter.client.name, _of_put(putter), putter.since)


def _waiting_for(admission: Admission) -> Iterator[Unfinished]:
    for (client, _), move in admission.moving.items():
        yield Unfinished(client, f"set_version({move.version})", move.since)
    for (client, _), asked in list(admission.asking.items())[:NUM_SHOWN]:
        yield Unfinished(client, f"admit with max_lag {asked.max_lag}", asked.since)


def _of_slots(admission: Admission) -> Iterator[Unfinished]:
    """The first of those that are out, which are the oldest."""
    for slot in islice(admission.making.values(), NUM_SHOWN):
        holders = [client for client, _ in ([slot.owner] if slot.owner else list(slot.copies)) if client]
        client = holders[0] if holders else ""
        until = f", taken up to version {slot.latest}" if slot.latest > slot.version else ""
        if not holders and slot.copies:
            until += ", of which a copy was sent, and nobody has it now"
        yield Unfinished(
            client, f"slot {slot.number}, for an item of version {slot.version}{until}", slot.since
        )


def _of_get(getter: Getter[NamedQueue]) -> str:
    if getter.is_shard:
        return "a shard's next batch"
    kind = "get" if getter.wanted is None else "get_batch"
    if getter.terms is not None:
        kind = "lease" if getter.wanted is None else "lease of a batch"
    if getter in getter.queue.parked:
        kind += ", which has as many on lease as it may"
    if getter.wanted is None:
        return kind
    if isinstance(getter.wanted, WantedGroup):
        return f"get_group of {getter.wanted.size} items"
    limits = getter.wanted.limits
    parts = [] if getter.wanted.weight is None else [f"weight {rounded(getter.wanted.weight):g}"]
    parts += [f"at least {limits.min_items} items"] if limits.min_items > 1 else []
    parts += [f"at most {limits.max_items} items"] if limits.max_items else []
    return f"{kind} of {' and '.join(parts)}" if parts else kind


def _of_put(putter: Putter[NamedQueue]) -> str:
    if not putter.has_room:
        return f"put of {putter.item.size_bytes} bytes"
    return "put, whose bytes are on their way" if not putter.complete else "put, behind an earlier one"


def _of_lease(lease: HeldItems) -> tuple[str, str]:
    num_questions = sum(item.question is not None for item in lease.items.values())
    count = counted(len(lease.items), "question" if num_questions else "item")
    if lease.getter is None:
        return "", f"{count}, to come back after a delay"
    return lease.getter.client.name, f"lease of {count}"


def _of_delivery(getter: Getter[NamedQueue]) -> str:
    where = "arrived, not taken" if getter.arrived else "on the way"
    return f"delivery of {len(getter.items or ())} items, {where}"


def _limits_of(queue: NamedQueue) -> list[str]:
    """The bounds that the first put in line waits for."""
    if not queue.putters:
        return []
    size_bytes = next(iter(queue.putters)).item.size_bytes
    tally, limits = queue.tally, []
    if queue.admission is None and 0 < queue.maxsize <= queue.num_held:
        limits.append(f"maxsize {queue.maxsize}")
    if queue.max_bytes and queue.held_bytes + size_bytes > queue.max_bytes:
        limits.append(f"max_bytes {queue.max_bytes} of the queue")
    if tally.max_bytes and tally.held_bytes + size_bytes > tally.max_bytes:
        limits.append(f"max_bytes {tally.max_bytes} of the channel")
    return limits
