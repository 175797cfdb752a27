"""Any order of puts, gets, batches, withdrawals, deaths and closes: nothing lost, nothing twice, order kept."""

from __future__ import annotations

from collections import Counter, defaultdict

from channel_sums import check_sums
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from naive_channel import NaiveChannel

from effort import tries
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import (
    Accept,
    Arrive,
    Close,
    Deliver,
    EndAll,
    EndQueue,
    Fill,
    Flush,
    Get,
    Grant,
    Linger,
    Lose,
    Put,
    Refuse,
    Ripen,
    Withdraw,
)
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.surveying import QueueSurvey
from rlinf_scheduler.queueing.wanted import Limits

CLIENTS = st.sampled_from(["a", "b", "c"])
QUEUES = st.sampled_from(["default", "other"])
WEIGHTS = st.sampled_from([0, 0, 1, 2, 3, 7, 0.1, 0.25, 2.5])
BATCHES = st.sampled_from([None, 1, 2, 0.3, 5, 20])
LIMITS = st.one_of(
    st.just(Limits()),
    st.builds(
        Limits,
        st.integers(1, 3),
        st.sampled_from([0, 3, 4]),
        st.just(0),
        st.sampled_from([None, 1.0]),
        st.just(""),
    ),
)
OFTEN = st.sampled_from([True, True, True, False])


def as_event(instruction):
    match instruction:
        case Accept(client, ticket):
            return ("accept", client, ticket)
        case Grant(client, ticket):
            return ("grant", client, ticket)
        case Deliver(client, ticket, items, complete):
            return ("deliver", client, ticket, tuple(item.payload for item in items), complete)
        case Refuse(client, ticket, reason, _):
            return ("refuse", client, ticket, reason.value)


