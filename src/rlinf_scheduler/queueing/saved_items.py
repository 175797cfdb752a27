"""Items in a snapshot, where a number takes the place of each payload: as they are saved, and as they are loaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from rlinf_scheduler.queueing.item import NOT_GIVEN, SETTLED, Item, QueueName, as_name


class SavedItems:
    """The items of a snapshot, each with its place in the place of its payload.

    Args:
        at_rest: those that clients wait for, and those that are lost, are left out.
        done: numbers of what is lent whose items are done with: they are left out.

    Attributes:
        all: the items.
        num_lost: what was left out because it is lost, and was not counted as such yet; lost_bytes: its size.
        back: what is in its queue again, at rest, by queue.
    """

    def __init__(self, *, at_rest: bool, done: Collection[int] = ()) -> None:
        self.all: list[Item] = []
        self.num_lost = self.lost_bytes = 0
        self.at_rest = at_rest
        self.done = done
        self.back: defaultdict[Any, list[Item]] = defaultdict(list)

    def add(self, item: Item) -> Item:
        """Add an item; return it as data."""
        self.all.append(item)
        since = 0.0 if self.at_rest else item.since
        given_in = NOT_GIVEN if self.at_rest and item.given_in != SETTLED else item.given_in
        return replace(item, payload=len(self.all) - 1, since=since, given_in=given_in)

    def each(self, items: Iterable[Item], *, counts_lost: bool = True) -> list[Item]:
        """Add those that are to be in the snapshot; `counts_lost` unless they are counted elsewhere."""
        return [self.add(item) for item in self.chosen(items, counts_lost=counts_lost)]

    def chosen(self, items: Iterable[Item], *, counts_lost: bool = True) -> list[Item]:
        """Return those that are to be in the snapshot."""
        items = list(items)
        if not self.at_rest:
            return items
        if counts_lost:
            lost = [item.size_bytes for item in items if item.lost]
            self.num_lost += len(lost)
            self.lost_bytes += sum(lost)
        return [item for item in items if item.question is None and not item.lost]


class LoadedItems:
    """The items of queues that are made of a snapshot: their payloads take the places of numbers again.

    Args:
        payloads: of the items.
        now: the time, for items that have none.
        note_asked: called with the name of each queue of which an item is a question.
    """

    def __init__(self, payloads: Sequence[Any], now: float, note_asked: Callable[[QueueName], None]) -> None:
        self._payloads = payloads
        self._now = now
        self._note_asked = note_asked

    def item(self, queue_name: QueueName, item: Item) -> Item:
        """Return an item of a queue, as it was."""
        item.payload = self._payloads[item.payload]
        item.group = as_name(item.group)
        item.since = item.since or self._now
        if item.question is not None:
            self._note_asked(queue_name)
        return item

    def each(self, queue_name: QueueName, items: Iterable[Item]) -> list[Item]:
        """Return items of a queue, as they were."""
        return [self.item(queue_name, item) for item in items]
