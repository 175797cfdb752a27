"""The rules of leases, one by one, on the state machine alone."""

from __future__ import annotations

from time import process_time

import pytest
from channel_sums import is_over, restore

from rlinf_scheduler.queueing.dead_letters import DeadLetters, MoveDead
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import Extend, Lapse, Leases, LeaseTerms, Settle, StartClock, StopClock
from rlinf_scheduler.queueing.messages import (
    Accept,
    Close,
    Deliver,
    EndQueue,
    Get,
    Lose,
    Put,
    Reason,
    Refuse,
    Resend,
    Retract,
    Ripen,
    Withdraw,
)
from rlinf_scheduler.queueing.shard_plan import ShardPlan
from rlinf_scheduler.queueing.sharding import DonePart, WantedPart
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.surveying import QueueSurvey
from rlinf_scheduler.queueing.wanted import NO_LIMITS, Limits

Q = "default"
TERMS = LeaseTerms(60.0, "consumer")


def filled(count, **options):
    state = ChannelState(**options)
    for ticket in range(count):
        state.apply(Put(ticket, Q), "producer", Item(f"item{ticket}", 1, 10))
    return state


def lease_of(instructions):
    """(generation, payloads) of the only lease that begins."""
    (delivery,) = [each for each in instructions if isinstance(each, Deliver)]
    return delivery.grant.generation, [item.payload for item in delivery.items]


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
    (depth,) = depths_of(state.queues)
    return depth.num_items, depth.num_leased, depth.num_dead


def test_a_lease_is_delivered_with_its_generation_and_its_clock():
    state = filled(1)
    delivery, clock = state.apply(Get(1, Q, grant=TERMS), "c")
    assert delivery.grant.attempts == [1]
    assert clock == StartClock("c", 1, delivery.grant.generation, 60.0)
    assert counts(state) == (0, 1, 0)


def test_a_lease_that_is_over_can_not_be_settled():
    state = filled(1)
    old, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "slow"))
    assert refused(state.apply(Lapse(old))) == [("slow", Reason.CANCELLED)]
    new, items = lease_of(state.apply(Get(1, Q, grant=TERMS), "fast"))
    assert items == ["item0"]
    assert new > old
    assert is_over(state, Settle(old, None, True), "slow")
    assert is_over(state, Settle(old, None, False), "slow")
    assert is_over(state, Extend(old), "slow")
    assert "60 s" in state.policy(Leases).why_over(old)
    assert is_over(state, Settle(new, None, True), "slow")  # it is another's
    assert counts(state) == (0, 1, 0)


def test_who_waits_gets_what_comes_back():
    state = filled(1)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    assert state.apply(Get(1, Q), "waiting") == []
    assert delivered(state.apply(Lapse(generation))) == [("waiting", ["item0"])]


def test_the_loss_of_a_consumer_ends_its_leases_at_once():
    state = filled(2)
    generation, _ = lease_of(state.apply(Get(1, Q, limits=Limits(2, 2), grant=TERMS), "c"))
    assert clocks(state.apply(Lose(), "c")) == ([], [generation])
    assert is_over(state, Settle(generation, None, True), "c")
    assert counts(state) == (2, 0, 0)


def test_an_item_comes_back_after_its_delay():
    state = filled(1)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    stop, start = state.apply(Settle(generation, None, False, delay_s=5), "c")
    assert (stop.generation, start.after_s) == (generation, 5)
    assert counts(state) == (0, 1, 0)
    assert is_over(state, Settle(start.generation, None, True), "c")  # nobody has it
    state.apply(Get(1, Q), "waiting")
    assert delivered(state.apply(Lapse(start.generation))) == [("waiting", ["item0"])]


def test_an_item_that_was_given_out_too_often_is_a_dead_letter():
    state = filled(1, max_attempts=2)
    for attempt in (1, 2):
        (delivery, _) = state.apply(Get(attempt, Q, grant=TERMS), "c")
        assert delivery.grant.attempts == [attempt]
        state.apply(Settle(delivery.grant.generation, None, False, reason=f"reason {attempt}"), "c")
    (letter,) = state.policy(DeadLetters).of()
    assert (letter.item.payload, letter.attempts, letter.reason, letter.consumer) == (
        "item0",
        2,
        "reason 2",
        "consumer",
    )
    assert counts(state) == (0, 0, 1)
    assert state.policy(DeadLetters).of("other") == []
    assert state.policy(DeadLetters).of(Q) == [letter]


