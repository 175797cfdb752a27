"""What processes do on a queue as long as it is not over: gets and puts."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from msgspec import Struct
from msgspec.structs import replace

from rlinf_scheduler.queueing.item import Item, as_name, rounded
from rlinf_scheduler.queueing.messages import Deliver, Instruction
from rlinf_scheduler.queueing.saved_items import LoadedItems, SavedItems
from rlinf_scheduler.queueing.wanted import Wanted, WantedGroup
from rlinf_scheduler.wording import counted, number_text


class Client:
    """One process that uses the channel, and its unfinished operations by ticket."""

    __slots__ = ("name", "operations")

    def __init__(self, name: str) -> None:
        self.name = name
        self.operations: dict[int, Getter | Putter] = {}


class Getter(Struct, eq=False, array_like=True, tag="get"):
    """A get of one item, of a batch or of a group: waiting while `items` is None, in delivery after.

    How its items leave the queue, and what is the case until they are the client's, is for subclasses to say: here
    they are in delivery, and are the client's when it confirms them.

    Attributes:
        client: the process; in a snapshot its name.
        queue: where it waits; in a snapshot nothing, for it stands at its queue.
        wanted: None for one item.
        number: its place in the line of getters, for one that was skipped.
        ripens: the least of a batch is there: its `max_wait_s` has begun; waited: and is over.
        complete: its items are what was asked for, and not what is left.
        group: that was delivered.
        arrived: the items are in the client's process; they may still come back.
        counts: its queue counts it as in delivery.
        is_confirmed: what it was given is its client's when that says so, by its ticket.
        is_part: it asks for what was cut, and stands in no line.
        kinds: what it is called, for one item and for several.
    """

    client: Any
    ticket: int
    queue: Any
    wanted: Wanted | WantedGroup | None = None
    since: float = 0.0
    number: int = 0
    ripens: bool = False
    waited: bool = False
    items: list[Item] | None = None
    complete: bool = True
    group: Any = None
    arrived: bool = False

    counts: ClassVar[bool] = True
    is_confirmed: ClassVar[bool] = True
    is_part: ClassVar[bool] = False
    kinds: ClassVar[tuple[str, str]] = ("get", "get_batch")

    @property
    def is_sticky(self) -> bool:
        """Whether another one that is may be served at its turn."""
        return False

    @property
    def may_have_more(self) -> bool:
        """Whether its client may be given items now."""
        return True

    def describe(self) -> str:
        """Return what it asks for, in a phrase."""
        wanted, kind = self.wanted, self.kinds[self.wanted is not None] + self.describe_skipped()
        if wanted is None:
            return kind
        if isinstance(wanted, WantedGroup):
            return f"get_group of {counted(wanted.size, 'item')}"
        limits = wanted.limits
        parts = [] if wanted.weight is None else [f"weight {number_text(rounded(wanted.weight))}"]
        parts += [f"at least {limits.min_items} items"] if limits.min_items > 1 else []
        parts += [f"at most {counted(limits.max_items, 'item')}"] if limits.max_items else []
        return f"{kind} of {' and '.join(parts)}" if parts else kind

    def describe_skipped(self) -> str:
        """Return why it is skipped, in a phrase; empty where it is not."""
        return ""

    def describe_delivery(self) -> str:
        """Return what it was sent, in a phrase."""
        where = "arrived, not taken" if self.arrived else "on the way"
        return f"delivery of {counted(len(self.items or ()), 'item')}, {where}"

    def line_up(self) -> None:
        """Stand in line."""
        self.queue.getters[self] = None

    def leave(self) -> None:
        """Wait no more."""
        del self.queue.getters[self]

    def stand_in(self) -> Getter:
        """Return who of the line is served when it is this one's turn."""
        return self

    def take_one(self) -> Item:
        """Take the one item that it asks for; there is one."""
        item: Item = self.queue.fifo.take()
        return item

    def skip(self) -> None:
        """Let others be served as long as it may not have more."""

    def give(self, items: list[Item], out: list[Instruction]) -> None:
        """Give it what it waits for; it has left the line."""
        self.items = items
        self.queue.delivering += 1
        self.queue.on_the_way += 1
        out.append(self.delivery(items))

    def take_back(self, out: list[Instruction]) -> None:
        """Give back what was delivered: nobody wanted it any more."""
        self.queue.give_back((self,))

    def lose(self, taken: bool, out: list[Instruction]) -> None:
        """Give back what its client had when it was lost, unless it was taken."""
        if taken:
            self.queue.confirm(self)
        else:
            self.queue.give_back((self,))

    def save(self, items: SavedItems) -> Self:
        """Return it as data."""
        its = items.each(self.items or ()) if self.counts else []
        its_items = None if self.items is None else its
        return replace(self, client=self.client.name, queue=None, items=its_items)

    def load(self, items: LoadedItems) -> None:
        """Have what it was sent, as it was."""
        self.group = as_name(self.group)
        self.items = items.each(self.queue.name, self.items or ())

    def delivery(self, items: list[Item]) -> Deliver:
        """Return the instruction that sends items."""
        return Deliver(
            self.client.name, self.ticket, items, self.complete, group=self.group, queue=self.queue.name
        )


class Putter(Struct, eq=False, array_like=True):
    """A put that waits for room, or that has room and waits for its bytes or for an earlier put's bytes.

    In a snapshot its client is a name, and it stands at its queue; `complete`: the payload is here.
    """

    client: Any
    ticket: int
    queue: Any
    item: Item
    complete: bool
    since: float = 0.0
    has_room: bool = False
