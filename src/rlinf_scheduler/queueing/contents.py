"""What one queue holds and who waits for it, with the sums of that."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

from rlinf_scheduler.queueing.gate import Gate
from rlinf_scheduler.queueing.item import Item, QueueName
from rlinf_scheduler.queueing.messages import Instruction
from rlinf_scheduler.queueing.operations import Client, Getter, Putter
from rlinf_scheduler.queueing.order import WeightedFifo
from rlinf_scheduler.queueing.stats import phrase_of
from rlinf_scheduler.queueing.tally import Follower, Tally


class Parts:
    """The steps that were cut from a queue which is not divided: none."""

    __slots__ = ()

    @property
    def getters(self) -> Sequence[Getter]:
        """Those who wait for a part."""
        return ()

    def is_idle(self, ended: bool) -> bool:
        """Return whether nothing is here, nobody waits, and it need not remember anything."""
        return True

    def items(self) -> Iterable[Item]:
        """Return all items of steps that were cut and not done with."""
        return ()

    def serve(self, queue: Any, closed: bool, out: list[Instruction]) -> None:
        """Hand parts out, and cut steps while somebody waits for one."""

    def drop_lost(self, failed: Getter | None = None) -> list[Item]:
        """Take out what is lost, also of what was to reach a getter and did not; return it."""
        return []

    def describe(self) -> Iterator[str]:
        """Yield how far it is, in phrases."""
        return iter(())


UNDIVIDED = Parts()


class Contents:
    """All that is kept of a queue.

    Attributes:
        parts: the items of steps that were cut from it, where it is divided.
        followers: the queues that see what enters.
        is_plain: its gate and parts are the plain ones, and nobody follows it.
        flushed: items of a smaller order are not to wait for others.
        streams: puts that have room but not all bytes before them, for each client, in order.
        reserved: items that have room and are not here yet.
        delivering: deliveries that nobody has confirmed; on_the_way: those of them that have not arrived.
        num_lent: how often something was lent that may come back; lent_items: these items, which count as held.
        num_dead: items that came to nothing too often; lost: those whose bytes are gone, until a getter is told.
        skipped: getters that may have no more for now.
        waits_for_room: its first put waits for bytes that others hold.
        counted_bytes: of what is here, so much is in the tally; likewise counted_items.
    """

    __slots__ = (
        "counted_bytes",
        "counted_items",
        "delivering",
        "ended",
        "fifo",
        "flushed",
        "followers",
        "gate",
        "getters",
        "is_plain",
        "lent_bytes",
        "lent_items",
        "lost",
        "name",
        "num_dead",
        "num_lent",
        "on_the_way",
        "parts",
        "putters",
        "reserved",
        "reserved_bytes",
        "skipped",
        "streams",
        "tally",
        "waits_for_room",
    )

    gate_type: ClassVar[type[Gate]] = Gate
    num_dropped: ClassVar[int] = 0

    def __init__(self, name: QueueName, gate: Gate, tally: Tally) -> None:
        self.name = name
        self.tally = tally
        self.ended = False
        self.fifo = WeightedFifo(tally.clock)
        self.gate = gate
        self.waits_for_room = False
        self.parts: Parts = UNDIVIDED
        self.followers: tuple[Follower, ...] = ()
        self.is_plain = True
        self.flushed = 0
        # Ordered by arrival; any member leaves in O(1) when it is cancelled.
        self.getters: OrderedDict[Getter, None] = OrderedDict()
        self.skipped: dict[Getter, None] = {}
        self.putters: OrderedDict[Putter, None] = OrderedDict()
        self.streams: dict[Client, deque[Putter]] = {}
        self.reserved = self.reserved_bytes = 0
        self.counted_bytes = self.counted_items = 0
        self.delivering = self.on_the_way = 0
        self.num_lent = self.lent_items = self.lent_bytes = 0
        self.num_dead = 0
        self.lost: list[Item] = []

    def decide_by(
        self,
        gate: Gate | None = None,
        parts: Parts | None = None,
        followers: tuple[Follower, ...] | None = None,
    ) -> None:
        """Let another policy take the place of the one that is there."""
        self.gate = gate or self.gate
        self.parts = self.parts if parts is None else parts
        self.followers = self.followers if followers is None else followers
        self.is_plain = self.gate.is_plain and self.parts is UNDIVIDED and not self.followers

    @property
    def is_open(self) -> bool:
        """Whether items pass in the order in which they come, and concern nobody but those who put and get them.

        Then a run of puts, or of gets, does what they do one by one.
        """
        if not self.is_plain or self.ended or self.reserved or self.lost or not self.fifo.is_plain:
            return False
        in_line = self.tally.line.places
        return not in_line or (len(in_line) == 1 and self in in_line)

    @property
    def num_held(self) -> int:
        """Items that are here, on their way here, or lent."""
        return self.fifo.num_items + self.reserved + self.lent_items

    @property
    def held_bytes(self) -> int:
        """Bytes that are here, on their way here, or lent."""
        return self.fifo.size_bytes + self.reserved_bytes + self.lent_bytes

    @property
    def num_here(self) -> int:
        """Items that are here, or may come back."""
        return self.fifo.num_items + self.lent_items

    def count(self) -> None:
        """Tell the channel what this queue holds now, and stand in line where its first put waits for others."""
        tally, fifo = self.tally, self.fifo
        held_bytes = fifo.size_bytes + self.reserved_bytes + self.lent_bytes
        tally.held_bytes += held_bytes - self.counted_bytes
        self.counted_bytes = held_bytes
        tally.num_here += fifo.num_items - self.counted_items
        self.counted_items = fifo.num_items
        if self.putters or self.waits_for_room:
            self.gate.line_up(self)

    def lend(self, num_items: int, size_bytes: int) -> None:
        """Count so many more items as lent, or as back."""
        self.lent_items += num_items
        self.lent_bytes += size_bytes
        self.tally.note_lent(self.name, num_items, size_bytes)

    def bury(self, num_items: int, size_bytes: int) -> None:
        """Count so many more items as dead, or fewer."""
        self.num_dead += num_items
        self.tally.note_dead(self.name, num_items, size_bytes)

    @property
    def full(self) -> bool:
        """No room for another item, however small."""
        return not self.gate.has_room(self, 1)

    @property
    def awaited(self) -> bool:
        """Somebody waits for items, and may have them."""
        return bool(self.parts.getters) or any(getter.may_have_more for getter in self.getters)

    @property
    def idle(self) -> bool:
        """Nothing is held, nobody waits, nothing can come back."""
        if self.delivering or self.fifo.num_items or self.getters or self.putters or self.reserved:
            return False
        if self.num_lent or self.num_dead or self.skipped or self.lost:
            return False
        return self.is_plain or (self.gate.idle and self.parts.is_idle(self.ended))

    def items(self) -> Iterable[Item]:
        """Return all items that are here, and those of steps that were cut."""
        return chain(self.fifo, self.parts.items())

    def touch_followers(self) -> None:
        """Note that something may have changed for the subscriptions that see this queue."""
        if self.followers:
            self.tally.touched.update(dict.fromkeys(self.followers))

    def describe(self) -> str:
        """Return what is here in a phrase, for error texts."""
        return phrase_of(self)
