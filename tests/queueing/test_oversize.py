"""What becomes of an item that alone is more than a batch is to be."""

from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Get, Put, Reason
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.wanted import Limits

Q = "default"


def filled(*weights, size_bytes=10):
    state = ChannelState()
    for number, weight in enumerate(weights):
        state.apply(Put(number, Q), "p", Item(number, weight, size_bytes))
    return state


def weights_of(out):
    (deliver,) = out
    return [int(item.weight) for item in deliver.items], deliver.complete


def test_by_default_it_makes_the_batch_that_it_falls_in_heavier():
    assert weights_of(filled(1, 1, 9).apply(Get(1, Q, batch_weight=4), "c")) == ([1, 1, 9], True)


def test_alone_it_is_a_batch_of_its_own_and_the_one_before_ends():
    state, limits = filled(1, 1, 9, 1, 3), Limits(oversize="alone")
    batches = [
        weights_of(state.apply(Get(ticket, Q, batch_weight=4, limits=limits), "c")) for ticket in range(3)
    ]
    assert batches == [([1, 1], True), ([9], True), ([1, 3], True)]


def test_alone_it_does_not_wait_for_the_least_of_a_batch():
    assert weights_of(
        filled(9).apply(Get(1, Q, batch_weight=4, limits=Limits(2, oversize="alone")), "c")
    ) == ([9], True)


def test_who_refuses_it_is_told_once_it_is_next_and_it_stays():
    state, limits = filled(1, 9), Limits(oversize="raise")
    assert weights_of(state.apply(Get(1, Q, batch_weight=4, limits=limits), "c")) == ([1], True)
    (refused,) = state.apply(Get(2, Q, batch_weight=4, limits=limits), "c")
    assert refused.reason is Reason.OVERSIZE
    assert refused.state == "an item of weight 9 and 10 bytes"
    assert weights_of(state.apply(Get(3, Q), "c")) == ([9], True)


def test_one_that_comes_to_a_waiting_batch_is_refused_too():
    state = ChannelState()
    assert state.apply(Get(1, Q, batch_weight=4, limits=Limits(oversize="raise")), "c") == []
    *_, refused = state.apply(Put(1, Q), "p", Item("x", 9))
    assert refused.reason is Reason.OVERSIZE


def test_one_of_too_many_bytes_too():
    state = filled(1, size_bytes=500)
    (refused,) = state.apply(Get(1, Q, limits=Limits(max_bytes=100, oversize="raise")), "c")
    assert refused.reason is Reason.OVERSIZE
    assert weights_of(state.apply(Get(2, Q, limits=Limits(max_bytes=100)), "c")) == ([1], True)
