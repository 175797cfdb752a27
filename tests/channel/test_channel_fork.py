"""A forked child does not disturb the channels of its parent."""

import os
import signal

import pytest

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import ClusterError, CommError

DEADLINE_S = 60.0


def outcome_of(function):
    try:
        return function()
    except (ClusterError, CommError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("backend", ["in_process", "sockets"], indirect=True)
def test_a_forked_child_can_use_no_channel_of_its_parent_and_takes_nothing(backend):
    channel = backend.create()
    channel.put("warm")
    assert channel.get() == "warm"
    begun = channel.get("later", async_op=True)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = [
                outcome_of(lambda: channel.put(1)),
                outcome_of(channel.qsize),
                outcome_of(begun.wait),
                outcome_of(lambda: Channel.connect("x")),
            ]
            os.write(theirs, "\n".join(map(str, told)).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        told = pipe.read().splitlines()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert [line.partition(":")[0] for line in told] == [
        "ClusterError",
        "ClusterError",
        "CommError",
        "ClusterError",
    ]
    assert all("this is a forked child" in line for line in told)
    channel.put("still there", queue_name="later")
    assert begun.wait(DEADLINE_S) == "still there"
