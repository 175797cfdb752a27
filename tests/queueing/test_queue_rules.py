"""The rules of a channel's queues, one by one, on the state machine alone."""

from __future__ import annotations

import math
from time import process_time

import pytest

from rlinf_scheduler.channel.features.ends import on_the_way
from rlinf_scheduler.queueing.item import Item, check_batch_weight, check_maxsize, check_weight
from rlinf_scheduler.queueing.messages import (
    Accept,
    Arrive,
    Close,
    Deliver,
    EndQueue,
    Fill,
    Get,
    Grant,
    Lose,
    Put,
    Reason,
    Refuse,
    Retract,
    Withdraw,
)
from rlinf_scheduler.queueing.order import WeightedFifo
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.surveying import QueueSurvey
from rlinf_scheduler.queueing.wanted import NO_LIMITS

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
        state.apply(Put(ticket, Q), "producer", Item(f"item{ticket}", weight))
    return state


def test_a_put_is_accepted_and_a_later_get_takes_it():
    state = ChannelState()
    assert state.apply(Put(1, Q), "p", Item("x")) == [Accept("p", 1)]
    assert delivered(state.apply(Get(1, Q), "c")) == [("c", ["x"])]


def test_getters_are_served_in_order_of_arrival():
    state = ChannelState()
    state.apply(Get(1, Q), "first")
    state.apply(Get(1, Q), "second")
    assert delivered(state.apply(Put(1, Q), "p", Item("x"))) == [("first", ["x"])]
    assert delivered(state.apply(Put(2, Q), "p", Item("y"))) == [("second", ["y"])]


def test_a_batch_is_the_shortest_prefix_that_reaches_the_weight():
    state = filled([2, 4, 3])
    assert delivered(state.apply(Get(1, Q, batch_weight=5), "c")) == [("c", ["item0", "item1"])]
    assert QueueSurvey(state).num_items(Q) == 1


def test_an_item_heavier_than_the_target_is_a_batch_of_one():
    assert delivered(filled([100, 1]).apply(Get(1, Q, batch_weight=5), "c")) == [("c", ["item0"])]


def test_weightless_items_ride_along_with_the_item_that_completes_the_batch():
    state = ChannelState()
    assert state.apply(Get(1, Q, batch_weight=1), "c") == []
    assert delivered(state.apply(Put(1, Q), "p", Item("light", 0))) == []
    assert QueueSurvey(state).num_items(Q) == 1
    assert delivered(state.apply(Put(2, Q), "p", Item("heavy", 1))) == [("c", ["light", "heavy"])]


def test_a_waiting_batch_holds_nothing_but_its_place_in_line():
    state = filled([1])
    state.apply(Get(1, Q, batch_weight=2), "batch")
    assert QueueSurvey(state).num_items(Q) == 1
    assert state.apply(Get(1, Q), "single") == []
    assert delivered(state.apply(Withdraw(1), "batch")) == [("single", ["item0"])]


def test_a_get_that_waited_in_vain_is_told_which_queues_hold_something():
    state = ChannelState()
    state.apply(Put(1, "rollouts"), "p", Item("x"))
    state.apply(Get(1, "rolouts"), "c")
    (refusal,) = state.apply(Withdraw(1), "c")
    assert refusal.state == "0 items of weight 0; 'rollouts' holds 1 item of weight 0"
    (at_once,) = state.apply(Get(2, "rolouts", wait=False), "c")  # one of many looks, perhaps
    assert at_once.state == "0 items of weight 0"


def test_two_batches_share_nothing_out():
    state = ChannelState()
    state.apply(Get(1, Q, batch_weight=2), "one")
    state.apply(Get(1, Q, batch_weight=2), "two")
    outcomes = [delivered(state.apply(Put(ticket, Q), "p", Item(ticket, 1))) for ticket in range(4)]
    assert outcomes == [[], [("one", [0, 1])], [], [("two", [2, 3])]]


