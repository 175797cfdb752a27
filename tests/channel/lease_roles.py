"""What other processes do in the tests of leases."""

from __future__ import annotations

import asyncio

from rlinf_scheduler.errors import LeaseExpired

DEADLINE_S = 60.0


def take_all(channel, queue_name="default"):
    """[(item, attempt)] until the queue ends."""
    return [(lease.item, lease.attempt) for lease in channel.leases(queue_name)]


async def _take_all(channel):
    return [(lease.item, lease.attempt) async for lease in channel.leases()]


def take_all_in_a_task(channel):
    return asyncio.run(_take_all(channel))


def fail_at_the_first(channel):
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        message = f"cannot do {lease.item}"
        raise ZeroDivisionError(message)


def fail_at(channel, item):
    """Take items until one is the one that it fails at; the items that it took."""
    taken = []
    for lease in channel.leases():
        if lease.item == item:
            message = f"cannot do {item}"
            raise ZeroDivisionError(message)
        taken.append(lease.item)
    return taken


def hold(channel, ready, ttl_s=60.0):
    """Have an item until it is told to go on; what became of it then."""
    with channel.lease(ttl_s=ttl_s, timeout_s=DEADLINE_S) as lease:
        ready.put(lease.item)
        ready.get("go on", timeout_s=DEADLINE_S)
        try:
            lease.ack()
        except LeaseExpired as error:
            return f"LeaseExpired: {error.problem}"
    return "acknowledged"


def be_given_an_item_and_never_look(channel, ready):
    """Wait for a lease in the background, and then for ever."""
    context = channel.lease()
    promise = context._connection.start(context._begin())
    channel.qsize()  # answered after the lease has its place in line
    ready.put("waiting")
    ready.get("never", timeout_s=DEADLINE_S)
    return promise


def obey(channel, orders):
    """Lease, acknowledge and give back as it is told, an order at a time; answer each."""
    held, blocks = [], []
    while True:
        word, *about = orders.get("orders", timeout_s=DEADLINE_S)
        if word == "lease":
            most, ttl_s = about
            block = channel.lease(min_items=most, max_items=most, ttl_s=ttl_s, timeout_s=DEADLINE_S)
            blocks.append(block)
            held.append(block.__enter__())
            answer = len(held) - 1, list(held[-1].items), list(held[-1].attempts)
        else:
            number, only = about
            try:
                getattr(held[number], word)(only=only)
                answer = True
            except LeaseExpired:
                answer = False
        orders.put(answer, queue_name="answers")
