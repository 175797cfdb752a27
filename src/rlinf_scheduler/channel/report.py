"""What goes on in a channel, for people and for programs: the result of `Channel.explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.spec import queue_depth
from rlinf_scheduler.queueing import QueueDepth, Tapped
from rlinf_scheduler.wording import counted, counted_about, size_text


@dataclass(frozen=True, slots=True)
class Waiting:
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


@dataclass(frozen=True, slots=True)
class QueueReport:
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
    """

    depth: QueueDepth
    oldest_s: float | None
    waiting: tuple[Waiting, ...]
    held: tuple[Waiting, ...]
    limits: tuple[str, ...]
    ended: bool
    shards: str = ""
    admission: str = ""
    subscription: str = ""

    def lines(self) -> Iterator[str]:
        """It in words."""
        depth = self.depth
        parts = [
            f"{counted(depth.num_items, 'item')} of weight {depth.weight:g}, {size_text(depth.size_bytes)}",
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
        title = f"subscription {name.subscription!r}" if isinstance(name, Tapped) else f"queue {name!r}"
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


@dataclass(frozen=True, slots=True)
class ChannelUser:
    """A process that uses a channel.

    Attributes:
        name: e.g. "rollout:1".
        transport: how it is reached: "unix", "unix+memory" (large items stay where they are), "tcp+tls", "tcp", "self".
        condition: why it cannot be reached now, and since when; "" while it can.
    """

    name: str
    transport: str
    condition: str


@dataclass(frozen=True, slots=True)
class ChannelReport:
    """The state of a channel, as a report: `print(channel.explain())`.

    Attributes:
        name: the channel's.
        held_by: the process that holds it; "" of a durable channel that none holds now, of which nothing else is known.
        closed: whether puts are refused.
        num_puts: items put since the beginning.
        num_items: items that its queues hold.
        held_bytes: their size and that of items on lease and of dead letters, in bytes.
        max_bytes: how much that may be; 0 is unbounded.
        puts_per_s: items put per second, of about the last ten seconds.
        gets_per_s: items delivered, likewise; those that come back count again.
        producers: who still has something to put; "" where producers are not counted.
        queues: those that hold something or are waited for, and the subscriptions.
        peers: the processes that use it.
        num_lost: items lost with the nodes, or the producers' devices, that held their bytes.
        elsewhere: which other nodes hold items, and how much, in phrases.
    """

    name: str
    held_by: str
    closed: bool
    num_puts: int
    num_items: int
    held_bytes: int
    max_bytes: int
    puts_per_s: float
    gets_per_s: float
    producers: str
    queues: tuple[QueueReport, ...]
    peers: tuple[ChannelUser, ...]
    num_lost: int = 0
    elsewhere: tuple[str, ...] = ()

    @classmethod
    def from_wire(
        cls, name: str, found: control_wire.Explanation, queues: Iterable[control_wire.ExplainedQueue]
    ) -> ChannelReport:
        """Return what the channel's server sent."""
        return cls(
            name=name,
            held_by=found.held_by,
            closed=found.closed,
            num_puts=found.num_accepted,
            num_items=found.num_items,
            held_bytes=found.held_bytes,
            max_bytes=found.max_bytes,
            puts_per_s=found.puts_per_s,
            gets_per_s=found.gets_per_s,
            producers=found.producers,
            queues=tuple(_queue(each) for each in queues),
            peers=tuple(ChannelUser(each.name, each.transport, each.condition) for each in found.peers),
            num_lost=found.num_lost,
            elsewhere=tuple(found.elsewhere),
        )

    @classmethod
    def unheld(cls, name: str) -> ChannelReport:
        """Return the report of a durable channel that no process holds now."""
        return cls(name, "", False, 0, 0, 0, 0, 0.0, 0.0, "", (), ())

    @property
    def headline(self) -> str:
        """The first line."""
        if not self.held_by:
            return f"channel '{self.name}': no process holds it now; what it holds is in its journal"
        bound = f" of {size_text(self.max_bytes)}" if self.max_bytes else ""
        # What subscriptions have is told by each of them: they see items of queues.
        queues = [queue for queue in self.queues if not isinstance(queue.depth.name, Tapped)]
        num_leased = sum(queue.depth.num_leased for queue in queues)
        num_subscriptions = len(self.queues) - len(queues)
        parts = [
            "closed" if self.closed else "",
            f"{counted(self.num_items, 'item')} in {counted(len(queues), 'queue')}",
            f"read by {counted(num_subscriptions, 'subscription')}" if num_subscriptions else "",
            f"{num_leased} more on lease" if num_leased else "",
            f"{self.num_lost} lost with their nodes or devices" if self.num_lost else "",
            f"{size_text(self.held_bytes)}{bound}",
            f"{counted_about(self.puts_per_s, 'put')} and {counted_about(self.gets_per_s, 'get')} a second",
            f"held by '{self.held_by}'",
        ]
        return f"channel '{self.name}': {', '.join(filter(None, parts))}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        data: dict[str, Any] = msgspec.to_builtins(asdict(self))
        return data

    def __str__(self) -> str:
        lines = [self.headline]
        if self.producers:
            lines.append(f"producers: {self.producers}")
        lines += self.elsewhere
        for queue in self.queues:
            lines += queue.lines()
        for peer in self.peers:
            condition = f", {peer.condition}" if peer.condition else ""
            lines.append(f"used by {peer.name} ({peer.transport}{condition})")
        return "\n".join(lines)


def _queue(found: control_wire.ExplainedQueue) -> QueueReport:
    return QueueReport(
        queue_depth(found.depth),
        found.oldest_s,
        tuple(Waiting(each.who, each.operation, each.since_s) for each in found.waiting),
        tuple(Waiting(each.who, each.operation, each.since_s) for each in found.held),
        tuple(found.limits),
        found.ended,
        found.shards,
        found.admission,
        found.subscription,
    )
