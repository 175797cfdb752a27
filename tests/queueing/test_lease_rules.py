"""The rules of leases, one by one, on the state machine alone."""

from __future__ import annotations

from time import process_time

import pytest
from channel_sums import restore

from rlinf_scheduler.queueing import (
    Accept,
    ChannelState,
    Deliver,
    LeaseTerms,
    Limits,
    Reason,
    Refuse,
    Ripen,
    ShardPlan,
    StartClock,
    StopClock,
)

Q = "default"
TERMS = LeaseTerms(60.0, "consumer")


def filled(count, **options):
    state = ChannelState(**options)
    for ticket in range(count):
        state.put("producer", ticket, Q, f"item{ticket}", weight=1, size_bytes=10)
    return state


def lease_of(instructions):
    """(generation, payloads) of the only lease that begins."""
    (delivery,) = [each for each in instructions if isinstance(each, Deliver)]
    return delivery.lease.generation, [item.payload for item in delivery.items]


def delivered(instructions):
    return [
        (each.client, [item.payload for item in each.items])
        for each in instructions
        if isinstance(each, Deliver)
    ]


def refused(instructions):
    return [(each.client, each.reason) for each in instructions if isinstance(each, Refuse)]


def clocks(instructions):
    """(started, stopped): the generations of the clocks."""
    started = [(each.generation, each.after_s) for each in instructions if isinstance(each, StartClock)]
    return started, [each.generation for each in instructions if isinstance(each, StopClock)]


def counts(state):
    (depth,) = state.queues.depths()
    return depth.num_items, depth.num_leased, depth.num_dead


def test_a_lease_is_delivered_with_its_generation_and_its_clock():
    state = filled(1)
    delivery, clock = state.lease("c", 1, Q, TERMS)
    assert delivery.lease.attempts == [1]
    assert clock == StartClock("c", 1, delivery.lease.generation, 60.0)
    assert counts(state) == (0, 1, 0)


def test_a_lease_that_is_over_can_not_be_settled():
    state = filled(1)
    old, _ = lease_of(state.lease("slow", 1, Q, TERMS))
    assert refused(state.lapse(old)) == [("slow", Reason.CANCELLED)]
    new, items = lease_of(state.lease("fast", 1, Q, TERMS))
    assert items == ["item0"]
    assert new > old
    assert state.acknowledge("slow", old) is None
    assert state.give_back("slow", old) is None
    assert state.extend("slow", old) is None
    assert "60 s" in state.leases.why_over(old)
    assert state.acknowledge("slow", new) is None  # it is another's
    assert counts(state) == (0, 1, 0)


def test_who_waits_gets_what_comes_back():
    state = filled(1)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    assert state.get("waiting", 1, Q) == []
    assert delivered(state.lapse(generation)) == [("waiting", ["item0"])]


def test_the_loss_of_a_consumer_ends_its_leases_at_once():
    state = filled(2)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS, None, Limits(2, 2)))
    assert clocks(state.lose("c")) == ([], [generation])
    assert state.acknowledge("c", generation) is None
    assert counts(state) == (2, 0, 0)


def test_an_item_comes_back_after_its_delay():
    state = filled(1)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    stop, start = state.give_back("c", generation, delay_s=5)
    assert (stop.generation, start.after_s) == (generation, 5)
    assert counts(state) == (0, 1, 0)
    assert state.acknowledge("c", start.generation) is None  # nobody has it
    state.get("waiting", 1, Q)
    assert delivered(state.lapse(start.generation)) == [("waiting", ["item0"])]


def test_an_item_that_was_given_out_too_often_is_a_dead_letter():
    state = filled(1, max_attempts=2)
    for attempt in (1, 2):
        (delivery, _) = state.lease("c", attempt, Q, TERMS)
        assert delivery.lease.attempts == [attempt]
        state.give_back("c", delivery.lease.generation, reason=f"reason {attempt}")
    (letter,) = state.leases.dead_letters()
    assert (letter.item.payload, letter.attempts, letter.reason, letter.consumer) == (
        "item0",
        2,
        "reason 2",
        "consumer",
    )
    assert counts(state) == (0, 0, 1)
    assert state.leases.dead_letters("other") == []
    assert state.leases.dead_letters(Q) == [letter]


def test_a_delivery_that_nobody_wanted_any_more_is_no_attempt():
    state = filled(1, max_attempts=1)
    for ticket in range(5):
        (delivery, _) = state.lease("c", ticket, Q, TERMS)
        assert delivery.lease.attempts == [1]
        assert refused(state.withdraw("c", ticket)) == [("c", Reason.CANCELLED)]
    assert counts(state) == (1, 0, 0)


