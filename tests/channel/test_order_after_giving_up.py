"""A consumer that gives gets up, or whose gets time out, still gets the items in order."""

import os
import time
from pathlib import Path

import pytest

import regression_roles as roles
from effort import tries
from job_processes import DEADLINE_S, Job
from rlinf_scheduler.comm import AsyncHandle
from rlinf_scheduler.errors import ChannelTimeout

NUM_ITEMS = tries(600)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("consumer", [roles.cancel_and_get, roles.drop_and_get])
def test_gets_that_were_given_up_do_not_change_the_order(transport, consumer):
    with Job(transport) as job:
        _, channel = job.hold(maxsize=4)
        job.start(roles.put_small_until_closed, channel.name)
        got = job.start(consumer, channel.name, NUM_ITEMS).result()
        assert got == list(range(NUM_ITEMS))


@pytest.mark.parametrize(
    "get",
    [
        lambda channel: channel.get(timeout_s=0.05),
        lambda channel: channel.get(async_op=True, timeout_s=0.05).wait(),
    ],
    ids=["get", "handle"],
)
def test_a_get_that_timed_out_against_a_stopped_process_does_not_change_the_order(get):
    with Job() as job:
        holder, channel = job.hold()
        for number in range(10):
            channel.put(number, timeout_s=DEADLINE_S)
        holder.stop()
        with pytest.raises(ChannelTimeout):
            get(channel)
        holder.go_on()
        assert [channel.get(timeout_s=DEADLINE_S) for _ in range(10)] == list(range(10))


def cpu_s(holder):
    """Seconds that this process and the holder have had a core: what else the machine does is not in them."""
    ticks = Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return time.process_time() + sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def give_back(holder, channel, handles, count, order):
    """Seconds of work until `count` delivered items are back in the queue, dropped in that order."""
    deadline = time.monotonic() + DEADLINE_S
    while not all(map(AsyncHandle.done, handles)):  # waiting for a handle would take its item
        assert time.monotonic() < deadline
        os.sched_yield()
    started = cpu_s(holder)
    for place in order:
        handles[place] = None
    assert channel.get_batch(count, timeout_s=60) == list(range(count))
    return cpu_s(holder) - started


def test_giving_back_the_oldest_first_costs_what_the_newest_first_costs():
    count = 6000
    with Job() as job:
        holder, channel = job.hold()
        took_s = {}
        for name, order in (("newest first", range(count - 1, -1, -1)), ("oldest first", range(count))):
            for number in range(count):
                channel.put(number, 1, async_op=True)
            handles = [channel.get(async_op=True) for _ in range(count)]
            took_s[name] = give_back(holder, channel, handles, count, order)
        assert took_s["oldest first"] < 4 * took_s["newest first"] + 0.2
