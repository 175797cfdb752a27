"""What enters a channel from a first look on, for whoever is to look a second time."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_scheduler.queueing.item import Item, QueueName

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
