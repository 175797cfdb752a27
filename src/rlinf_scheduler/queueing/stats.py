"""A channel and its queues as data: made by the state machine, carried as it is, shown by views."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import Field, make_dataclass
from functools import cache
from itertools import islice
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec.structs import astuple, fields, force_setattr, replace

from rlinf_scheduler.queueing.item import QueueName, SubscriptionName, as_name, rounded
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.queueing.out_of_turn import GroupName
from rlinf_scheduler.wording import counted, number_text, size_text

# So many other queues are named to a get that does not come, of so many that are looked at for that.
NUM_NAMED, NUM_LOOKED_AT = 3, 256

R = TypeVar("R", bound="ToldRecord")


@cache
def _fields_of(record: type[ToldRecord]) -> dict[str, Field[Any]]:
    as_dataclass = make_dataclass(record.__name__, record.__struct_fields__)
    return {field.name: field for field in dataclasses.fields(as_dataclass)}


class _DataclassFields:
    def __get__(self, _record: ToldRecord | None, kind: type[ToldRecord]) -> dict[str, Field[Any]]:
        return _fields_of(kind)


class ToldRecord(msgspec.Struct, frozen=True):
    """What is told of a channel: made in a tenth of the time of a dataclass, and one for `dataclasses.asdict`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]] = _DataclassFields()  # type: ignore[assignment]


def encode_rows(records: Iterable[ToldRecord]) -> bytes:
    """Return records of one class without the names of their fields, and of the fields of a record in the first one."""
    rows = [astuple(record) for record in records]
    if rows and isinstance(rows[0][0], ToldRecord):
        rows = [(astuple(first), *others) for first, *others in rows]
    return msgspec.msgpack.encode(rows)


def decode_rows(data: bytes | bytearray | memoryview, kind: type[R]) -> list[R]:
    """Return what `encode_rows` was given, of a class."""
    first = fields(kind)[0].type
    rows = _rows_of(kind).decode(data)
    if isinstance(first, type) and issubclass(first, ToldRecord):
        return [kind(first(*values), *others) for values, *others in rows]
    return [kind(*row) for row in rows]


