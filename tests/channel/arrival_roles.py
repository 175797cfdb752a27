"""What other processes do in the tests of who is served when."""

from __future__ import annotations

import os
import signal

DEADLINE_S = 60.0


def run(_pipe, _member, function, args):
    """Run a function in a process of a job."""
    return function(*args)


def put(channel, item, queue_name):
    channel.put(item, queue_name=queue_name, timeout_s=DEADLINE_S)


def wait_as_reader(channel, ready):
    """The item that comes to one who has asked after others."""
    with channel.subscribe("log") as seen:
        return _wait(channel, ready, seen.get(async_op=True))


def wait_for_a_group(channel, ready, size):
    """The group that comes, and its items."""
    group = _wait(channel, ready, channel.get_group(size, async_op=True))
    return group.group, list(group)


def _wait(channel, ready, handle):
    channel.qsize()  # answered after the get has its place in line
    ready.put("waiting")
    return handle.wait(DEADLINE_S)


def fail_as_reader(channel):
    with channel.subscribe("log") as seen, seen.lease(timeout_s=DEADLINE_S):
        raise ZeroDivisionError


def die_as_reader(channel):
    with channel.subscribe("log") as seen, seen.lease(timeout_s=DEADLINE_S):
        os.kill(os.getpid(), signal.SIGKILL)