def test_float_weights_do_not_drift():
    state = ChannelState()
    for ticket in range(1000):
        state.apply(Put(ticket, Q), "p", Item(ticket, 0.1))
        state.apply(Get(ticket, Q), "c")
        state.confirm("c", (ticket,))
    state.apply(Put(1001, Q), "p", Item("x", 0.5))
    state.apply(Put(1002, Q), "p", Item("y", 0.25))
    assert delivered(state.apply(Get(2000, Q, batch_weight=0.75), "c")) == [("c", ["x", "y"])]
    assert QueueSurvey(state).num_items(Q) == 0


def test_a_full_queue_makes_a_put_wait_in_order_of_arrival():
    state = filled([0], maxsize=1)
    assert state.apply(Put(10, Q), "p", Item("a")) == []
    assert state.apply(Put(11, Q), "q", Item("b")) == []
    assert Accept("p", 10) in state.apply(Get(1, Q), "c")
    assert Accept("q", 11) in state.apply(Get(2, Q), "c")


def test_a_full_queue_holds_up_no_other_queue_of_the_same_producer():
    state = filled([0], maxsize=1)
    assert state.apply(Put(10, Q), "producer", Item("waits")) == []
    assert state.apply(Put(11, "other"), "producer", Item("enters")) == [Accept("producer", 11)]


def test_a_put_without_waiting_is_refused_by_a_full_queue():
    assert refused(filled([0], maxsize=1).apply(Put(9, Q, wait=False), "p", Item("x"))) == [
        ("p", Reason.FULL)
    ]


def test_a_get_without_waiting_is_refused_by_an_empty_queue():
    state = ChannelState()
    assert refused(state.apply(Get(1, Q, wait=False), "c")) == [("c", Reason.EMPTY)]
    assert depths_of(state.queues) == ()


def test_a_get_without_waiting_does_not_overtake_those_who_wait():
    state = filled([1])
    state.apply(Get(1, Q, batch_weight=2), "batch")
    assert refused(state.apply(Get(1, Q, wait=False), "c")) == [("c", Reason.EMPTY)]


def test_an_announced_item_gets_room_before_its_bytes_move():
    state = filled([0], maxsize=1)
    assert state.apply(Put(10, Q, size_bytes=0), "p", Item(None)) == []
    assert Grant("p", 10) in state.apply(Get(1, Q), "c")
    assert QueueSurvey(state).is_full(Q)
    assert state.apply(Fill(10), "p", "bytes") == [Accept("p", 10)]


def test_a_put_behind_an_announced_one_of_the_same_producer_keeps_its_place():
    state = ChannelState()
    assert state.apply(Put(1, Q, size_bytes=0), "p", Item(None)) == [Grant("p", 1)]
    assert state.apply(Put(2, Q), "p", Item("small")) == []
    assert state.apply(Put(1, Q), "q", Item("passes")) == [Accept("q", 1)]
    assert state.apply(Fill(1), "p", "large") == [Accept("p", 1), Accept("p", 2)]
    assert [delivered(state.apply(Get(ticket, Q), "c"))[0][1] for ticket in range(3)] == [
        ["passes"],
        ["large"],
        ["small"],
    ]


@pytest.mark.parametrize(
    ("end", "batch"),
    [((Fill(1), "p", "large"), ["large", "small", "other"]), ((Withdraw(1), "p"), ["small", "other"])],
)
def test_what_waits_behind_an_announced_item_is_there_at_one_moment(end, batch):
    state = ChannelState()
    state.apply(Put(1, Q, size_bytes=0), "p", Item(None))
    state.apply(Put(2, Q), "p", Item("small"))
    state.apply(Put(3, Q), "p", Item("other"))
    state.apply(Get(1, Q, limits=NO_LIMITS), "takes what is there")
    assert delivered(state.apply(*end)) == [("takes what is there", batch)]


