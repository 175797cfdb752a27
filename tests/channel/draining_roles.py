"""What processes do in the tests of ranks that are drained. Each is drained once a way of taking work waits."""

from __future__ import annotations

import asyncio
import threading

from rlinf_scheduler.errors import RankLeaving
from rlinf_scheduler.session import current_session, membership
from waits import wait_until

DEADLINE_S = 60.0


def iterate(channel):
    return list(channel)


def iterate_in_a_loop(channel):
    async def take():
        return [item async for item in channel]

    return asyncio.run(take())


def iterate_over_leases(channel):
    return [lease.item for lease in channel.leases()]


def iterate_over_leases_in_a_loop(channel):
    async def take():
        return [lease.item async for lease in channel.leases()]

    return asyncio.run(take())


def lease_one_by_one(channel):
    items = []
    try:
        while True:
            with channel.lease() as lease:
                items.append(lease.item)
    except RankLeaving as error:
        return items if "it leaves 'rollout'" in str(error) else error


WAYS = {
    each.__name__: each
    for each in (
        iterate,
        iterate_in_a_loop,
        iterate_over_leases,
        iterate_over_leases_in_a_loop,
        lease_one_by_one,
    )
}

# As above, for those that nobody drains.
WAYS_OF_ALL = {"iterate": iterate, "leases": iterate_over_leases}


def drain():
    current_session().service(membership.Draining).began.set_result("it leaves 'rollout'")


def take_until_drained(channel, way):
    """Return what was taken until then, and then."""
    taken = []
    thread = threading.Thread(target=lambda: taken.extend(WAYS[way](channel)))
    thread.start()
    wait_until(lambda: channel.stats().num_items == 0 and channel.stats().num_getters)
    drain()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    return taken, WAYS[way](channel)


def read_until_drained(channel):
    """Return what was read of a subscription until then."""
    with channel.subscribe("seen") as seen:
        for number in range(3):
            channel.put(number, timeout_s=DEADLINE_S)
        read = []
        thread = threading.Thread(target=lambda: read.extend(iter(seen.__iter__().__next__, 2)))
        thread.start()
        thread.join(DEADLINE_S)
        thread = threading.Thread(target=lambda: read.extend(seen))
        thread.start()
        drain()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    return read


def answer_until_drained(channel):
    """Return what was answered until then."""
    answered = []

    def answer():
        for request in channel.requests():
            request.reply(request.item)
            answered.append(request.item)

    thread = threading.Thread(target=answer)
    thread.start()
    wait_until(lambda: len(answered) == 5 and channel.stats().num_getters)
    handle = channel.next_request(async_op=True)
    channel.qsize()
    drain()
    thread.join(DEADLINE_S)
    try:
        handle.wait(DEADLINE_S)
    except RankLeaving:
        return answered
    raise AssertionError


def take_while_drained(channel, way):
    """Be drained at some moment of a fast stream of items; return what was taken."""
    begun = threading.Event()
    threading.Thread(target=lambda: (begun.wait(DEADLINE_S), drain())).start()
    taken = []

    def take():
        for item in channel if way == "iterate" else (lease.item for lease in channel.leases()):
            taken.append(item)
            if len(taken) == 200:
                begun.set()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    return taken


def get_though_drained(channel):
    """What no loop of this library is: it goes on."""
    drain()
    return [channel.get(timeout_s=DEADLINE_S), *channel.get_batch(max_items=1, timeout_s=DEADLINE_S)]