def test_a_dead_letter_that_is_put_back_is_as_new():
    state = filled(2, max_attempts=1)
    state.give_back("c", lease_of(state.lease("c", 1, Q, TERMS))[0])
    (letter,) = state.leases.dead_letters()
    assert state.put_back(letter.number) == []
    assert state.put_back(letter.number) is None
    (delivery, _) = state.lease("c", 2, Q, TERMS)
    assert ([item.payload for item in delivery.items], delivery.lease.attempts) == (["item0"], [1])


def test_a_dead_letter_that_is_discarded_is_gone():
    state = filled(1, max_attempts=1)
    state.give_back("c", lease_of(state.lease("c", 1, Q, TERMS))[0])
    (letter,) = state.leases.dead_letters()
    assert state.discard(letter.number) == []
    assert state.discard(letter.number) is None
    assert state.queues.depths() == ()


def test_a_plain_get_takes_what_was_on_lease_before():
    state = filled(1)
    state.give_back("c", lease_of(state.lease("c", 1, Q, TERMS))[0])
    assert delivered(state.get("d", 1, Q)) == [("d", ["item0"])]
    state.confirm("d", 1)
    assert state.queues.depths() == ()


# -- bounds ---------------------------------------------------------------------------------------


def test_items_on_lease_count_against_the_number_of_items():
    state = filled(2, maxsize=2)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    assert state.put("p", 9, Q, "late", wait=True) == []
    assert state.queues.is_full(Q)
    assert state.acknowledge("c", generation)[1:] == [Accept("p", 9)]


def test_items_that_come_back_exceed_no_bound():
    state = filled(2, maxsize=2)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    state.put("p", 9, Q, "late")
    assert clocks(state.give_back("c", generation)) == ([], [generation])
    assert counts(state) == (2, 0, 0)


@pytest.mark.parametrize("options", [{"max_bytes": 25}, {"total_bytes": 25}])
def test_items_on_lease_count_against_the_bytes(options):
    state = filled(2, **options)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    assert state.queues.held_bytes(Q) == 20
    assert state.put("p", 9, Q, "late", size_bytes=10) == []
    assert state.acknowledge("c", generation)[1:] == [Accept("p", 9)]


def test_dead_letters_count_against_the_bytes_of_the_channel_alone():
    state = filled(2, total_bytes=25, max_attempts=1)
    state.give_back("c", lease_of(state.lease("c", 1, Q, TERMS))[0])
    assert state.put("p", 9, Q, "late", size_bytes=10) == []
    (letter,) = state.leases.dead_letters()
    assert state.discard(letter.number) == [Accept("p", 9)]


def test_a_batch_waits_for_what_is_on_lease_and_does_not_give_up():
    state = filled(2, maxsize=2)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    state.put("p", 9, Q, "waits")
    assert state.get_batch("d", 1, Q, 2) == []
    assert delivered(state.give_back("c", generation)) == [("d", ["item0", "item1"])]


def test_a_consumer_with_enough_on_lease_is_passed_over():
    state = filled(1, max_leased=1)
    first, _ = lease_of(state.lease("greedy", 1, Q, TERMS))
    assert state.lease("greedy", 2, Q, TERMS) == []
    assert state.lease("other", 3, Q, TERMS) == []
    assert delivered(state.put("p", 8, Q, "next")) == [("other", ["next"])]
    assert delivered(state.put("p", 9, Q, "last")) == []
    assert delivered(state.acknowledge("greedy", first)) == [("greedy", ["last"])]


def test_a_batch_may_exceed_the_bound_of_a_consumer_that_has_nothing():
    state = filled(3, max_leased=1)
    generation, items = lease_of(state.lease("c", 1, Q, TERMS, 3))
    assert items == ["item0", "item1", "item2"]
    state.put("p", 9, Q, "next")
    assert state.lease("c", 2, Q, TERMS) == []
    assert state.acknowledge("c", generation, [0, 1]) == []
    assert delivered(state.acknowledge("c", generation)) == [("c", ["next"])]


def test_the_bound_of_a_consumer_is_over_all_queues():
    state = filled(1, max_leased=1)
    state.put("p", 9, "other", "elsewhere")
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    assert state.lease("c", 2, "other", TERMS) == []
    assert delivered(state.acknowledge("c", generation)) == [("c", ["elsewhere"])]


def test_a_consumer_that_gets_enough_elsewhere_is_passed_over_where_it_already_waits():
    state = filled(1, max_leased=1)
    assert state.lease("greedy", 1, Q, TERMS, 5) == []  # waits for more weight
    assert state.get("second", 1, Q) == []
    assert state.lease("greedy", 2, "other", TERMS) == []
    out = state.put("p", 9, "other", "elsewhere")
    assert delivered(out) == [("greedy", ["elsewhere"]), ("second", ["item0"])]