def test_a_withdrawn_announcement_frees_its_room_and_those_behind_it():
    state = ChannelState(maxsize=2)
    state.apply(Put(1, Q, size_bytes=0), "p", Item(None))
    state.apply(Put(2, Q), "p", Item("small"))
    assert state.apply(Put(1, Q), "q", Item("waits")) == []
    news = state.apply(Withdraw(1), "p")
    assert refused(news) == [("p", Reason.CANCELLED)]
    assert [i for i in news if isinstance(i, Accept)] == [Accept("p", 2), Accept("q", 1)]
    assert state.apply(Fill(1), "p", "too late") == []


def test_items_of_a_lost_consumer_return_to_the_head_in_their_order():
    state = filled([0, 0, 0, 0])
    state.apply(Get(1, Q), "dies")
    state.apply(Get(1, Q), "lives")
    state.apply(Get(2, Q), "dies")
    state.apply(Lose(), "dies")
    assert [delivered(state.apply(Get(t, Q), "c"))[0][1][0] for t in range(3)] == ["item0", "item2", "item3"]


def test_items_that_come_back_go_straight_to_whoever_waits():
    state = filled([0])
    state.apply(Get(1, Q), "dies")
    state.apply(Get(1, Q), "waits")
    assert delivered(state.apply(Lose(), "dies")) == [("waits", ["item0"])]


def test_two_lost_consumers_give_back_in_order_whoever_goes_first():
    for first, second in (("a", "b"), ("b", "a")):
        state = filled([0, 0, 0])
        state.apply(Get(1, Q), "a")
        state.apply(Get(1, Q), "b")
        state.apply(Lose(), first)
        state.apply(Lose(), second)
        order = [delivered(state.apply(Get(ticket, Q), "c"))[0][1][0] for ticket in range(3)]
        assert order == ["item0", "item1", "item2"]


def test_giving_back_may_exceed_the_bound_and_puts_wait_until_it_is_met_again():
    state = filled([0, 0], maxsize=2)
    state.apply(Get(1, Q), "c")
    state.apply(Put(10, Q), "p", Item("refill"))
    state.apply(Withdraw(1), "c")
    assert QueueSurvey(state).num_items(Q) == 3
    assert state.apply(Put(11, Q), "p", Item("waits")) == []
    assert Accept("p", 11) not in state.apply(Get(2, Q), "c")
    assert Accept("p", 11) in state.apply(Get(3, Q), "c")


def test_a_lost_producer_leaves_what_was_accepted_and_frees_its_place_in_line():
    state = filled([0], maxsize=1)
    state.apply(Put(10, Q), "producer", Item("never held"))
    state.apply(Put(11, Q), "other", Item("next"))
    state.apply(Lose(), "producer")
    news = state.apply(Get(1, Q), "c")
    assert delivered(news) == [("c", ["item0"])]
    assert Accept("other", 11) in news


def test_a_batch_that_a_full_queue_cannot_complete_is_impossible():
    assert refused(filled([1, 1], maxsize=2).apply(Get(1, Q, batch_weight=3), "c")) == [
        ("c", Reason.IMPOSSIBLE)
    ]


def test_a_batch_becomes_impossible_when_the_queue_fills_up_although_puts_wait():
    state = ChannelState(maxsize=2)
    state.apply(Get(1, Q, batch_weight=100), "batch")
    state.apply(Get(1, Q), "single")
    state.apply(Put(1, Q), "p", Item("a", 1))
    assert refused(state.apply(Put(2, Q), "p", Item("b", 1))) == [("batch", Reason.IMPOSSIBLE)]
    assert QueueSurvey(state).num_items(Q) == 1


def test_closing_refuses_puts_and_lets_getters_drain():
    state = filled([1, 1])
    state.apply(Close())
    assert refused(state.apply(Put(9, Q), "p", Item("late"))) == [("p", Reason.CLOSED)]
    assert delivered(state.apply(Get(1, Q), "c")) == [("c", ["item0"])]
    assert delivered(state.apply(Get(2, Q, batch_weight=50), "c")) == [("c", ["item1"])]
    state.confirm("c", (1,))
    state.confirm("c", (2,))
    assert refused(state.apply(Get(3, Q), "c")) == [("c", Reason.CLOSED)]


