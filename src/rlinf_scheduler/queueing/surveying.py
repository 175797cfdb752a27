"""What is said of a channel's queues: of the few that matter, at once; of all of them, part by part."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

from rlinf_scheduler.queueing.admission import Admission, Admissions
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.leases import LeaseGetter, Leases, LeaseState
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.sharding import PartGetter
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import QueueDepth, QueueStats, QueueUser, Waiting
from rlinf_scheduler.queueing.taps import TapQueue
from rlinf_scheduler.queueing.wanted import WantedGroup
from rlinf_scheduler.queueing.weights import rounded
from rlinf_scheduler.wording import counted, list_names, number_text

# In one look so many operations, and leases, are looked at, those that began first, and so many of their queues told.
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

    def depths(self, size: int, since: list[float]) -> list[Callable[[], list[QueueDepth]]]:
        """Return calls that each give the depths of the next so many queues, in which others may be by then.

        Args:
            size: so many.
            since: gets the times at which their next items entered.
        """
        return [partial(self._depths_of, queues, since) for queues in self._parts(size)]

    def every(self, size: int, asked: SurveyContext) -> list[Callable[[], list[QueueStats]]]:
        """As `depths`, of what every queue holds, and who waits for what, in order of appearance.

        What consumers have is told of the deliveries and leases that began first.
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
        return [queue.depth() for queue in found]

    def _stats_of(self, queues: Collection[Queue], asked: SurveyContext) -> list[QueueStats]:
        leases: dict[Queue, list[LeaseState]] = {queue: [] for queue in queues}
        sent: dict[Queue, list[Getter]] = {queue: [] for queue in queues}
        for lease in islice(self._state.policy(Leases).all(), NUM_OPERATIONS):
            if lease.queue in leases:
                leases[lease.queue].append(lease)
        for each in self._first_operations():
            if (
                isinstance(each, Getter)
                and each.items is not None
                and not isinstance(each, LeaseGetter)
                and each.queue in sent
            ):
                sent[each.queue].append(each)
        return [
            _stats_of(queue, asked, self._may_have_questions(queue, asked), leases[queue], sent[queue])
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
        for lease in islice(self._state.policy(Leases).all(), NUM_OPERATIONS):
            yield lease.queue
        yield from islice(self._state.policy(Admissions).queues(), NUM_IN_USE)
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
    leases: Iterable[LeaseState] = (),
    deliveries: Iterable[Getter] = (),
) -> QueueStats:
    """Return how a queue is, of which these items are on lease, and these deliveries not confirmed."""
    head, users = queue.fifo.head(), asked.users
    putters, getters = ((), ()) if users is None else users.get(queue.name, ((), ()))
    return QueueStats(
        queue.depth(with_groups=asked.in_full),
        None if head is None else max(0.0, asked.now - head.since),
        asked.all(_waiting_at(queue, may_have_questions)),
        asked.all(_held_of(queue, leases, deliveries)),
        tuple(_limits_of(queue)) if queue.putters else (),
        queue.ended,
        ", ".join(queue.parts.describe()),
        ", ".join(queue.gate.describe()),
        _subscription(queue, asked.names) if isinstance(queue, TapQueue) else "",
        tuple(putters),
        tuple(getters),
    )


def _subscription(queue: TapQueue, names: Mapping[str, str]) -> str:
    members = sorted({names.get(client, "") for client, _ in queue.read.members})
    return f"{queue.terms.describe()}; read by {list_names(members) if members else 'nobody at present'}"


# -- operations in words -----------------------------------------------------------------------------


def _waiting_at(queue: Queue, may_have_questions: bool) -> Iterator[_Since]:
    """The first of those who wait in each line of a queue, which are the oldest."""
    for getter in islice(chain(queue.getters, queue.skipped, queue.parts.getters), NUM_NAMED):
        yield getter.client.name, _of_get(getter), getter.since
    for putter in islice(chain(queue.putters, *queue.streams.values()), NUM_NAMED):
        yield putter.client.name, _of_put(putter), putter.since
    for item in queue.fifo.first(NUM_NAMED) if may_have_questions else ():
        if item.question is not None:
            yield item.question[0], "ask, and nobody has taken the question", item.since
    if isinstance(queue.gate, Admission):
        for (client, _), move in queue.gate.kept.moving.items():
            yield client, f"set_version({move.version})", move.since
        for (client, _), wish in islice(queue.gate.kept.asking.items(), NUM_NAMED):
            yield client, f"admit with max_lag {wish.max_lag}", wish.since


def _held_of(queue: Queue, leases: Iterable[LeaseState], deliveries: Iterable[Getter]) -> Iterator[_Since]:
    for lease in islice(leases, NUM_NAMED):
        yield *_of_lease(lease), lease.since
    for getter in islice(deliveries, NUM_NAMED):
        yield getter.client.name, _of_delivery(getter), getter.since
    if isinstance(queue.gate, Admission):
        yield from _of_slots(queue.gate)


def _of_slots(admission: Admission) -> Iterator[_Since]:
    """The first of those that are out, which are the oldest."""
    for slot in islice(admission.kept.making.values(), NUM_NAMED):
        holders = [client for client, _ in ([slot.owner] if slot.owner else list(slot.copies)) if client]
        client = holders[0] if holders else ""
        until = f", taken up to version {slot.latest}" if slot.latest > slot.version else ""
        if not holders and slot.copies:
            until += ", of which a copy was sent, and nobody has it now"
        yield client, f"slot {slot.number}, for an item of version {slot.version}{until}", slot.since


def _of_get(getter: Getter) -> str:
    if isinstance(getter, PartGetter):
        return "a shard's next batch"
    kind = "get" if getter.wanted is None else "get_batch"
    if isinstance(getter, LeaseGetter):
        kind = "lease" if getter.wanted is None else "lease of a batch"
    if getter in getter.queue.skipped:
        kind += ", which has as many on lease as it may"
    if getter.wanted is None:
        return kind
    if isinstance(getter.wanted, WantedGroup):
        return f"get_group of {counted(getter.wanted.size, 'item')}"
    limits = getter.wanted.limits
    parts = [] if getter.wanted.weight is None else [f"weight {number_text(rounded(getter.wanted.weight))}"]
    parts += [f"at least {limits.min_items} items"] if limits.min_items > 1 else []
    parts += [f"at most {counted(limits.max_items, 'item')}"] if limits.max_items else []
    return f"{kind} of {' and '.join(parts)}" if parts else kind


def _of_put(putter: Putter) -> str:
    if not putter.has_room:
        return f"put of {counted(putter.item.size_bytes, 'byte')}"
    return "put, whose bytes are on their way" if not putter.complete else "put, behind an earlier one"


def _of_lease(lease: LeaseState) -> tuple[str, str]:
    num_questions = sum(item.question is not None for item in lease.items.values())
    count = counted(len(lease.items), "question" if num_questions else "item")
    if lease.getter is None:
        return "", f"{count}, to come back after a delay"
    return lease.getter.client.name, f"lease of {count}"


def _of_delivery(getter: Getter) -> str:
    where = "arrived, not taken" if getter.arrived else "on the way"
    return f"delivery of {counted(len(getter.items or ()), 'item')}, {where}"


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
