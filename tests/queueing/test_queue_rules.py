"""The rules of a channel's queues, one by one, on the state machine alone."""

from __future__ import annotations

import math
from time import process_time

import pytest

from rlinf_scheduler.queueing import (
    Accept,
    ChannelState,
    Deliver,
    Grant,
    Item,
    Reason,
    Refuse,
    WeightedFifo,
    check_batch_weight,
    check_maxsize,
    check_weight,
)

Q = "default"


def delivered(instructions):
    return [
        (instruction.client, [item.payload for item in instruction.items])
        for instruction in instructions
        if isinstance(instruction, Deliver)
    ]


def refused(instructions):
    return [(i.client, i.reason) for i in instructions if isinstance(i, Refuse)]


def filled(weights, maxsize=0):
    state = ChannelState(maxsize)
    for ticket, weight in enumerate(weights):
        state.put("producer", ticket, Q, f"item{ticket}", weight)
    return state


def test_a_put_is_accepted_and_a_later_get_takes_it():
    state = ChannelState()
    assert state.put("p", 1, Q, "x") == [Accept("p", 1)]
    assert delivered(state.get("c", 1, Q)) == [("c", ["x"])]


def test_getters_are_served_in_order_of_arrival():
    state = ChannelState()
    state.get("first", 1, Q)
    state.get("second", 1, Q)
    assert delivered(state.put("p", 1, Q, "x")) == [("first", ["x"])]
    assert delivered(state.put("p", 2, Q, "y")) == [("second", ["y"])]


def test_a_batch_is_the_shortest_prefix_that_reaches_the_weight():
    state = filled([2, 4, 3])
    assert delivered(state.get_batch("c", 1, Q, 5)) == [("c", ["item0", "item1"])]
    assert state.queues.num_items(Q) == 1


def test_an_item_heavier_than_the_target_is_a_batch_of_one():
    assert delivered(filled([100, 1]).get_batch("c", 1, Q, 5)) == [("c", ["item0"])]


def test_weightless_items_ride_along_with_the_item_that_completes_the_batch():
    state = ChannelState()
    assert state.get_batch("c", 1, Q, 1) == []
    assert delivered(state.put("p", 1, Q, "light", 0)) == []
    assert state.queues.num_items(Q) == 1
    assert delivered(state.put("p", 2, Q, "heavy", 1)) == [("c", ["light", "heavy"])]


def test_a_waiting_batch_holds_nothing_but_its_place_in_line():
    state = filled([1])
    state.get_batch("batch", 1, Q, 2)
    assert state.queues.num_items(Q) == 1
    assert state.get("single", 1, Q) == []
    assert delivered(state.withdraw("batch", 1)) == [("single", ["item0"])]


def test_a_get_that_waited_in_vain_is_told_which_queues_hold_something():
    state = ChannelState()
    state.put("p", 1, "rollouts", "x")
    state.get("c", 1, "rolouts")
    (refusal,) = state.withdraw("c", 1)
    assert refusal.state == "0 items of weight 0; 'rollouts' holds 1 item of weight 0"
    (at_once,) = state.get("c", 2, "rolouts", wait=False)  # one of many looks, perhaps
    assert at_once.state == "0 items of weight 0"


def test_two_batches_share_nothing_out():
    state = ChannelState()
    state.get_batch("one", 1, Q, 2)
    state.get_batch("two", 1, Q, 2)
    outcomes = [delivered(state.put("p", ticket, Q, ticket, 1)) for ticket in range(4)]
    assert outcomes == [[], [("one", [0, 1])], [], [("two", [2, 3])]]


def test_float_weights_do_not_drift():
    state = ChannelState()
    for ticket in range(1000):
        state.put("p", ticket, Q, ticket, 0.1)
        state.get("c", ticket, Q)
        state.confirm("c", ticket)
    state.put("p", 1001, Q, "x", 0.5)
    state.put("p", 1002, Q, "y", 0.25)
    assert delivered(state.get_batch("c", 2000, Q, 0.75)) == [("c", ["x", "y"])]
    assert state.queues.num_items(Q) == 0


def test_a_full_queue_makes_a_put_wait_in_order_of_arrival():
    state = filled([0], maxsize=1)
    assert state.put("p", 10, Q, "a") == []
    assert state.put("q", 11, Q, "b") == []
    assert Accept("p", 10) in state.get("c", 1, Q)
    assert Accept("q", 11) in state.get("c", 2, Q)


def test_a_full_queue_holds_up_no_other_queue_of_the_same_producer():
    state = filled([0], maxsize=1)
    assert state.put("producer", 10, Q, "waits") == []
    assert state.put("producer", 11, "other", "enters") == [Accept("producer", 11)]


