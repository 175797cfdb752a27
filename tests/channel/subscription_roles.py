"""What other processes do in the tests of subscriptions."""

from __future__ import annotations

import numpy as np
from shared_memory_roles import make_ready

from rlinf_scheduler.session import current_session

DEADLINE_S = 60.0
LARGE = 1 << 20


def put_one_large(channel, questions):
    """Put an array, and answer how many blocks this process has used, and whether any is in use."""
    assert make_ready(channel)
    channel.put(np.ones(LARGE))
    arena = current_session().messenger.payloads.arena
    for request in questions.requests():
        request.reply(arena.unused() if request.item == "unused" else arena.generation)


def read_all(channel, ready, name="log", **options):
    """Everything that a subscription sees until its end."""
    with channel.subscribe(name, **options) as seen:
        ready.put("subscribed")
        return list(seen)


def read_some(channel, ready, count, name="log"):
    """So many items, and then leave."""
    with channel.subscribe(name) as seen:
        ready.put("subscribed")
        return [seen.get(timeout_s=DEADLINE_S) for _ in range(count)]


def overwrite(channel, ready, value):
    """Take an array, write into it, and say what was there."""
    array = channel.get(timeout_s=DEADLINE_S)
    found = array.copy()
    array[:] = value
    ready.put("written")
    ready.get("go on", timeout_s=DEADLINE_S)
    return found.sum(), (array == value).all()


def overwrite_as_subscriber(channel, ready, value):
    """The same by a subscription."""
    with channel.subscribe("log") as seen:
        ready.put("subscribed")
        return overwrite_from(seen, ready, value)


def overwrite_from(seen, ready, value):
    """See `overwrite`."""
    array = seen.get(timeout_s=DEADLINE_S)
    found = array.copy()
    array[:] = value
    ready.put("written")
    ready.get("go on", timeout_s=DEADLINE_S)
    return found.sum(), (array == value).all()


def subscribe_and_hold(channel, ready, maxsize=1024):
    """Have an item on lease, another one delivered, and never say what became of them."""
    seen = channel.subscribe("log", maxsize=maxsize)
    ready.put("subscribed")
    with seen.lease(timeout_s=DEADLINE_S) as lease:
        handle = seen.get(async_op=True)
        ready.put(lease.item)
        ready.get("never", timeout_s=DEADLINE_S)
        handle.wait()


def mark_and_hold(channel, ready):
    """Take a large item as a subscriber, and stay."""
    with channel.subscribe("log") as seen:
        ready.put("subscribed")
        found = seen.get(timeout_s=DEADLINE_S)
        ready.put("taken")
        ready.get("go on", timeout_s=DEADLINE_S)
        return found.sum()


def be_given_one_and_never_look(channel, ready):
    """Have an item delivered to a handle that nobody asks."""
    handle = channel.get(async_op=True)
    ready.put("asked")
    ready.get("never", timeout_s=DEADLINE_S)
    return handle
