"""Which sticky consumer had an item of each group last: it gets the next ones while it waits for any."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from rlinf_scheduler.queueing.contents import Contents
from rlinf_scheduler.queueing.item import Item, QueueName, as_name
from rlinf_scheduler.queueing.out_of_turn import GroupName

# So many groups are remembered; of a queue's first items so many are looked at for some of a consumer's groups, unless
# the first one has been there for so long.
NUM_HOMES = 65_536
NUM_LOOKED_AT = 64
PASSED_OVER_S = 1.0


class Homes:
    """Consumers by queue and group, the one that had an item last at the end."""

    def __init__(self) -> None:
        self._homes: OrderedDict[tuple[QueueName, GroupName], str] = OrderedDict()

    def of(self, queue: Contents, item: Item | None) -> str:
        """Return the consumer that had an item of the same group last; "" if none is known."""
        if item is None or item.group is None:
            return ""
        return self._homes.get((queue.name, item.group), "")

    def take(self, queue: Contents, consumer: str) -> Item | None:
        """Take the first item, of the first few, that is of one of a consumer's groups; None: any will do."""
        head = queue.fifo.head()
        if head is None or queue.tally.clock.now - head.since > PASSED_OVER_S:
            return None
        for item in queue.fifo.first(NUM_LOOKED_AT):
            if item.priority == head.priority and self.of(queue, item) == consumer:
                return queue.fifo.take_group(item.group, 1)[0]
        return None

    def note(self, queue: Contents, items: Iterable[Item], consumer: str) -> None:
        """Note that a consumer has items."""
        for item in items:
            if item.group is not None:
                self._homes[queue.name, item.group] = consumer
                self._homes.move_to_end((queue.name, item.group))
        while len(self._homes) > NUM_HOMES:
            self._homes.popitem(last=False)

    def save(self) -> list[tuple[Any, Any, str]]:
        """Return them as data."""
        return [(*key, consumer) for key, consumer in self._homes.items()]

    def load(self, saved: Iterable[tuple[Any, Any, str]]) -> None:
        """Take what `save` gave, in place of all that is there."""
        self._homes = OrderedDict(((as_name(name), as_name(group)), who) for name, group, who in saved)
