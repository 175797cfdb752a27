"""Which process holds which channel."""

from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.worker.channel_pool import MAX_PROCESSES, NUM_TOGETHER, ChannelPool, ChannelSeat


def test_the_first_channels_of_a_node_share_one_process():
    pool = ChannelPool()
    seats = [pool.seat(f"c{number}", 0) for number in range(NUM_TOGETHER)]
    assert seats == [ChannelSeat(0, is_new=True)] + [ChannelSeat(0, is_new=False)] * (NUM_TOGETHER - 1)


def test_many_channels_of_a_node_are_spread_evenly_over_a_few_processes():
    pool = ChannelPool(max_processes=3, num_together=2)
    seats = [pool.seat(f"c{number}", 0).process for number in range(12)]
    assert seats == [0, 0, 1, 1, 2, 2, 0, 1, 2, 0, 1, 2]


def test_channels_of_two_nodes_share_no_process():
    pool = ChannelPool()
    assert pool.seat("a", 0).process != pool.seat("b", 1).process


def test_a_process_of_its_own_is_given_to_no_other_channel():
    pool = ChannelPool()
    own = pool.seat("hot", 0, own=True).process
    shared = pool.seat("a", 0).process
    assert own != shared
    assert pool.seat("b", 0) == ChannelSeat(shared, is_new=False)
    assert (pool.is_shared(own), pool.is_shared(shared)) == (False, True)


def test_a_process_is_empty_when_its_last_channel_has_left_and_is_used_again_until_it_is_retired():
    pool = ChannelPool()
    pool.seat("a", 0)
    pool.seat("b", 0)
    assert pool.leave("a") is None
    assert pool.leave("b") == 0
    assert pool.leave("b") is None, "it has left"
    assert pool.seat("c", 0) == ChannelSeat(0, is_new=False)
    assert not pool.retire(0), "it holds a channel again"
    pool.leave("c")
    assert pool.retire(0)
    assert not pool.retire(0)
    assert pool.seat("d", 0) == ChannelSeat(1, is_new=True)


def test_a_lost_process_takes_its_channels_with_it_and_no_others():
    pool = ChannelPool(max_processes=2, num_together=1)
    for name in "abcd":
        pool.seat(name, 0)
    assert pool.lose(0) == ["a", "c"]
    assert pool.lose(0) == []
    assert pool.leave("a") is None
    assert pool.seat("a", 0) == ChannelSeat(2, is_new=True)
    assert pool.lose(1) == ["b", "d"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["seat", "own", "leave", "lose", "retire"]), st.integers(0, 9), st.integers(0, 2)
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_each_channel_is_in_one_living_process_of_its_node(steps):
    pool = ChannelPool()
    place, node_of, own = {}, {}, set()  # channel -> process; process -> node; processes of one channel
    for kind, number, node in steps:
        if kind in ("seat", "own") and number not in place:
            seat = pool.seat(str(number), node, own=kind == "own")
            assert seat.is_new == (seat.process not in node_of)
            assert node_of.setdefault(seat.process, node) == node
            assert seat.process not in own
            if kind == "own":
                own.add(seat.process)
            place[number] = seat.process
            shared = [process for process in node_of if process not in own and node_of[process] == node]
            assert len(shared) <= MAX_PROCESSES
        elif kind == "leave":
            process = place.pop(number, None)
            empty = process is not None and process not in place.values()
            assert pool.leave(str(number)) == (process if empty else None)
        elif kind == "lose":
            assert sorted(pool.lose(number)) == sorted(str(c) for c, p in place.items() if p == number)
            place = {channel: process for channel, process in place.items() if process != number}
            node_of.pop(number, None)
        elif kind == "retire":
            may = number in node_of and number not in place.values()
            assert pool.retire(number) == may
            if may:
                del node_of[number]
