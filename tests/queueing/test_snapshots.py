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
from rlinf_scheduler.queueing import (
    Bury,
    ChannelState,
    Deliver,
    LeaseTerms,
    Limits,
    Producers,
    QueueSurvey,
    Refuse,
    ShardPlan,
    Snapshot,
    SurveyContext,
    Tapped,
    TapTerms,
    merged,
)
from rlinf_scheduler.queueing.admission import Admission, Admissions
from rlinf_scheduler.queueing.contents import Contents
from rlinf_scheduler.queueing.fifo import WeightedFifo
from rlinf_scheduler.queueing.gate import Gate
from rlinf_scheduler.queueing.leases import Leases
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.ranked import QueueClock, RankedItems
from rlinf_scheduler.queueing.sharding import PartGetter
from rlinf_scheduler.queueing.tally import Tally
from rlinf_scheduler.queueing.taps import TapQueue, Taps

CLIENTS = st.sampled_from(["a", "b"])
TAP = Tapped("tap")
QUEUES = st.sampled_from(["default", ("a", 1), "shards"])
OF_GETS = st.sampled_from(["default", ("a", 1), "shards", "fresh", "fresh", TAP])
PLANS = st.sampled_from([ShardPlan(2, batch_items=2), ShardPlan(2, "balanced", batch_weight=3)])
WAIT = st.booleans()
SMALL = st.integers(0, 9)

