"""Any order of slots, puts, takes, deaths and versions: nothing is taken too late or lost, and it always goes on."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from effort import tries
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import Lapse, LeaseTerms, Settle, StartClock, StopClock
from rlinf_scheduler.queueing.messages import Accept, Deliver, Fill, Get, Lose, Put, Reason, Refuse, Withdraw
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.surveying import QueueSurvey
from rlinf_scheduler.queueing.version_gate import OnSlot
from rlinf_scheduler.queueing.versions import AskForSlot, SetVersion
from rlinf_scheduler.queueing.wanted import Limits

MAKERS = st.sampled_from(["maker0", "maker1"])
TAKERS = st.sampled_from(["trainer", "other"])
INDEX = st.integers(0, 30)


class AdmissionMachine(RuleBasedStateMachine):
    @initialize(batch_items=st.integers(1, 4), maxsize=st.sampled_from([0, 0, 3]))
    def create(self, batch_items, maxsize):
        self.state = ChannelState(maxsize, max_attempts=0)
        self.batch_items = batch_items
        self.ticket = 0
        self.version = 0
        self.max_lags = {}  # of who asks, by ticket
        self.slots = {}  # ticket -> (client, number, version, max_lag)
        self.open = {}  # payload -> the last version that may take it; of what is put and not taken for good
        self.given = {}  # ticket -> (client, items)
        self.leases = {}  # generation -> (client, items)
        self.moving = {}  # ticket -> version
        self.puts = {}  # ticket -> latest
        self.num_put = self.num_taken = 0
        self.of_version = set()  # what this version was given and has not given back
        self.set_version(0, begins=True)

    def next_ticket(self):
        self.ticket += 1
        return self.ticket

    def follow(self, instructions):
        for each in instructions:
            match each:
                case Deliver(client, ticket, _, _, OnSlot() as slot):
                    assert slot.version == self.version
                    self.slots[ticket] = client, slot.number, slot.version, self.max_lags.pop(ticket)
                case Deliver(client, ticket, items, _, lease):
                    for item in items:
                        assert self.open[item.payload] >= self.version
                        self.of_version.add(item.payload)
                    assert len(self.of_version) <= self.batch_items
                    if lease is not None:
                        self.leases[lease.generation] = client, {i: e.payload for i, e in enumerate(items)}
                    else:
                        self.given[ticket] = client, [item.payload for item in items]
                case Accept(_, ticket) if ticket in self.moving:
                    self.version = self.moving.pop(ticket)
                    self.of_version.clear()
                    assert all(latest >= self.version for latest in self.open.values())
                case Accept(_, ticket):
                    self.open[ticket] = self.puts.pop(ticket)
                    self.num_put += 1
                case Refuse(_, ticket, reason):
                    moved = self.moving.pop(ticket, None)
                    assert moved is None or reason in (Reason.TOO_EARLY, Reason.CANCELLED)
                    self.max_lags.pop(ticket, None)
                case StartClock() | StopClock():
                    pass

    def settle(self, items):
        for item in items:
            assert self.open.pop(item) >= self.version
            self.num_taken += 1

    # -- makers ------------------------------------------------------------------------------------

    @rule(client=MAKERS, max_lag=st.integers(0, 3), wait=st.booleans())
    def admit(self, client, max_lag, wait):
        ticket = self.next_ticket()
        self.max_lags[ticket] = max_lag
        self.follow(self.state.apply(AskForSlot(ticket, "q", wait, max_lag), client))

    @rule(index=INDEX, reserved=st.booleans(), by=MAKERS)
    def put(self, index, reserved, by):
        if not self.slots:
            return
        _, number, version, max_lag = self.slots.pop(sorted(self.slots)[index % len(self.slots)])
        ticket = self.next_ticket()
        self.puts[ticket] = version + max_lag
        if reserved:
            out = self.state.apply(Put(ticket, "q", size_bytes=0), by, Item(None, slot=number))
            assert out == [] or len(out) == 1
            self.follow(self.state.apply(Fill(ticket), by, ticket))
        else:
            self.follow(self.state.apply(Put(ticket, "q"), by, Item(ticket, slot=number)))
        assert ticket not in self.puts  # a slot has room

    @rule(index=INDEX)
    def drop_slot(self, index):
        if self.slots:
            ticket = sorted(self.slots)[index % len(self.slots)]
            client = self.slots.pop(ticket)[0]
            self.follow(self.state.apply(Withdraw(ticket), client))

    @rule(client=MAKERS)
    def lose_maker(self, client):
        self.slots = {ticket: slot for ticket, slot in self.slots.items() if slot[0] != client}
        self.follow(self.state.apply(Lose(), client))

    # -- takers ------------------------------------------------------------------------------------

    @rule(
        client=TAKERS,
        num=st.integers(1, 3),
        wait=st.booleans(),
        kind=st.sampled_from(["get", "batch", "lease"]),
    )
    def take(self, client, num, wait, kind):
        ticket, num = self.next_ticket(), min(num, self.batch_items)
        if kind == "get":
            out = self.state.apply(Get(ticket, "q", wait=wait), client)
        elif kind == "batch":
            out = self.state.apply(Get(ticket, "q", wait=wait, limits=Limits(num, num)), client)
        else:
            out = self.state.apply(
                Get(ticket, "q", wait=wait, limits=Limits(1, num), grant=LeaseTerms(9.0)),
                client,
            )
        self.follow(out)

    @rule(index=INDEX, keep=st.booleans())
    def end_delivery(self, index, keep):
        if self.given:
            ticket = sorted(self.given)[index % len(self.given)]
            client, items = self.given.pop(ticket)
            if keep:
                self.settle(items)
                self.follow(self.state.confirm(client, (ticket,)))
            else:
                self.of_version.difference_update(items)
                self.follow(self.state.apply(Withdraw(ticket), client))

    @rule(index=INDEX, keep=st.booleans(), delay_s=st.sampled_from([0, 5.0]))
    def end_lease(self, index, keep, delay_s):
        if self.leases:
            generation = sorted(self.leases)[index % len(self.leases)]
            client, items = self.leases.pop(generation)
            if keep:
                self.settle(items.values())
                self.follow(self.state.apply(Settle(generation, None, True), client) or [])
            else:
                self.of_version.difference_update(items.values())
                out = self.state.apply(Settle(generation, None, False, delay_s=delay_s), client) or []
                self.follow(out)
                for each in out:
                    if isinstance(each, StartClock) and not each.client:
                        self.follow(self.state.apply(Lapse(each.generation)))

    @rule(client=TAKERS)
    def lose_taker(self, client):
        for its_client, items in self.given.values():
            self.of_version.difference_update(items if its_client == client else ())
        for its_client, items in self.leases.values():
            self.of_version.difference_update(items.values() if its_client == client else ())
        self.given = {ticket: about for ticket, about in self.given.items() if about[0] != client}
        self.leases = {number: about for number, about in self.leases.items() if about[0] != client}
        self.moving = {ticket: version for ticket, version in self.moving.items() if client != "trainer"}
        self.follow(self.state.apply(Lose(), client))

    @rule(by=st.integers(1, 2))
    def go_on(self, by):
        if not self.moving:
            self.set_version(self.version + by)

    @rule(back=st.integers(0, 2))
    def begin_anew(self, back):
        if not self.moving:
            self.set_version(max(0, self.version - back), begins=True)

    def set_version(self, version, begins=False):
        ticket = self.next_ticket()
        self.moving[ticket] = version
        items = self.batch_items if begins else 0
        self.follow(self.state.apply(SetVersion(ticket, "q", True, version, items, begins=begins), "trainer"))

    # -- always ------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self):
        if hasattr(self, "state"):
            assert self.num_put == len(self.open) + self.num_taken
            held = sum(len(items) for _, items in [*self.given.values(), *self.leases.values()])
            assert QueueSurvey(self.state).num_items("q") == len(self.open) - held

    def teardown(self):
        """If all that is begun is done, everything is taken: version by version, as many as one takes."""
        if not hasattr(self, "state"):
            return
        self.lose_taker("other")
        self.lose_taker("trainer")
        while self.slots:
            self.put(0, False, "maker0")
        self.lose_maker("maker0")
        self.lose_maker("maker1")
        for _ in range(100):
            for _ in range(self.batch_items):
                self.take("trainer", 1, False, "get")
                self.end_delivery(0, True)
            if not self.open:
                return
            before = self.version
            self.set_version(self.version + 1)
            assert self.version == before + 1, self.state.queues.describe("q")
        raise AssertionError(self.state.queues.describe("q"))


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=tries(100), stateful_step_count=40, deadline=None)