def test_a_put_without_waiting_is_refused_by_a_full_queue():
    assert refused(filled([0], maxsize=1).put("p", 9, Q, "x", wait=False)) == [("p", Reason.FULL)]


def test_a_get_without_waiting_is_refused_by_an_empty_queue():
    state = ChannelState()
    assert refused(state.get("c", 1, Q, wait=False)) == [("c", Reason.EMPTY)]
    assert state.queues.depths() == ()


def test_a_get_without_waiting_does_not_overtake_those_who_wait():
    state = filled([1])
    state.get_batch("batch", 1, Q, 2)
    assert refused(state.get("c", 1, Q, wait=False)) == [("c", Reason.EMPTY)]


def test_an_announced_item_gets_room_before_its_bytes_move():
    state = filled([0], maxsize=1)
    assert state.reserve("p", 10, Q) == []
    assert Grant("p", 10) in state.get("c", 1, Q)
    assert state.queues.is_full(Q)
    assert state.fill("p", 10, "bytes") == [Accept("p", 10)]


def test_a_put_behind_an_announced_one_of_the_same_producer_keeps_its_place():
    state = ChannelState()
    assert state.reserve("p", 1, Q) == [Grant("p", 1)]
    assert state.put("p", 2, Q, "small") == []
    assert state.put("q", 1, Q, "passes") == [Accept("q", 1)]
    assert state.fill("p", 1, "large") == [Accept("p", 1), Accept("p", 2)]
    assert [delivered(state.get("c", ticket, Q))[0][1] for ticket in range(3)] == [
        ["passes"],
        ["large"],
        ["small"],
    ]


def test_a_withdrawn_announcement_frees_its_room_and_those_behind_it():
    state = ChannelState(maxsize=2)
    state.reserve("p", 1, Q)
    state.put("p", 2, Q, "small")
    assert state.put("q", 1, Q, "waits") == []
    news = state.withdraw("p", 1)
    assert refused(news) == [("p", Reason.CANCELLED)]
    assert [i for i in news if isinstance(i, Accept)] == [Accept("p", 2), Accept("q", 1)]
    assert state.fill("p", 1, "too late") == []


def test_items_of_a_lost_consumer_return_to_the_head_in_their_order():
    state = filled([0, 0, 0, 0])
    state.get("dies", 1, Q)
    state.get("lives", 1, Q)
    state.get("dies", 2, Q)
    state.lose("dies")
    assert [delivered(state.get("c", t, Q))[0][1][0] for t in range(3)] == ["item0", "item2", "item3"]


def test_items_that_come_back_go_straight_to_whoever_waits():
    state = filled([0])
    state.get("dies", 1, Q)
    state.get("waits", 1, Q)
    assert delivered(state.lose("dies")) == [("waits", ["item0"])]


def test_two_lost_consumers_give_back_in_order_whoever_goes_first():
    for first, second in (("a", "b"), ("b", "a")):
        state = filled([0, 0, 0])
        state.get("a", 1, Q)
        state.get("b", 1, Q)
        state.lose(first)
        state.lose(second)
        order = [delivered(state.get("c", ticket, Q))[0][1][0] for ticket in range(3)]
        assert order == ["item0", "item1", "item2"]


def test_giving_back_may_exceed_the_bound_and_puts_wait_until_it_is_met_again():
    state = filled([0, 0], maxsize=2)
    state.get("c", 1, Q)
    state.put("p", 10, Q, "refill")
    state.withdraw("c", 1)
    assert state.queues.num_items(Q) == 3
    assert state.put("p", 11, Q, "waits") == []
    assert Accept("p", 11) not in state.get("c", 2, Q)
    assert Accept("p", 11) in state.get("c", 3, Q)


def test_a_lost_producer_leaves_what_was_accepted_and_frees_its_place_in_line():
    state = filled([0], maxsize=1)
    state.put("producer", 10, Q, "never held")
    state.put("other", 11, Q, "next")
    state.lose("producer")
    news = state.get("c", 1, Q)
    assert delivered(news) == [("c", ["item0"])]
    assert Accept("other", 11) in news


def test_a_batch_that_a_full_queue_cannot_complete_is_impossible():
    assert refused(filled([1, 1], maxsize=2).get_batch("c", 1, Q, 3)) == [("c", Reason.IMPOSSIBLE)]


def test_a_batch_becomes_impossible_when_the_queue_fills_up_although_puts_wait():
    state = ChannelState(maxsize=2)
    state.get_batch("batch", 1, Q, 100)
    state.get("single", 1, Q)
    state.put("p", 1, Q, "a", 1)
    assert refused(state.put("p", 2, Q, "b", 1)) == [("batch", Reason.IMPOSSIBLE)]
    assert state.queues.num_items(Q) == 1


