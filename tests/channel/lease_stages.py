"""What the rules of leases are told on: a stage has one queue, and consumers by name that may hang or die."""

from __future__ import annotations

import itertools
import signal
from typing import Any, NamedTuple

import lease_roles as roles

from rlinf_scheduler.queueing import ChannelState, Deliver, Item, LeaseTerms, Limits, OperationOver
from rlinf_scheduler.queueing.leases import Lapse, Leases, Settle
from rlinf_scheduler.queueing.messages import EndQueue, Get, Lose, Put
from waits import wait_until

Q = "default"
DEADLINE_S = 30.0
LONG_S, SHORT_S = 60.0, 1.0


class Held(NamedTuple):
    """A lease that a consumer has."""

    consumer: str
    number: int
    items: list[Any]
    attempts: list[int]


class OnStateMachine:
    """The state machine alone."""

    def __init__(self, **options):
        self.state = ChannelState(**options)
        self.tickets = itertools.count()
        self.held = []

    def put(self, *items):
        for item in items:
            self.state.apply(Put(next(self.tickets), Q), "producer", Item(item, 1, 10))

    def lease(self, consumer, most=1, *, hangs=False):
        terms = LeaseTerms(SHORT_S if hangs else LONG_S, consumer)
        told = self.state.apply(Get(next(self.tickets), Q, limits=Limits(most, most), grant=terms), consumer)
        (delivery,) = [each for each in told if isinstance(each, Deliver)]
        items = [item.payload for item in delivery.items]
        self.held.append(Held(consumer, delivery.grant.generation, items, list(delivery.grant.attempts)))
        return self.held[-1]

    def ack(self, held, only=None):
        return self._settle(held, only, True)

    def nack(self, held, only=None):
        return self._settle(held, only, False)

    def _settle(self, held, only, done):
        try:
            self.state.apply(Settle(held.number, only, done), held.consumer)
        except OperationOver:
            return False
        return True

    def hang(self, consumer):
        for held in self.held:
            if held.consumer == consumer:
                self.state.apply(Lapse(held.number))

    def go_on(self, consumer):
        pass

    def die(self, consumer):
        self.state.apply(Lose(), consumer)

    def end(self):
        self.state.apply(EndQueue(Q))

    def counts(self):
        sums = [(depth.num_items, depth.num_leased, depth.num_dead) for depth in self.state.queues.depths()]
        return sums[0] if sums else (0, 0, 0)

    def dead(self):
        return [
            (each.item.payload, each.attempts, each.reason)
            for each in self.state.policy(Leases).dead_letters()
        ]


class OnProcesses:
    """A channel, its producer and each consumer in processes of their own, over sockets."""

    def __init__(self, sockets, **options):
        self.sockets = sockets
        self.channel = sockets.create(**options)
        self.consumers = {}

    def put(self, *items):
        for item in items:
            self.channel.put(item, weight=1)

    def _ask(self, consumer, *order):
        if consumer not in self.consumers:
            orders = self.sockets.create()
            self.consumers[consumer] = self.sockets.run(roles.obey, self.channel, orders), orders
        _, orders = self.consumers[consumer]
        orders.put(order, queue_name="orders")
        return orders.get("answers", timeout_s=DEADLINE_S)

    def lease(self, consumer, most=1, *, hangs=False):
        return Held(consumer, *self._ask(consumer, "lease", most, SHORT_S if hangs else LONG_S))

    def ack(self, held, only=None):
        return self._ask(held.consumer, "ack", held.number, only)

    def nack(self, held, only=None):
        return self._ask(held.consumer, "nack", held.number, only)

    def hang(self, consumer):
        self.consumers[consumer][0].stop()
        wait_until(lambda: self.counts()[1] == 0)

    def go_on(self, consumer):
        self.consumers[consumer][0].signal(signal.SIGCONT)

    def die(self, consumer):
        task, _ = self.consumers.pop(consumer)
        task.kill()
        wait_until(lambda: self.counts()[1] == 0)

    def close(self):
        for task, _ in self.consumers.values():
            task.kill()

    def end(self):
        self.channel.end()

    def counts(self):
        stats = self.channel.stats()
        return stats.num_items, stats.num_leased, stats.num_dead

    def dead(self):
        return [(each.item, each.attempts, each.reason) for each in self.channel.dead_letters()]
