"""A deadline is a deadline, whatever the channel's process does, and however far away it is."""

import time

import pytest

import regression_roles as roles
from job_processes import DEADLINE_S, Job
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import ChannelLost
from rlinf_scheduler.observe.timekeeping import TIMES

A_MONTH_S = 30 * 86_400.0
# The calls below have a deadline of 0.5 s; the rest is for a machine that has much to do.
SOON_S = 50.0
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def vain_waits():
    """How each call ended on a channel whose process was stopped."""
    with Job() as job:
        holder, channel = job.hold(maxsize=100)
        victim = job.start(roles.wait_in_vain, channel.name, list(roles.CALLS), LIMIT_S)
        assert victim.receive() == "ready"
        holder.stop()
        victim.pipe.send("go")
        yield victim.result(LIMIT_S + DEADLINE_S)


@pytest.mark.parametrize(
    "call", ["get", "get_batch", "put", "large put", "handle of a get", "handle of a put", "delete"]
)
def test_a_deadline_ends_in_time_when_the_channels_process_is_stopped(vain_waits, call):
    assert call in vain_waits, f"no end after {LIMIT_S} s"
    took_s, error = vain_waits[call]
    assert error in ("ChannelUnanswered", "ChannelTimeout")
    assert 0.5 <= took_s < SOON_S


@pytest.mark.parametrize("call", ["get_nowait", "put_nowait", "qsize", "stats"])
def test_a_call_that_does_not_wait_does_not_wait_for_a_stopped_process_either(vain_waits, call):
    assert call in vain_waits, f"no end after {LIMIT_S} s"
    assert vain_waits[call][1] == "ChannelUnanswered"


@pytest.mark.parametrize("timeout_s", [A_MONTH_S, 1e9, 1e300])
def test_a_deadline_may_be_a_month_away(timeout_s):
    with Job() as job:
        _, channel = job.hold(maxsize=1)
        assert job.start(roles.wait_with_deadline, channel.name, timeout_s).result() == "x"


def test_a_process_whose_io_thread_ended_has_left_the_job():
    with Job() as job:
        holder = job.start(roles.end_io_thread, "doomed")
        assert holder.receive() == "held"
        channel = Channel.connect("doomed", timeout_s=DEADLINE_S)
        waiting = channel.get(async_op=True)
        channel.qsize()
        holder.pipe.send("end")
        assert holder.receive() == "ends when it wakes"
        channel.put("wakes it", async_op=True)
        with pytest.raises(ChannelLost):
            waiting.wait(DEADLINE_S)


def test_what_is_told_of_a_put_begins_and_ends_by_the_clock_of_what_is_told(in_process, monkeypatch):
    channel = in_process.create()
    channel.put("opens the connection")
    monkeypatch.setattr(channel._connection(), "now", lambda: time.monotonic() - A_MONTH_S)
    monkeypatch.setattr(TIMES, "given", None)
    monkeypatch.setattr(TIMES, "notes_moves", False)
    TIMES.keep_given()
    began = TIMES.now()
    channel.put("item")
    span = TIMES.given[-1]
    assert began <= span.began <= span.ended
