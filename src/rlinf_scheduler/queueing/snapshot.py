"""From a channel's queues to data and back, and what was there from one snapshot of a channel to another.

A snapshot is the state itself: its structs, in which clients, queues and payloads are ids. Queues that are made of it
behave as those that it was made of, whatever comes; their clients, and what these wait for, are there again. What a
policy keeps it saves, restores and merges itself (see `policy.py`).

One *at rest* leaves out the clients: what they had and did not say that they are done with is in the queues again, at
its old place, and with as many attempts; what was to come back after a delay is back; subscriptions have no members;
questions are gone, for whoever asked does not wait any more, and so is what is lost. One that is not at rest is of a
channel that loses nothing, as it has all bytes itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from rlinf_scheduler.queueing.item import NOT_GIVEN, Item, QueueName, SubscriptionName, as_name
from rlinf_scheduler.queueing.messages import Instruction, Ripen
from rlinf_scheduler.queueing.operations import Client, Getter, Putter
from rlinf_scheduler.queueing.policies import POLICIES, ChannelData, ClientData, QueueData
from rlinf_scheduler.queueing.policy import Policy
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.saved_items import LoadedItems, SavedItems
from rlinf_scheduler.queueing.wanted import Wanted

# So many items are written down at a time: few enough for the garbage collector not to begin for them.
CHUNK = 200


@dataclass(eq=False)
class Snapshot:
    """The state of queues as data, and their items.

    What never left its queue does not change. So it is only noted at first, and written down when the data is asked
    for, in any thread, while the queues go on.

    Attributes:
        state: the data without what never left its queue.
        items: `items[n].payload` belongs to the item of the data whose `payload` is n.
        at_rest: without clients.
        rest: of the items, what never left each of the queues and is not in the data.
        sent: who was sent what is theirs once they confirm that; their `items` are None once it is given back.
        entered: what entered since then, and where, as long as this is watched (see `Tally.watch`).
    """

    state: ChannelData
    items: list[Item]
    at_rest: bool
    rest: Sequence[range] = ()
    sent: list[Getter] = field(default_factory=list)
    entered: list[tuple[QueueName, Item]] = field(default_factory=list)

    @cached_property
    def data(self) -> ChannelData:
        """The data."""
        return with_rest(self.state, self.rest_items())

    def rest_items(self) -> Iterator[tuple[int, list[Item]]]:
        """Yield the items that never left, a few at a time: the queue's number, and items in order."""
        for number, places in enumerate(self.rest):
            for begin in range(places.start, places.stop, CHUNK):
                some = range(begin, min(begin + CHUNK, places.stop))
                yield number, [self._as_it_entered(n) for n in some]

    def _as_it_entered(self, place: int) -> Item:
        item = self.items[place]
        since = 0.0 if self.at_rest else item.since
        return replace(item, payload=place, attempts=0, given_in=NOT_GIVEN, since=since, lost="")


def with_rest(state: ChannelData, rest: Iterable[tuple[int, list[Item]]]) -> ChannelData:
    """Return the data of queues with what never left them; see `Snapshot.rest_items`."""
    items = [list(queue.items) for queue in state.queues]
    for number, some in rest:
        items[number] += some
    queues = [replace(queue, items=its) for queue, its in zip(state.queues, items, strict=True)]
    return replace(state, queues=queues)


