"""What takes work in a process ends when its rank is drained, and takes nothing then; others go on."""

import itertools
import time

import draining_roles as roles
import pytest

from rlinf_scheduler.channel import Channel

DEADLINE_S = 60.0


@pytest.mark.parametrize("way", roles.WAYS)
def test_what_waits_for_work_ends_when_its_rank_is_drained(sockets, way):
    channel = sockets.create()
    for number in range(5):
        channel.put(number, timeout_s=DEADLINE_S)
    drained = sockets.run(roles.take_until_drained, channel, way)
    assert drained.result(DEADLINE_S) == ([0, 1, 2, 3, 4], [])
    for number in range(5, 8):
        channel.put(number, timeout_s=DEADLINE_S)
    assert channel.stats().num_getters == 0
    assert [channel.get(timeout_s=DEADLINE_S) for _ in range(3)] == [5, 6, 7]


def test_a_subscription_ends_when_its_reader_is_drained(sockets):
    channel = sockets.create()
    assert sockets.run(roles.read_until_drained, channel).result(DEADLINE_S) == [0, 1]
    assert channel.get(timeout_s=DEADLINE_S) == 0


def test_a_loop_of_requests_ends_when_its_rank_is_drained_and_another_answers(sockets):
    channel = sockets.create()
    drained = sockets.run(roles.answer_until_drained, channel)
    asked = [channel.ask(number, async_op=True) for number in range(5)]
    assert [each.wait(DEADLINE_S) for each in asked] == [0, 1, 2, 3, 4]
    assert drained.result(DEADLINE_S) == [0, 1, 2, 3, 4]
    asked = channel.ask("later", async_op=True)
    channel.next_request(timeout_s=DEADLINE_S).reply("answered")
    assert asked.wait(DEADLINE_S) == "answered"


@pytest.mark.parametrize("way", ["iterate", "leases"])
def test_no_item_is_lost_where_a_rank_is_drained_while_it_takes(sockets, way):
    channel = sockets.create(maxsize=8)
    others = [sockets.run(roles.take_while_drained, channel, way) for _ in range(2)]
    here = sockets.run(roles.WAYS_OF_ALL[way], channel)
    deadline = time.monotonic() + DEADLINE_S
    for number in itertools.count():  # until both have been drained, however late they begin
        assert time.monotonic() < deadline
        if number >= 3000 and all(each.pipe.poll() for each in others):
            break
        channel.put(number, timeout_s=DEADLINE_S)
    taken = [each.result(DEADLINE_S) for each in others]
    channel.close()
    rest = here.result(DEADLINE_S)
    assert all(len(each) >= 200 for each in taken)
    assert sorted([*rest, *taken[0], *taken[1]]) == list(range(number))


def test_plain_gets_of_a_rank_that_is_drained_go_on(sockets):
    channel = sockets.create()
    channel.put("one", timeout_s=DEADLINE_S)
    channel.put("two", timeout_s=DEADLINE_S)
    assert sockets.run(roles.get_though_drained, channel).result(DEADLINE_S) == ["one", "two"]


def test_a_local_channel_is_a_matter_of_its_process_and_goes_on(in_process):
    channel = Channel.create("own", local=True)
    channel.put(1)
    roles.drain()
    channel.close()
    assert list(channel) == [1]