def test_a_delivery_that_nobody_wanted_any_more_is_no_attempt():
    state = filled(1, max_attempts=1)
    for ticket in range(5):
        (delivery, _) = state.apply(Get(ticket, Q, grant=TERMS), "c")
        assert delivery.grant.attempts == [1]
        assert refused(state.apply(Withdraw(ticket), "c")) == [("c", Reason.CANCELLED)]
    assert counts(state) == (1, 0, 0)


@pytest.mark.parametrize("ending", ["nack", "delay", "lapse", "lose", "withdraw", "ack"])
def test_a_question_that_is_retracted_on_lease_does_not_come_back(ending):
    state = ChannelState(max_attempts=1)
    for number in (1, 2):
        state.apply(Put(number, Q), "asker", Item(f"question {number}", 1, 10, question=("asker", number)))
    given = state.apply(Get(1, Q, grant=TERMS), "c")
    generation, payloads = lease_of(given)
    assert payloads == ["question 1"]
    assert state.apply(Retract(Q, 1), "asker") == []
    restored = ChannelState(max_attempts=1)
    restore(restored, state.snapshot())
    for each in (state, restored):
        if ending == "lapse":
            each.apply(Lapse(generation), "c")
        elif ending == "lose":
            each.apply(Lose(), "c")
        elif ending == "withdraw":
            each.apply(Withdraw(1), "c")
        else:
            each.apply(Settle(generation, None, ending == "ack", delay_s=5.0 * (ending == "delay")), "c")
        assert counts(each) == (1, 0, 0)
        assert lease_of(each.apply(Get(2, Q, grant=TERMS), "d"))[1] == ["question 2"]


def test_a_dead_letter_that_is_put_back_is_as_new():
    state = filled(2, max_attempts=1)
    state.apply(Settle(lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))[0], None, False), "c")
    (letter,) = state.policy(DeadLetters).of()
    assert state.apply(MoveDead(letter.number, True)) == []
    assert is_over(state, MoveDead(letter.number, True))
    (delivery, _) = state.apply(Get(2, Q, grant=TERMS), "c")
    assert ([item.payload for item in delivery.items], delivery.grant.attempts) == (["item0"], [1])


def test_a_dead_letter_that_is_discarded_is_gone():
    state = filled(1, max_attempts=1)
    state.apply(Settle(lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))[0], None, False), "c")
    (letter,) = state.policy(DeadLetters).of()
    assert state.apply(MoveDead(letter.number, False)) == []
    assert is_over(state, MoveDead(letter.number, False))
    assert depths_of(state.queues) == ()


def test_a_plain_get_takes_what_was_on_lease_before():
    state = filled(1)
    state.apply(Settle(lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))[0], None, False), "c")
    assert delivered(state.apply(Get(1, Q), "d")) == [("d", ["item0"])]
    state.confirm("d", (1,))
    assert depths_of(state.queues) == ()


# -- bounds ---------------------------------------------------------------------------------------


def test_items_on_lease_count_against_the_number_of_items():
    state = filled(2, maxsize=2)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    assert state.apply(Put(9, Q, wait=True), "p", Item("late")) == []
    assert QueueSurvey(state).is_full(Q)
    assert state.apply(Settle(generation, None, True), "c")[1:] == [Accept("p", 9)]


def test_items_that_come_back_exceed_no_bound():
    state = filled(2, maxsize=2)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    state.apply(Put(9, Q), "p", Item("late"))
    assert clocks(state.apply(Settle(generation, None, False), "c")) == ([], [generation])
    assert counts(state) == (2, 0, 0)


@pytest.mark.parametrize("options", [{"max_bytes": 25}, {"total_bytes": 25}])
def test_items_on_lease_count_against_the_bytes(options):
    state = filled(2, **options)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    assert state.queues.find(Q).held_bytes == 20
    assert state.apply(Put(9, Q), "p", Item("late", size_bytes=10)) == []
    assert state.apply(Settle(generation, None, True), "c")[1:] == [Accept("p", 9)]


def test_dead_letters_count_against_the_bytes_of_the_channel_alone():
    state = filled(2, total_bytes=25, max_attempts=1)
    state.apply(Settle(lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))[0], None, False), "c")
    assert state.apply(Put(9, Q), "p", Item("late", size_bytes=10)) == []
    (letter,) = state.policy(DeadLetters).of()
    assert state.apply(MoveDead(letter.number, False)) == [Accept("p", 9)]


