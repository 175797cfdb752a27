"""What the processes do whose calls are interrupted, and those that trade with them.

Items carry numbers, so that each can be accounted for: small ones, and arrays that lie in shared memory where there
is any. `interrupt` is one of the classes of `interruptions`.
"""

from __future__ import annotations

import contextlib
import itertools
import threading

import numpy as np

from interruptions import Alarms
from job_processes import DEADLINE_S
from rlinf.scheduler.channel import Channel
from rlinf.scheduler.errors import ChannelClosed, ChannelTimeout

ARRAY_ELEMENTS = 20_000
LARGE_EVERY = 4
LARGE_ELEMENTS = 4 << 20


def item_of(number):
    """An item that says `number`; every fourth is an array of 160 kB."""
    return np.full(ARRAY_ELEMENTS, number) if number % LARGE_EVERY == 0 else number


def number_of(item):
    """The number that an item says; an error if an array does not say the same everywhere."""
    if not isinstance(item, np.ndarray):
        return item
    low, high = int(item.min()), int(item.max())
    assert low == high, f"an array of {low} and {high}"
    return low


def works(channel):
    """Whether fresh operations on a queue of their own do what they should."""
    channel.put("fresh", queue_name="fresh", timeout_s=DEADLINE_S)
    return channel.get("fresh", timeout_s=DEADLINE_S) == "fresh"


# -- the others -----------------------------------------------------------------------------------


def put_until_closed(_pipe, _member, name, weight=0):
    """How many numbers it has put, from 0 on."""
    channel, number = Channel.connect(name), 0
    with contextlib.suppress(ChannelClosed):
        while True:
            channel.put(item_of(number), weight, timeout_s=DEADLINE_S)
            number += 1
    return number


def take_until_closed(_pipe, _member, name):
    """The numbers that it got."""
    return drain(Channel.connect(name))


def drain(channel):
    """The numbers that are left in a closed channel."""
    numbers = []
    while True:
        try:
            numbers.append(number_of(channel.get(timeout_s=DEADLINE_S)))
        except ChannelClosed:
            return numbers


# -- channels -------------------------------------------------------------------------------------


def interrupted_gets(_pipe, _member, name, rounds, seed, interrupt):
    """(The numbers that it got, how many signals came.)"""
    channel, got = Channel.connect(name), []
    interruptions = interrupt(seed)
    for _ in range(rounds):
        interruptions.attempt(lambda: got.append(channel.get(timeout_s=DEADLINE_S)))
    assert works(channel)
    return list(map(number_of, got)), interruptions.num_signals


def interrupted_batches(_pipe, _member, name, rounds, seed, interrupt):
    """(The numbers that it got, how many signals came.)"""
    channel, got = Channel.connect(name), []
    interruptions = interrupt(seed)
    for _ in range(rounds):
        interruptions.attempt(lambda: got.append(channel.get_batch(3, timeout_s=DEADLINE_S)))
    assert works(channel)
    return [number_of(item) for batch in got for item in batch], interruptions.num_signals


def interrupted_waits_for_gets(_pipe, _member, name, rounds, seed, interrupt):
    """(The numbers that it got, how many signals came); an interrupted wait is taken up again."""
    channel, got = Channel.connect(name), []
    interruptions = interrupt(seed)
    for number in range(rounds):
        handle = channel.get(async_op=True, timeout_s=DEADLINE_S)
        while len(got) == number:
            interruptions.attempt(lambda handle=handle: got.append(handle.wait(DEADLINE_S)))
    assert works(channel)
    return list(map(number_of, got)), interruptions.num_signals


def interrupted_puts(_pipe, _member, name, rounds, seed, interrupt):
    """(The numbers whose puts returned, how many signals came.)"""
    channel, done = Channel.connect(name), []
    interruptions = interrupt(seed)
    for number in range(rounds):
        interruptions.attempt(
            lambda number=number: done.append((channel.put(item_of(number), timeout_s=DEADLINE_S), number)[1])
        )
    assert works(channel)
    return done, interruptions.num_signals