@cache
def _rows_of(kind: type[ToldRecord]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(list[_row_type(kind)])  # type: ignore[misc]


def _row_type(kind: Any) -> Any:
    first, *others = (field.type for field in fields(kind))
    is_record = isinstance(first, type) and issubclass(first, ToldRecord)
    return tuple[(_row_type(first) if is_record else first, *others)]  # type: ignore[misc]


class QueueDepth(ToldRecord, frozen=True):
    """The depth of one queue: its items, and the numbers of those that wait for it.

    Attributes:
        name: the queue's name.
        num_items: items that a getter can take.
        weight: their total weight.
        size_bytes: their total size.
        num_getters: waiting gets and batches.
        num_putters: waiting puts, those whose bytes are on their way included.
        num_delivering: gets and batches whose items were sent and not yet confirmed, those on lease not included.
        num_leased: items on lease, and those that come back after a delay.
        num_dead: dead letters.
        num_lost: items that are lost, of which no getter was told yet.
        groups: each group that has items here, and how many.
        num_dropped: of a subscription, items that it has given up since its beginning.
    """

    name: QueueName
    num_items: int = 0
    weight: int | float = 0
    size_bytes: int = 0
    num_getters: int = 0
    num_putters: int = 0
    num_delivering: int = 0
    num_leased: int = 0
    num_dead: int = 0
    num_lost: int = 0
    groups: tuple[tuple[GroupName, int], ...] = ()
    num_dropped: int = 0

    def __post_init__(self) -> None:
        if type(self.name) is tuple or self.groups:  # what has travelled has lists in place of inner tuples
            force_setattr(self, "name", as_name(self.name))
            force_setattr(self, "groups", tuple((as_name(group), count) for group, count in self.groups))


class Waiting(ToldRecord, frozen=True):
    """An operation that is not over.

    Attributes:
        who: the process, e.g. "actor:0"; "" where it is nobody's.
        operation: what it is, e.g. "get_batch of weight 512".
        since_s: how long it has been going on, in seconds.
    """

    who: str
    operation: str
    since_s: float

    def __str__(self) -> str:
        return f"{self.who}: {self.operation}, for {self.since_s:.1f} s" if self.who else self.operation


class QueueUser(ToldRecord, frozen=True):
    """A process that uses a queue of a channel, or did.

    Attributes:
        process: its name.
        num_operations: how many items it has put, or how often it has asked for some.
        last_s: how long ago it did so last, in seconds.
        is_gone: whether it has left the channel, or its process is gone.
    """

    process: str
    num_operations: int
    last_s: float
    is_gone: bool = False


class QueueStats(ToldRecord, frozen=True):
    """One queue of a channel.

    Attributes:
        depth: how much there is.
        oldest_s: for how long the item that comes next has been there, in seconds; None without one.
        waiting: gets and puts that wait, the first twenty of each line.
        held: what consumers have: deliveries that are not confirmed, leases.
        limits: the bounds that puts wait for, e.g. "maxsize 8".
        ended: whether it takes no further put.
        shards: how far data-parallel ranks have come, and who has steps to do; "" where there are none.
        admission: how far its version is, and what is in the making; "" where no slots are given (see `admit`).
        subscription: what it sees and who reads it; "" for what is no subscription's.
        putters: who has put there.
        getters: who has asked for items there.
    """

    depth: QueueDepth
    oldest_s: float | None = None
    waiting: tuple[Waiting, ...] = ()
    held: tuple[Waiting, ...] = ()
    limits: tuple[str, ...] = ()
    ended: bool = False
    shards: str = ""
    admission: str = ""
    subscription: str = ""
    putters: tuple[QueueUser, ...] = ()
    getters: tuple[QueueUser, ...] = ()

    @staticmethod
    def given_out(queues: Iterable[QueueStats]) -> str:
        """Return how many items of some queues may come back to them, in a phrase; "" for none."""
        num_leased = sum(queue.depth.num_leased for queue in queues)
        return f"{num_leased} more on lease" if num_leased else ""

    def lines(self) -> Iterator[str]:
        """It in words."""
        depth = self.depth
        parts = [
            f"{counted(depth.num_items, 'item')} of weight {number_text(depth.weight)}, {size_text(depth.size_bytes)}",
            "" if self.oldest_s is None else f"the next one is {self.oldest_s:.1f} s old",
            f"{depth.num_leased} on lease" if depth.num_leased else "",
            counted(depth.num_dead, "dead letter") if depth.num_dead else "",
            f"{depth.num_lost} lost, as the next getter is told" if depth.num_lost else "",
            counted(len(depth.groups), "group") if depth.groups else "",
            self.shards,
            self.admission,
            f"full: {' and '.join(self.limits)}" if self.limits else "",
            "ended" if self.ended else "",
            f"{counted(depth.num_dropped, 'item')} dropped" if depth.num_dropped else "",
        ]
        name = depth.name
        title = (
            f"subscription {name.subscription!r}" if isinstance(name, SubscriptionName) else f"queue {name!r}"
        )
        yield f"{title}: {', '.join(filter(None, parts))}"
        if self.subscription:
            yield f"  {self.subscription}"
        for waiting in self.waiting:
            yield f"  waits  {waiting}"
        unnamed = depth.num_getters + depth.num_putters - len(self.waiting)
        if unnamed > 0:
            yield f"  waits  {unnamed} more"
        for held in self.held:
            yield f"  has    {held}"


class ChannelUser(ToldRecord, frozen=True):
    """A process that uses a channel.

    Attributes:
        name: e.g. "rollout:1".
        transport: how it is reached: "unix", "unix+memory" (large items stay where they are), "tcp+tls", "tcp", "self".
        condition: why it cannot be reached now, and since when; "" while it can.
        num_put: items accepted from it by the channel's present process.
        num_got: items delivered to it, likewise.
    """

    name: str
    transport: str = ""
    condition: str = ""
    num_put: int = 0
    num_got: int = 0


class ChannelStats(ToldRecord, frozen=True):
    """Counts of a channel: what went through it, and what it holds.

    Attributes:
        num_puts: items that its queues accepted.
        num_gets: of those, items that getters have or that are on their way to them.
        num_items: items that its queues hold now.
        num_leased: items on lease, and those that come back after a delay.
        num_dead: dead letters.
        num_lost: items lost with the nodes, or the producers' devices, that held their bytes.
        bytes_in: size of all accepted items.
        bytes_out: of those, the size of items that left.
        size_bytes: size of the items that its queues hold now.
        num_getters: gets and batches that wait.
        num_putters: puts that wait.
        closed: whether puts are refused.
        queues: each queue that holds something or is waited for.
        subscriptions: what each subscription has to read yet, by its name; in none of the sums above.
        num_queues: how many queues there are, listed or not.
        held_bytes: size of what its queues hold, of items on lease and of dead letters.
        name: the channel's.
        held_by: the process that holds it; "" in a channel inside one process.
        maxsize: how many items each queue may hold; 0 is unbounded.
        max_bytes: how many bytes all of them may hold; 0 is unbounded.
        num_delivered: items delivered by its present process; those that come back count again.
        puts_per_s: items put per second, of about the last ten seconds.
        gets_per_s: items delivered, likewise.
        producers: who still has something to put; "" where producers are not counted.
        elsewhere: which other nodes hold items, and how much, in phrases; in an explanation.
        users: the processes that use it.
        oldest_s: the age of the oldest item of those that come next in each queue, in seconds; None without one.
        shown: some queues, with all that there is to say.
        num_untold: how many queues are in use besides these, where that is known.
    """

    num_puts: int = 0
    num_gets: int = 0
    num_items: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    size_bytes: int = 0
    num_getters: int = 0
    num_putters: int = 0
    closed: bool = False
    queues: tuple[QueueDepth, ...] = ()
    num_leased: int = 0
    num_dead: int = 0
    num_lost: int = 0
    subscriptions: tuple[QueueDepth, ...] = ()
    num_queues: int = 0
    held_bytes: int = 0
    name: str = ""
    held_by: str = ""
    maxsize: int = 0
    max_bytes: int = 0
    num_delivered: int = 0
    puts_per_s: float = 0.0
    gets_per_s: float = 0.0
    producers: str = ""
    elsewhere: tuple[str, ...] = ()
    users: tuple[ChannelUser, ...] = ()
    oldest_s: float | None = None
    shown: tuple[QueueStats, ...] = ()
    num_untold: int = 0

    def listing(self, depths: Iterable[QueueDepth]) -> ChannelStats:
        """Return the same with its queues and subscriptions."""
        listed = tuple(depths)
        queues = tuple(depth for depth in listed if not isinstance(depth.name, SubscriptionName))
        return replace(
            self,
            num_getters=sum(queue.num_getters for queue in queues),
            num_putters=sum(queue.num_putters for queue in queues),
            queues=queues,
            subscriptions=tuple(
                replace(depth, name=depth.name.subscription)
                for depth in listed
                if isinstance(depth.name, SubscriptionName)
            ),
        )


def depth_of(queue: Any, *, with_groups: bool = True) -> QueueDepth:
    """Return what a queue holds, as data."""
    fifo = queue.fifo
    return QueueDepth(
        name=queue.name,
        num_items=len(fifo),
        weight=rounded(fifo.weight),
        size_bytes=fifo.size_bytes,
        num_getters=len(queue.getters) + len(queue.skipped) + len(queue.parts.getters),
        num_putters=len(queue.putters) + queue.reserved,
        num_delivering=queue.delivering,
        num_leased=queue.lent_items,
        num_dead=queue.num_dead,
        num_lost=len(queue.lost),
        groups=tuple(fifo.groups.counts().items()) if fifo.groups is not None and with_groups else (),
        num_dropped=queue.num_dropped,
    )


def depths_of(queues: Any) -> tuple[QueueDepth, ...]:
    """Return what every queue holds that holds anything or is waited for, in order of appearance."""
    return tuple(map(depth_of, queues.all()))


def counts_of(queues: Any) -> ChannelStats:
    """Return what went through all queues together, and what they hold, subscriptions apart; none is listed."""
    tally = queues.tally
    size_bytes = tally.held_bytes - tally.dead_bytes - tally.reserved_bytes - tally.lent_bytes
    return ChannelStats(
        num_puts=tally.num_items,
        # What was accepted and is not held has left; so an item that comes back is not counted twice.
        num_gets=tally.num_items - tally.num_here - tally.num_dead - tally.num_lost,
        num_items=tally.num_here,
        bytes_in=tally.size_bytes,
        bytes_out=tally.size_bytes - size_bytes - tally.lost_bytes,
        size_bytes=size_bytes,
        closed=queues.closed,
        num_leased=tally.num_lent,
        num_dead=tally.num_dead,
        num_lost=tally.num_lost,
        num_queues=queues.num_queues,
        held_bytes=tally.held_bytes,
        max_bytes=tally.max_bytes,
        maxsize=queues.maxsize,
    )


def phrase_of(queue: Any) -> str:
    """Return what a queue holds, and who waits for it, in a phrase."""
    fifo, maxsize, tally = queue.fifo, queue.gate.maxsize, queue.tally
    num_items = fifo.num_items
    there = f"{num_items} of {maxsize} items" if maxsize else counted(num_items, "item")
    parts = [f"{there} of weight {number_text(rounded(fifo.weight))}"]
    groups = {} if fifo.groups is None else fifo.groups.counts()
    if groups:
        largest, most = max(groups.items(), key=_count_of)
        parts[0] += f" in {counted(len(groups), 'group')} (the largest, {largest!r}, has {most})"
    num_getters = len(queue.getters) + len(queue.skipped) + len(queue.parts.getters)
    if num_getters:
        parts.append(f"{counted(num_getters, 'getter')} waiting")
    if queue.putters or queue.reserved:
        parts.append(f"{counted(len(queue.putters) + queue.reserved, 'put')} waiting")
    if queue.delivering:
        parts.append(f"{queue.delivering} in delivery")
    parts += [
        *tally.lender.describe(queue),
        *([counted(queue.num_dead, "dead letter")] if queue.num_dead else []),
    ]
    parts += [*queue.parts.describe(), *queue.gate.describe()]
    if 0 < tally.max_bytes < 2 * tally.held_bytes:
        parts.append(f"{tally.held_bytes} of {tally.max_bytes} bytes in all queues of the channel")
    return ", ".join(parts)


def phrase_for(queues: Any, operation: Getter | Putter, *, waited: bool = True) -> str:
    """Return what the queue of an operation looks like; for a get also what the others hold: it may mean one.

    A get that did not wait for its item is one of many, perhaps, and only looks at its own.
    """
    text: str = operation.queue.describe()
    if isinstance(operation, Putter):
        return text
    text += queues.tally.lender.describe_bound(operation)
    if operation.wanted is None and not operation.is_part and not waited:
        return text
    # What subscriptions have is there for them alone.
    others = [
        queue
        for queue in islice(queues.all(), NUM_LOOKED_AT)
        if queue is not operation.queue
        and queue.fifo.num_items
        and not isinstance(queue.name, SubscriptionName)
    ]
    named = [f"{queue.name!r} holds {queue.describe()}" for queue in others[:NUM_NAMED]]
    num_more = len(others) - min(len(others), NUM_NAMED)
    if len(queues.all()) > NUM_LOOKED_AT:
        named.append(f"there are {queues.num_queues} queues")
    elif num_more:
        named.append(f"{num_more} more hold something")
    return "; ".join([text, *named])


def _count_of(group: tuple[GroupName, int]) -> int:
    return group[1]