def test_who_asks_behind_a_consumer_that_got_enough_elsewhere_does_not_wait_for_it():
    state = filled(1, max_leased=1)
    assert state.lease("greedy", 1, Q, TERMS, 5) == []
    state.put("p", 9, "other", "elsewhere")
    generation, _ = lease_of(state.lease("greedy", 2, "other", TERMS))
    assert delivered(state.get("second", 1, Q)) == [("second", ["item0"])]
    for ticket in range(5):
        state.put("p", 10 + ticket, Q, ticket, weight=1)
    assert delivered(state.acknowledge("greedy", generation)) == [("greedy", [0, 1, 2, 3, 4])]


def test_a_batch_of_others_ripens_behind_a_consumer_that_got_enough_elsewhere():
    state = filled(1, max_leased=1)
    assert state.lease("greedy", 1, Q, TERMS, 5) == []
    assert state.get_batch("second", 1, Q, 5, Limits(max_wait_s=1.0)) == []
    state.put("p", 9, "other", "elsewhere")
    out = state.lease("greedy", 2, "other", TERMS)
    assert [(each.client, each.ticket) for each in out if isinstance(each, Ripen)] == [("second", 1)]


def test_it_is_passed_over_behind_a_line_that_was_restored_too():
    state = filled(1, max_leased=1)
    assert state.lease("greedy", 1, Q, TERMS, 5) == []
    assert state.get("second", 1, Q) == []
    state.put("p", 9, "other", "elsewhere")
    twin = ChannelState(max_leased=1)
    snapshot = state.snapshot()
    restore(twin, snapshot)
    for each in (state, twin):
        out = each.lease("greedy", 2, "other", TERMS)
        assert delivered(out) == [("greedy", ["elsewhere"]), ("second", ["item0"])]


def test_a_plain_get_has_no_bound():
    state = filled(2, max_leased=1)
    state.lease("c", 1, Q, TERMS)
    assert delivered(state.get("c", 2, Q)) == [("c", ["item1"])]


def test_who_was_passed_over_can_leave():
    state = filled(2, max_leased=1)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    assert refused(state.lease("c", 2, Q, TERMS, wait=False)) == [("c", Reason.EMPTY)]
    state.lease("c", 3, Q, TERMS)
    assert refused(state.withdraw("c", 3)) == [("c", Reason.CANCELLED)]
    assert clocks(state.acknowledge("c", generation)) == ([], [generation])
    state.lose("c")
    assert counts(state) == (1, 0, 0)


def test_a_lease_that_does_not_wait_looks_at_its_own_queue_alone():
    state = filled(0)
    state.put("p", 1, "other", "elsewhere")
    (told,) = state.lease("c", 1, Q, TERMS, wait=False)
    (of_get,) = state.get("c", 2, Q, wait=False)
    assert told.state == of_get.state == "0 items of weight 0"


def test_who_was_passed_over_stands_at_the_old_place_again():
    state = filled(2, max_leased=1)
    of_first, _ = lease_of(state.lease("first", 1, Q, TERMS))
    of_second, _ = lease_of(state.lease("second", 1, Q, TERMS))
    state.lease("first", 2, Q, TERMS)
    state.lease("second", 2, Q, TERMS)
    state.get("third", 1, Q)
    state.acknowledge("first", of_first)
    state.acknowledge("second", of_second)
    assert [delivered(state.put("p", 10 + n, Q, n)) for n in range(3)] == [
        [("first", [0])],
        [("second", [1])],
        [("third", [2])],
    ]


def test_a_consumer_with_enough_on_lease_makes_no_room_elsewhere():
    state = ChannelState(total_bytes=25, max_leased=1)
    assert state.lease("c", 1, "other", TERMS) == []
    state.put("p", 1, Q, "large", size_bytes=20)
    generation, _ = lease_of(state.lease("c", 2, Q, TERMS))
    assert state.put("p", 2, "other", "x", size_bytes=10) == []
    assert delivered(state.acknowledge("c", generation)) == [("c", ["x"])]


# -- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [lambda state: state.end(Q), ChannelState.close])
def test_the_end_waits_for_what_is_on_lease(end):
    state = filled(1)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    end(state)
    assert state.get("d", 1, Q) == []
    assert refused(state.acknowledge("c", generation))[0][0] == "d"


def test_the_end_comes_after_what_came_back():
    state = filled(1)
    generation, _ = lease_of(state.lease("stopped", 1, Q, TERMS))
    state.end(Q)
    state.lease("d", 1, Q, TERMS)
    again, items = lease_of(state.lapse(generation))
    assert items == ["item0"]
    state.lease("d", 2, Q, TERMS)
    assert refused(state.acknowledge("d", again)) == [("d", Reason.ENDED)]


