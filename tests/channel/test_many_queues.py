"""A channel with very many queues: nothing that is asked of it holds up others for long."""

import threading

import pytest

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import ChannelTimeout
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.own_stats import OwnStats
from rlinf_scheduler.session import current_session

DEADLINE_S = 60.0
NUM_QUEUES = 10_000
# Of the processor, in one step; 10,000 queues took half a second.
STEP_S = 0.05


@pytest.fixture
def channel(in_process, io_steps):
    channel = Channel.create(in_process.name())
    puts = [channel.put(number, queue_name=f"q{number}", async_op=True) for number in range(NUM_QUEUES)]
    for put in puts:
        put.wait(DEADLINE_S)
    io_steps.forget()
    return channel


def on_io_thread(function):
    found, done = [], threading.Event()
    current_session().messenger.submit(lambda: (found.append(function()), done.set()))
    assert done.wait(DEADLINE_S)
    return found[0]


def test_all_queues_are_listed_in_short_steps(channel, io_steps):
    report = channel.explain()
    stats = channel.stats()
    assert io_steps.longest_s < STEP_S, io_steps.culprit
    assert {queue.depth.name for queue in report.queues} == {f"q{number}" for number in range(NUM_QUEUES)}
    assert (report.num_items, stats.num_items, stats.num_puts, stats.num_gets) == (*[NUM_QUEUES] * 3, 0)
    assert len(stats.queues) == NUM_QUEUES


def test_who_looks_at_its_process_is_told_of_a_few_queues_and_how_many_there_are(channel, io_steps):
    waiting = channel.get("waited", async_op=True)
    assert channel.qsize("waited") == 0  # it waits there
    session = current_session()
    doing = on_io_thread(session.service(OwnActivity).now)
    stats = on_io_thread(session.service(OwnStats).now)
    assert io_steps.longest_s < STEP_S, io_steps.culprit
    used = next(each for each in doing.channels if each.name == channel.name)
    assert used.shown[0].depth.name == "waited"
    assert used.shown[0].waiting[0].operation == "get"
    assert len(used.shown) + used.num_untold == NUM_QUEUES + 1
    counted = next(each for each in stats.channels if each.name == channel.name)
    assert (counted.num_items, counted.num_queues) == (NUM_QUEUES, NUM_QUEUES + 1)
    assert [each.depth.name for each in counted.shown if each.waiting] == ["waited"]
    waiting.cancel()


@pytest.mark.usefixtures("patient")
def test_a_get_that_ends_at_its_deadline_holds_up_nobody(channel, io_steps):
    with pytest.raises(ChannelTimeout, match=f"there are {NUM_QUEUES} queues"):
        channel.get_batch(5, queue_name="q17", timeout_s=0.05)
    with pytest.raises(ChannelTimeout):
        channel.get("none", timeout_s=1.0)
    assert io_steps.longest_s < STEP_S, io_steps.culprit


def test_who_looks_at_a_channel_every_second_does_not_count_its_groups(in_process, io_steps):
    channel = Channel.create(in_process.name())
    puts = [channel.put(number, group=f"prompt {number}", async_op=True) for number in range(NUM_QUEUES)]
    for put in puts:
        put.wait(DEADLINE_S)
    waiting = channel.get_group(2, async_op=True)
    assert len(channel.stats().queues[0].groups) == NUM_QUEUES
    io_steps.forget()
    session = current_session()
    for service in (OwnActivity, OwnStats):
        said = on_io_thread(session.service(service).now)
        (shown,) = next(each for each in said.channels if each.name == channel.name).shown
        assert (shown.depth.num_items, shown.depth.groups) == (NUM_QUEUES, ())
        assert [each.operation for each in shown.waiting] == ["get_group of 2 items"]
    waiting.cancel()
