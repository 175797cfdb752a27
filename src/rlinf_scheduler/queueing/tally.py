"""What all queues of a channel have in common: what was counted, the line for its room, and who sees what enters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from rlinf_scheduler.queueing.item import Item, QueueName, SubscriptionName
from rlinf_scheduler.queueing.messages import Instruction
from rlinf_scheduler.queueing.out_of_turn import QueueClock

# An empty line keeps so many places.
NUM_KEPT = 256


class RoomLine:
    """Queues in line for room that they share; each names a size, and the first that fits is found in logarithmic time.

    A tree of minima over the places of the line: a node says how little somebody below it needs.

    Attributes:
        places: of the queues that wait; the same dictionary always.
    """

    __slots__ = ("_end", "_minima", "_queues", "_width", "places")

    def __init__(self) -> None:
        self.places: dict[Any, int] = {}
        self._lay_out([])

    def __iter__(self) -> Iterator[Any]:
        return (queue for queue in self._queues[: self._end] if queue is not None)

    def set(self, queue: Any, size_bytes: float) -> None:
        """Let a queue wait for so much room: at its place if it has one, else as the last."""
        place = self.places.get(queue)
        if place is None:
            if self._end == self._width:
                self._lay_out([(each, self._minima[self._width + self.places[each]]) for each in self])
            place = self.places[queue] = self._end
            self._queues[place] = queue
            self._end += 1
        self._write(place, size_bytes)

    def discard(self, queue: Any) -> None:
        """Let a queue wait no more."""
        place = self.places.pop(queue, None)
        if place is None:
            return
        self._queues[place] = None
        self._write(place, math.inf)
        if not self.places:
            self.clear()

    def first(self, free_bytes: float) -> Any | None:
        """Return the first queue that needs no more room than this; None without one."""
        minima = self._minima
        if not self.places or minima[1] > free_bytes:
            return None
        node = 1
        while node < self._width:
            node *= 2
            if minima[node] > free_bytes:
                node += 1
        return self._queues[node - self._width]

    def clear(self) -> None:
        """Let nobody wait."""
        self.places.clear()
        self._end = 0
        if self._width > NUM_KEPT:
            self._lay_out([])

    def _lay_out(self, waiting: list[tuple[Any, float]]) -> None:
        """Give those who wait the first places, with as many free ones behind them."""
        self._width = width = 1 << max(3, (2 * len(waiting)).bit_length())
        self._end = len(waiting)
        self._queues = [queue for queue, _ in waiting] + [None] * (width - len(waiting))
        self.places.update((queue, place) for place, (queue, _) in enumerate(waiting))
        sizes = [size for _, size in waiting]
        self._minima = [math.inf] * width + sizes + [math.inf] * (width - len(sizes))
        for node in range(width - 1, 0, -1):
            self._minima[node] = min(self._minima[2 * node], self._minima[2 * node + 1])

    def _write(self, place: int, size_bytes: float) -> None:
        minima, node = self._minima, self._width + place
        minima[node] = size_bytes
        while node > 1:
            node //= 2
            least = min(minima[2 * node], minima[2 * node + 1])
            if minima[node] == least:
                return
            minima[node] = least


# What a small item takes besides its own bytes, about.
ITEM_BYTES = 1024


class Watch:
    """Keeps what enters, until it is too much.

    Args:
        entered: where it is noted, with its queue's name.
        max_bytes: how much may enter; 0 is unbounded.
        give_up: called when more has entered; it is to end the watch.
    """

    __slots__ = ("_give_up", "_is_bounded", "_left_bytes", "entered")

    def __init__(
        self, entered: list[tuple[QueueName, Item]], max_bytes: int, give_up: Callable[[], None]
    ) -> None:
        self.entered = entered
        self._is_bounded = max_bytes > 0
        self._left_bytes = max_bytes
        self._give_up = give_up

    def note(self, queue_name: QueueName, item: Item) -> None:
        """An item has entered."""
        self.entered.append((queue_name, item))
        self._left_bytes -= item.size_bytes + ITEM_BYTES
        if self._is_bounded and self._left_bytes < 0:
            self._give_up()


class Lender(Protocol):
    """What was given out and may come back, as the queues see it."""

    def describe(self, queue: Any) -> Iterable[str]:
        """Return what there is of a queue, in phrases."""

    def describe_bound(self, getter: Any) -> str:
        """Return why a getter may have nothing more for now, in a phrase; empty if it may."""

    def all(self) -> Iterable[Any]:
        """Return everything that is given out, or comes back after a delay."""

    def first_over(self, client: str, done: Iterable[int]) -> tuple[int, str] | None:
        """Return the first of what was lent to a client that it has no more, and why; None if it has all."""

    def retract(self, question: tuple[str, int]) -> None:
        """Let a question that is given out not come back: nobody waits for its answer."""


class Graves(Protocol):
    """Dead letters, as the queues and what gives items out see them."""

    def bury(self, queue: Any, item: Item, reason: str, consumer: str, out: list[Instruction]) -> None:
        """Keep an item that came to nothing too often."""

    def drop_all(self, queue: Any) -> None:
        """Drop those of a queue."""


class Follower(Protocol):
    """A queue that sees what enters others, as these know it."""

    name: QueueName

    def see(self, item: Item) -> None:
        """An item has entered a queue."""

    def settle(self, closed: bool, out: list[Instruction]) -> None:
        """Serve who reads it."""


class Tally:
    """Counts of all queues of a channel: items accepted so far, and what they hold together.

    Args:
        max_bytes: how many bytes they may hold; 0 is unbounded.
        clock: as their shell tells it.

    Attributes:
        lender: what was given out of them and may come back.
        watches: each is told what enters which queue.
        num_lost: of the items accepted, those that are lost; lost_bytes: their size.
        has_losses: some bytes are gone, of items here or of such as may come back.
        held_bytes: what all queues hold, dead letters included; subscriptions see the same bytes.
        num_here: items that getters of queues can take; those that subscriptions see are the same, here as below.
        num_lent: items that somebody has and may give back; lent_bytes: their size.
        num_dead: dead letters; dead_bytes: their size, and that of subscriptions' ones.
        reserved_bytes: the size of items that have room and are not here yet.
        line: queues with a put that waits for the bytes of the channel.
        touched: subscriptions, and queues, for which what happened to another one may have changed something.
    """

    __slots__ = (
        "clock",
        "dead_bytes",
        "dead_letters",
        "has_losses",
        "held_bytes",
        "lender",
        "lent_bytes",
        "line",
        "lost_bytes",
        "max_bytes",
        "num_dead",
        "num_gets",
        "num_here",
        "num_items",
        "num_lent",
        "num_lost",
        "reserved_bytes",
        "size_bytes",
        "touched",
        "watches",
    )

    lender: Lender
    dead_letters: Graves

    def __init__(self, max_bytes: int, clock: QueueClock | None = None) -> None:
        self.clock = clock or QueueClock()
        self.num_gets = 0
        self.num_items = 0
        self.size_bytes = 0
        self.num_lost = self.lost_bytes = 0
        self.has_losses = False
        self.max_bytes = max_bytes
        self.held_bytes = self.reserved_bytes = 0
        self.num_here = 0
        self.num_lent = self.lent_bytes = 0
        self.num_dead = self.dead_bytes = 0
        self.line = RoomLine()
        self.touched: dict[Any, None] = {}
        self.watches: list[Watch] = []

    @property
    def free_bytes(self) -> int:
        """How many bytes more may be held."""
        return self.max_bytes - self.held_bytes

    def note_lent(self, queue_name: QueueName, num_items: int, size_bytes: int) -> None:
        """So much more of a queue is lent, or less."""
        if type(queue_name) is not SubscriptionName:
            self.num_lent += num_items
            self.lent_bytes += size_bytes

    def note_dead(self, queue_name: QueueName, num_items: int, size_bytes: int) -> None:
        """A queue has so many dead letters more, or less."""
        self.held_bytes += size_bytes
        self.dead_bytes += size_bytes
        if type(queue_name) is not SubscriptionName:
            self.num_dead += num_items

    def watch(
        self,
        entered: list[tuple[QueueName, Item]],
        max_bytes: int = 0,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Note what enters from now on, until `unwatch`.

        Args:
            entered: where it is noted, with its queue's name.
            max_bytes: how much may enter; 0 is unbounded.
            give_up: called when more has entered; it is to call `unwatch`.
        """
        self.watches.append(Watch(entered, max_bytes, give_up))

    def unwatch(self, entered: list[tuple[QueueName, Item]]) -> None:
        """Note nothing more there."""
        self.watches = [each for each in self.watches if each.entered is not entered]

    def clear(self) -> None:
        """Nothing is held any more."""
        self.line.clear()
        self.touched.clear()
        self.held_bytes = self.reserved_bytes = self.num_here = 0
        self.num_lent = self.lent_bytes = self.num_dead = self.dead_bytes = 0
