"""What is said of a channel's queues: of the few that matter, at once; of all of them, part by part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from rlinf_scheduler.queueing.depth import QueueDepth
from rlinf_scheduler.queueing.leases import HeldItems
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.queueing.overview import ChannelOverview, QueueSurvey, overview_of
from rlinf_scheduler.queueing.queue_name import QueueName
from rlinf_scheduler.queueing.report import QueueSnapshot, report_of
from rlinf_scheduler.queueing.subscribing import Subscribing

# In one look so many operations, and leases, are looked at, those that began first, and so many of their queues told.
NUM_OPERATIONS, NUM_IN_USE = 2048, 128
# Of each client's operations at least so many.
NUM_OF_CLIENT = 8
# Queues with questions, so many of which are known.
NUM_ASKED = 64

_Operation: TypeAlias = Getter[NamedQueue] | Putter[NamedQueue]


class Surveying(Subscribing):
    """Says what a channel's queues hold, and who waits for what."""

    def __init__(self, *bounds: int, **options: Any) -> None:
        super().__init__(*bounds, **options)
        self._survey = QueueSurvey()
        # Queues into which somebody has put a question, as far as they are known.
        self._asked_at: dict[QueueName, None] = {}

    def depths(self) -> tuple[QueueDepth, ...]:
        """Return what every queue holds that holds anything or is waited for, in order of appearance."""
        return tuple(queue.depth() for queue in self._queues.values())

    def depths_in_parts(self, size: int) -> list[Callable[[], list[QueueDepth]]]:
        """As `depths`: calls that each give it of the next so many queues, in which others may be by then."""
        return [partial(self._depths_of, queues) for queues in self._parts(size)]

    def report(self) -> list[QueueSnapshot]:
        """Return what every queue holds, and who waits for what since when, in order of appearance.

        What consumers have is told of the deliveries and leases that began first.
        """
        return self._report_on(self._queues.values())

    def report_in_parts(self, size: int) -> list[Callable[[], list[QueueSnapshot]]]:
        """As `report`, in parts as `depths_in_parts`."""
        return [partial(self._report_on, queues) for queues in self._parts(size)]

    def report_in_use(self) -> list[QueueSnapshot]:
        """As `report`, of queues at which somebody waits or of which somebody has something: all, or some of many."""
        return self._report_on(self._in_use())

    def report_on(self, names: Iterable[QueueName]) -> list[QueueSnapshot]:
        """As `report`, of those of these queues that are there."""
        return self._report_on([self._queues[name] for name in names if name in self._queues])

    def survey(self) -> list[tuple[QueueName, int]]:
        """Return queues and how many items they hold: all, or of many the largest known and some others each time."""
        return [(queue.name, queue.fifo.num_items) for queue in self._survey.next(self._queues)]

    def overview(self, num_busiest: int) -> ChannelOverview:
        """Return it in a few numbers, and the queues with most items, up to so many."""
        queues = self._survey.next(self._queues)
        return overview_of(queues, self.totals, self._in_use(), num_busiest)

    def _note_asked(self, name: QueueName) -> None:
        """Somebody puts a question into a queue."""
        if len(self._asked_at) >= NUM_ASKED:
            self._asked_at = {name: None for name in self._asked_at if name in self._queues}
        if len(self._asked_at) < NUM_ASKED:
            self._asked_at[name] = None

    def _parts(self, size: int) -> Iterator[list[NamedQueue]]:
        every = list(self._queues.values())
        for first in range(0, len(every), size):
            yield every[first : first + size]

    def _is_here(self, queue: NamedQueue) -> bool:
        return self._queues.get(queue.name) is queue

    def _depths_of(self, queues: Iterable[NamedQueue]) -> list[QueueDepth]:
        return [queue.depth() for queue in queues if self._is_here(queue)]

    def _report_on(self, queues: Collection[NamedQueue]) -> list[QueueSnapshot]:
        leases: dict[NamedQueue, list[HeldItems]] = {queue: [] for queue in queues}
        sent: dict[NamedQueue, list[Getter[NamedQueue]]] = {queue: [] for queue in queues}
        for lease in islice(self.leases.all(), NUM_OPERATIONS):
            if lease.queue in leases:
                leases[lease.queue].append(lease)
        for each in self._first_operations():
            if (
                isinstance(each, Getter)
                and each.items is not None
                and each.lease is None
                and each.queue in sent
            ):
                sent[each.queue].append(each)
        return [report_of(queue, leases[queue], sent[queue]) for queue in queues if self._is_here(queue)]

    def _first_operations(self) -> Iterator[_Operation]:
        """Operations that are not over: all, or the first of each client."""
        number = max(NUM_OF_CLIENT, NUM_OPERATIONS // max(1, len(self._clients)))
        for client in self._clients.values():
            yield from islice(client.operations.values(), number)

    def _in_use(self) -> dict[NamedQueue, None]:
        """Queues at which somebody waits, or has something: all, or those of what began first."""
        found: dict[NamedQueue, None] = {}
        for queue in self._candidates():
            if len(found) == NUM_IN_USE:
                break
            if self._is_here(queue):
                found[queue] = None
        return found

    def _candidates(self) -> Iterator[NamedQueue]:
        for each in self._first_operations():
            yield each.queue
        for lease in islice(self.leases.all(), NUM_OPERATIONS):
            yield lease.queue
        yield from islice(self._admitting, NUM_IN_USE)
        for name in self._asked_at:
            if name in self._queues:
                yield self._queues[name]
