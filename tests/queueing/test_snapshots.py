"""Queues that are made of a record behave as those that it was made of, whatever comes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from channel_sums import check_sums, restore
from hypothesis import example, given, settings
from hypothesis import strategies as st

from effort import tries
from rlinf_scheduler.queueing.contents import Contents
from rlinf_scheduler.queueing.dead_letters import DeadLetters, MoveDead
from rlinf_scheduler.queueing.gate import Gate
from rlinf_scheduler.queueing.homes import Homes
from rlinf_scheduler.queueing.item import Item, SubscriptionName
from rlinf_scheduler.queueing.leases import Lapse, Leases, LeaseTerms, Settle
from rlinf_scheduler.queueing.members import GroupRanks, Resize
from rlinf_scheduler.queueing.messages import (
    Accept,
    Arrive,
    Bury,
    Close,
    Deliver,
    EndAll,
    EndQueue,
    Fill,
    Flush,
    Get,
    Linger,
    Lose,
    Put,
    Refuse,
    Resend,
    Withdraw,
)
from rlinf_scheduler.queueing.order import WeightedFifo
from rlinf_scheduler.queueing.out_of_turn import RankedItems
from rlinf_scheduler.queueing.producers import GroupProducers, Producers
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.shard_plan import ShardPlan
from rlinf_scheduler.queueing.sharding import DonePart, Part, PartGetter, WantedPart
from rlinf_scheduler.queueing.snapshot import Snapshot, merged, ripening
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.surveying import QueueSurvey, SurveyContext
from rlinf_scheduler.queueing.tally import Tally
from rlinf_scheduler.queueing.taps import GiveUpTap, Subscribe, TapQueue, Taps, Unsubscribe, Vacate
from rlinf_scheduler.queueing.version_gate import VersionGate
from rlinf_scheduler.queueing.versions import AskForSlot, SetVersion, VersionedQueues
from rlinf_scheduler.queueing.wanted import Limits

CLIENTS = st.sampled_from(["a", "b"])
TAP = SubscriptionName("tap")
QUEUES = st.sampled_from(["default", ("a", 1), "shards"])
OF_GETS = st.sampled_from(["default", ("a", 1), "shards", "fresh", "fresh", TAP])
MEMBERS = [GroupRanks("actor", ranks, (1, epoch)) for epoch, ranks in enumerate([(0, 1), (0, 1, 2), (1,)])]
RESIZED = [ShardPlan(2, batch_items=2).of(members) for members in MEMBERS]
PLANS = st.sampled_from([ShardPlan(2, batch_items=2), ShardPlan(2, "balanced", batch_weight=3), *RESIZED])
WAIT = st.booleans()
SMALL = st.integers(0, 9)

OPERATIONS = st.one_of(
    st.tuples(
        st.just("put"), CLIENTS, QUEUES, st.sampled_from([0, 1, 2, 0.5]), st.integers(-1, 1), SMALL, WAIT
    ),
    st.tuples(st.just("put"), CLIENTS, QUEUES, st.just(1), st.just(0), st.just(9), st.just(True)),
    st.tuples(st.just("put_of_group"), CLIENTS, QUEUES, st.sampled_from([1, ("g", 2)])),
    st.tuples(st.just("ask"), CLIENTS, QUEUES),
    st.tuples(st.just("resize"), st.sampled_from(MEMBERS)),
    st.tuples(st.just("admit"), CLIENTS, st.integers(0, 2), WAIT),
    st.tuples(st.just("make"), CLIENTS, SMALL),
    st.tuples(st.just("make"), CLIENTS, SMALL),
    st.tuples(st.just("move"), CLIENTS, st.integers(-1, 2)),
    st.tuples(st.just("get"), CLIENTS, OF_GETS, WAIT),
    st.tuples(st.just("get_batch"), CLIENTS, OF_GETS, st.sampled_from([None, 1, 3]), st.integers(0, 2), WAIT),
    st.tuples(st.just("get_group"), CLIENTS, QUEUES, st.integers(1, 3), WAIT),
    st.tuples(st.just("get_part"), CLIENTS, PLANS, st.integers(0, 1), st.integers(-1, 4), WAIT),
    st.tuples(st.just("lease"), CLIENTS, OF_GETS, st.integers(0, 2), WAIT),
    st.tuples(st.just("acknowledge"), CLIENTS, SMALL, st.none() | st.sets(st.integers(0, 2))),
    st.tuples(
        st.just("give_back"), CLIENTS, SMALL, st.none() | st.sets(st.integers(0, 2)), st.sampled_from([0, 1])
    ),
    st.tuples(st.just("lapse"), SMALL),
    st.tuples(st.just("put_back"), SMALL),
    st.tuples(st.just("discard"), SMALL),
    st.tuples(st.just("confirm"), SMALL),
    st.tuples(st.just("arrive"), SMALL),
    st.tuples(st.just("withdraw"), SMALL),
    st.tuples(st.just("deliver_again"), SMALL),
    st.tuples(st.just("lose"), CLIENTS),
    st.tuples(st.just("flush"), QUEUES),
    st.tuples(st.just("reserve"), CLIENTS, QUEUES, SMALL),
    st.tuples(st.just("fill"), SMALL),
    st.tuples(st.just("ripen"), SMALL),
    st.tuples(st.just("finish_part"), CLIENTS, st.integers(0, 1), st.integers(0, 2)),
    st.tuples(st.just("subscribe"), CLIENTS, st.sampled_from([None, "default"]), st.sampled_from([0, 2])),
    st.tuples(st.just("unsubscribe"), CLIENTS, WAIT),
    st.tuples(st.just("rarely"), SMALL, st.sampled_from(["end", "end_all", "close"]), QUEUES),
)


class Life:
    """What happens to a channel; numbers in the operations choose among what there is."""

    def __init__(self, state, tickets=()):
        self.state = state
        self.tickets = list(tickets)  # (client, ticket)
        self.next_ticket = len(self.tickets)

    def run(self, operation):
        kind, *args = operation
        try:
            return getattr(self, kind)(*args) or []
        except ValueError as error:  # what makes no sense is refused by both
            return [("raised", str(error))]

    def new(self, client):
        self.next_ticket += 1
        self.tickets.append((client, self.next_ticket))
        return self.next_ticket

    def enter(self, client, queue, item, *, wait=True):
        put = Put(self.new(client), queue, wait=wait)
        item.payload = put.ticket
        return self.state.apply(put, client, item)

    def get_of(self, client, queue, **about):
        return self.state.apply(Get(self.new(client), queue, **about), client)

    def one_of(self, choices, number):
        choices = sorted(choices)
        return choices[number % len(choices)] if choices else None

    def put(self, client, queue, weight, priority, size_bytes, wait):
        return self.enter(client, queue, Item(None, weight, size_bytes, priority), wait=wait)

    def put_of_group(self, client, queue, group):
        return self.enter(client, queue, Item(None, 1, 1, group=group))

    def ask(self, client, queue):
        return self.enter(client, queue, Item(None, 1, 1, question=(client, self.next_ticket + 1)))

    def admit(self, client, max_lag, wait):
        return self.state.apply(AskForSlot(self.new(client), "fresh", wait, max_lag), client)

    def make(self, client, number):
        gate = self.state.policy(VersionedQueues).of(self.state.queues.find("fresh"))
        slot = None if gate is None else self.one_of(gate.kept.making, number)
        if slot is None:
            return []
        return self.enter(client, "fresh", Item(None, 1, 1, slot=slot))

    def move(self, client, by):
        gate = self.state.policy(VersionedQueues).of(self.state.queues.find("fresh"))
        version = 0 if gate is None else gate.kept.version or 0
        said = SetVersion(self.new(client), "fresh", True, max(0, version + by), 2, begins=by < 1)
        return self.state.apply(said, client)

    def get(self, client, queue, wait):
        return self.get_of(client, queue, wait=wait)

    def reserve(self, client, queue, size_bytes):
        put = Put(self.new(client), queue, size_bytes=size_bytes)
        return self.state.apply(put, client, Item(None, 1, size_bytes))

    def fill(self, number):
        client, ticket = self.one_of(self.tickets, number) or ("nobody", 0)
        return self.state.apply(Fill(ticket, size_bytes=3), client, ticket)

    def ripen(self, number):
        return self.of_ticket(Linger, number)

    def finish_part(self, client, index, step):
        return self.state.apply(DonePart("shards", index, step), client)

    def resize(self, members):
        return self.state.apply(Resize(members))

    def subscribe(self, client, queue, maxsize):
        return self.state.apply(Subscribe(1, "tap", queue, maxsize), client)

    def unsubscribe(self, client, is_over):
        left = self.state.apply(Unsubscribe(1, "tap"), client)
        if not left or not is_over:
            # Vacancies are numbered anew after a rest.
            return [("left", len(left))]
        return self.state.apply(GiveUpTap("tap", left[0].vacancy))

    def get_batch(self, client, queue, weight, num_items, wait):
        limits = Limits(max_items=num_items, max_wait_s=1.0 if num_items == 2 else None)
        return self.get_of(client, queue, batch_weight=weight, limits=limits, wait=wait)

    def get_group(self, client, queue, size, wait):
        return self.get_of(client, queue, group_size=size, wait=wait)

    def get_part(self, client, plan, index, done_step, wait):
        return self.get_of(client, "shards", grant=WantedPart(plan, index, done_step), wait=wait)

    def lease(self, client, queue, num_items, wait):
        limits = Limits(1, num_items) if num_items else None
        return self.get_of(client, queue, limits=limits, grant=LeaseTerms(1.0, client), wait=wait)

    def generation(self, number):
        return self.one_of([lease.generation for lease in self.state.policy(Leases).all()], number)

    def acknowledge(self, client, number, places):
        return self.state.apply(Settle(self.generation(number), places, True), client)

    def give_back(self, client, number, places, delay_s):
        return self.state.apply(
            Settle(self.generation(number), places, False, delay_s=delay_s, reason="r"), client
        )

    def lapse(self, number):
        return self.state.apply(Lapse(self.generation(number)))

    def put_back(self, number):
        return self.state.apply(MoveDead(self.one_of(self.state.policy(DeadLetters).letters, number), True))

    def discard(self, number):
        return self.state.apply(MoveDead(self.one_of(self.state.policy(DeadLetters).letters, number), False))

    def of_ticket(self, operation, number):
        client, ticket = self.one_of(self.tickets, number) or ("nobody", 0)
        return self.state.apply(operation(ticket), client)

    def confirm(self, number):
        client, ticket = self.one_of(self.tickets, number) or ("nobody", 0)
        return self.state.confirm(client, (ticket,))

    def arrive(self, number):
        return self.of_ticket(Arrive, number)

    def withdraw(self, number):
        return self.of_ticket(Withdraw, number)

    def deliver_again(self, number):
        return self.of_ticket(Resend, number)

    def lose(self, client):
        return self.state.apply(Lose(), client)

    def flush(self, queue):
        return self.state.apply(Flush(queue))

    def rarely(self, number, method, queue):
        if number == 0:
            return self.state.apply({"end": EndQueue(queue), "end_all": EndAll(), "close": Close()}[method])
        return []

    def stop_waiting(self):
        """Who waits asks again later, so that is no part of a record; nor is it that a part is on its way."""
        for client in list(self.state.queues.clients.values()):
            for each in list(client.operations.values()):
                if getattr(each, "items", None) is None or isinstance(each, PartGetter):
                    self.state.apply(Withdraw(each.ticket), client.name)
        for queue in self.state.policy(VersionedQueues).queues():
            for at in [*queue.gate.kept.asking, *queue.gate.kept.moving]:
                self.state.apply(Withdraw(at[1]), at[0])


def shown(instruction):
    match instruction:
        case Deliver(client, ticket, items, complete, grant, group):
            its_items = [(item.payload, item.order, item.attempts, item.question) for item in items]
            if isinstance(grant, Part):
                grant = grant.step, grant.weight, grant.imbalance, grant.complete
            return ("deliver", client, ticket, its_items, complete, grant, group)
        case Refuse(client, ticket, reason, _):
            return ("refuse", client, ticket, reason)
        case Vacate(client, ticket, name, _, failed):
            return ("vacate", client, ticket, name, failed)
    return tuple(instruction)


def new_state(maxsize, total_bytes, max_attempts):
    return ChannelState(maxsize, total_bytes=total_bytes, max_attempts=max_attempts, max_leased=2)


def restored(snapshot, *bounds):
    state = new_state(*bounds)
    restore(state, snapshot)
    return state


def sizes(state):
    """Of each queue; groups are in no order."""
    return {
        depth.name: replace(depth, groups=tuple(sorted(depth.groups, key=repr)))
        for depth in depths_of(state.queues)
    }


def reported(state):
    every = QueueSurvey(state).every(
        64, SurveyContext(1e6, {client: client for client in state.queues.clients})
    )
    return [
        replace(queue, depth=None, limits=tuple(sorted(queue.limits))) for part in every for queue in part()
    ]


def payloads_of(record, items):
    return [items[each.payload].payload for each in record]


BOUNDS = st.tuples(st.sampled_from([0, 3]), st.sampled_from([0, 20]), st.sampled_from([0, 2]))
STORIES = st.lists(OPERATIONS, max_size=40)


PUT = ("put", "a", "default", 1, 0, 1, True)
PUT_OF_20 = ("put", "a", "default", 1, 0, 20, True)
URGENT = ("put", "a", "default", 1, 1, 1, True)
GET = ("get", "b", "default", True)
FREE = (0, 0, 0)


@settings(max_examples=tries(70), deadline=None)
@given(bounds=BOUNDS, before=STORIES, after=STORIES)
@example(bounds=FREE, before=[PUT, *[URGENT] * 9, *[GET] * 8], after=[URGENT, GET, GET])
@example(bounds=FREE, before=[PUT, ("flush", "default")], after=[("get_batch", "b", "default", 3, 0, True)])
@example(bounds=(0, 20, 0), before=[PUT_OF_20, ("put", "a", ("a", 1), 0, 0, 4, False)], after=[])
@example(
    bounds=FREE,
    before=[PUT, GET, ("rarely", 0, "end", "default")],
    after=[("get", "a", "default", True), ("arrive", 1)],
)
def test_queues_made_of_a_record_behave_as_those_that_it_was_made_of(bounds, before, after):
    life = Life(new_state(*bounds))
    for operation in before:
        life.run(operation)
    snapshot = life.state.snapshot()
    twin = Life(restored(snapshot, *bounds), life.tickets)
    assert sizes(twin.state) == sizes(life.state)
    assert twin.state.queues.tally.held_bytes == life.state.queues.tally.held_bytes
    assert twin.state.queues.bounded_bytes == life.state.queues.bounded_bytes
    check_sums(life.state)
    check_sums(twin.state)
    assert list(map(shown, ripening(twin.state.queues))) == list(map(shown, ripening(life.state.queues)))
    assert reported(twin.state) == reported(life.state)
    for operation in after:
        assert list(map(shown, twin.run(operation))) == list(map(shown, life.run(operation)))
        check_sums(life.state)
    # What never left a queue is written down when it is asked for, whatever has become of it meanwhile.
    late = Snapshot(snapshot.state, snapshot.items, at_rest=False, rest=snapshot.rest)
    assert msgspec.msgpack.encode(late.data) == msgspec.msgpack.encode(snapshot.data)
    assert (twin.state.queues.tally.num_items, twin.state.queues.tally.size_bytes) == (
        life.state.queues.tally.num_items,
        life.state.queues.tally.size_bytes,
    )


@settings(max_examples=tries(70), deadline=None)
@given(bounds=BOUNDS, before=STORIES, after=STORIES)
def test_at_rest_everything_is_where_it_is_when_all_clients_are_lost_and_all_delays_are_over(
    bounds, before, after
):
    life = Life(new_state(*bounds))
    for operation in before:
        if operation[0] != "ask":
            life.run(operation)
    life.stop_waiting()
    resting = life.state.snapshot(at_rest=True)
    life.state.policy(Leases).max_attempts = 0  # a restart buries nothing
    for client in ("a", "b"):
        life.state.apply(Lose(), client)
    for lease in list(life.state.policy(Leases).all()):
        life.state.apply(Lapse(lease.generation))
    life.state.policy(Leases).max_attempts = bounds[2]
    twin = Life(restored(resting, *bounds), life.tickets)
    assert sizes(twin.state) == sizes(life.state)
    waited_for = [name for name, _ in life.state.policy(Taps).vacant()]
    assert [name for name, _ in twin.state.policy(Taps).vacant()] == waited_for
    plans = [operation[2] for operation in before if operation[0] == "get_part"]
    for operation in after:
        if operation[0] == "get_part" and any(plan != operation[2] for plan in plans):
            continue  # what was restored takes the shards that are asked for first
        assert list(map(shown, twin.run(operation))) == list(map(shown, life.run(operation)))


SEE = ("subscribe", "a", None, 0)


@settings(max_examples=tries(50), deadline=None)
@given(before=STORIES, between=STORIES)
@example(
    before=[], between=[("ask", "a", "default"), ("lose", "a"), ("get", "b", "default", True), ("confirm", 1)]
)
@example(before=[SEE, PUT], between=[("get", "b", TAP, True), ("confirm", 1), PUT])
@example(
    before=[],
    between=[("get_batch", "a", "default", 3, 0, True), PUT, ("reserve", "a", "default", 0), ("fill", 2)],
)
@example(before=[SEE, PUT, ("unsubscribe", "a", True)], between=[])
@example(before=[SEE, PUT], between=[PUT, ("unsubscribe", "a", True), PUT])
@example(before=[SEE, PUT], between=[("unsubscribe", "a", True), SEE, PUT])
def test_two_looks_have_all_that_was_there_from_one_to_the_other_and_nothing_twice(before, between):
    life = Life(new_state(0, 0, 2))
    for operation in before:
        life.run(operation)
    first = life.state.snapshot(at_rest=True)
    life.state.queues.tally.watch(first.entered)
    for operation in between:
        life.run(operation)
    life.state.queues.tally.unwatch(first.entered)
    second = life.state.snapshot(at_rest=True)
    both = merged(first, second)
    there = {queue.name for queue in second.data.queues}
    entered = [(name, item) for name, item in first.entered if item.question is None]
    wanted = Counter({*held(first), *held(second), *((name, item.payload) for name, item in entered)})
    for name, payload in list(wanted):
        if name == TAP and TAP not in there:  # nobody reads it any more
            del wanted[name, payload]
    assert Counter(held(both)) == wanted
    again = restored(both, 0, 0, 2).snapshot(at_rest=True)
    assert Counter(held(again)) == wanted


def held(snapshot):
    """All that is held, as queue and payload."""
    data = snapshot.data
    for queue in data.queues:
        parts = [
            item
            for shard in (queue.sharding.shards if queue.sharding else ())
            for part in shard.parts
            for item in part.items
        ]
        for payload in payloads_of((*queue.returned, *queue.items, *parts), snapshot.items):
            yield queue.name, payload
    for letter in data.dead:
        yield letter.queue, snapshot.items[letter.item.payload].payload


def test_many_clients_that_wait_on_neighbouring_queues_are_there_again():
    """However they hang together."""
    state = ChannelState(max_leased=1)
    for number in range(200):
        for queue in (number, number + 1):
            state.apply(Get(queue, queue), f"client {number}")
            state.apply(Get(1000 + queue, queue, grant=LeaseTerms(1.0)), f"client {number}")
    twin = ChannelState(max_leased=1)
    restore(twin, state.snapshot())
    assert reported(twin) == reported(state)
    for number in range(201):
        told, known = (each.apply(Put(number, number), "p", Item(number)) for each in (twin, state))
        assert list(map(shown, told)) == list(map(shown, known))


def test_a_lease_that_is_said_to_be_done_with_is_left_out():
    state = ChannelState()
    for ticket in (1, 2):
        state.apply(Put(ticket, "default"), "p", Item(f"item {ticket}"))
        state.apply(Get(10 + ticket, "default", grant=LeaseTerms(1.0)), "c")
    (one, _) = state.policy(Leases).all()
    snapshot = state.snapshot(at_rest=True, done=[one.generation])
    assert [item.payload for item in snapshot.items] == ["item 2"]


def test_what_was_on_lease_has_its_old_place_and_its_attempts_and_is_no_dead_letter():
    state = ChannelState(max_attempts=1)
    for ticket in (1, 2):
        state.apply(Put(ticket, "default"), "p", Item(ticket))
    state.apply(Get(3, "default", grant=LeaseTerms(1.0)), "c")
    twin = ChannelState(max_attempts=1)
    snapshot = state.snapshot(at_rest=True)
    restore(twin, snapshot)
    delivered, _ = twin.apply(Get(1, "default", grant=LeaseTerms(1.0)), "d")
    assert [item.payload for item in delivered.items] == [1]
    assert delivered.grant.attempts == [2]
    out = twin.apply(Settle(delivered.grant.generation, None, False, reason="r"), "d")
    assert [letter.item.payload for letter in twin.policy(DeadLetters).of()] == [1]
    assert not any(isinstance(each, Bury) for each in out)


def test_items_on_lease_of_a_queue_that_admits_take_their_places_once():
    state = ChannelState()
    state.apply(SetVersion(1, "default", True, 0, 2), "trainer")
    for number in (1, 2):
        (slot,) = state.apply(AskForSlot(2 * number, "default", True, 1), "actor")
        item = Item(number)
        item.slot = slot.grant.number
        state.apply(Put(2 * number + 1, "default"), "actor", item)
    delivery, _ = state.apply(Get(6, "default", grant=LeaseTerms(60.0)), "trainer")
    again = restored(state.snapshot(), 0, 0, 0)
    for each in (state, again):
        each.apply(Settle(delivery.grant.generation, None, True), "trainer")
        each.apply(Get(7, "default"), "trainer")
        each.confirm("trainer", [7])
        (accepted,) = each.apply(SetVersion(8, "default", True, 2), "trainer")
        assert accepted == Accept("trainer", 8)


def test_a_question_is_not_at_rest():
    state = ChannelState()
    state.apply(Put(1, "default"), "asker", Item("what?", question=("asker", 5)))
    state.apply(Put(1, "default"), "p", Item("item"))
    assert [item.payload for item in state.snapshot(at_rest=True).items] == ["item"]
    assert [item.payload for item in state.snapshot().items] == ["what?", "item"]


def test_a_queue_with_questions_is_known_as_such_again():
    state, again = ChannelState(), ChannelState()
    state.apply(Put(1, "default"), "asker", Item("what?", question=("asker", 5)))
    restore(again, state.snapshot())
    asked = SurveyContext(0.0, {"asker": "rollout:0"}, in_full=False)
    (queue,) = QueueSurvey(again).in_use(asked)
    assert [each.operation for each in queue.waiting] == ["ask, and nobody has taken the question"]


def test_a_channel_that_holds_something_takes_no_record():
    state = ChannelState()
    state.apply(Put(1, "default"), "p", Item("item"))
    with pytest.raises(ValueError, match="it is not empty: 1 queue there, 1 item put"):
        restore(state, state.snapshot())


def test_producers_that_were_done_stay_done_and_the_others_are_awaited():
    producers = Producers(2)
    producers.join("a", 1, "env:0")
    producers.join("b", 1, "env:1")
    producers.leave("a", 1, failed=False)
    again = Producers(2)
    again.restore(producers.copy())
    assert not again.over
    assert again.join("c", 1, "env:1")
    again.leave("c", 1, failed=False)
    assert again.over


def test_a_producer_that_was_done_may_begin_once_more():
    producers = Producers(1)
    producers.join("a", 1, "env:0")
    producers.leave("a", 1, failed=False)
    again = Producers(1)
    again.restore(producers.copy())
    assert again.over
    assert again.join("b", 1, "env:0")
    assert not again.over
    assert not again.join("c", 1, "env:1")


def test_fewer_producers_may_come_back_than_were_done():
    producers = Producers(2)
    for client in ("a", "b"):
        producers.join(client, 1, client)
        producers.leave(client, 1, failed=False)
    again = Producers(1)
    again.restore(producers.copy())
    assert again.over
    assert again.join("c", 1, "a")


def test_the_ranks_that_were_done_are_so_again_whoever_else_comes():
    two, three = GroupRanks("env", (0, 1)), GroupRanks("env", (0, 1, 2), (2, 0))
    producers, again = GroupProducers("env"), GroupProducers("env")
    producers.join("a", 1, "env:0", two)
    producers.leave("a", 1, failed=False)
    again.restore(producers.copy())
    for rank in (1, 2):
        again.join("b", rank, f"env:{rank}", three)
        assert not again.over
        again.leave("b", rank, failed=False)
    assert again.over


def test_a_rank_that_has_left_is_waited_for_as_long_as_it_is_at_work():
    producers = GroupProducers("env")
    for rank in range(2):
        producers.join(f"client{rank}", 1, f"env:{rank}", GroupRanks("env", (0, 1)))
    producers.leave("client0", 1, failed=False)
    producers.resize(GroupRanks("env", (0,), (0, 1)))
    assert not producers.over
    assert producers.lose("client1") == []
    assert producers.over
    producers.resize(GroupRanks("env", (0, 1), (0, 0)))  # that is older
    producers.resize(GroupRanks("other", (0, 1), (9, 0)))
    assert producers.over


def test_the_place_of_a_rank_is_its_successors():
    producers, members = GroupProducers("env"), GroupRanks("env", (0,))
    assert producers.join("before", 1, "env:0", members)
    assert producers.join("after", 1, "env:0", members)
    assert not producers.join("after", 2, "env:0", members)
    assert producers.lose("before") == []
    (vacancy,) = producers.lose("after")
    producers.give_up(vacancy)
    assert producers.over
    assert not producers.join("x", 1, "other:0", GroupRanks("other", (0,)))


# What each part of the queues keeps beside structs, all of which are saved: in a snapshot, or made anew from it.
KEPT = {
    Contents: "name fifo flushed parts gate ended getters skipped putters streams waits_for_room",
    WeightedFifo: "_items _ranked _returned num_entered",
    RankedItems: "_items",
    Gate: "",
    VersionGate: "kept",
    TapQueue: "read subscription terms",
    Leases: "homes _open _why_over",
    DeadLetters: "letters",
    Homes: "_homes",
    Taps: "num_vacancies _taps",
    VersionedQueues: "_versioned",
    Tally: "line lost_bytes clock num_items num_lost size_bytes",
    QueueSet: "closed all_ended ended last_number clients _queues",
}
MADE_ANEW = {
    Contents: "counted_bytes counted_items delivering is_plain lent_bytes lent_items num_dead num_lent on_the_way"
    " reserved reserved_bytes tally followers",
    WeightedFifo: "_clock groups num_items size_bytes weight",
    RankedItems: "_by_age _by_rank _clock",
    Gate: "max_bytes maxsize",
    VersionGate: "_lanes _lent _lent_before _open _owned _queues queue",
    TapQueue: "_sources",
    Leases: "max_attempts max_leased _consumers _queues",
    DeadLetters: "_queues",
    Taps: "_queues",
    VersionedQueues: "_queues",
    Tally: "dead_bytes dead_letters held_bytes lent_bytes lender max_bytes num_dead num_gets num_here num_lent"
    " reserved_bytes touched",
    QueueSet: "maxsize max_bytes on_made tally _gate _num_added",
}
# Of items that are lost, which are in no snapshot; and of those who look at a channel.
LEFT_OUT = {
    Contents: "lost",
    WeightedFifo: "lost",
    Tally: "has_losses watches",
    QueueSet: "asked_at",
}


def fields_of(part):
    if "__slots__" in vars(part):
        return set(part.__slots__)
    state = ChannelState()
    parts = {type(policy): policy for policy in state.policies}
    parts |= {Homes: Homes(), QueueSet: state.queues}
    return set(vars(parts[part]))


@pytest.mark.parametrize("part", KEPT, ids=lambda part: part.__name__)
def test_nothing_of_a_queue_was_forgotten(part):
    known = " ".join(each.get(part, "") for each in (KEPT, MADE_ANEW, LEFT_OUT)).split()
    assert fields_of(part) == set(known), "say in snapshot.py or its policy how it is kept, and then here"