class Taker:
    """Makes data of queues, and gathers their items.

    Args:
        queues: of a channel.
        policies: what is kept of each policy.
        at_rest: without clients.
        done: numbers of what is lent whose items are done with.
    """

    def __init__(
        self, queues: QueueSet, policies: Sequence[Policy], *, at_rest: bool, done: Collection[int]
    ) -> None:
        self._queues = queues
        self._policies = policies
        self._at_rest = at_rest
        self._items = SavedItems(at_rest=at_rest, done=done)
        self._rest: list[range] = []
        self._sent: list[Getter] = []

    def take(self) -> Snapshot:
        """Return all there is."""
        known, items, sent = self._queues, self._items, self._sent_by_queue()
        queues = dict.fromkeys(known.all())
        if self._at_rest:
            self._take_back(sent)
        else:
            # Of subscriptions that nobody reads any more something may still be given out.
            queues |= dict.fromkeys(lent.queue for lent in self._lent()) | dict.fromkeys(sent)
        data = {queue: self._queue(queue) for queue in queues}
        if not self._at_rest:
            for queue, its in data.items():
                self._add_lines(its, queue, sent[queue])
        state = ChannelData(
            list(data.values()), [], known.last_number, known.tally.num_items, known.tally.size_bytes
        )
        state.closed, state.all_ended, state.ended = known.closed, known.all_ended, list(known.ended)
        if not self._at_rest:
            self._add_clients(state)
        for policy in self._policies:
            policy.save(state, data, items)
        state.num_lost = known.tally.num_lost + items.num_lost
        state.lost_bytes = known.tally.lost_bytes + items.lost_bytes
        return Snapshot(state, items.all, self._at_rest, self._rest, self._sent)

    def _take_back(self, sent: Mapping[Queue, Iterable[Getter]]) -> None:
        """Have in their queues again what clients have."""
        for queue, getters in sent.items():
            # What does not count is kept elsewhere.
            for getter in [each for each in getters if each.counts]:
                self._sent.append(getter)
                self._items.back[queue] += getter.items or ()
        for lent in self._lent():
            self._items.back[lent.queue] += lent.items.values()

    def _lent(self) -> list[Any]:
        """What is lent, and not done with."""
        return [lent for lent in self._queues.tally.lender.all() if lent.generation not in self._items.done]

    def _add_clients(self, state: ChannelData) -> None:
        state.clients = [
            ClientData(client.name, list(client.operations), []) for client in self._queues.clients.values()
        ]
        state.crowded = [queue.name for queue in self._queues.tally.line]
        state.now = self._queues.tally.clock.now

    def _sent_by_queue(self) -> defaultdict[Queue, list[Getter]]:
        """What was sent and is not confirmed."""
        sent: defaultdict[Queue, list[Getter]] = defaultdict(list)
        for client in self._queues.clients.values():
            for each in client.operations.values():
                if isinstance(each, Getter) and each.items is not None:
                    sent[each.queue].append(each)
        return sent

    def _queue(self, queue: Queue) -> QueueData:
        counts_lost = type(queue.name) is not SubscriptionName
        returned, rest = queue.fifo.contents()
        returned += self._items.back[queue]
        returned.sort(key=_order)
        begin = len(self._items.all)
        self._items.all += self._items.chosen(rest, counts_lost=counts_lost)
        self._rest.append(range(begin, len(self._items.all)))
        its_returned = self._items.each(returned, counts_lost=counts_lost)
        return QueueData(queue.name, queue.fifo.num_entered, queue.flushed, its_returned)

    def _add_lines(self, data: QueueData, queue: Queue, sent: Iterable[Getter]) -> None:
        items = self._items
        data.sent = [getter.save(items) for getter in sent]
        data.waiting = [getter.save(items) for getter in (*queue.getters, *queue.parts.getters)]
        data.skipped = [getter.save(items) for getter in queue.skipped]
        with_room = (putter for stream in queue.streams.values() for putter in stream)
        data.putters = [self._putter(putter) for putter in (*with_room, *queue.putters)]

    def _putter(self, putter: Putter) -> Putter:
        return replace(putter, client=putter.client.name, queue=None, item=self._items.add(putter.item))


def merged(first: Snapshot, second: Snapshot) -> Snapshot:
    """Return all that a channel held at any moment between two snapshots at rest, the first of which was watched.

    What is there no more comes back to the head of its queue.
    """
    return _SnapshotMerger(first, second).merge()


class _SnapshotMerger:
    """Makes one snapshot of two; see `merged`."""

    def __init__(self, first: Snapshot, second: Snapshot) -> None:
        self._first = first
        self._second = second
        self._known = {id(item) for item in second.items}
        self._items = SavedItems(at_rest=True)
        self._items.all = list(second.items)
        self._present = {queue.name for queue in second.data.queues}

    def merge(self) -> Snapshot:
        """Return what both had."""
        first, state = self._first.data, replace(self._second.data)
        queues = {queue.name: queue for queue in state.queues}
        for queue in first.queues:
            if not self.is_over(queue.name):
                there = queues.get(queue.name) or QueueData(queue.name, queue.num_entered)
                queues[queue.name] = _with_first(self.missing([*queue.returned, *queue.items]), there)
        pairs = [(queue, queues[queue.name]) for queue in first.queues if queue.name in queues]
        for policy in POLICIES:
            policy.merge(first, state, pairs, self)
        self._add_passed(queues)
        state.queues = list(queues.values())
        return Snapshot(state, self._items.all, at_rest=True)

    def _add_passed(self, queues: dict[QueueName, QueueData]) -> None:
        """Add what has both come and gone; all that was there first is known by now."""
        passed: dict[QueueName, list[Item]] = {}
        for name, item in self._first.entered:
            # Questions, and what is lost, are not at rest.
            is_missing = not self.is_over(name) and self._is_new(item)
            for each in self._items.each([item] if is_missing else []):
                passed.setdefault(name, []).append(each)
        for name, items in passed.items():
            there = queues.get(name) or QueueData(name, items[-1].order + 1)
            queues[name] = _with_first(items, there)

    def is_over(self, name: QueueName) -> bool:
        """Whether that is a subscription which nobody reads any more."""
        return type(name) is SubscriptionName and name not in self._present

    def missing(self, items: Iterable[Item]) -> list[Item]:
        """Return those items of the first snapshot that the second has not found, with new places."""
        out = []
        for each in items:
            item = self._first.items[each.payload]
            if self._is_new(item) and not item.lost:
                self._items.all.append(item)
                out.append(replace(each, payload=len(self._items.all) - 1))
        return out

    def _is_new(self, item: Item) -> bool:
        is_new = id(item) not in self._known
        self._known.add(id(item))
        return is_new


