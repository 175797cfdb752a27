"""Items of a higher priority come first, in order within one; if it is said, none is passed over for long."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.lanes import LanedFifo
from rlinf_scheduler.queueing.messages import Deliver, Flush, Get, Put
from rlinf_scheduler.queueing.order import WeightedFifo
from rlinf_scheduler.queueing.out_of_turn import QueueClock
from rlinf_scheduler.queueing.state import ChannelState

Q = "default"


def fifo_of(*priorities):
    fifo = WeightedFifo()
    for priority in priorities:
        fifo.push(Item("x", 1, 10, priority))
    return fifo


def orders(items):
    return [item.order for item in items]


def test_higher_ones_come_first_and_ties_in_order():
    assert orders(fifo_of(0, 2, 1, 2, 0, -1).take_all()) == [1, 3, 2, 0, 4, 5]


def test_what_was_there_before_the_first_priority_keeps_its_order():
    assert orders(fifo_of(0, 0, 0, 1).take_all()) == [3, 0, 1, 2]


def test_the_lowest_of_three_hundred_comes_last():
    assert orders(fifo_of(0, *[1] * 299).take_all())[-1] == 0


def test_after_so_long_an_item_is_passed_over_no_more():
    clock = QueueClock(priority_wait_s=10)
    fifo = WeightedFifo(clock)
    for since, priority in ((0, 0), (1, 9), (2, 0), (3, 9)):
        item = Item(since, priority=priority)
        item.since = since
        fifo.push(item)
    clock.now = 9.9
    assert fifo.take().payload == 1
    clock.now = 10
    assert fifo.head().payload == 0
    assert fifo.take().payload == 0
    assert fifo.take().payload == 3
    clock.now = 12
    fifo.push(Item(12, priority=9))
    assert [fifo.take().payload, fifo.take().payload] == [2, 12]


def test_in_every_lane_too():
    clock = QueueClock(priority_wait_s=10, now=20)
    fifo = LanedFifo(clock)
    for priority in (0, 1):
        fifo.push(Item(priority, priority=priority))
    assert fifo.take().payload == 0


def test_a_low_one_that_stays_costs_nothing_for_those_that_pass_it():
    fifo = fifo_of(0)
    tracemalloc.start()
    for _ in range(20_000):
        fifo.push(Item("x", priority=1))
        fifo.take()
    grown_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown_bytes < 100_000


def test_a_channel_says_how_long_a_low_one_is_passed_over():
    state = ChannelState(priority_wait_s=5)
    state.apply(Put(1, Q), "p", Item("low"))
    state.set_clock(6)
    state.apply(Put(2, Q), "p", Item("high", priority=1))
    assert [state.apply(Get(ticket, Q), "c")[0].items[0].payload for ticket in (1, 2)] == ["low", "high"]


def test_what_comes_back_goes_to_the_head():
    fifo = fifo_of(0, 5)
    high, low = fifo.take(), fifo.take()
    fifo.push(Item("x", priority=9))
    fifo.restore([low, high])
    assert orders(fifo.take_all()) == [0, 1, 2]


def test_a_batch_takes_by_priority():
    state = ChannelState()
    for ticket, priority in enumerate([0, 1, 0, 1]):
        state.apply(Put(ticket, Q), "p", Item(ticket, 1, priority=priority))
    (deliver,) = state.apply(Get(9, Q, batch_weight=3), "c")
    assert isinstance(deliver, Deliver)
    assert [item.payload for item in deliver.items] == [1, 3, 0]


def test_a_flush_lets_low_ones_go_with_what_came_later():
    state = ChannelState()
    state.apply(Put(1, Q), "p", Item("low", 1))
    state.apply(Flush(Q))
    state.apply(Put(2, Q), "p", Item("high", 1, priority=1))
    (deliver,) = state.apply(Get(9, Q, batch_weight=100), "c")
    assert [item.payload for item in deliver.items] == ["high", "low"]


STEPS = st.one_of(st.integers(-2, 2), st.just("take"), st.just("give back"), st.just("wait"))


@given(st.lists(STEPS, max_size=80), st.sampled_from([None, 0, 1, 3]))
def test_any_order_of_pushes_takes_and_returns_is_that_of_the_rules(steps, wait_s):
    clock = QueueClock(priority_wait_s=wait_s)
    fifo = WeightedFifo(clock)
    held, returned, out, pushed = [], [], [], 0
    for step in steps:
        if step == "wait":
            clock.now += 1
        elif step == "give back":
            fifo.restore(out)
            returned = sorted([*returned, *orders(out)])
            out = []
        elif step == "take":
            if not held and not returned:
                assert fifo.head() is None
                continue
            if returned:
                expected = returned.pop(0)
            else:
                oldest = min(held, key=lambda each: each[1])
                is_due = wait_s is not None and clock.now - oldest[2] >= wait_s
                chosen = oldest if is_due else min(held)
                held.remove(chosen)
                expected = chosen[1]
            head = fifo.head()
            taken = fifo.take()
            assert head is taken
            assert taken.order == expected
            out.append(taken)
        else:
            item = Item("x", 2, 3, step)
            item.since = clock.now
            fifo.push(item)
            held.append((-step, pushed, clock.now))
            pushed += 1
        left = len(held) + len(returned)
        assert (len(fifo), fifo.weight, fifo.size_bytes) == (left, 2 * left, 3 * left)
        if left:
            assert fifo.oldest() == min([*returned, *(order for _, order, _ in held)])