def test_a_batch_waits_for_what_is_on_lease_and_does_not_give_up():
    state = filled(2, maxsize=2)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    state.apply(Put(9, Q), "p", Item("waits"))
    assert state.apply(Get(1, Q, batch_weight=2), "d") == []
    assert delivered(state.apply(Settle(generation, None, False), "c")) == [("d", ["item0", "item1"])]


def test_a_consumer_with_enough_on_lease_is_passed_over():
    state = filled(1, max_leased=1)
    first, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "greedy"))
    assert state.apply(Get(2, Q, grant=TERMS), "greedy") == []
    assert state.apply(Get(3, Q, grant=TERMS), "other") == []
    assert delivered(state.apply(Put(8, Q), "p", Item("next"))) == [("other", ["next"])]
    assert delivered(state.apply(Put(9, Q), "p", Item("last"))) == []
    assert delivered(state.apply(Settle(first, None, True), "greedy")) == [("greedy", ["last"])]


def test_a_batch_may_exceed_the_bound_of_a_consumer_that_has_nothing():
    state = filled(3, max_leased=1)
    generation, items = lease_of(state.apply(Get(1, Q, batch_weight=3, grant=TERMS), "c"))
    assert items == ["item0", "item1", "item2"]
    state.apply(Put(9, Q), "p", Item("next"))
    assert state.apply(Get(2, Q, grant=TERMS), "c") == []
    assert state.apply(Settle(generation, [0, 1], True), "c") == []
    assert delivered(state.apply(Settle(generation, None, True), "c")) == [("c", ["next"])]


def test_the_bound_of_a_consumer_is_over_all_queues():
    state = filled(1, max_leased=1)
    state.apply(Put(9, "other"), "p", Item("elsewhere"))
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    assert state.apply(Get(2, "other", grant=TERMS), "c") == []
    assert delivered(state.apply(Settle(generation, None, True), "c")) == [("c", ["elsewhere"])]


def test_a_consumer_that_gets_enough_elsewhere_is_passed_over_where_it_already_waits():
    state = filled(1, max_leased=1)
    assert state.apply(Get(1, Q, batch_weight=5, grant=TERMS), "greedy") == []  # waits for more weight
    assert state.apply(Get(1, Q), "second") == []
    assert state.apply(Get(2, "other", grant=TERMS), "greedy") == []
    out = state.apply(Put(9, "other"), "p", Item("elsewhere"))
    assert delivered(out) == [("greedy", ["elsewhere"]), ("second", ["item0"])]


def test_who_asks_behind_a_consumer_that_got_enough_elsewhere_does_not_wait_for_it():
    state = filled(1, max_leased=1)
    assert state.apply(Get(1, Q, batch_weight=5, grant=TERMS), "greedy") == []
    state.apply(Put(9, "other"), "p", Item("elsewhere"))
    generation, _ = lease_of(state.apply(Get(2, "other", grant=TERMS), "greedy"))
    assert delivered(state.apply(Get(1, Q), "second")) == [("second", ["item0"])]
    for ticket in range(5):
        state.apply(Put(10 + ticket, Q), "p", Item(ticket, 1))
    assert delivered(state.apply(Settle(generation, None, True), "greedy")) == [("greedy", [0, 1, 2, 3, 4])]


def test_a_batch_of_others_ripens_behind_a_consumer_that_got_enough_elsewhere():
    state = filled(1, max_leased=1)
    assert state.apply(Get(1, Q, batch_weight=5, grant=TERMS), "greedy") == []
    assert state.apply(Get(1, Q, batch_weight=5, limits=Limits(max_wait_s=1.0)), "second") == []
    state.apply(Put(9, "other"), "p", Item("elsewhere"))
    out = state.apply(Get(2, "other", grant=TERMS), "greedy")
    assert [(each.client, each.ticket) for each in out if isinstance(each, Ripen)] == [("second", 1)]


def test_it_is_passed_over_behind_a_line_that_was_restored_too():
    state = filled(1, max_leased=1)
    assert state.apply(Get(1, Q, batch_weight=5, grant=TERMS), "greedy") == []
    assert state.apply(Get(1, Q), "second") == []
    state.apply(Put(9, "other"), "p", Item("elsewhere"))
    twin = ChannelState(max_leased=1)
    snapshot = state.snapshot()
    restore(twin, snapshot)
    for each in (state, twin):
        out = each.apply(Get(2, "other", grant=TERMS), "greedy")
        assert delivered(out) == [("greedy", ["elsewhere"]), ("second", ["item0"])]


