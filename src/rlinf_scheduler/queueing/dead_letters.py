"""Dead letters: items that were given out as often as they may be, until somebody puts them back or drops them.

They count against the bytes of the channel only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rlinf_scheduler.queueing.contents import Contents
from rlinf_scheduler.queueing.item import Item, QueueName, SubscriptionName, as_name
from rlinf_scheduler.queueing.messages import Bury, Instruction
from rlinf_scheduler.queueing.policy import Handler, Merger, OperationOver, Policy
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.saved_items import LoadedItems, SavedItems

NO_LETTER = "it is not there any more: it was put back, or discarded"


class MoveDead(Struct, tag=14, array_like=True):
    """Put a dead letter back, or drop it -> `Done`."""

    number: int
    again: bool


class BuriedItem(Struct, eq=False, array_like=True):
    """A dead letter.

    Attributes:
        queue: where it came from; in a snapshot its name.
        reason: why the last time when it was given out came to nothing.
        consumer: who had it then.
    """

    number: int
    queue: Any
    item: Item
    attempts: int
    reason: str
    consumer: str


class DeadLetters(Policy):
    """The dead letters of a channel, by number, the oldest first."""

    def __init__(self, queues: QueueSet, bounds: Any) -> None:
        super().__init__(queues, bounds)
        queues.tally.dead_letters = self
        self.letters: dict[int, BuriedItem] = {}

    def handlers(self) -> dict[type, Handler]:
        """Return what moves them."""
        return {MoveDead: self.move}

    def move(self, move: MoveDead, _client: str = "") -> list[Instruction]:
        """Drop a dead letter, or let it go to its queue again, as if it had never been given out.

        Raises:
            OperationOver: it is not there any more.
            ValueError: it would be taken too late, in a queue that has versions.
        """
        letter = self.letters.get(move.number)
        if letter is None:
            raise OperationOver(NO_LETTER)
        if move.again:
            letter.queue.reopen(letter.item)
            letter.item.attempts = 0
        self._drop(letter)
        return self._queues.settle((letter.queue,), [])

    def bury(self, queue: Contents, item: Item, reason: str, consumer: str, out: list[Instruction]) -> None:
        """Keep an item that came to nothing too often; who asks a question is told."""
        queue.gate.forget((item,))
        self._add(BuriedItem(self._queues.next_number(), queue, item, item.attempts, reason, consumer))
        if item.question is not None:
            out.append(Bury(*item.question, item.attempts, consumer, reason))

    def of(self, queue_name: QueueName | None = None) -> list[BuriedItem]:
        """Return those of one queue, or (None) all, the oldest first."""
        return [letter for letter in self.letters.values() if queue_name in (None, letter.queue.name)]

    def drop_all(self, queue: Contents) -> None:
        """Drop those of a queue."""
        for letter in self.of(queue.name) if queue.num_dead else ():
            if letter.queue is queue:
                self._drop(letter)

    def items(self) -> Iterator[Item]:
        """Yield their items."""
        return (letter.item for letter in self.letters.values())

    def _add(self, letter: BuriedItem) -> None:
        self.letters[letter.number] = letter
        letter.queue.bury(1, letter.item.size_bytes)

    def _drop(self, letter: BuriedItem) -> None:
        del self.letters[letter.number]
        letter.queue.bury(-1, -letter.item.size_bytes)

    # -- for snapshots ---------------------------------------------------------------------------

    def save(self, state: Any, data: Mapping[Queue, Any], items: SavedItems) -> None:
        """Add them, also at rest."""
        for letter in self.letters.values():
            name = letter.queue.name
            for item in items.each([letter.item], counts_lost=type(name) is not SubscriptionName):
                state.dead.append(replace(letter, queue=name, item=item))

    def arrange(self, state: Any, items: LoadedItems) -> None:
        """Have those of before."""
        for letter in state.dead:
            letter.queue = self._queues.make(as_name(letter.queue))
            items.item(letter.queue.name, letter.item)
            self._add(letter)

    @staticmethod
    def merge(first: Any, state: Any, queues: Sequence[tuple[Any, Any]], merger: Merger) -> None:
        """Keep those of both, those of before first."""
        dead = [
            replace(letter, item=item)
            for letter in first.dead
            if not merger.is_over(letter.queue)
            for item in merger.missing([letter.item])
        ]
        state.dead = [*dead, *state.dead]

    def clear(self) -> None:
        """Forget all of them."""
        self.letters.clear()
