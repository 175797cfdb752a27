"""Items of a higher priority come first, in order within one, and none is passed over for ever."""

from hypothesis import given
from hypothesis import strategies as st

from rlinf.scheduler.queueing import ChannelState, Deliver, Item, WeightedFifo
from rlinf.scheduler.queueing.ranked import MAX_PASSES

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


def test_after_so_many_that_passed_it_the_oldest_is_next():
    taken = orders(fifo_of(0, *[1] * (2 * MAX_PASSES)).take_all())
    assert taken.index(0) == MAX_PASSES


def test_a_low_one_leaves_within_its_bound_however_many_high_ones_come():
    fifo = fifo_of(0, 0, 0)
    taken = []
    while 2 not in taken:
        fifo.push(Item("x", priority=9))
        taken.append(fifo.take().order)
    assert len(taken) <= 3 * (MAX_PASSES + 1)


def test_what_comes_back_goes_to_the_head():
    fifo = fifo_of(0, 5)
    high, low = fifo.take(), fifo.take()
    fifo.push(Item("x", priority=9))
    fifo.restore([low, high])
    assert orders(fifo.take_all()) == [0, 1, 2]


def test_a_batch_takes_by_priority():
    state = ChannelState()
    for ticket, priority in enumerate([0, 1, 0, 1]):
        state.put("p", ticket, Q, ticket, 1, priority=priority)
    (deliver,) = state.get_batch("c", 9, Q, 3)
    assert isinstance(deliver, Deliver)
    assert [item.payload for item in deliver.items] == [1, 3, 0]


def test_a_flush_lets_low_ones_go_with_what_came_later():
    state = ChannelState()
    state.put("p", 1, Q, "low", 1)
    state.flush(Q)
    state.put("p", 2, Q, "high", 1, priority=1)
    (deliver,) = state.get_batch("c", 9, Q, 100)
    assert [item.payload for item in deliver.items] == ["high", "low"]


@given(st.lists(st.one_of(st.integers(-2, 2), st.just("take"), st.just("give back")), max_size=80))
def test_any_order_of_pushes_takes_and_returns_is_that_of_the_rules(steps):
    fifo = WeightedFifo()
    held, returned, out, passes, pushed = [], [], [], 0, 0
    for step in steps:
        if step == "give back":
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
                oldest = min(order for _, order in held)
                first = min(held)
                chosen = next(each for each in held if each[1] == oldest) if passes >= MAX_PASSES else first
                held.remove(chosen)
                expected = chosen[1]
                passes = 0 if expected == oldest else passes + 1
            head = fifo.head()
            taken = fifo.take()
            assert head is taken
            assert taken.order == expected
            out.append(taken)
        else:
            fifo.push(Item("x", 2, 3, step))
            held.append((-step, pushed))
            pushed += 1
        left = len(held) + len(returned)
        assert (len(fifo), fifo.weight, fifo.size_bytes) == (left, 2 * left, 3 * left)
        if left:
            assert fifo.oldest() == min([*returned, *(order for _, order in held)])