class ChannelMachine(RuleBasedStateMachine):
    @initialize(maxsize=st.sampled_from([0, 1, 2, 3]))
    def create(self, maxsize):
        self.state = ChannelState(maxsize)
        self.model = NaiveChannel(maxsize)
        self.ticket = 0
        self.producer = {}
        self.queue_of = {}
        self.open = {}  # ticket -> client, of everything that was started
        self.granted = {}
        self.ripening = []
        self.accepted = []
        self.delivering = {}
        self.confirmed = []

    def check(self, instructions, expected):
        self.ripening += [(each.client, each.ticket) for each in instructions if isinstance(each, Ripen)]
        events = [as_event(each) for each in instructions if not isinstance(each, Ripen)]
        # The order of news matters among those of one kind to one client about one queue.
        assert self.by_line(events) == self.by_line(expected)
        for event in events:
            kind, client, ticket = event[:3]
            if kind == "accept":
                self.accepted.append(ticket)
            elif kind == "grant":
                self.granted[ticket] = client
            elif kind == "deliver":
                self.delivering[ticket] = (client, event[3])

    def by_line(self, events):
        grouped = defaultdict(list)
        for event in events:
            kind, client, ticket = event[:3]
            grouped[kind, client, self.queue_of[ticket], ticket in self.producer].append(event)
        return grouped

    def new_ticket(self, client, name):
        self.ticket += 1
        self.queue_of[self.ticket] = name
        self.open[self.ticket] = client
        return self.ticket

    @rule(client=CLIENTS, name=QUEUES, weight=WEIGHTS, wait=OFTEN)
    def put(self, client, name, weight, wait):
        ticket = self.new_ticket(client, name)
        self.producer[ticket] = client
        self.check(
            self.state.apply(Put(ticket, name, wait=wait), client, Item(ticket, weight)),
            self.model.put(client, ticket, name, ticket, weight, True, wait),
        )

    @rule(client=CLIENTS, name=QUEUES, weight=WEIGHTS, wait=OFTEN)
    def reserve(self, client, name, weight, wait):
        ticket = self.new_ticket(client, name)
        self.producer[ticket] = client
        self.check(
            self.state.apply(Put(ticket, name, wait=wait, size_bytes=0), client, Item(None, weight)),
            self.model.put(client, ticket, name, ticket, weight, False, wait),
        )

    @rule(data=st.data())
    def fill(self, data):
        if self.granted:
            ticket = data.draw(st.sampled_from(sorted(self.granted)))
            client = self.granted.pop(ticket)
            self.check(self.state.apply(Fill(ticket), client, ticket), self.model.fill(client, ticket))

    @rule(client=CLIENTS, name=QUEUES, wait=OFTEN)
    def get(self, client, name, wait):
        ticket = self.new_ticket(client, name)
        self.check(
            self.state.apply(Get(ticket, name, wait=wait), client),
            self.model.get(client, ticket, name, None, wait),
        )

    @rule(client=CLIENTS, name=QUEUES, batch_weight=BATCHES, limits=LIMITS, wait=OFTEN)
    def get_batch(self, client, name, batch_weight, limits, wait):
        ticket = self.new_ticket(client, name)
        self.check(
            self.state.apply(Get(ticket, name, wait=wait, batch_weight=batch_weight, limits=limits), client),
            self.model.get(client, ticket, name, batch_weight, wait, limits),
        )

    @rule(data=st.data())
    def ripen(self, data):
        if self.ripening:
            client, ticket = data.draw(st.sampled_from(self.ripening))
            self.check(self.state.apply(Linger(ticket), client), self.model.ripen(client, ticket))

    @rule(data=st.data())
    def withdraw(self, data):
        if self.open:
            ticket = data.draw(st.sampled_from(sorted(self.open)))
            client = self.open[ticket]
            self.delivering.pop(ticket, None)
            self.check(self.state.apply(Withdraw(ticket), client), self.model.withdraw(client, ticket))

    @rule(data=st.data())
    def arrive(self, data):
        if self.delivering:
            ticket = data.draw(st.sampled_from(sorted(self.delivering)))
            client, _ = self.delivering[ticket]
            self.check(self.state.apply(Arrive(ticket), client), self.model.arrive(client, ticket))

    @rule(data=st.data())
    def confirm(self, data):
        if self.delivering:
            ticket = data.draw(st.sampled_from(sorted(self.delivering)))
            client, payloads = self.delivering.pop(ticket)
            self.confirmed.extend(payloads)
            self.check(self.state.confirm(client, (ticket,)), self.model.confirm(client, ticket))

    @rule(client=CLIENTS)
    def lose(self, client):
        self.delivering = {t: entry for t, entry in self.delivering.items() if entry[0] != client}
        self.granted = {t: owner for t, owner in self.granted.items() if owner != client}
        self.open = {t: owner for t, owner in self.open.items() if owner != client}
        self.check(self.state.apply(Lose(), client), self.model.lose(client))

    @rule(rarely=st.integers(0, 9))
    def close(self, rarely):
        if rarely == 0:
            self.check(self.state.apply(Close()), self.model.close())

    @rule(name=QUEUES, rarely=st.integers(0, 5))
    def end(self, name, rarely):
        if rarely == 0:
            self.check(self.state.apply(EndQueue(name)), self.model.end(name))

    @rule(rarely=st.integers(0, 9))
    def end_all(self, rarely):
        if rarely == 0:
            self.check(self.state.apply(EndAll()), self.model.end_all())

    @rule(name=QUEUES)
    def flush(self, name):
        self.check(self.state.apply(Flush(name)), self.model.flush(name))

    @invariant()
    def accepted_items_are_in_exactly_one_place(self):
        held = [payload for queue in self.model.queues.values() for _, payload, _ in queue.items]
        moving = [payload for _, payloads in self.delivering.values() for payload in payloads]
        assert Counter(held + moving + self.confirmed) == Counter(self.accepted)
        for name in ("default", "other"):
            assert QueueSurvey(self.state).num_items(name) == len(self.model.queue(name).items)

    @invariant()
    def puts_of_one_client_to_one_queue_keep_their_order(self):
        for client in "abc":
            for name in ("default", "other"):
                mine = [
                    ticket
                    for ticket in self.accepted
                    if (self.producer[ticket], self.queue_of[ticket]) == (client, name)
                ]
                assert mine == sorted(mine)

    @invariant()
    def the_sums_are_those_of_the_queues(self):
        check_sums(self.state)

    @invariant()
    def idle_queues_are_freed(self):
        busy = {
            name
            for name, queue in self.model.queues.items()
            if queue.items or queue.puts or queue.gets or queue.deliveries
        }
        assert {depth.name for depth in depths_of(self.state.queues)} == busy


ChannelMachine.TestCase.settings = settings(max_examples=tries(50), stateful_step_count=40, deadline=None)
TestAnyOrderOfEvents = ChannelMachine.TestCase