def _with_first(items: Sequence[Item], queue: QueueData) -> QueueData:
    """A queue with what has left it before what is there."""
    returned = sorted([*items, *queue.returned], key=_order)
    everything = [*returned, *queue.items]
    if len({item.order for item in everything}) == len(everything):
        return replace(queue, returned=returned)
    # It was empty and idle in between, and began to count anew.
    returned = [*items, *queue.returned]
    count = len(returned)
    flushed = queue.flushed and count + sum(item.order < queue.flushed for item in queue.items)
    return replace(
        queue,
        num_entered=count + len(queue.items),
        flushed=flushed,
        returned=[replace(item, order=order) for order, item in enumerate(returned)],
        items=[replace(item, order=order) for order, item in enumerate(queue.items, count)],
    )


def _order(item: Item) -> int:
    return item.order


class Restorer:
    """Puts what data says in its places: ids become clients, queues and payloads again.

    Args:
        queues: of a channel, without any yet.
        policies: what is kept of each policy, nothing yet.
        payloads: of the items.
    """

    def __init__(self, queues: QueueSet, policies: Sequence[Policy], payloads: Sequence[Any]) -> None:
        self._queues = queues
        self._policies = policies
        self._payloads = payloads

    def restore(self, data: ChannelData) -> None:
        """Hold all of it."""
        known, tally = self._queues, self._queues.tally
        known.closed, known.all_ended = data.closed, data.all_ended
        known.ended = dict.fromkeys(as_name(name) for name in data.ended)
        known.last_number = data.last_number
        tally.num_items, tally.size_bytes = data.num_accepted, data.accepted_bytes
        tally.num_lost, tally.lost_bytes = data.num_lost, data.lost_bytes
        tally.clock.now = data.now or tally.clock.now
        known.clients = {client.name: Client(client.name) for client in data.clients}
        items = LoadedItems(self._payloads, tally.clock.now, known.note_asked)
        # Queues see subscriptions, and subscriptions queues.
        pairs = [(self._queue(each), each) for each in data.queues]
        for queue, each in pairs:
            self._fill(queue, each, items)
        for policy in self._policies:
            policy.load(pairs, items)
        for queue, each in pairs:
            self._line_up(queue, each, items)
        for client in data.clients:
            self._arrange(client)
        for policy in self._policies:
            policy.arrange(data, items)
        for queue, _ in pairs:
            known.drop_if_idle(queue)
        for name in data.crowded:
            queue = known.make(as_name(name))
            queue.gate.leave_line(queue)
            queue.gate.wait_for_room(queue)

    def _queue(self, data: QueueData) -> Queue:
        """The queue of some data, still empty."""
        name = as_name(data.name)
        made = [policy.remake(name, data) for policy in self._policies]
        return next((queue for queue in made if queue is not None), None) or self._queues.make(name)

    def _fill(self, queue: Queue, data: QueueData, items: LoadedItems) -> None:
        """Have the items that are here, and those in delivery."""
        queue.flushed = data.flushed
        returned, rest = items.each(queue.name, data.returned), items.each(queue.name, data.items)
        queue.fifo.load(returned, rest, data.num_entered)
        for getter in data.sent:
            self._know(queue, getter)
            getter.load(items)
            if getter.counts:
                queue.delivering += 1
                queue.on_the_way += not getter.arrived

    def _line_up(self, queue: Queue, data: QueueData, items: LoadedItems) -> None:
        """Have those who wait."""
        for getter in (*data.waiting, *data.skipped):
            self._know(queue, getter)
            queue.tally.num_gets = max(queue.tally.num_gets, getter.number)
            getter.line_up()
        for getter in data.skipped:
            getter.skip()
        for putter in data.putters:
            self._know(queue, putter)
            items.item(queue.name, putter.item)
            queue.load_put(putter, has_room=putter.has_room)
        queue.count()

    def _know(self, queue: Queue, operation: Getter | Putter) -> None:
        """Let an operation be one of its client's."""
        client = operation.client = self._queues.clients[operation.client]
        operation.queue = queue
        client.operations[operation.ticket] = operation

    def _arrange(self, data: ClientData) -> None:
        """Have a client's operations in order, all of which are there."""
        client = self._queues.clients[data.name]
        operations = client.operations
        client.operations = {ticket: operations[ticket] for ticket in data.tickets}


def ripening(queues: QueueSet) -> list[Instruction]:
    """Return the instructions for a shell that takes this state over: the waits of its batches begin again."""
    return [
        Ripen(client.name, getter.ticket, getter.wanted.limits.max_wait_s or 0.0)
        for client in queues.clients.values()
        for getter in client.operations.values()
        if isinstance(getter, Getter) and getter.items is None and getter.ripens and not getter.waited
        if isinstance(getter.wanted, Wanted)
    ]
