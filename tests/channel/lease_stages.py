"""What the rules of leases are told on: a stage has one queue, and consumers by name that may hang or die."""

from __future__ import annotations

import contextlib
import itertools
import signal
from functools import partial
from typing import Any, NamedTuple

import lease_roles as roles

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.channel.features import FEATURES
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.spec import ChannelRef, ChannelSpec
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import LeaseExpired
from rlinf_scheduler.queueing.dead_letters import DeadLetters
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import Lapse, LeaseTerms, Settle
from rlinf_scheduler.queueing.messages import Deliver, EndQueue, Get, Lose, Put
from rlinf_scheduler.queueing.policy import OperationOver
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.wanted import Limits
from simulator import Machines
from simulator.host import Host
from simulator.network import Network
from simulator.processes import Processes, errors_are_found
from simulator.threads import UserThread
from simulator.world import World
from waits import wait_until

Q = "default"
DEADLINE_S = 60.0
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
        sums = [(depth.num_items, depth.num_leased, depth.num_dead) for depth in depths_of(self.state.queues)]
        return sums[0] if sums else (0, 0, 0)

    def dead(self):
        return [
            (each.item.payload, each.attempts, each.reason) for each in self.state.policy(DeadLetters).of()
        ]


class OnSimulator:
    """A channel, its producer and each consumer in processes of a simulated kernel: the product, in virtual time."""

    def __init__(self, **options):
        self._within = contextlib.ExitStack()
        self._within.enter_context(errors_are_found())
        self.world, self.machines = World(0), Machines()
        self.network = Network(self.world)
        self.home = self._host("home")
        self.processes = Processes(self.world, self.network, self.machines, self.home)
        self.spec = ChannelSpec("channel", channel_id="c", **options)
        messenger = self.processes.of(self.home).messenger
        self.server = ChannelServer(messenger, self.spec, FEATURES)
        self.ref = ChannelRef(self.spec, messenger.endpoint)
        self.blocks = []
        self.hosts = {}

    def _host(self, name):
        return Host(self.world, self.network, name, self.machines)

    def _do(self, name, ask):
        """What a thread of a process asks of its channel, once that is known."""
        if name not in self.hosts:
            self.hosts[name] = self._host(name)
        host, answer = self.hosts[name], Promise()
        session = self.processes.of(host).session
        if session.fact(ChannelConnections) is None:
            session.provide(ChannelConnections, ChannelConnections(session))
        channel = Channel(self.ref)
        thread = UserThread(host, -1, self.world.randomness(name), lambda _thread: None)
        thread.session = session
        host.later(0, thread.run, answer.set_from, partial(ask, channel))
        self.world.run(answer.done)
        return answer.result(0)

    def put(self, *items):
        for item in items:
            self._do("producer", partial(Channel.put, item=item, weight=1))

    def lease(self, consumer, most=1, *, hangs=False):
        ttl_s = SHORT_S if hangs else LONG_S

        def lease(channel):
            block = channel.lease(min_items=most, max_items=most, ttl_s=ttl_s, timeout_s=DEADLINE_S)
            self.blocks.append(block)
            return block.__enter__()

        lease = self._do(consumer, lease)
        return Held(consumer, lease, list(lease.items), list(lease.attempts))

    def _settle(self, held, how, only):
        try:
            self._do(held.consumer, lambda _channel: getattr(held.number, how)(only=only))
        except LeaseExpired:
            return False
        return True

    def ack(self, held, only=None):
        return self._settle(held, "ack", only)

    def nack(self, held, only=None):
        return self._settle(held, "nack", only)

    def _wait_until_nothing_is_leased(self):
        self.world.run(lambda: not depths_of(self.server.state.queues)[0].num_leased)

    def hang(self, consumer):
        self.hosts[consumer].pause()
        self._wait_until_nothing_is_leased()

    def go_on(self, consumer):
        self.hosts[consumer].resume()

    def die(self, consumer):
        self.hosts[consumer].die()
        self.network.buried(consumer)
        self._wait_until_nothing_is_leased()

    def close(self):
        self._within.close()

    def end(self):
        self._do("producer", Channel.end)

    def counts(self):
        stats = self._do("producer", Channel.stats)
        return stats.num_items, stats.num_leased, stats.num_dead

    def dead(self):
        return self._do("producer", dead_letters)


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
        return dead_letters(self.channel)


def dead_letters(channel):
    return [(each.item, each.attempts, each.reason) for each in channel.dead_letters()]
