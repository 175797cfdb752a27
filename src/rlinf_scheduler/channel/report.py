"""What goes on in a channel, for people and for programs: the result of `Channel.explain`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from rlinf_scheduler.queueing import ChannelStats, ChannelUser, QueueStats, Tapped
from rlinf_scheduler.wording import counted, counted_about, size_text

# As documents call it.
QueueReport = QueueStats


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
    def of(cls, stats: ChannelStats, queues: Iterable[QueueStats]) -> ChannelReport:
        """Return the report of a channel and its queues, as its server sent them."""
        return cls(
            name=stats.name,
            held_by=stats.held_by,
            closed=stats.closed,
            num_puts=stats.num_puts,
            num_items=stats.num_items,
            held_bytes=stats.held_bytes,
            max_bytes=stats.max_bytes,
            puts_per_s=stats.puts_per_s,
            gets_per_s=stats.gets_per_s,
            producers=stats.producers,
            queues=tuple(queues),
            peers=stats.users,
            num_lost=stats.num_lost,
            elsewhere=stats.elsewhere,
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