def test_closing_refuses_puts_and_lets_getters_drain():
    state = filled([1, 1])
    state.close()
    assert refused(state.put("p", 9, Q, "late")) == [("p", Reason.CLOSED)]
    assert delivered(state.get("c", 1, Q)) == [("c", ["item0"])]
    assert delivered(state.get_batch("c", 2, Q, 50)) == [("c", ["item1"])]
    state.confirm("c", 1)
    state.confirm("c", 2)
    assert refused(state.get("c", 3, Q)) == [("c", Reason.CLOSED)]


def test_closing_fails_puts_that_wait():
    state = filled([0], maxsize=1)
    state.put("p", 9, Q, "waits")
    assert refused(state.close()) == [("p", Reason.CLOSED)]


def test_a_waiting_batch_takes_what_is_left_on_close():
    state = filled([1])
    state.get_batch("c", 1, Q, 10)
    state.get("d", 1, Q)
    assert delivered(state.close()) == [("c", ["item0"])]
    assert refused(state.confirm("c", 1)) == [("d", Reason.CLOSED)]


def test_a_closed_channel_is_drained_only_when_nothing_can_come_back():
    state = filled([0])
    state.get("dies", 1, Q)
    state.close()
    assert state.get("waits", 1, Q) == []
    assert delivered(state.lose("dies")) == [("waits", ["item0"])]


def test_a_closed_channel_does_not_wait_for_items_that_arrived_and_keeps_those_that_come_back():
    state = filled([0])
    state.get("slow", 1, Q)
    state.close()
    state.get("waits", 1, Q)
    assert refused(state.arrive("slow", 1)) == [("waits", Reason.CLOSED)]
    state.withdraw("slow", 1)
    assert delivered(state.get("later", 1, Q)) == [("later", ["item0"])]


def test_one_shot_queues_leave_nothing_behind():
    state = ChannelState(maxsize=4)
    for number in range(1000):
        state.put("p", number, f"reply-{number}", "x")
        state.get("c", number, f"reply-{number}")
        state.confirm("c", number)
    assert state.queues.depths() == ()
    assert not state.queues.all()


def test_the_state_of_a_queue_reads_as_a_phrase():
    state = filled([2, 2.5], maxsize=2)
    state.put("p", 9, Q, "waits")
    assert state.queues.describe(Q) == "2 of 2 items of weight 4.5, 1 put waiting"
    assert state.queues.describe("nobody's") == "0 of 2 items of weight 0"


@pytest.mark.parametrize("weight", [-1, -0.5, math.nan, math.inf, "3", None, True])
def test_a_weight_is_a_finite_number_of_at_least_zero(weight):
    with pytest.raises(ValueError, match="at least 0"):
        check_weight(weight)


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, "3", None, True])
def test_a_batch_weight_is_above_zero(weight):
    with pytest.raises(ValueError, match="above 0"):
        check_batch_weight(weight)


@pytest.mark.parametrize("maxsize", [-1, 1.5, "3", None])
def test_a_maxsize_is_an_integer_of_at_least_zero(maxsize):
    with pytest.raises(ValueError, match="at least 0"):
        check_maxsize(maxsize)


def test_numpy_numbers_are_weights():
    numpy = pytest.importorskip("numpy")
    assert check_weight(numpy.int64(3)) == 3
    assert check_weight(numpy.float32(0.5)) == 0.5


def test_restoring_items_merges_them_by_their_order():
    fifo = WeightedFifo()
    for number in range(6):
        fifo.push(Item(number, weight=number))
    taken = [fifo.take() for _ in range(5)]
    fifo.restore([taken[3], taken[1]])
    fifo.restore([taken[2], taken[0]])
    assert fifo.weight == 0 + 1 + 2 + 3 + 5
    assert [item.payload for item in fifo.take_all()] == [0, 1, 2, 3, 5]


def test_a_hundred_thousand_puts_under_a_waiting_batch_cost_the_same_each():
    def seconds(count):
        state = ChannelState()
        state.get_batch("c", 0, Q, count)
        begin = process_time()
        for ticket in range(count):
            state.put("p", ticket, Q, None, 1)
        return process_time() - begin, state

    small, _ = seconds(10_000)
    large, state = seconds(100_000)
    assert state.queues.num_items(Q) == 0
    # Ten times the puts; a scan of the queue on each would make it a hundred times the work.
    assert large < 40 * max(small, 0.005)


def test_what_is_given_up_after_it_was_delivered_comes_before_what_its_client_asks_for_next():
    state = filled([0, 0])
    state.get("c", 1, Q)
    news = state.withdraw("c", 1)
    assert refused(news) == [("c", Reason.CANCELLED)]
    assert delivered(state.get("c", 2, Q)) == [("c", ["item0"])]