def test_a_plain_get_has_no_bound():
    state = filled(2, max_leased=1)
    state.apply(Get(1, Q, grant=TERMS), "c")
    assert delivered(state.apply(Get(2, Q), "c")) == [("c", ["item1"])]


def test_who_was_passed_over_can_leave():
    state = filled(2, max_leased=1)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    assert refused(state.apply(Get(2, Q, wait=False, grant=TERMS), "c")) == [("c", Reason.EMPTY)]
    state.apply(Get(3, Q, grant=TERMS), "c")
    assert refused(state.apply(Withdraw(3), "c")) == [("c", Reason.CANCELLED)]
    assert clocks(state.apply(Settle(generation, None, True), "c")) == ([], [generation])
    state.apply(Lose(), "c")
    assert counts(state) == (1, 0, 0)


def test_a_lease_that_does_not_wait_looks_at_its_own_queue_alone():
    state = filled(0)
    state.apply(Put(1, "other"), "p", Item("elsewhere"))
    (told,) = state.apply(Get(1, Q, wait=False, grant=TERMS), "c")
    (of_get,) = state.apply(Get(2, Q, wait=False), "c")
    assert told.state == of_get.state == "0 items of weight 0"


def test_who_was_passed_over_stands_at_the_old_place_again():
    state = filled(2, max_leased=1)
    of_first, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "first"))
    of_second, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "second"))
    state.apply(Get(2, Q, grant=TERMS), "first")
    state.apply(Get(2, Q, grant=TERMS), "second")
    state.apply(Get(1, Q), "third")
    state.apply(Settle(of_first, None, True), "first")
    state.apply(Settle(of_second, None, True), "second")
    assert [delivered(state.apply(Put(10 + n, Q), "p", Item(n))) for n in range(3)] == [
        [("first", [0])],
        [("second", [1])],
        [("third", [2])],
    ]


def test_a_consumer_with_enough_on_lease_makes_no_room_elsewhere():
    state = ChannelState(total_bytes=25, max_leased=1)
    assert state.apply(Get(1, "other", grant=TERMS), "c") == []
    state.apply(Put(1, Q), "p", Item("large", size_bytes=20))
    generation, _ = lease_of(state.apply(Get(2, Q, grant=TERMS), "c"))
    assert state.apply(Put(2, "other"), "p", Item("x", size_bytes=10)) == []
    assert delivered(state.apply(Settle(generation, None, True), "c")) == [("c", ["x"])]


# -- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [EndQueue(Q), Close()])
def test_the_end_waits_for_what_is_on_lease(end):
    state = filled(1)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    state.apply(end)
    assert state.apply(Get(1, Q), "d") == []
    assert refused(state.apply(Settle(generation, None, True), "c"))[0][0] == "d"


def test_the_end_comes_after_what_came_back():
    state = filled(1)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "stopped"))
    state.apply(EndQueue(Q))
    state.apply(Get(1, Q, grant=TERMS), "d")
    again, items = lease_of(state.apply(Lapse(generation)))
    assert items == ["item0"]
    state.apply(Get(2, Q, grant=TERMS), "d")
    assert refused(state.apply(Settle(again, None, True), "d")) == [("d", Reason.ENDED)]


def test_who_was_passed_over_hears_of_the_end():
    state = filled(1, max_leased=1)
    state.apply(Put(9, "other"), "p", Item("elsewhere"))
    state.apply(Get(1, "other", grant=TERMS), "c")
    state.apply(Get(2, Q, grant=TERMS), "c")
    state.apply(EndQueue(Q))
    assert delivered(state.apply(Get(1, Q), "d")) == [("d", ["item0"])]
    assert refused(state.confirm("d", (1,))) == [("c", Reason.ENDED)]


def test_shards_wait_for_what_is_on_lease():
    state = filled(1)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    state.apply(EndQueue(Q))
    assert state.apply(Get(1, Q, grant=WantedPart(ShardPlan(1, batch_items=4), 0)), "d") == []
    assert delivered(state.apply(Settle(generation, None, False), "c")) == [("d", ["item0"])]