def test_closing_fails_puts_that_wait():
    state = filled([0], maxsize=1)
    state.apply(Put(9, Q), "p", Item("waits"))
    assert refused(state.apply(Close())) == [("p", Reason.CLOSED)]


def test_a_waiting_batch_takes_what_is_left_on_close():
    state = filled([1])
    state.apply(Get(1, Q, batch_weight=10), "c")
    state.apply(Get(1, Q), "d")
    assert delivered(state.apply(Close())) == [("c", ["item0"])]
    assert refused(state.confirm("c", (1,))) == [("d", Reason.CLOSED)]


def test_a_closed_channel_is_drained_only_when_nothing_can_come_back():
    state = filled([0])
    state.apply(Get(1, Q), "dies")
    state.apply(Close())
    assert state.apply(Get(1, Q), "waits") == []
    assert delivered(state.apply(Lose(), "dies")) == [("waits", ["item0"])]


def test_a_closed_channel_does_not_wait_for_items_that_arrived_and_keeps_those_that_come_back():
    state = filled([0])
    state.apply(Get(1, Q), "slow")
    state.apply(Close())
    state.apply(Get(1, Q), "waits")
    assert refused(state.apply(Arrive(1), "slow")) == [("waits", Reason.CLOSED)]
    state.apply(Withdraw(1), "slow")
    assert delivered(state.apply(Get(1, Q), "later")) == [("later", ["item0"])]


def test_one_shot_queues_leave_nothing_behind():
    state = ChannelState(maxsize=4)
    for number in range(1000):
        state.apply(Put(number, f"reply-{number}"), "p", Item("x"))
        state.apply(Get(number, f"reply-{number}"), "c")
        state.confirm("c", (number,))
    assert depths_of(state.queues) == ()
    assert not state.queues.all()


def test_the_state_of_a_queue_reads_as_a_phrase():
    state = filled([2, 2.5], maxsize=2)
    state.apply(Put(9, Q), "p", Item("waits"))
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
        state.apply(Get(0, Q, batch_weight=count, limits=NO_LIMITS), "c")
        begin = process_time()
        for ticket in range(count):
            state.apply(Put(ticket, Q), "p", Item(None, 1))
        return process_time() - begin, state

    small, _ = seconds(10_000)
    large, state = seconds(100_000)
    assert QueueSurvey(state).num_items(Q) == 0
    # Ten times the puts; a scan of the queue on each would make it a hundred times the work.
    assert large < 40 * max(small, 0.005)


def test_what_is_given_up_after_it_was_delivered_comes_before_what_its_client_asks_for_next():
    state = filled([0, 0])
    state.apply(Get(1, Q), "c")
    news = state.apply(Withdraw(1), "c")
    assert refused(news) == [("c", Reason.CANCELLED)]
    assert delivered(state.apply(Get(2, Q), "c")) == [("c", ["item0"])]


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
    assert state.apply(Put(1, Q), "p", Item("large", 0, 1000)) == [Accept("p", 1)]
    assert state.apply(Put(2, Q), "p", Item("small", 0, 1)) == []
    assert Accept("p", 2) in state.apply(Get(1, Q), "c")
    assert state.apply(Put(3, Q), "p", Item("fits", 0, 99)) == [Accept("p", 3)]
    assert refused(state.apply(Put(4, Q, wait=False), "p", Item("no room", 0, 1))) == [("p", Reason.FULL)]


