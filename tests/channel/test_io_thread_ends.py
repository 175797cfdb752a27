"""A process whose I/O thread ends by a mistake ends its part in the job, and says why."""

import threading

import pytest

from rlinf.testing.local import LocalRuntime
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import ChannelLost, ClusterError, CommError
from rlinf_scheduler.weights import open_weights
from waits import wait_until

DEADLINE_S = 60.0

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def end_io_thread(messenger):
    """Let the I/O thread end as an error that it does not know ends it; returns when it has ended."""
    messenger.submit(lambda: (_ for _ in ()).throw(SystemExit("a mistake")))
    messenger._loop.join(DEADLINE_S)


def test_whoever_waits_at_a_channel_hears_that_the_io_thread_has_ended():
    with LocalRuntime() as runtime:
        channel = Channel.create("rollouts")
        waiting = [channel.get(async_op=True), channel.get_batch(3, async_op=True)]
        outcome = []

        def get():
            with pytest.raises(ChannelLost) as caught:
                channel.get("another")
            outcome.append(caught.value)

        thread = threading.Thread(target=get, daemon=True)
        thread.start()
        wait_until(lambda: any(queue.name == "another" for queue in channel.stats().queues))
        end_io_thread(runtime.messenger)
        thread.join(DEADLINE_S)
        assert "I/O thread ended" in str(outcome[0])
        for handle in waiting:
            with pytest.raises(ChannelLost, match="I/O thread ended"):
                handle.wait(DEADLINE_S)


def test_what_needs_a_runtime_whose_io_thread_has_ended_says_so():
    with LocalRuntime() as runtime:
        channel = Channel.create("rollouts")
        end_io_thread(runtime.messenger)
        assert "I/O thread ended" in runtime.messenger.why_closed
        for operation in (channel.qsize, lambda: channel.put(1), lambda: Channel.create("another")):
            with pytest.raises((ChannelLost, ClusterError), match=r"I/O thread ended.*a mistake"):
                operation()
        with pytest.raises(CommError, match="I/O thread ended"):
            runtime.service(open_weights).fetch("policy", {}).wait()
    with LocalRuntime():
        channel = Channel.create("rollouts")
        channel.put(1)
        assert channel.get() == 1


def test_a_runtime_that_was_left_takes_nothing_from_the_next_one():
    first = LocalRuntime()
    with first, LocalRuntime():
        pass
    other = LocalRuntime()
    with LocalRuntime():
        end_io_thread(other.messenger)
        channel = Channel.create("rollouts")
        channel.put(1)
        assert channel.get() == 1
    other.close()
