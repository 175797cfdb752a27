"""What a run of operations does is what they do one by one."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import tries
from rlinf_scheduler.queueing.item import Item, SubscriptionName
from rlinf_scheduler.queueing.leases import Lapse, LeaseTerms, Settle
from rlinf_scheduler.queueing.messages import Deliver, EndQueue, Fill, Flush, Get, Lose, Put, Withdraw
from rlinf_scheduler.queueing.policy import OperationOver
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.taps import Subscribe
from rlinf_scheduler.queueing.wanted import NO_LIMITS

QUEUES = st.sampled_from(["a", "b"])
CLIENTS = st.sampled_from(["p", "q"])
PUT_RUN = st.tuples(st.just("put_run"), CLIENTS, QUEUES, st.lists(st.sampled_from([0, 1, 3, 9]), max_size=6))
GET_RUN = st.tuples(st.just("get_run"), CLIENTS, QUEUES, st.integers(0, 6))
OTHERS = st.one_of(
    st.tuples(st.just("priority"), CLIENTS, QUEUES),
    st.tuples(st.just("group"), CLIENTS, QUEUES),
    st.tuples(st.just("reserve"), CLIENTS, QUEUES),
    st.tuples(st.just("fill"), CLIENTS),
    st.tuples(st.just("get_batch"), CLIENTS, QUEUES, st.integers(1, 4)),
    st.tuples(st.just("lease"), CLIENTS, QUEUES),
    st.tuples(st.just("acknowledge"), CLIENTS),
    st.tuples(st.just("confirm_run"), CLIENTS, st.integers(1, 6)),
    st.tuples(st.just("withdraw"), CLIENTS, st.integers(0, 5)),
    st.tuples(st.just("lose"), CLIENTS),
    st.tuples(st.just("end"), QUEUES),
    st.tuples(st.just("flush"), QUEUES),
    st.tuples(st.just("subscribe"), CLIENTS, st.sampled_from(["a", None])),
    st.tuples(st.just("read"), CLIENTS, st.integers(1, 3)),
    st.tuples(st.just("nack"), CLIENTS, st.sampled_from([0, 1.0])),
    st.tuples(st.just("lapse"), st.integers(1, 4)),
    st.tuples(st.just("lose_items"), st.sampled_from(["item 3", "urgent"])),
)
STEPS = st.lists(st.one_of(PUT_RUN, GET_RUN, OTHERS), max_size=25)


class OneByOne(ChannelState):
    """Finds every queue too special for runs."""

    def put_run(self, client, queue_name, puts, out):
        return 0

    def get_run(self, client, queue_name, tickets, out):
        return 0


class Player:
    """Does steps on one channel; tickets count up, so that they are the same on any."""

    def __init__(self, state):
        self.state = state
        self.ticket = 0
        self.tickets = {"p": [], "q": []}

    def play(self, step):
        kind, *about = step
        return getattr(self, kind)(*about)

    def _new(self, client):
        self.ticket += 1
        self.tickets[client].append(self.ticket)
        return self.ticket

    def put_run(self, client, queue, sizes):
        puts = [(self._new(client), Item(f"item {size}", 1, size)) for size in sizes]
        out = []
        num_done = self.state.put_run(client, queue, puts, out)
        for ticket, item in puts[num_done:]:
            out += self.state.apply(
                Put(ticket, queue), client, Item(item.payload, item.weight, item.size_bytes)
            )
        return out

    def get_run(self, client, queue, count):
        tickets = [self._new(client) for _ in range(count)]
        out = []
        if not self.state.get_run(client, queue, tickets, out):
            for ticket in tickets:
                out += self.state.apply(Get(ticket, queue), client)
        return out

    def confirm_run(self, client, count):
        return self.state.confirm(client, self.tickets[client][-count:])

    def priority(self, client, queue):
        return self.state.apply(Put(self._new(client), queue), client, Item("urgent", 1, 1, priority=1))

    def group(self, client, queue):
        return self.state.apply(Put(self._new(client), queue), client, Item("grouped", 1, 1, group="g"))

    def reserve(self, client, queue):
        return self.state.apply(Put(self._new(client), queue, size_bytes=1), client, Item(None, 1, 1))

    def fill(self, client):
        return [
            each for ticket in self.tickets[client] for each in self.state.apply(Fill(ticket), client, "late")
        ]

    def get_batch(self, client, queue, weight):
        return self.state.apply(Get(self._new(client), queue, batch_weight=weight, limits=NO_LIMITS), client)

    def lease(self, client, queue):
        return self.state.apply(Get(self._new(client), queue, grant=LeaseTerms(1.0)), client)

    def acknowledge(self, client):
        return self._settle(client, done=True)

    def nack(self, client, delay_s):
        return self._settle(client, done=False, delay_s=delay_s)

    def _settle(self, client, **about):
        out = []
        for generation in range(1, 5):
            with suppress(OperationOver):
                out += self.state.apply(Settle(generation, None, **about), client)
        return out

    def lapse(self, generation):
        return self.state.apply(Lapse(generation))

    def lose_items(self, lost):
        return self.state.lose_items(lambda payload: "gone" if payload == lost else "")

    def flush(self, queue):
        return self.state.apply(Flush(queue))

    def subscribe(self, client, queue):
        with suppress(ValueError):
            self.state.apply(Subscribe(1, "log", queue, maxsize=2), client)
        return []

    def read(self, client, count):
        return self.get_run(client, SubscriptionName("log"), count)

    def withdraw(self, client, place):
        tickets = self.tickets[client]
        return self.state.apply(Withdraw(tickets[-1 - place]), client) if place < len(tickets) else []

    def lose(self, client):
        return self.state.apply(Lose(), client)

    def end(self, queue):
        return self.state.apply(EndQueue(queue))


def _in_order(instructions):
    """What is said to getters, and what to others: only among themselves their order tells anything."""
    kinds = [isinstance(each, Deliver) for each in instructions]
    delivered = [repr(each) for each, is_one in zip(instructions, kinds, strict=True) if is_one]
    return delivered, [repr(each) for each, is_one in zip(instructions, kinds, strict=True) if not is_one]


@settings(max_examples=tries(300))
@given(
    steps=STEPS,
    maxsize=st.sampled_from([0, 1, 4]),
    max_bytes=st.sampled_from([0, 4]),
    total_bytes=st.sampled_from([0, 12]),
)
def test_a_run_does_what_its_operations_do_one_by_one(steps, maxsize, max_bytes, total_bytes):
    runs, singles = (Player(kind(maxsize, max_bytes, total_bytes)) for kind in (ChannelState, OneByOne))
    for step in steps:
        assert _in_order(runs.play(step)) == _in_order(singles.play(step)), step
        assert repr(runs.state.snapshot()) == repr(singles.state.snapshot())


def test_a_run_of_puts_is_handed_to_those_who_wait_and_the_rest_enters_or_waits():
    state, out = ChannelState(maxsize=2), []
    state.get_run("c", "a", [1, 2], out)
    puts = [(ticket, Item(f"item {ticket}")) for ticket in (11, 12, 13, 14, 15)]
    assert state.put_run("p", "a", puts, out) == 5
    assert [each.ticket for each in out] == [11, 1, 12, 2, 13, 14]
    out.clear()
    state.get_run("c", "a", [3, 4, 5, 6], out)
    assert [each.ticket for each in out] == [3, 15, 4, 5]


def test_a_run_says_where_it_stops_for_what_is_not_simple():
    state, out = ChannelState(), []
    puts = [(1, Item("plain")), (2, Item("urgent", priority=1)), (3, Item("plain"))]
    assert state.put_run("p", "a", puts, out) == 1


def test_what_enters_between_two_gets_of_a_run_comes_first_if_it_is_urgent():
    state, out = ChannelState(maxsize=2), []
    state.put_run("p", "a", [(1, Item("plain")), (2, Item("plain too"))], out)
    assert state.apply(Put(3, "a"), "p", Item("urgent", priority=1)) == []
    out.clear()
    state.get_run("c", "a", [1, 2, 3], out)
    given = [each.items[0].payload for each in out if isinstance(each, Deliver)]
    assert given == ["plain", "urgent", "plain too"]
