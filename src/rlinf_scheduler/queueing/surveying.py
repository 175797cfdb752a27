"""What is said of a channel's queues: of the few that matter, at once; of all of them, part by part."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

from rlinf_scheduler.queueing.item import Item, QueueName, SubscriptionName
from rlinf_scheduler.queueing.messages import Reason
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import UNSUBSCRIBED
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import QueueDepth, QueueStats, QueueUser, Waiting, depth_of
from rlinf_scheduler.wording import counted

# In one look so many operations, and loans, are looked at, those that began first, and so many of their queues told.
NUM_OPERATIONS, NUM_IN_USE = 2048, 128
# Of each client's operations at least so many.
NUM_OF_CLIENT = 8
# In one look so many queues are looked at, and so many of the largest are looked at again in the next.
NUM_QUEUES, NUM_LARGEST = 1024, 64
# Of those who wait in a line, so many are named; of all of a channel, the queues of so many are.
NUM_NAMED, NUM_LONGEST = 20, 8

_Operation: TypeAlias = Getter | Putter
# A client, its operation in words, and since when that is under way.
_Since: TypeAlias = tuple[str, str, float]
# Of each queue its producers, and its consumers.
UsersByQueue: TypeAlias = dict[QueueName, tuple[list[QueueUser], list[QueueUser]]]


class SurveyContext(NamedTuple):
    """What the state does not know of its channel when that is asked how it is.

    Attributes:
        now: the time, on its clock.
        names: of the processes that use it, by client.
        users: of each queue.
        in_full: what takes long to find in a queue of many items is told, too: its groups, and questions where none
            are known to be.
    """

    now: float
    names: Mapping[str, str]
    users: UsersByQueue | None = None
    in_full: bool = True

    def all(self, operations: Iterable[_Since]) -> tuple[Waiting, ...]:
        """Return operations that are not over."""
        return tuple(
            [
                Waiting(self.names.get(client, ""), operation, max(0.0, self.now - since))
                for client, operation, since in operations
            ]
        )


class QueueSurvey:
    """Says what a channel's queues hold, and who waits for what.

    Args:
        state: the channel's.
    """

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._largest: list[Queue] = []
        # Those that this round has not seen yet, the last one first.
        self._left: list[Queue] = []

    def num_items(self, queue_name: QueueName) -> int:
        """Return how many items a getter of this queue can take."""
        queue = self._state.queues.find(queue_name)
        return len(queue.fifo) if queue else 0

    def first_items(self, queue_name: QueueName, number: int) -> list[Item]:
        """Return up to so many items of a queue that getters would take next; they stay where they are."""
        queue = self._state.queues.find(queue_name)
        return queue.fifo.first(min(number, queue.gate.num_free(queue))) if queue else []

    def why_empty(self, queue_name: QueueName) -> tuple[Reason, str]:
        """Return why a getter that does not wait can take nothing of a queue, and what that looks like, in a phrase."""
        queue = self._state.queues.find(queue_name)
        if queue is None and type(queue_name) is SubscriptionName:
            return Reason.ENDED, UNSUBSCRIBED
        queue = queue or self._state.queues.imaginary(queue_name)
        is_last = self._state.queues.is_over(queue_name) and not (queue.putters or queue.reserved)
        reason = (
            queue.why_over(self._state.queues.closed)
            if is_last and not queue.may_come_back()
            else Reason.EMPTY
        )
        return reason, queue.describe()

    def is_full(self, queue_name: QueueName) -> bool:
        """Return whether a put to this queue would wait."""
        queue = self._state.queues.find(queue_name)
        return queue.full if queue else False

    def depths(self, size: int, since: list[float]) -> list[Callable[[], list[QueueDepth]]]:
        """Return calls that each give the depths of the next so many queues, in which others may be by then.

        Args:
            size: so many.
            since: gets the times at which their next items entered.
        """
        return [partial(self._depths_of, queues, since) for queues in self._parts(size)]

    def every(self, size: int, asked: SurveyContext) -> list[Callable[[], list[QueueStats]]]:
        """As `depths`, of what every queue holds, and who waits for what, in order of appearance.

        What consumers have is told of the deliveries and loans that began first.
        """
        return [partial(self._stats_of, queues, asked) for queues in self._parts(size)]

    def in_use(self, asked: SurveyContext) -> list[QueueStats]:
        """Return queues at which somebody waits or of which somebody has something: all, or some of many."""
        return self._stats_of(self._in_use(), asked)

    def of(self, names: Iterable[QueueName], asked: SurveyContext) -> list[QueueStats]:
        """Return those of these queues that are there."""
        found = (self._state.queues.find(name) for name in names)
        return self._stats_of([queue for queue in found if queue is not None], asked)

    def looked_at(self) -> list[Queue]:
        """Return the queues to look at: all, or of many the largest known and the next ones of the others."""
        queues = self._state.queues.all()
        if len(queues) <= NUM_QUEUES:
            return list(queues)
        if not self._left:
            self._left = list(queues)
            self._left.reverse()
        seen = dict.fromkeys((*self._largest, *reversed(self._left[-NUM_QUEUES:])))
        del self._left[-NUM_QUEUES:]
        found = [queue for queue in seen if self._is_here(queue)]
        self._largest = heapq.nlargest(NUM_LARGEST, found, key=_num_items)
        return found

    def foremost(self, number: int, asked: SurveyContext) -> tuple[list[QueueStats], float | None]:
        """Return the queues with most items and those of the longest waits, and the age of the oldest next item."""
        looked_at, asked = self.looked_at(), asked._replace(in_full=False)
        heads = (queue.fifo.head() for queue in looked_at)
        oldest = min((head.since for head in heads if head is not None), default=None)
        waits = ((since, queue) for queue in self._in_use() for since in _first_waits(queue))
        longest = heapq.nsmallest(NUM_LONGEST, waits, key=lambda wait: wait[0])
        queues = dict.fromkeys(heapq.nlargest(number, looked_at, key=_num_items))
        queues |= dict.fromkeys(queue for _, queue in longest)
        stats = [_stats_of(queue, asked, self._may_have_questions(queue, asked)) for queue in queues]
        return stats, None if oldest is None else max(0.0, asked.now - oldest)

    def _parts(self, size: int) -> Iterator[list[Queue]]:
        every = list(self._state.queues.all())
        for first in range(0, len(every), size):
            yield every[first : first + size]

    def _is_here(self, queue: Queue) -> bool:
        return self._state.queues.find(queue.name) is queue

    def _depths_of(self, queues: Iterable[Queue], since: list[float]) -> list[QueueDepth]:
        found = [queue for queue in queues if self._is_here(queue)]
        since += [head.since for queue in found if (head := queue.fifo.head()) is not None]
        return [depth_of(queue) for queue in found]

    def _stats_of(self, queues: Collection[Queue], asked: SurveyContext) -> list[QueueStats]:
        loans: dict[Queue, list[Any]] = {queue: [] for queue in queues}
        sent: dict[Queue, list[Getter]] = {queue: [] for queue in queues}
        for lent in islice(self._state.queues.tally.lender.all(), NUM_OPERATIONS):
            if lent.queue in loans:
                loans[lent.queue].append(lent)
        for each in self._first_operations():
            if (
                isinstance(each, Getter)
                and each.items is not None
                and each.is_confirmed
                and each.queue in sent
            ):
                sent[each.queue].append(each)
        return [
            _stats_of(queue, asked, self._may_have_questions(queue, asked), loans[queue], sent[queue])
            for queue in queues
            if self._is_here(queue)
        ]

    def _may_have_questions(self, queue: Queue, asked: SurveyContext) -> bool:
        return asked.in_full or queue.name in self._state.queues.asked_at

    def _first_operations(self) -> Iterator[_Operation]:
        """Operations that are not over: all, or the first of each client."""
        clients = self._state.queues.clients
        number = max(NUM_OF_CLIENT, NUM_OPERATIONS // max(1, len(clients)))
        for client in clients.values():
            yield from islice(client.operations.values(), number)

    def _in_use(self) -> dict[Queue, None]:
        """Queues at which somebody waits, or has something: all, or those of what began first."""
        found: dict[Queue, None] = {}
        for queue in self._candidates():
            if len(found) == NUM_IN_USE:
                break
            if self._is_here(queue):
                found[queue] = None
        return found

    def _candidates(self) -> Iterator[Queue]:
        for each in self._first_operations():
            yield each.queue
        for lent in islice(self._state.queues.tally.lender.all(), NUM_OPERATIONS):
            yield lent.queue
        yield from islice((queue for policy in self._state.policies for queue in policy.queues()), NUM_IN_USE)
        for name in self._state.queues.asked_at:
            queue = self._state.queues.find(name)
            if queue is not None:
                yield queue


def _num_items(queue: Queue) -> int:
    return queue.fifo.num_items


def _first_waits(queue: Queue) -> Iterator[float]:
    """When the first of each line began to wait."""
    lines: tuple[Iterable[_Operation], ...] = (
        queue.getters,
        queue.skipped,
        queue.parts.getters,
        queue.putters,
    )
    yield from (each.since for line in (*lines, *queue.streams.values()) for each in islice(line, 1))


def _stats_of(
    queue: Queue,
    asked: SurveyContext,
    may_have_questions: bool,
    loans: Iterable[Any] = (),
    deliveries: Iterable[Getter] = (),
) -> QueueStats:
    """Return how a queue is, of which these items are lent, and these deliveries not confirmed."""
    head, users = queue.fifo.head(), asked.users
    putters, getters = ((), ()) if users is None else users.get(queue.name, ((), ()))
    return QueueStats(
        depth_of(queue, with_groups=asked.in_full),
        None if head is None else max(0.0, asked.now - head.since),
        asked.all(_waiting_at(queue, may_have_questions)),
        asked.all(_held_of(queue, loans, deliveries)),
        tuple(_limits_of(queue)) if queue.putters else (),
        queue.ended,
        ", ".join(queue.parts.describe()),
        ", ".join(queue.gate.describe()),
        queue.describe_readers(asked.names),
        tuple(putters),
        tuple(getters),
    )


# -- operations in words -----------------------------------------------------------------------------


def _waiting_at(queue: Queue, may_have_questions: bool) -> Iterator[_Since]:
    """The first of those who wait in each line of a queue, which are the oldest."""
    for getter in islice(chain(queue.getters, queue.skipped, queue.parts.getters), NUM_NAMED):
        yield getter.client.name, getter.describe(), getter.since
    for putter in islice(chain(queue.putters, *queue.streams.values()), NUM_NAMED):
        yield putter.client.name, _of_put(putter), putter.since
    for item in queue.fifo.first(NUM_NAMED) if may_have_questions else ():
        if item.question is not None:
            yield item.question[0], "ask, and nobody has taken the question", item.since
    yield from queue.gate.waiting(NUM_NAMED)


def _held_of(queue: Queue, loans: Iterable[Any], deliveries: Iterable[Getter]) -> Iterator[_Since]:
    for lent in islice(loans, NUM_NAMED):
        yield lent.owner[0], lent.describe(), lent.since
    for getter in islice(deliveries, NUM_NAMED):
        yield getter.client.name, getter.describe_delivery(), getter.since
    yield from queue.gate.given(NUM_NAMED)


def _of_put(putter: Putter) -> str:
    if not putter.has_room:
        return f"put of {counted(putter.item.size_bytes, 'byte')}"
    return "put, whose bytes are on their way" if not putter.complete else "put, behind an earlier one"


def _limits_of(queue: Queue) -> Iterator[str]:
    """The bounds that the first put in line waits for."""
    if not queue.putters:
        return
    size_bytes, tally = next(iter(queue.putters)).item.size_bytes, queue.tally
    if queue.gate.is_full_of_items(queue):
        yield f"maxsize {queue.gate.maxsize}"
    if queue.gate.max_bytes and queue.held_bytes + size_bytes > queue.gate.max_bytes:
        yield f"max_bytes {queue.gate.max_bytes} of the queue"
    if tally.max_bytes and tally.held_bytes + size_bytes > tally.max_bytes:
        yield f"max_bytes {tally.max_bytes} of the channel"