OPERATIONS = st.one_of(
    st.tuples(
        st.just("put"), CLIENTS, QUEUES, st.sampled_from([0, 1, 2, 0.5]), st.integers(-1, 1), SMALL, WAIT
    ),
    st.tuples(st.just("put"), CLIENTS, QUEUES, st.just(1), st.just(0), st.just(9), st.just(True)),
    st.tuples(st.just("put_of_group"), CLIENTS, QUEUES, st.sampled_from([1, ("g", 2)])),
    st.tuples(st.just("ask"), CLIENTS, QUEUES),
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
        return client, self.next_ticket

    def one_of(self, choices, number):
        choices = sorted(choices)
        return choices[number % len(choices)] if choices else None

    def put(self, client, queue, weight, priority, size_bytes, wait):
        at = self.new(client)
        return self.state.put(*at, queue, at[1], weight, size_bytes, priority=priority, wait=wait)

    def put_of_group(self, client, queue, group):
        at = self.new(client)
        return self.state.put(*at, queue, at[1], 1, 1, group=group)

    def ask(self, client, queue):
        at = self.new(client)
        return self.state.put(*at, queue, at[1], 1, 1, question=at[1])

    def admit(self, client, max_lag, wait):
        return self.state.admit(*self.new(client), "fresh", max_lag, wait=wait)

    def make(self, client, number):
        gate = self.state.admissions.of(self.state.queues.find("fresh"))
        slot = None if gate is None else self.one_of(gate.kept.making, number)
        if slot is None:
            return []
        at = self.new(client)
        return self.state.put(*at, "fresh", at[1], 1, 1, slot=slot)

    def move(self, client, by):
        gate = self.state.admissions.of(self.state.queues.find("fresh"))
        version = 0 if gate is None else gate.kept.version or 0
        return self.state.set_version(*self.new(client), "fresh", max(0, version + by), 2, begins=by < 1)

    def get(self, client, queue, wait):
        return self.state.get(*self.new(client), queue, wait=wait)

    def reserve(self, client, queue, size_bytes):
        return self.state.reserve(*self.new(client), queue, 1, size_bytes)

    def fill(self, number):
        return self.of_ticket(lambda client, ticket: self.state.fill(client, ticket, ticket, 3), number)

    def ripen(self, number):
        return self.of_ticket(self.state.ripen, number)

    def finish_part(self, client, index, step):
        return self.state.finish_part(client, "shards", index, step)

    def subscribe(self, client, queue, maxsize):
        return [("subscribed", self.state.subscribe(client, 1, "tap", TapTerms(queue, maxsize)))]

    def unsubscribe(self, client, is_over):
        vacancy = self.state.leave_subscription(client, 1, "tap")
        if vacancy is None or not is_over:
            # Vacancies are numbered anew after a rest.
            return [("left", vacancy is None)]
        return self.state.give_up_subscription("tap", vacancy)

    def get_batch(self, client, queue, weight, num_items, wait):
        limits = Limits(max_items=num_items, max_wait_s=1.0 if num_items == 2 else None)
        return self.state.get_batch(*self.new(client), queue, weight, limits, wait=wait)

    def get_group(self, client, queue, size, wait):
        return self.state.get_group(*self.new(client), queue, size, wait=wait)

    def get_part(self, client, plan, index, done_step, wait):
        try:
            return self.state.get_part(*self.new(client), "shards", plan, index, done_step, wait=wait)
        except ValueError as error:
            return [("raised", str(error))]

    def lease(self, client, queue, num_items, wait):
        limits = Limits(1, num_items) if num_items else None
        return self.state.lease(*self.new(client), queue, LeaseTerms(1.0, client), None, limits, wait=wait)

    def generation(self, number):
        return self.one_of([lease.generation for lease in self.state.leases.all()], number)

    def acknowledge(self, client, number, places):
        return self.state.acknowledge(client, self.generation(number), places)

    def give_back(self, client, number, places, delay_s):
        return self.state.give_back(client, self.generation(number), places, delay_s=delay_s, reason="r")

    def lapse(self, number):
        return self.state.lapse(self.generation(number))

    def put_back(self, number):
        try:
            return self.state.put_back(self.one_of(self.state.leases.dead, number))
        except ValueError as error:
            return [("raised", str(error))]

    def discard(self, number):
        return self.state.discard(self.one_of(self.state.leases.dead, number))

    def of_ticket(self, method, number):
        return method(*(self.one_of(self.tickets, number) or ("nobody", 0)))

    def confirm(self, number):
        return self.of_ticket(self.state.confirm, number)

    def arrive(self, number):
        return self.of_ticket(self.state.arrive, number)

    def withdraw(self, number):
        return self.of_ticket(self.state.withdraw, number)

    def deliver_again(self, number):
        return self.of_ticket(self.state.deliver_again, number)

    def lose(self, client):
        return self.state.lose(client)

    def flush(self, queue):
        return self.state.flush(queue)

    def rarely(self, number, method, queue):
        if number == 0:
            return getattr(self.state, method)(*([queue] if method == "end" else []))
        return []

    def stop_waiting(self):
        """Who waits asks again later, so that is no part of a record; nor is it that a part is on its way."""
        for client in list(self.state.queues.clients.values()):
            for each in list(client.operations.values()):
                if getattr(each, "items", None) is None or isinstance(each, PartGetter):
                    self.state.withdraw(client.name, each.ticket)
        for queue in self.state.admissions.queues():
            for at in [*queue.gate.kept.asking, *queue.gate.kept.moving]:
                self.state.withdraw(*at)


def shown(instruction):
    match instruction:
        case Deliver(client, ticket, items, complete, part, lease, group, slot):
            its_items = [(item.payload, item.order, item.attempts, item.question) for item in items]
            its_part = part and (part.step, part.weight, part.imbalance, part.complete)
            return ("deliver", client, ticket, its_items, complete, its_part, lease, group, slot)
        case Refuse(client, ticket, reason, _):
            return ("refuse", client, ticket, reason)
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
        for depth in state.queues.depths()
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
    assert twin.state.queues.total_held_bytes == life.state.queues.total_held_bytes
    assert twin.state.queues.bounded_bytes == life.state.queues.bounded_bytes
    check_sums(life.state)
    check_sums(twin.state)
    assert list(map(shown, twin.state.queues.ripening())) == list(map(shown, life.state.queues.ripening()))
    assert reported(twin.state) == reported(life.state)
    for operation in after:
        assert list(map(shown, twin.run(operation))) == list(map(shown, life.run(operation)))
        check_sums(life.state)
    # What never left a queue is written down when it is asked for, whatever has become of it meanwhile.
    late = Snapshot(snapshot.state, snapshot.items, at_rest=False, rest=snapshot.rest)
    assert msgspec.msgpack.encode(late.data) == msgspec.msgpack.encode(snapshot.data)
    assert (twin.state.queues.num_accepted, twin.state.queues.accepted_bytes) == (
        life.state.queues.num_accepted,
        life.state.queues.accepted_bytes,
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
    life.state.leases.max_attempts = 0  # a restart buries nothing
    for client in ("a", "b"):
        life.state.lose(client)
        life.state.lose_member(client)
    for lease in list(life.state.leases.all()):
        life.state.lapse(lease.generation)
    life.state.leases.max_attempts = bounds[2]
    twin = Life(restored(resting, *bounds), life.tickets)
    assert sizes(twin.state) == sizes(life.state)
    waited_for = [name for name, _ in life.state.vacant_subscriptions()]
    assert [name for name, _ in twin.state.vacant_subscriptions()] == waited_for
    for operation in after:
        assert list(map(shown, twin.run(operation))) == list(map(shown, life.run(operation)))


SEE = ("subscribe", "a", None, 0)


@settings(max_examples=tries(50), deadline=None)
@given(before=STORIES, between=STORIES)
@example(
    before=[], between=[("ask", "a", "default"), ("lose", "a"), ("get", "b", "default", True), ("confirm", 1)]
)
@example(before=[SEE, PUT], between=[("get", "b", TAP, True), ("confirm", 1), PUT])
@example(before=[SEE, PUT, ("unsubscribe", "a", True)], between=[])
@example(before=[SEE, PUT], between=[PUT, ("unsubscribe", "a", True), PUT])
@example(before=[SEE, PUT], between=[("unsubscribe", "a", True), SEE, PUT])
def test_two_looks_have_all_that_was_there_from_one_to_the_other_and_nothing_twice(before, between):
    life = Life(new_state(0, 0, 2))
    for operation in before:
        life.run(operation)
    first = life.state.snapshot(at_rest=True)
    life.state.queues.watch(first.entered)
    for operation in between:
        life.run(operation)
    life.state.queues.unwatch(first.entered)
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
            state.get(f"client {number}", queue, queue)
            state.lease(f"client {number}", 1000 + queue, queue, LeaseTerms(1.0))
    twin = ChannelState(max_leased=1)
    restore(twin, state.snapshot())
    assert reported(twin) == reported(state)
    for number in range(201):
        put = "p", number, number, number
        assert list(map(shown, twin.put(*put))) == list(map(shown, state.put(*put)))


def test_a_lease_that_is_said_to_be_done_with_is_left_out():
    state = ChannelState()
    for ticket in (1, 2):
        state.put("p", ticket, "default", f"item {ticket}")
        state.lease("c", 10 + ticket, "default", LeaseTerms(1.0))
    (one, _) = state.leases.all()
    snapshot = state.snapshot(at_rest=True, done=[one.generation])
    assert [item.payload for item in snapshot.items] == ["item 2"]


def test_what_was_on_lease_has_its_old_place_and_its_attempts_and_is_no_dead_letter():
    state = ChannelState(max_attempts=1)
    for ticket in (1, 2):
        state.put("p", ticket, "default", ticket)
    state.lease("c", 3, "default", LeaseTerms(1.0))
    twin = ChannelState(max_attempts=1)
    snapshot = state.snapshot(at_rest=True)
    restore(twin, snapshot)
    delivered, _ = twin.lease("d", 1, "default", LeaseTerms(1.0))
    assert [item.payload for item in delivered.items] == [1]
    assert delivered.lease.attempts == [2]
    out = twin.give_back("d", delivered.lease.generation, reason="r")
    assert [letter.item.payload for letter in twin.leases.dead_letters()] == [1]
    assert not any(isinstance(each, Bury) for each in out)


def test_a_question_is_not_at_rest():
    state = ChannelState()
    state.put("asker", 1, "default", "what?", question=5)
    state.put("p", 1, "default", "item")
    assert [item.payload for item in state.snapshot(at_rest=True).items] == ["item"]
    assert [item.payload for item in state.snapshot().items] == ["what?", "item"]


def test_a_queue_with_questions_is_known_as_such_again():
    state, again = ChannelState(), ChannelState()
    state.put("asker", 1, "default", "what?", question=5)
    restore(again, state.snapshot())
    asked = SurveyContext(0.0, {"asker": "rollout:0"}, in_full=False)
    (queue,) = QueueSurvey(again).in_use(asked)
    assert [each.operation for each in queue.waiting] == ["ask, and nobody has taken the question"]


def test_a_channel_that_holds_something_takes_no_record():
    state = ChannelState()
    state.put("p", 1, "default", "item")
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


def test_more_producers_that_were_done_than_there_are_to_be_are_an_error():
    producers = Producers(2)
    for client in ("a", "b"):
        producers.join(client, 1, client)
        producers.leave(client, 1, failed=False)
    with pytest.raises(ValueError, match="2 of its 2 producers were done, and it is to have 1"):
        Producers(1).restore(producers.copy())


# What each part of the queues keeps beside structs, all of which are saved: in a snapshot, or made anew from it.
KEPT = {
    Contents: "name fifo flushed parts gate ended getters skipped putters streams waits_for_room",
    WeightedFifo: "_items _ranked _returned num_entered",
    RankedItems: "_items",
    Gate: "",
    Admission: "kept",
    TapQueue: "read subscription terms",
    Leases: "_open _why_over dead",
    Taps: "num_vacancies _taps",
    Admissions: "_admitting",
    Tally: "line lost_bytes clock num_items num_lost size_bytes",
    QueueSet: "closed all_ended ended last_number clients _queues",
}
MADE_ANEW = {
    Contents: "counted_bytes counted_items delivering is_plain lent_bytes lent_items num_dead num_lent on_the_way"
    " reserved reserved_bytes tally taps",
    WeightedFifo: "_clock groups num_items size_bytes weight",
    RankedItems: "_by_age _by_rank _clock",
    Gate: "max_bytes maxsize",
    Admission: "_lanes _lent _lent_before _open _owned _queues queue",
    TapQueue: "_sources",
    Leases: "max_attempts max_leased _consumers _queues",
    Taps: "_queues",
    Admissions: "_queues",
    Tally: "dead_bytes held_bytes leased_bytes lender max_bytes num_dead num_gets num_here num_leased"
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
    parts = {Leases: state.leases, Taps: state.taps, Admissions: state.admissions}
    return set(vars(parts[part] if part in parts else QueueSet(0, 0, 0, QueueClock())))


@pytest.mark.parametrize("part", KEPT, ids=lambda part: part.__name__)
def test_nothing_of_a_queue_was_forgotten(part):
    known = " ".join(each.get(part, "") for each in (KEPT, MADE_ANEW, LEFT_OUT)).split()
    assert fields_of(part) == set(known), "say in snapshot.py and restoring.py how it is kept, and then here"
