"""All queues of a channel together hold so many bytes, and nobody is stuck by it."""

from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Accept, Deliver, Fill, Get, Lose, Put, Reason, Refuse, Withdraw
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of


def kinds(instructions):
    return [type(instruction) for instruction in instructions]


def test_puts_wait_for_what_other_queues_hold():
    state = ChannelState(total_bytes=100)
    assert kinds(state.apply(Put(1, "a"), "p", Item("x", size_bytes=80))) == [Accept]
    assert state.apply(Put(2, "b"), "p", Item("y", size_bytes=80)) == []
    assert state.queues.is_crowded
    assert kinds(state.apply(Get(1, "a"), "c")) == [Deliver, Accept]
    assert not state.queues.is_crowded


def test_what_somebody_waits_for_enters_all_the_same():
    state = ChannelState(total_bytes=100)
    state.apply(Put(1, "a"), "p", Item("x", size_bytes=80))
    state.apply(Put(2, "b"), "p", Item("y", size_bytes=80))
    assert kinds(state.apply(Get(1, "b"), "c")) == [Accept, Deliver]


def test_a_larger_item_enters_where_nothing_is_held():
    state = ChannelState(total_bytes=100)
    assert kinds(state.apply(Put(1, "a"), "p", Item("x", size_bytes=500))) == [Accept]
    assert kinds(state.apply(Put(2, "a", wait=False), "p", Item("x", size_bytes=1))) == [Refuse]


def test_a_batch_that_the_bound_does_not_let_come_is_impossible():
    state = ChannelState(total_bytes=100)
    state.apply(Put(1, "a"), "p", Item("x", 1, 60))
    state.apply(Put(2, "a"), "p", Item("x", 1, 60))
    (refused,) = state.apply(Get(1, "a", batch_weight=2), "c")
    assert refused.reason is Reason.IMPOSSIBLE


def test_an_item_counts_as_large_as_it_is_when_its_bytes_are_here():
    state = ChannelState(total_bytes=100)
    state.apply(Put(1, "a", size_bytes=90), "p", Item(None, size_bytes=90))
    state.apply(Fill(1, size_bytes=40), "p", "smaller")
    assert state.queues.bounded_bytes == 40
    assert kinds(state.apply(Put(2, "b"), "p", Item("more", size_bytes=60))) == [Accept]


def test_a_waiting_put_that_goes_makes_room_for_those_behind_it():
    state = ChannelState(total_bytes=100)
    state.apply(Put(1, "a"), "p", Item("x", size_bytes=60))
    state.apply(Put(2, "b"), "p", Item("large", size_bytes=90))
    state.apply(Put(3, "b"), "q", Item("small", size_bytes=10))
    assert kinds(state.apply(Withdraw(2), "p")) == [Refuse, Accept]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "reserve", "get", "get", "confirm", "withdraw", "lose"]),
            st.sampled_from("abc"),
            st.sampled_from([10, 40, 90, 150]),
        ),
        max_size=60,
    )
)
def test_in_any_order_nobody_waits_for_an_item_that_waits_and_the_count_is_right(steps):
    state = ChannelState(total_bytes=100)
    delivered, granted = [], []
    for ticket, (step, queue, size_bytes) in enumerate(steps):
        match step:
            case "put":
                out = state.apply(Put(ticket, queue), "p" + queue, Item(ticket, size_bytes=size_bytes))
            case "reserve":
                out = state.apply(
                    Put(ticket, queue, size_bytes=size_bytes), "p" + queue, Item(None, size_bytes=size_bytes)
                )
            case "get":
                out = state.apply(Get(ticket, queue), "c" + queue)
            case "confirm" if delivered:
                client, taken = delivered.pop()
                out = state.confirm(client, (taken,))
            case "withdraw" if delivered:
                client, withdrawn = delivered.pop(0)
                out = state.apply(Withdraw(withdrawn), client)
            case "lose":
                out = state.apply(Lose(), "p" + queue)
            case _:
                out = []
        granted += [i for i in out if type(i).__name__ == "Grant"]
        while granted:  # the bytes come at once
            grant = granted.pop(0)
            more = state.apply(Fill(grant.ticket), grant.client, "bytes")
            granted += [i for i in more if type(i).__name__ == "Grant"]
            out = [*out, *more]
        delivered += [(i.client, i.ticket) for i in out if isinstance(i, Deliver)]
        depths = {depth.name: depth for depth in depths_of(state.queues)}
        assert not any(depth.num_getters and depth.num_putters for depth in depths.values())
        held = sum(depth.size_bytes for depth in depths.values())
        assert state.queues.tally.held_bytes == held
        if held == 0:
            assert not any(depth.num_putters for depth in depths.values())