def interrupted_waits_for_puts(_pipe, _member, name, rounds, seed, interrupt):
    """(The numbers whose puts gave a handle, how many signals came); each of those handles ends well."""
    channel, handles = Channel.connect(name), []
    interruptions = interrupt(seed)
    for number in range(rounds):
        interruptions.attempt(
            lambda number=number: handles.append(
                (number, channel.put(item_of(number), async_op=True, timeout_s=DEADLINE_S))
            )
        )
        if number % 2 and handles:
            interruptions.attempt(lambda: handles[-1][1].wait(DEADLINE_S))
    for _, handle in handles:
        handle.wait(DEADLINE_S)
    assert works(channel)
    return [number for number, _ in handles], interruptions.num_signals


def interrupted_beside_another_thread(_pipe, _member, name, rounds, seed, interrupt):
    """(How many numbers another thread put, how many signals came); none of its handles is left without an end."""
    channel = Channel.connect(name)
    handles, enough = [], threading.Event()

    def put_on():
        for number in itertools.count():
            if enough.is_set():
                return
            handles.append(channel.put(number, async_op=True, timeout_s=DEADLINE_S))
            if len(handles) >= 8:
                handles[-8].wait(DEADLINE_S)

    def get_own():
        with contextlib.suppress(ChannelTimeout):  # the put before may have been interrupted
            channel.get("own", timeout_s=0.001)

    other = threading.Thread(target=put_on)
    other.start()
    interruptions = interrupt(seed)
    for turn in range(rounds):
        interruptions.attempt(lambda turn=turn: channel.put(turn, queue_name="own", timeout_s=DEADLINE_S))
        interruptions.attempt(get_own)
    enough.set()
    other.join(DEADLINE_S)
    assert not other.is_alive()
    for handle in handles:
        handle.wait(DEADLINE_S)
    assert works(channel)
    return len(handles), interruptions.num_signals


def calls_beside_a_handler_that_uses_the_channel(_pipe, _member, name, rounds, seed, interrupt):
    """(How many signals came, how many of their handlers came to their end.)

    The main thread puts into a queue and gets from it again; so does each handler, with the same queue and one of its
    own, blocking and not.
    """
    channel, num_ended = Channel.connect(name), 0

    def use(_number):
        nonlocal num_ended
        channel.put("from a handler", queue_name="side", timeout_s=DEADLINE_S)
        assert channel.get("side", timeout_s=DEADLINE_S) == "from a handler"
        handle = channel.put_nowait("once more", queue_name="side")
        assert channel.get("side", async_op=True).wait(DEADLINE_S) == "once more"
        assert handle is None
        channel.put("in everybody's way", queue_name="same", async_op=True)
        num_ended += 1

    interruptions = interrupt(seed, on_signal=use)
    for number in range(rounds):
        interruptions.attempt(
            lambda number=number: channel.put(item_of(number), queue_name="same", timeout_s=DEADLINE_S)
        )
        interruptions.attempt(lambda: channel.get("same", timeout_s=DEADLINE_S))
    for _ in range(num_ended):
        channel.get("same", timeout_s=DEADLINE_S)
    assert channel.empty("same")
    assert works(channel)
    return interruptions.num_signals, num_ended


def interrupted_large_puts(_pipe, _member, name, rounds, seed):
    """(The numbers whose puts returned, how many signals came); several threads copy each of these items."""
    channel, done = Channel.connect(name), []
    interruptions = Alarms(seed, longest_s=0.03)
    for number in range(rounds):
        item = np.full(LARGE_ELEMENTS, number)
        interruptions.attempt(
            lambda item=item, number=number: done.append((channel.put(item, timeout_s=DEADLINE_S), number)[1])
        )
    assert works(channel)
    return done, interruptions.num_signals
