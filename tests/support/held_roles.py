"""What other processes do in the tests of items that stay on their producers' nodes."""

import numpy as np

from job_processes import DEADLINE_S, stay
from rlinf.testing.local import hold_items
from rlinf_scheduler.channel import Channel, holding
from rlinf_scheduler.channel.held import Fetching
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.errors import ChannelTimeout, CommError

LARGE = 1 << 20


def array(number):
    return np.full(LARGE, number, np.uint8)


def number_in(item):
    assert item.nbytes == LARGE
    assert (item == item[0]).all()
    return int(item[0])


def hold(pipe, member):
    """Holds the items of its machine; says how many it has whenever it is asked."""
    holder = hold_items(member)
    pipe.send("holds")
    for question in iter(pipe.recv, None):
        if question == "how many":
            pipe.send(holder.num_held)
        else:  # how much it answers for in the machine's ledger
            ledger = member.messenger.payloads.arena._ledger
            pipe.send(int(ledger._taken[ledger._line]))


def put(pipe, _member, name, numbers, queue="default"):
    """Puts large items, then stays."""
    channel = Channel.connect(name, timeout_s=DEADLINE_S)
    for number in numbers:
        channel.put(array(number), queue_name=queue, version=number, timeout_s=DEADLINE_S)
    pipe.send("put")
    stay(pipe)


def look(_pipe, _member, name):
    """Looks at the first item, and gives all the bytes that are in it."""
    item = Channel.connect(name, timeout_s=DEADLINE_S).peek()
    return set(np.unique(item).tolist())


def put_twice(pipe, _member, name):
    """Puts, and puts again when it is told to; gives why the second one came to nothing."""
    channel = Channel.connect(name, timeout_s=DEADLINE_S)
    channel.put(array(1), timeout_s=DEADLINE_S)
    pipe.send("put one")
    pipe.recv()
    try:
        channel.put(array(2), timeout_s=0.3)
    except ChannelTimeout as error:
        return error


def look_by_way_of_the_channel(pipe, member, name):
    """Looks at the first item, and reaches no holder."""
    Fetching.begin = lambda self: self._end(None, CommError("it is not reached from here"))
    return look(pipe, member, name)


def put_past_a_holder(pipe, _member, name):
    """Puts three: one that is held, one that the holder is too late for, and one that is held again."""
    channel = Channel.connect(name, timeout_s=DEADLINE_S)
    for number in (1, 2, 3):
        channel.put(array(number), timeout_s=DEADLINE_S)
        pipe.send("put")
        pipe.recv()
        holding.HOLD_TIMEOUT_S = 0.2 if number == 1 else DEADLINE_S
    stay(pipe)


def take_by_way_of_the_channel(pipe, member, name, count):
    """Takes items, and reaches no holder."""
    Fetching.begin = lambda self: self._end(None, CommError("it is not reached from here"))
    return take(pipe, member, name, count)


def put_large_and_small(pipe, _member, name, count):
    channel = Channel.connect(name, timeout_s=DEADLINE_S)
    puts = [channel.put(item, async_op=True) for number in range(count) for item in (array(number), number)]
    for each in puts:
        each.wait(DEADLINE_S)
    pipe.send("put")
    stay(pipe)


def give_up_a_put(pipe, _member, name):
    channel = Channel.connect(name, timeout_s=DEADLINE_S)
    channel.put(array(1), timeout_s=DEADLINE_S)
    pipe.send("put one")
    try:
        channel.put(array(2), timeout_s=0.3)
    except ChannelTimeout as error:
        return error


def take(pipe, _member, name, count):
    """Takes items; gives their numbers, and whether they came in shared memory or as bytes."""
    kinds, load = set(), ReceivedPayload.load

    def noted(arrived):
        kinds.add("bytes" if arrived.block is None else "memory")
        return load(arrived)

    ReceivedPayload.load = noted
    channel = Channel.connect(name, timeout_s=DEADLINE_S)
    items = [channel.get(timeout_s=DEADLINE_S) for _ in range(count)]
    return [number_in(item) for item in items], kinds