def test_who_was_passed_over_hears_of_the_end():
    state = filled(1, max_leased=1)
    state.put("p", 9, "other", "elsewhere")
    state.lease("c", 1, "other", TERMS)
    state.lease("c", 2, Q, TERMS)
    state.end(Q)
    assert delivered(state.get("d", 1, Q)) == [("d", ["item0"])]
    assert refused(state.confirm("d", 1)) == [("c", Reason.ENDED)]


def test_shards_wait_for_what_is_on_lease():
    state = filled(1)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    state.end(Q)
    assert state.get_part("d", 1, Q, ShardPlan(1, batch_items=4), 0) == []
    assert delivered(state.give_back("c", generation)) == [("d", ["item0"])]


def test_a_queue_with_a_dead_letter_is_remembered():
    state = filled(1, max_attempts=1)
    state.give_back("c", lease_of(state.lease("c", 1, Q, TERMS))[0])
    state.put("p", 9, Q, "first of its name", size_bytes=1)
    state.confirm("d", 1) if state.get("d", 1, Q) else None
    (letter,) = state.leases.dead_letters()
    state.put_back(letter.number)
    state.put("p", 10, Q, "second")
    assert [delivered(state.get("d", ticket, Q))[0][1] for ticket in (2, 3)] == [["item0"], ["second"]]


# -- clocks ---------------------------------------------------------------------------------------


def test_an_extended_lease_lasts_longer():
    state = filled(1)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    assert state.extend("c", generation) == [StartClock("c", 1, generation, 60.0)]
    assert state.extend("c", generation, 300) == [StartClock("c", 1, generation, 300)]


def test_a_clock_that_is_late_does_nothing():
    state = filled(1)
    generation, _ = lease_of(state.lease("c", 1, Q, TERMS))
    state.acknowledge("c", generation)
    assert state.lapse(generation) == []


def test_what_is_on_lease_can_be_delivered_again():
    state = filled(1)
    (first, _) = state.lease("c", 1, Q, TERMS)
    assert state.deliver_again("c", 1) == [first]
    assert state.queues.deliveries("c") == []  # nothing that was taken for good


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf")])
def test_a_lease_lasts_a_time(ttl_s):
    with pytest.raises(ValueError, match="number of seconds above 0"):
        ChannelState().lease("c", 1, Q, LeaseTerms(ttl_s))


def test_the_cost_of_a_lease_does_not_depend_on_how_many_there_are():
    def cost_of_some(held):
        state = filled(held + 2000)
        for ticket in range(held):
            state.lease("c", ticket, Q, TERMS)
        best = 1e9
        for _ in range(3):
            began = process_time()
            for ticket in range(held, held + 600):
                generation, _ = lease_of(state.lease("c", ticket, Q, TERMS))
                state.acknowledge("c", generation)
            best = min(best, process_time() - began)
        return best

    cost_of_some(10)
    assert cost_of_some(8000) < 4 * cost_of_some(10)


# -- groups, and parts of shards --------------------------------------------------------------------


def test_a_group_on_lease_goes_back_to_its_places():
    state = ChannelState()
    for ticket, group in enumerate("abab"):
        state.put("p", ticket, Q, f"{group}{ticket}", group=group)
    delivery, _ = state.lease("c", 1, Q, TERMS, group_size=2)
    assert (delivery.group, [item.payload for item in delivery.items]) == ("a", ["a0", "a2"])
    assert delivery.lease.attempts == [1, 1]
    assert counts(state) == (2, 2, 0)
    state.give_back("c", delivery.lease.generation, [1])
    state.acknowledge("c", delivery.lease.generation)
    assert delivered(state.get_batch("d", 1, Q, None)) == [("d", ["a2", "b1", "b3"])]


def test_a_part_that_is_done_with_does_not_come_to_a_successor():
    state = filled(4)
    plan = ShardPlan(1, batch_items=2)
    state.end(Q)
    assert state.finish_part("c", Q, 0, 0) is None
    state.get_part("c", 1, Q, plan, 0)
    assert state.finish_part("other", Q, 0, 0) is state.finish_part("c", Q, 0, 1) is None
    assert state.finish_part("c", Q, 1, 0) is state.finish_part("c", "elsewhere", 0, 0) is None
    assert state.finish_part("c", Q, 0, 0) == []
    assert state.finish_part("c", Q, 0, 0) is None
    state.lose("c")
    assert delivered(state.get_part("successor", 1, Q, plan, 0)) == [("successor", ["item2", "item3"])]
    assert state.finish_part("successor", Q, 0, 1) == []
    assert state.get_part("third", 1, Q, plan, 0)[0].reason is Reason.ENDED
