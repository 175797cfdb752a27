"""Any order of leases, settlements, deaths and ends: each accepted item is queued, leased, done with or dead."""

from __future__ import annotations

from collections import Counter

from channel_sums import check_sums, is_over
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from effort import tries
from rlinf_scheduler.queueing.dead_letters import DeadLetters, MoveDead
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import Lapse, Leases, LeaseTerms, Settle, StartClock, StopClock
from rlinf_scheduler.queueing.messages import Accept, Deliver, EndQueue, Get, Lose, Put, Refuse, Withdraw
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.wanted import Limits

CLIENTS = st.sampled_from(["a", "b"])
QUEUES = st.sampled_from(["default", "other"])
MAX_ATTEMPTS, MAX_LEASED = 3, 2


class LeaseMachine(RuleBasedStateMachine):
    @initialize(maxsize=st.sampled_from([0, 2, 4]))
    def create(self, maxsize):
        self.maxsize = maxsize
        self.state = ChannelState(maxsize, max_attempts=MAX_ATTEMPTS, max_leased=MAX_LEASED)
        self.ticket = 0
        self.accepted, self.done = [], []
        self.ended = set()
        self.waiting = {}  # ticket -> client
        self.leases = {}  # generation -> (client, ticket, {place: item})
        self.clocks = set()
        self.generations = []
        self.num_returned = 0

    def follow(self, instructions):
        for each in instructions:
            match each:
                case Accept(_, ticket):
                    self.accepted.append(ticket)
                case StartClock(_, _, generation, _):
                    self.clocks.add(generation)
                case StopClock(_, _, generation):
                    self.clocks.remove(generation)
                    self.leases.pop(generation, None)
                case Deliver(client, ticket, items, _, lease) if lease is not None:
                    del self.waiting[ticket]
                    assert lease.attempts == [item.attempts for item in items]
                    assert max(lease.attempts) <= MAX_ATTEMPTS
                    held = dict(enumerate(item.payload for item in items))
                    self.leases[lease.generation] = client, ticket, held
                    self.generations.append(lease.generation)
                case Deliver(client, ticket, items):
                    self.done += [item.payload for item in items]
                    self.follow(self.state.confirm(client, (ticket,)))
                case Refuse(_, ticket, _, _):
                    self.waiting.pop(ticket, None)

    def next_ticket(self):
        self.ticket += 1
        return self.ticket

    @rule(queue=QUEUES, weight=st.integers(0, 3))
    def put(self, queue, weight):
        ticket = self.next_ticket()
        self.follow(self.state.apply(Put(ticket, queue), "p", Item(ticket, weight)))

    @rule(queue=QUEUES)
    def get(self, queue):
        self.follow(self.state.apply(Get(self.next_ticket(), queue, wait=False), "g"))

    @rule(client=CLIENTS, queue=QUEUES, num_items=st.integers(0, 3), wait=st.booleans())
    def lease(self, client, queue, num_items, wait):
        ticket = self.next_ticket()
        self.waiting[ticket] = client
        limits = Limits(1, num_items) if num_items else None
        self.follow(
            self.state.apply(
                Get(ticket, queue, wait=wait, limits=limits, grant=LeaseTerms(1.0, client)),
                client,
            )
        )

    def one_of(self, data):
        generation = data.draw(st.sampled_from(sorted(self.leases)))
        return generation, *self.leases[generation]

    @rule(data=st.data())
    def acknowledge(self, data):
        if self.leases:
            generation, client, _, held = self.one_of(data)
            places = data.draw(st.none() | st.sets(st.sampled_from(sorted(held)), min_size=1))
            for place in sorted(held if places is None else places):
                self.done.append(held.pop(place))
            self.follow(self.state.apply(Settle(generation, places, True), client))

    @rule(data=st.data(), delay_s=st.sampled_from([0, 1]))
    def give_back(self, data, delay_s):
        if self.leases:
            generation, client, _, held = self.one_of(data)
            places = data.draw(st.none() | st.sets(st.sampled_from(sorted(held)), min_size=1))
            for place in sorted(held if places is None else places):
                del held[place]
            self.follow(
                self.state.apply(Settle(generation, places, False, delay_s=delay_s, reason="r"), client)
            )

    @rule(data=st.data())
    def lapse(self, data):
        if self.clocks:
            self.follow(self.state.apply(Lapse(data.draw(st.sampled_from(sorted(self.clocks))))))

    @rule(data=st.data())
    def speak_too_late(self, data):
        over = sorted(set(self.generations) - set(self.leases))
        if over:
            generation = data.draw(st.sampled_from(over))
            assert is_over(self.state, Settle(generation, None, True), "a")
            assert is_over(self.state, Settle(generation, None, False), "b")

    @rule(data=st.data())
    def withdraw(self, data):
        tickets = {ticket: client for client, ticket, _ in self.leases.values()} | self.waiting
        if tickets:
            ticket = data.draw(st.sampled_from(sorted(tickets)))
            self.waiting.pop(ticket, None)
            self.follow(self.state.apply(Withdraw(ticket), tickets[ticket]))

    @rule(client=CLIENTS)
    def lose(self, client):
        self.waiting = {ticket: owner for ticket, owner in self.waiting.items() if owner != client}
        self.follow(self.state.apply(Lose(), client))

    @rule(data=st.data(), again=st.booleans())
    def move_a_dead_letter(self, data, again):
        letters = self.state.policy(DeadLetters).of()
        if letters:
            letter = data.draw(st.sampled_from(letters))
            if again:
                self.follow(self.state.apply(MoveDead(letter.number, True)))
            else:
                self.done.append(letter.item.payload)
                self.follow(self.state.apply(MoveDead(letter.number, False)))

    @rule(queue=QUEUES, rarely=st.integers(0, 7))
    def end(self, queue, rarely):
        if rarely == 0:
            self.ended.add(queue)
            self.follow(self.state.apply(EndQueue(queue)))

    @invariant()
    def each_item_is_in_one_place(self):
        leases = self.state.policy(Leases)
        queued = [i.payload for queue in self.state.queues.all() for i in _items_of(queue.fifo)]
        leased = [item.payload for lease in leases._open.values() for item in lease.items.values()]
        dead = [letter.item.payload for letter in self.state.policy(DeadLetters).of()]
        assert Counter(queued + leased + dead + self.done) == Counter(self.accepted)

    @invariant()
    def the_counts_are_those_of_the_items(self):
        leases = self.state.policy(Leases)._open.values()
        assert self.clocks == {lease.generation for lease in leases}
        for depth in depths_of(self.state.queues):
            mine = [lease for lease in leases if lease.queue.name == depth.name]
            assert depth.num_leased == sum(len(lease.items) for lease in mine)
            assert depth.num_dead == len(self.state.policy(DeadLetters).of(depth.name))
            queue = self.state.queues.find(depth.name)
            assert queue.num_lent == len(mine)
        for name in self.state.queues.clients:
            held = [lease for lease in self.leases.values() if lease[0] == name]
            consumer = self.state.policy(Leases).consumer(name)
            assert consumer.num_items == sum(len(items) for _, _, items in held)
            if name in ("a", "b") and consumer.num_items < MAX_LEASED:
                assert not consumer.skipped

    @invariant()
    def the_sums_are_those_of_the_queues(self):
        check_sums(self.state)

    @invariant()
    def generations_only_grow(self):
        assert self.generations == sorted(set(self.generations))

    @invariant()
    def nobody_waits_in_vain(self):
        for depth in depths_of(self.state.queues):
            queue = self.state.queues.find(depth.name)
            if queue.getters:
                assert not depth.num_items
            may_come = depth.num_items or depth.num_leased or queue.putters
            if depth.name in self.ended and not may_come:
                assert depth.num_getters == 0
            if queue.putters:
                assert self.maxsize <= depth.num_items + depth.num_leased


def _items_of(fifo):
    items = [item for _, item in fifo._returned] + list(fifo._items)
    return items + (list(fifo._ranked._items.values()) if fifo._ranked is not None else [])


LeaseMachine.TestCase.settings = settings(max_examples=tries(50), stateful_step_count=50, deadline=None)
TestAnyOrderOfLeases = LeaseMachine.TestCase