def test_giving_back_many_deliveries_costs_the_same_for_each_whatever_their_order():
    def num_comparisons(size):
        class Order(int):
            count = 0

            def __lt__(self, other):
                Order.count += 1
                return int(self) < int(other)

        fifo = WeightedFifo()
        for _ in range(size):
            fifo.push(Item(None))
        taken = [fifo.take() for _ in range(size)]
        for item in taken:
            item.order = Order(item.order)
            fifo.restore([item])
        assert [fifo.take().order for _ in range(size)] == list(range(size))
        return Order.count

    assert num_comparisons(8000) < 8 * 3 * num_comparisons(1000)


def test_a_bound_in_bytes_lets_one_larger_item_in_and_nothing_besides():
    state = ChannelState(max_bytes=100)
    assert state.put("p", 1, Q, "large", 0, 1000) == [Accept("p", 1)]
    assert state.put("p", 2, Q, "small", 0, 1) == []
    assert Accept("p", 2) in state.get("c", 1, Q)
    assert state.put("p", 3, Q, "fits", 0, 99) == [Accept("p", 3)]
    assert refused(state.put("p", 4, Q, "no room", 0, 1, wait=False)) == [("p", Reason.FULL)]


def test_a_weight_of_any_size_is_counted_and_shown():
    state = ChannelState()
    state.put("p", 1, Q, "heavy", 1e20)
    state.put("p", 2, Q, "heavier", 1e308)
    state.put("p", 3, Q, "heavier", 1e308)
    (depth,) = state.queues.depths()
    assert depth.weight == float("inf")
    assert delivered(state.get_batch("c", 1, Q, 1e20)) == [("c", ["heavy"])]


def test_a_name_may_be_any_tuple_of_strings_and_numbers():
    state = ChannelState()
    for ticket, name in enumerate(["3", 3, ("step", 7), ("step", (7, "a"))]):
        state.put("p", ticket, name, name)
    assert [depth.name for depth in state.queues.depths()] == ["3", 3, ("step", 7), ("step", (7, "a"))]


def test_what_a_dead_client_took_is_confirmed_and_its_own_waits_hear_nothing():
    state = ChannelState()
    state.put("producer", 1, "default", "taken")
    state.get("dies", 2, "default")
    state.get("dies", 3, "default")
    state.get("lives", 4, "default")
    state.close()
    out = state.lose("dies", taken={2})
    assert [(i.client, i.ticket, i.reason) for i in out] == [("lives", 4, Reason.CLOSED)]
    assert state.queues.depths() == ()


def test_an_end_waits_for_what_is_on_its_way_and_for_nothing_else():
    state = filled([1, 1, 1, 1])
    for client in ("taken", "arrived", "stopped", "waiting"):
        state.get(client, 1, Q)
    state.get("waiting", 2, Q)
    state.confirm("taken", 1)
    state.arrive("arrived", 1)
    state.arrive("waiting", 1)
    assert state.queues.on_the_way() == []  # more may come
    state.end(Q)
    assert state.queues.on_the_way() == [("stopped", 1)]
    assert refused(state.arrive("stopped", 1)) == [("waiting", Reason.ENDED)]
    assert state.queues.on_the_way() == []
    assert state.lose("stopped") == []
    assert state.queues.num_items(Q) == 1


def test_a_closed_channel_waits_for_what_is_on_its_way_too():
    state = filled([1])
    state.get("stopped", 1, Q)
    state.close()
    assert state.queues.on_the_way() == [("stopped", 1)]


def test_ends_of_one_shot_queues_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.queueing.state.NUM_ENDED", 3)
    state = ChannelState()
    state.put("p", 0, "held", "item")
    state.end("held")
    for number in range(10):
        state.end(number)
    assert [number for number in range(10) if state.queues.has_ended(number)] == [8, 9]
    assert state.queues.has_ended("held")  # it is there yet


@pytest.mark.parametrize("priority", [0, 1])
def test_a_question_that_nobody_waits_for_leaves_its_queue(priority):
    state = ChannelState(maxsize=3)
    for number in range(3):
        state.put("asker", number, "q", f"question {number}", question=number + 1, priority=priority)
    state.get("c", 1, "q")
    state.put("asker", 3, "q", "question 3", question=4)
    state.withdraw("c", 1)
    assert state.put("other", 1, "q", "waits") == []
    assert state.retract("other", "q", 1) == state.retract("asker", "elsewhere", 1) == []
    state.retract("asker", "q", 1)  # it came back
    assert [each.client for each in state.retract("asker", "q", 3) if isinstance(each, Accept)] == ["other"]
    assert state.retract("asker", "q", 3) == []
    left = [delivery.items[0].payload for number in range(3) for delivery in state.get("d", number, "q")]
    assert left == ["question 1", "question 3", "waits"]
