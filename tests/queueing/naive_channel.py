"""The rules of a queue once more, obviously right and slow: the model that property tests compare with."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from rlinf_scheduler.queueing.wanted import Limits


@dataclass(eq=False)
class NaivePut:
    client: str
    ticket: int
    payload: str
    weight: float
    complete: bool
    has_room: bool = False


@dataclass(eq=False)
class NaiveGet:
    client: str
    ticket: int
    batch_weight: float | None
    limits: Limits | None = None  # of a batch
    waited: bool = False


@dataclass
class NaiveQueue:
    entered: int = 0
    items: list = field(default_factory=list)  # (order, payload, weight)
    puts: list = field(default_factory=list)  # unfinished, in order of arrival
    gets: list = field(default_factory=list)
    deliveries: dict = field(default_factory=dict)  # (client, ticket) -> items
    arrived: set = field(default_factory=set)
    ended: bool = False
    flushed: int = 0


class NaiveChannel:
    def __init__(self, maxsize):
        self.maxsize = maxsize
        self.closed = False
        self.all_ended = False
        self.queues = {}

    def queue(self, name):
        return self.queues.setdefault(name, NaiveQueue())

    def end(self, name):
        self.queue(name).ended = True
        return self.settle(self.queue(name))

    def end_all(self):
        self.all_ended = True
        return [event for queue in self.queues.values() for event in self.settle(queue)]

    def flush(self, name):
        self.queue(name).flushed = self.queue(name).entered
        return self.settle(self.queue(name))

    def is_last(self, queue):
        return self.closed or ((self.all_ended or queue.ended) and not queue.puts)

    def why_over(self):
        return "closed" if self.closed else "ended"

    def has_room(self, queue):
        with_room = sum(put.has_room for put in queue.puts)
        return not self.maxsize or len(queue.items) + with_room < self.maxsize

    def put(self, client, ticket, name, payload, weight, complete, wait):
        if self.closed:
            return [("refuse", client, ticket, "closed")]
        queue = self.queue(name)
        if self.all_ended or queue.ended:
            return [("refuse", client, ticket, "ended")]
        if not wait and not self.has_room(queue):
            return [("refuse", client, ticket, "full")]
        queue.puts.append(NaivePut(client, ticket, payload, weight, complete))
        return self.settle(queue)

    def fill(self, client, ticket):
        for queue in self.queues.values():
            for put in queue.puts:
                if (put.client, put.ticket) == (client, ticket) and put.has_room:
                    put.complete = True
                    return [*self.enter_in_a_row(queue, client), *self.settle(queue)]
        return []

    def enter_in_a_row(self, queue, client):
        """A put whose bytes are here, and what is complete right behind it, come at one moment."""
        events = []
        for put in [put for put in queue.puts if put.client == client]:
            if not (put.has_room and put.complete):
                break
            events.append(self.enter(queue, put))
        return events

    def get(self, client, ticket, name, batch_weight, wait, limits=None):
        queue = self.queue(name)
        getter = NaiveGet(client, ticket, batch_weight, limits)
        queue.gets.append(getter)
        events = self.settle(queue)
        if not wait and getter in queue.gets:
            queue.gets.remove(getter)
            events.append(("refuse", client, ticket, "empty"))
        return events

    def ripen(self, client, ticket):
        for queue in self.queues.values():
            for get in queue.gets:
                if (get.client, get.ticket) == (client, ticket):
                    get.waited = True
                    return self.settle(queue)
        return []

    def withdraw(self, client, ticket):
        for queue in self.queues.values():
            for line in (queue.puts, queue.gets):
                for waiter in line:
                    if (waiter.client, waiter.ticket) == (client, ticket):
                        line.remove(waiter)
                        events = [("refuse", client, ticket, "cancelled")]
                        if line is queue.puts and waiter.has_room:
                            events += self.enter_in_a_row(queue, client)
                        return events + self.settle(queue)
            items = queue.deliveries.pop((client, ticket), None)
            if items is not None:
                queue.items = sorted(queue.items + items)
                return [("refuse", client, ticket, "cancelled"), *self.settle(queue)]
        return []

    def arrive(self, client, ticket):
        for queue in self.queues.values():
            queue.arrived.add((client, ticket))
        return [event for queue in self.queues.values() for event in self.settle(queue)]

    def confirm(self, client, ticket):
        for queue in self.queues.values():
            if queue.deliveries.pop((client, ticket), None) is not None:
                return self.settle(queue)
        return []

    def lose(self, client):
        touched = []
        for queue in self.queues.values():
            queue.puts = [put for put in queue.puts if put.client != client]
            queue.gets = [get for get in queue.gets if get.client != client]
            for key in [key for key in queue.deliveries if key[0] == client]:
                queue.items = sorted(queue.items + queue.deliveries.pop(key))
            touched.append(queue)
        return [event for queue in touched for event in self.settle(queue)]

    def close(self):
        events = []
        if not self.closed:
            self.closed = True
            for queue in self.queues.values():
                events += [("refuse", put.client, put.ticket, "closed") for put in queue.puts]
                queue.puts = []
            for queue in self.queues.values():
                events += self.settle(queue)
        return events

    def settle(self, queue):
        events = []
        while True:
            step = self.serve(queue) + self.admit(queue)
            if not step:
                return events
            events += step

    def serve(self, queue):
        if not queue.gets:
            return []
        get = queue.gets[0]
        count = self.batch_size(queue, get)
        if count:
            taken, queue.items = queue.items[:count], queue.items[count:]
            queue.deliveries[get.client, get.ticket] = taken
            event = ("deliver", get.client, get.ticket, tuple(payload for _, payload, _ in taken))
            event += (self.is_complete(get, taken),)
        elif self.is_last(queue) and not queue.deliveries.keys() - queue.arrived:
            event = ("refuse", get.client, get.ticket, self.why_over())
        elif get.limits and not self.is_last(queue) and 0 < self.maxsize <= len(queue.items):
            event = ("refuse", get.client, get.ticket, "impossible")
        else:
            return []
        queue.gets.pop(0)
        return [event]

    def batch_size(self, queue, get):
        if get.limits is None:
            return min(1, len(queue.items))
        complete = [
            count for count in range(1, len(queue.items) + 1) if self.is_enough(get, queue.items[:count])
        ]
        bound = get.limits.max_items or len(queue.items)
        if get.limits.max_items and len(queue.items) >= bound:
            return min([*(complete if get.batch_weight else []), bound])
        full = 0 < self.maxsize <= len(queue.items)
        over = self.is_last(queue) or (queue.items and queue.items[0][0] < queue.flushed)
        waited = get.waited or (full and get.limits.max_wait_s is not None)
        waited = waited and len(queue.items) >= get.limits.min_items
        if get.batch_weight is None:
            at_once = complete and get.limits.max_wait_s is None
            return len(queue.items) if at_once or over or waited else 0
        return complete[0] if complete else len(queue.items) if over or waited else 0

    def is_enough(self, get, items):
        weight = sum(Fraction(weight) for _, _, weight in items)
        return len(items) >= get.limits.min_items and weight >= Fraction(get.batch_weight or 0)

    def is_complete(self, get, items):
        return get.limits is None or self.is_enough(get, items) or len(items) == get.limits.max_items

    def admit(self, queue):
        events = []
        for put in queue.puts:
            if not put.has_room and self.has_room(queue):
                put.has_room = True
                if not put.complete:
                    events.append(("grant", put.client, put.ticket))
                break
        for put in queue.puts:
            if put.has_room and put.complete and self.is_first_of_client(queue, put):
                return [*events, self.enter(queue, put)]
        return events

    def enter(self, queue, put):
        queue.puts.remove(put)
        queue.items.append((queue.entered, put.payload, put.weight))
        queue.entered += 1
        return ("accept", put.client, put.ticket)

    def is_first_of_client(self, queue, put):
        return next(other for other in queue.puts if other.client == put.client) is put
