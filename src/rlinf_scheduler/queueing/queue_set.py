"""The queues of a channel and its clients, and what follows when one of them has changed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from rlinf_scheduler.queueing.instructions import Instruction, Reason, Refuse
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import Leases
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.operations import Client, Getter, Putter
from rlinf_scheduler.queueing.queue_name import QueueName, Tapped
from rlinf_scheduler.queueing.ranked import QueueClock
from rlinf_scheduler.queueing.stats import ChannelStats, QueueDepth
from rlinf_scheduler.queueing.tally import Tally
from rlinf_scheduler.queueing.tap_queue import TapQueue
from rlinf_scheduler.queueing.weights import check_maxsize

# So many other queues are named to a get that does not come, of so many that are looked at for that.
NUM_NAMED, NUM_LOOKED_AT = 3, 256
# Queues with questions, so many of which are known.
NUM_ASKED = 64


class QueueSet:
    """Named queues, which come and go as they are used, and subscriptions, which see what enters them."""

    queue_type: type[NamedQueue] = NamedQueue
    tap_type: type[TapQueue] = TapQueue

    def __init__(
        self,
        maxsize: int = 0,
        max_bytes: int = 0,
        total_bytes: int = 0,
        *,
        max_attempts: int = 0,
        max_leased: int = 0,
        priority_wait_s: float | None = None,
    ) -> None:
        self.leases = Leases(max_attempts, max_leased)
        self.maxsize = check_maxsize(maxsize)
        self.max_bytes = max_bytes
        self.closed = False
        self._all_ended = False
        # The queues that were ended alone, the latest last.
        self._ended: dict[QueueName, None] = {}
        self._tally = Tally(total_bytes, self.leases, QueueClock(priority_wait_s))
        self._queues: dict[QueueName, NamedQueue] = {}
        self._taps: dict[str, TapQueue] = {}
        self._num_vacancies = 0  # of all subscriptions, also those of one name one after the other
        self._clients: dict[str, Client[NamedQueue]] = {}
        self._admitting: dict[NamedQueue, None] = {}
        # Queues into which somebody has put a question, as far as they are known.
        self._asked_at: dict[QueueName, None] = {}

    def clear(self) -> None:
        """Forget every client and everything that is held: nobody uses it any more."""
        self._clients.clear()
        self._queues.clear()
        self._taps.clear()
        self._admitting.clear()
        self._tally.clear()
        self.leases.clear()

    @property
    def num_accepted(self) -> int:
        """How many items were put since the beginning."""
        return self._tally.num_items

    @property
    def num_lost(self) -> int:
        """How many of them were lost, with those who held their bytes."""
        return self._tally.num_lost

    @property
    def lost_bytes(self) -> int:
        """The size of those."""
        return self._tally.lost_bytes

    @property
    def accepted_bytes(self) -> int:
        """How many bytes were put since the beginning."""
        return self._tally.size_bytes

    def num_items(self, queue_name: QueueName) -> int:
        """Return how many items a getter of this queue can take."""
        queue = self._queues.get(queue_name)
        return len(queue.fifo) if queue else 0

    def first_items(self, queue_name: QueueName, number: int) -> list[Item]:
        """Return up to so many items of a queue that getters would take next; they stay where they are."""
        queue = self._queues.get(queue_name)
        return queue.fifo.first(number) if queue else []

    def held_bytes(self, queue_name: QueueName) -> int:
        """Return how many bytes a queue holds, those that it has room for and waits for included."""
        queue = self._queues.get(queue_name)
        return queue.fifo.size_bytes + queue.reserved_bytes + queue.leased_bytes if queue else 0

    @property
    def bounded_bytes(self) -> int:
        """How many bytes count against the bound of the channel; 0 where there is none."""
        return self._tally.held_bytes if self._tally.max_bytes else 0

    @property
    def total_held_bytes(self) -> int:
        """How many bytes all queues hold together, dead letters included; subscriptions see the same bytes."""
        return self._tally.held_bytes

    def stats(self) -> ChannelStats:
        """Return what went through all queues together, and what they hold, subscriptions apart; none is listed."""
        tally = self._tally
        size_bytes = tally.held_bytes - tally.dead_bytes - tally.reserved_bytes - tally.leased_bytes
        return ChannelStats(
            num_puts=tally.num_items,
            # What was accepted and is not held has left; so an item that comes back is not counted twice.
            num_gets=tally.num_items - tally.num_here - tally.num_dead - tally.num_lost,
            num_items=tally.num_here,
            bytes_in=tally.size_bytes,
            bytes_out=tally.size_bytes - size_bytes - tally.lost_bytes,
            size_bytes=size_bytes,
            closed=self.closed,
            num_leased=tally.num_leased,
            num_dead=tally.num_dead,
            num_lost=tally.num_lost,
            num_queues=len(self._queues) - len(self._taps),
            held_bytes=tally.held_bytes,
            max_bytes=tally.max_bytes,
            maxsize=self.maxsize,
        )

    def depths(self) -> tuple[QueueDepth, ...]:
        """Return what every queue holds that holds anything or is waited for, in order of appearance."""
        return tuple(queue.depth() for queue in self._queues.values())

    @property
    def is_crowded(self) -> bool:
        """Whether puts wait, and all queues together hold about as much as they may."""
        return bool(self._tally.line.places)

    def is_full(self, queue_name: QueueName) -> bool:
        """Return whether a put to this queue would wait."""
        queue = self._queues.get(queue_name)
        return queue.full if queue else False

    def has_ended(self, queue_name: QueueName) -> bool:
        """Return whether a queue was ended, alone or with all."""
        return self._all_ended or queue_name in self._ended

    def describe(self, queue_name: QueueName) -> str:
        """Return what a queue looks like, in a phrase."""
        queue = self._queues.get(queue_name)
        return (queue or NamedQueue(queue_name, self.maxsize, self.max_bytes, self._tally)).describe()

    def set_clock(self, now: float) -> None:
        """Set the time, in seconds, at which the next operations begin.

        Only `priority_wait_s` is decided by it; all else is for reports.
        """
        self._tally.clock.now = now

    def _describe_for(
        self, operation: Getter[NamedQueue] | Putter[NamedQueue], *, waited: bool = True
    ) -> str:
        """What the queue of an operation looks like; for one that takes, also what the others hold: it may mean one.

        A get that did not wait for its item is one of many, perhaps, and only looks at its own.
        """
        text = operation.queue.describe()
        if isinstance(operation, Getter) and operation.terms is not None:
            client = operation.client
            if self.leases.is_at_bound(client):
                text = f"{text}; this consumer has {client.num_leased} on lease, and may have {self.leases.max_leased}"
        if isinstance(operation, Putter):
            return text
        if operation.wanted is None and not operation.is_shard and not waited:
            return text
        # What subscriptions have is there for them alone.
        others = [
            queue
            for queue in islice(self._queues.values(), NUM_LOOKED_AT)
            if queue is not operation.queue and queue.fifo.num_items and not isinstance(queue.name, Tapped)
        ]
        named = [f"{queue.name!r} holds {queue.describe()}" for queue in others[:NUM_NAMED]]
        num_more = len(others) - min(len(others), NUM_NAMED)
        if len(self._queues) > NUM_LOOKED_AT:
            named.append(f"there are {len(self._queues) - len(self._taps)} queues")
        elif num_more:
            named.append(f"{num_more} more hold something")
        return "; ".join([text, *named])

    def _settled(self, queues: Iterable[NamedQueue]) -> list[Instruction]:
        out: list[Instruction] = []
        self._settle(queues, out)
        return out

    def _settle(self, queues: Iterable[NamedQueue], out: list[Instruction]) -> None:
        for queue in queues:
            queue.settle(self.closed, out)
            queue.touch_taps()
            self._drop_if_idle(queue)
        if self._tally.line.places or self._tally.touched:
            self._follow(out)

    def _follow(self, out: list[Instruction]) -> None:
        """What happened to a queue is seen by its subscriptions, and by others; where there is room now, puts enter."""
        tally = self._tally
        while True:
            touched, tally.touched = tally.touched, {}
            for queue in touched:
                queue.settle(self.closed, out)
                queue.touch_taps()
                self._drop_if_idle(queue)
            if not self._relieve(out) and not tally.touched:
                return

    def _relieve(self, out: list[Instruction]) -> bool:
        """Let puts enter that waited for room which is there now; say whether anything has changed."""
        tally, before, last = self._tally, len(out), None
        # A queue that is settled has let its puts enter, or waits for something else, or for more.
        while (queue := tally.line.first(tally.free_bytes)) not in (None, last):
            queue.settle(self.closed, out)
            last = queue
        return len(out) > before

    def _note_asked(self, name: QueueName) -> None:
        """Somebody puts a question into a queue."""
        if len(self._asked_at) >= NUM_ASKED:
            self._asked_at = {name: None for name in self._asked_at if name in self._queues}
        if len(self._asked_at) < NUM_ASKED:
            self._asked_at[name] = None

    def _taps_of(self, name: QueueName) -> tuple[TapQueue, ...]:
        return tuple(tap for tap in self._taps.values() if tap.terms.queue_name in (None, name))

    def _is_gone(self, name: QueueName) -> bool:
        """Whether that is a subscription which is not there."""
        return type(name) is Tapped and name not in self._queues

    def _unsubscribed(self, client: str, ticket: int) -> list[Instruction]:
        return [Refuse(client, ticket, Reason.ENDED, "there is no such subscription any more")]

    def _queue(self, name: QueueName) -> NamedQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = self.queue_type(name, self.maxsize, self.max_bytes, self._tally)
            queue.ended = self._all_ended or name in self._ended
            if self._taps:
                queue.taps = self._taps_of(name)
        return queue

    def _client(self, name: str) -> Client[NamedQueue]:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = Client(name)
        return client

    def _operation(self, client: str, ticket: int) -> Getter[NamedQueue] | Putter[NamedQueue] | None:
        known = self._clients.get(client)
        return known.operations.get(ticket) if known else None

    def _delivery(self, client: str, ticket: int) -> Getter[NamedQueue] | None:
        operation = self._operation(client, ticket)
        return operation if isinstance(operation, Getter) and operation.items is not None else None

    def _drop_if_idle(self, queue: NamedQueue) -> None:
        if queue.num_dead and isinstance(queue, TapQueue) and queue.removed:
            for number in [number for number, letter in self.leases.dead.items() if letter.queue is queue]:
                self.leases.discard(number)
        if queue.idle:
            self._queues.pop(queue.name, None)
            self._admitting.pop(queue, None)