def test_a_queue_with_a_dead_letter_is_remembered():
    state = filled(1, max_attempts=1)
    state.apply(Settle(lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))[0], None, False), "c")
    state.apply(Put(9, Q), "p", Item("first of its name", size_bytes=1))
    state.confirm("d", (1,)) if state.apply(Get(1, Q), "d") else None
    (letter,) = state.policy(DeadLetters).of()
    state.apply(MoveDead(letter.number, True))
    state.apply(Put(10, Q), "p", Item("second"))
    assert [delivered(state.apply(Get(ticket, Q), "d"))[0][1] for ticket in (2, 3)] == [["item0"], ["second"]]


# -- clocks ---------------------------------------------------------------------------------------


def test_an_extended_lease_lasts_longer():
    state = filled(1)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    assert state.apply(Extend(generation), "c") == [StartClock("c", 1, generation, 60.0)]
    assert state.apply(Extend(generation, 300), "c") == [StartClock("c", 1, generation, 300)]


def test_a_clock_that_is_late_does_nothing():
    state = filled(1)
    generation, _ = lease_of(state.apply(Get(1, Q, grant=TERMS), "c"))
    state.apply(Settle(generation, None, True), "c")
    assert state.apply(Lapse(generation)) == []


def test_what_is_on_lease_can_be_delivered_again():
    state = filled(1)
    (first, _) = state.apply(Get(1, Q, grant=TERMS), "c")
    assert state.apply(Resend(1), "c") == [first]
    assert state.queues.deliveries("c") == []  # nothing that was taken for good


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf")])
def test_a_lease_lasts_a_time(ttl_s):
    with pytest.raises(ValueError, match="number of seconds above 0"):
        ChannelState().apply(Get(1, Q, grant=LeaseTerms(ttl_s)), "c")


def test_the_cost_of_a_lease_does_not_depend_on_how_many_there_are():
    def cost_of_some(held):
        state = filled(held + 2000)
        for ticket in range(held):
            state.apply(Get(ticket, Q, grant=TERMS), "c")
        best = 1e9
        for _ in range(3):
            began = process_time()
            for ticket in range(held, held + 600):
                generation, _ = lease_of(state.apply(Get(ticket, Q, grant=TERMS), "c"))
                state.apply(Settle(generation, None, True), "c")
            best = min(best, process_time() - began)
        return best

    cost_of_some(10)
    assert cost_of_some(8000) < 4 * cost_of_some(10)


# -- groups, and parts of shards --------------------------------------------------------------------


def test_a_group_on_lease_goes_back_to_its_places():
    state = ChannelState()
    for ticket, group in enumerate("abab"):
        state.apply(Put(ticket, Q), "p", Item(f"{group}{ticket}", group=group))
    delivery, _ = state.apply(Get(1, Q, grant=TERMS, group_size=2), "c")
    assert (delivery.group, [item.payload for item in delivery.items]) == ("a", ["a0", "a2"])
    assert delivery.grant.attempts == [1, 1]
    assert counts(state) == (2, 2, 0)
    state.apply(Settle(delivery.grant.generation, [1], False), "c")
    state.apply(Settle(delivery.grant.generation, None, True), "c")
    assert delivered(state.apply(Get(1, Q, limits=NO_LIMITS), "d")) == [("d", ["a2", "b1", "b3"])]


def test_a_part_that_is_done_with_does_not_come_to_a_successor():
    state = filled(4)
    plan = ShardPlan(1, batch_items=2)
    state.apply(EndQueue(Q))
    assert is_over(state, DonePart(Q, 0, 0), "c")
    state.apply(Get(1, Q, grant=WantedPart(plan, 0)), "c")
    assert is_over(state, DonePart(Q, 0, 0), "other")
    assert is_over(state, DonePart(Q, 0, 1), "c")
    assert is_over(state, DonePart(Q, 1, 0), "c")
    assert is_over(state, DonePart("elsewhere", 0, 0), "c")
    assert state.apply(DonePart(Q, 0, 0), "c") == []
    assert is_over(state, DonePart(Q, 0, 0), "c")
    state.apply(Lose(), "c")
    assert delivered(state.apply(Get(1, Q, grant=WantedPart(plan, 0)), "successor")) == [
        ("successor", ["item2", "item3"])
    ]
    assert state.apply(DonePart(Q, 0, 1), "successor") == []
    assert state.apply(Get(1, Q, grant=WantedPart(plan, 0)), "third")[0].reason is Reason.ENDED
