"""From a channel to records of it, and from these to a channel that goes on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from rlinf_scheduler.queueing.instructions import Instruction, Ripen
from rlinf_scheduler.queueing.leases import BuriedItem, HeldItems
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.operations import Client, Getter
from rlinf_scheduler.queueing.queue_name import as_name
from rlinf_scheduler.queueing.records import QueueRecord, StateRecord
from rlinf_scheduler.queueing.restoring import Restorer
from rlinf_scheduler.queueing.snapshot import Recorder, Snapshot, record_of
from rlinf_scheduler.queueing.subscribing import Subscribing
from rlinf_scheduler.queueing.tap_queue import TapQueue, TapTerms
from rlinf_scheduler.queueing.wanted import Wanted
from rlinf_scheduler.queueing.watch import Watch


class Recording(Subscribing):
    """Takes records, and begins with one."""

    def snapshot(self, *, at_rest: bool = False, done: Collection[int] = ()) -> Snapshot:
        """Return a record of everything (see `snapshot.py`), and its items.

        Args:
            at_rest: without clients: what they have is in its queues again.
            done: generations of leases whose items are done with: they are left out.
        """
        recorder = Recorder(at_rest=at_rest)
        leases, sent = self._leases_by_queue(done), self._deliveries_by_queue()
        # Of subscriptions that nobody reads any more something may still be given out.
        queues = dict.fromkeys((*self._queues.values(), *leases, *sent))
        letters: Iterable[BuriedItem] = self.leases.dead.values()
        if at_rest:
            queues = {queue: None for queue in queues if not (isinstance(queue, TapQueue) and queue.removed)}
            letters = [letter for letter in letters if letter.queue in queues]
        records = [recorder.queue(queue, sent[queue], leases[queue]) for queue in queues]
        dead = recorder.dead(letters)
        record = StateRecord(
            records,
            dead,
            self.leases.last_number,
            self.num_accepted,
            self.accepted_bytes,
            self.closed,
            self._all_ended,
            list(self._ended),
            self.num_lost + recorder.num_lost,
            self.lost_bytes + recorder.lost_bytes,
        )
        if not at_rest:
            record = record._replace(
                clients=[record_of(client) for client in self._clients.values()],
                crowded=[queue.name for queue in self._tally.line],
                admitting=[queue.name for queue in self._admitting],
                why_over=self.leases.contents(),
                now=self._tally.clock.now,
                num_vacancies=self._num_vacancies,
            )
        return Snapshot(record, recorder.items, at_rest, recorder.rest, recorder.sent)

    def watch(
        self, snapshot: Snapshot, max_bytes: int = 0, give_up: Callable[[], None] = lambda: None
    ) -> None:
        """Let a snapshot be told what enters from now on, until `unwatch`.

        Args:
            snapshot: it.
            max_bytes: how much may enter; 0 is unbounded.
            give_up: called when more has entered; it is to call `unwatch`.
        """
        self._tally.watches.append(Watch(snapshot.entered, max_bytes, give_up))

    def unwatch(self, snapshot: Snapshot) -> None:
        """Tell a snapshot nothing more."""
        self._tally.watches = [each for each in self._tally.watches if each.entered is not snapshot.entered]

    def restore(self, record: StateRecord, payloads: Sequence[Any]) -> None:
        """Hold what a record says; `payloads[n]` is that of the item whose record names `n`.

        Its leases have no clocks: start one for each of `leases.all()`.

        Raises:
            ValueError: it holds something, or is waited for.
        """
        if self._queues or self._clients or self.num_accepted:
            message = f"it is not empty: {self.num_accepted} items were put, and {len(self._queues)} queues are there"
            raise ValueError(message)
        self.closed, self._all_ended = record.closed, record.all_ended
        self._ended = dict.fromkeys(as_name(name) for name in record.ended)
        tally = self._tally
        tally.num_items, tally.size_bytes = record.num_accepted, record.accepted_bytes
        tally.num_lost, tally.lost_bytes = record.num_lost, record.lost_bytes
        tally.clock.now = record.now or tally.clock.now
        self.leases.last_number, self._num_vacancies = record.last_number, record.num_vacancies
        self._clients = {client.name: Client(client.name) for client in record.clients}
        # Queues see subscriptions, and subscriptions queues.
        queues = [self._queue_of(each) for each in record.queues]
        restorer = Restorer(payloads, self.leases, self._clients, self._taps)
        for queue, each in zip(queues, record.queues, strict=True):
            restorer.fill(queue, each)
        for client in record.clients:
            restorer.arrange(client)
        for letter in record.dead:
            restorer.bury(self._queue(as_name(letter.queue)), letter)
        self.leases.arrange(record.why_over)
        for queue in queues:
            self._drop_if_idle(queue)
        self._line_up(record.crowded)
        names = *map(as_name, record.admitting), *self._queues
        admitting = [self._queues[name] for name in names if name in self._queues]
        self._admitting = {queue: None for queue in admitting if queue.admission is not None}

    def _line_up(self, names: Iterable[Any]) -> None:
        """Let queues wait for room in the order in which they did."""
        for name in names:
            queue = self._queues[as_name(name)]
            queue.leave_line()
            queue.wait_for_room()

    def ripening(self) -> list[Instruction]:
        """Return the instructions for a shell that takes this state over: the waits of its batches begin again."""
        return [
            Ripen(client.name, getter.ticket, getter.wanted.limits.max_wait_s or 0.0)
            for client in self._clients.values()
            for getter in client.operations.values()
            if isinstance(getter, Getter) and getter.items is None and getter.ripens and not getter.waited
            if isinstance(getter.wanted, Wanted)
        ]

    def _leases_by_queue(self, done: Collection[int]) -> defaultdict[NamedQueue, list[HeldItems]]:
        leases: defaultdict[NamedQueue, list[HeldItems]] = defaultdict(list)
        for lease in self.leases.all():
            if lease.generation not in done:
                leases[lease.queue].append(lease)
        return leases

    def _deliveries_by_queue(self) -> defaultdict[NamedQueue, list[Getter[NamedQueue]]]:
        """What was sent, is not confirmed, and is not on lease; parts stay with their shards."""
        sent: defaultdict[NamedQueue, list[Getter[NamedQueue]]] = defaultdict(list)
        for client in self._clients.values():
            for each in client.operations.values():
                if isinstance(each, Getter) and each.items is not None and each.lease is None:
                    sent[each.queue].append(each)
        return sent

    def _queue_of(self, record: QueueRecord) -> NamedQueue:
        """The queue of a record, still empty."""
        name = as_name(record.name)
        if record.tap is None:
            return self._queue(name)
        queue_name, drops, *bounds = record.tap[:4]
        # One that does not drop is to see everything, and no put waits for it any more.
        terms = TapTerms(as_name(queue_name), *bounds) if drops else TapTerms(as_name(queue_name))
        tap = self._tap(name.subscription, terms)
        tap.load(record.tap)
        if not tap.removed:
            self._begin(tap)
        return tap