def test_a_weight_of_any_size_is_counted_and_shown():
    state = ChannelState()
    state.apply(Put(1, Q), "p", Item("heavy", 1e20))
    state.apply(Put(2, Q), "p", Item("heavier", 1e308))
    state.apply(Put(3, Q), "p", Item("heavier", 1e308))
    (depth,) = depths_of(state.queues)
    assert depth.weight == float("inf")
    assert delivered(state.apply(Get(1, Q, batch_weight=1e20, limits=NO_LIMITS), "c")) == [("c", ["heavy"])]


def test_a_name_may_be_any_tuple_of_strings_and_numbers():
    state = ChannelState()
    for ticket, name in enumerate(["3", 3, ("step", 7), ("step", (7, "a"))]):
        state.apply(Put(ticket, name), "p", Item(name))
    assert [depth.name for depth in depths_of(state.queues)] == ["3", 3, ("step", 7), ("step", (7, "a"))]


def test_what_a_dead_client_took_is_confirmed_and_its_own_waits_hear_nothing():
    state = ChannelState()
    state.apply(Put(1, "default"), "producer", Item("taken"))
    state.apply(Get(2, "default"), "dies")
    state.apply(Get(3, "default"), "dies")
    state.apply(Get(4, "default"), "lives")
    state.apply(Close())
    out = state.apply(Lose({2}), "dies")
    assert [(i.client, i.ticket, i.reason) for i in out] == [("lives", 4, Reason.CLOSED)]
    assert depths_of(state.queues) == ()


def test_an_end_waits_for_what_is_on_its_way_and_for_nothing_else():
    state = filled([1, 1, 1, 1])
    for client in ("taken", "arrived", "stopped", "waiting"):
        state.apply(Get(1, Q), client)
    state.apply(Get(2, Q), "waiting")
    state.confirm("taken", (1,))
    state.apply(Arrive(1), "arrived")
    state.apply(Arrive(1), "waiting")
    assert on_the_way(state.queues) == []  # more may come
    state.apply(EndQueue(Q))
    assert on_the_way(state.queues) == [("stopped", 1)]
    assert refused(state.apply(Arrive(1), "stopped")) == [("waiting", Reason.ENDED)]
    assert on_the_way(state.queues) == []
    assert state.apply(Lose(), "stopped") == []
    assert QueueSurvey(state).num_items(Q) == 1


def test_a_closed_channel_waits_for_what_is_on_its_way_too():
    state = filled([1])
    state.apply(Get(1, Q), "stopped")
    state.apply(Close())
    assert on_the_way(state.queues) == [("stopped", 1)]


def test_ends_of_one_shot_queues_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.queueing.ends.NUM_ENDED", 3)
    state = ChannelState()
    state.apply(Put(0, "held"), "p", Item("item"))
    state.apply(EndQueue("held"))
    for number in range(10):
        state.apply(EndQueue(number))
    assert [number for number in range(10) if state.queues.has_ended(number)] == [8, 9]
    assert state.queues.has_ended("held")  # it is there yet


@pytest.mark.parametrize("priority", [0, 1])
def test_a_question_that_nobody_waits_for_leaves_its_queue(priority):
    state = ChannelState(maxsize=3)
    for number in range(3):
        state.apply(
            Put(number, "q"),
            "asker",
            Item(f"question {number}", priority=priority, question=("asker", number + 1)),
        )
    state.apply(Get(1, "q"), "c")
    state.apply(Put(3, "q"), "asker", Item("question 3", question=("asker", 4)))
    state.apply(Withdraw(1), "c")
    assert state.apply(Put(1, "q"), "other", Item("waits")) == []
    assert state.apply(Retract("q", 1), "other") == state.apply(Retract("elsewhere", 1), "asker") == []
    state.apply(Retract("q", 1), "asker")  # it came back
    assert [each.client for each in state.apply(Retract("q", 3), "asker") if isinstance(each, Accept)] == [
        "other"
    ]
    assert state.apply(Retract("q", 3), "asker") == []
    left = [
        delivery.items[0].payload for number in range(3) for delivery in state.apply(Get(number, "q"), "d")
    ]
    assert left == ["question 1", "question 3", "waits"]
