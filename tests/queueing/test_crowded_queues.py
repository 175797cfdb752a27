"""What an operation does on one queue does not depend on how many others are there, and wait for room."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_steps import lines_run
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Accept, EndQueue, Get, Put
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.tally import RoomLine


class Channel:
    """A channel whose operations number their tickets."""

    def __init__(self, *bounds, **options):
        self.state = ChannelState(*bounds, **options)
        self.ticket = 0

    def put(self, queue, size_bytes=1):
        self.ticket += 1
        return self.state.apply(Put(self.ticket, queue), "p", Item(self.ticket, size_bytes=size_bytes))

    def get(self, queue, **wanted):
        self.ticket += 1
        return self.state.apply(Get(self.ticket, queue, **wanted), "c")


def full_queues(num_queues):
    channel = Channel(1, total_bytes=1 << 40)
    for number in range(num_queues):
        channel.put(number)
        assert channel.put(number) == []
    return channel


def full_channel(num_queues):
    channel = Channel(total_bytes=1000)
    channel.put("base", 990)
    for number in range(num_queues):
        assert channel.put(number, 100) == []
    return channel


def exchange(channel):
    channel.get("other")
    channel.put("other")
    channel.put("another", 2)
    channel.get("another")


@pytest.mark.parametrize("crowd", [full_queues, full_channel])
def test_operations_of_a_queue_take_as_many_steps_beside_many_whose_puts_wait_as_beside_few(crowd):
    beside_few, beside_many = (
        lines_run("rlinf_scheduler", partial(exchange, crowd(number))) for number in (20, 2000)
    )
    assert beside_many < 2 * beside_few


def test_who_makes_room_lets_the_first_in_and_looks_at_no_others_that_find_none():
    beside_few, beside_many = (
        lines_run("rlinf_scheduler", partial(full_channel(number).get, "base")) for number in (20, 2000)
    )
    assert beside_many < 2 * beside_few


def test_those_that_waited_longest_enter_first():
    channel = full_channel(20)
    entered = [each.ticket for each in channel.get("base") if isinstance(each, Accept)]
    assert entered == list(range(2, 12))


def test_what_an_item_that_arrived_at_the_end_of_its_queue_leaves_free_is_for_others():
    channel = Channel(total_bytes=100)
    channel.put("ending", 10)
    channel.get("ending")
    channel.put("ending", 90)
    # No group is there, and it waits for what may come back.
    channel.get("ending", group_size=2)
    channel.get("ending")
    channel.put("other", 50)
    channel.state.apply(EndQueue("ending"))
    entered = [each.ticket for each in channel.state.confirm("c", [2]) if isinstance(each, Accept)]
    assert entered == [6]


def test_a_put_that_is_too_large_for_the_room_there_is_lets_those_behind_it_pass():
    channel = Channel(total_bytes=100)
    channel.put("base", 50)
    channel.put("rest", 50)
    channel.put("large", 60)
    channel.put("small", 40)
    assert [each.ticket for each in channel.get("base") if isinstance(each, Accept)] == [4]


def test_a_put_larger_than_the_channel_enters_when_nothing_is_held():
    channel = Channel(total_bytes=100)
    channel.put("base", 50)
    channel.put("large", 1000)
    assert [each.ticket for each in channel.get("base") if isinstance(each, Accept)] == [2]


SIZES = st.none() | st.integers(0, 9)


@given(st.lists(st.tuples(st.integers(0, 40), SIZES), max_size=200), st.integers(0, 9))
def test_the_first_in_line_is_the_one_that_a_walk_over_it_finds(changes, free_bytes):
    line, waiting = RoomLine(), {}
    for queue, size_bytes in changes:
        if size_bytes is None:
            line.discard(queue)
            waiting.pop(queue, None)
        else:
            line.set(queue, size_bytes)
            waiting[queue] = size_bytes
        assert line.first(free_bytes) == next((q for q, s in waiting.items() if s <= free_bytes), None)
    assert list(line) == list(waiting)
    assert set(line.places) == set(waiting)
