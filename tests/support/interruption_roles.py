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
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.durable.checkpoint_files import load_job
from rlinf_scheduler.durable.saving import save_job
from rlinf_scheduler.errors import ChannelClosed, ChannelTimeout

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


def interrupted_local_gets(_pipe, _member, rounds, seed, interrupt):
    """(The numbers that came of a local channel, how many were put, how many signals came)."""
    channel, got = Channel.create("local", maxsize=4, local=True), []

    def put_on():
        for number in itertools.count():
            try:
                channel.put(number)
            except ChannelClosed:
                numbers.append(number)
                return

    numbers = []
    other = threading.Thread(target=put_on)
    other.start()
    interruptions = interrupt(seed)
    for turn in range(rounds):
        if turn % 2:
            interruptions.attempt(lambda: got.append(channel.get(timeout_s=DEADLINE_S)))
        else:
            interruptions.attempt(lambda: got.append(channel.get(async_op=True).wait(DEADLINE_S)))
    channel.close()
    other.join(DEADLINE_S)
    # What nobody has of an interrupted get has come back, or does so soon: the channel would not end before.
    return got + list(channel), numbers[0], interruptions.num_signals


def interrupted_leases(_pipe, _member, name, rounds, seed, interrupt):
    """(The numbers that it acknowledged, or was about to, how many signals came); none is left on lease."""
    channel, got = Channel.connect(name), []
    interruptions = interrupt(seed)

    def work():
        with channel.lease(timeout_s=DEADLINE_S) as lease:
            got.append(number_of(lease.item))

    for _ in range(rounds):
        interruptions.attempt(work)
    return got, interruptions.num_signals


def interrupted_batches_of_leases(_pipe, _member, name, rounds, seed, interrupt):
    """(The numbers that it acknowledged, or was about to, how many signals came); none is left on lease."""
    channel, got = Channel.connect(name), []
    interruptions = interrupt(seed)

    def work():
        with channel.lease(batch_weight=3, timeout_s=DEADLINE_S) as lease:
            got.extend(map(number_of, lease.items))
            lease.ack(only=0)
            lease.nack(only=1)

    for _ in range(rounds):
        interruptions.attempt(work)
    return got, interruptions.num_signals


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


def make_until_closed(_pipe, _member, name):
    """How many numbers it has made, each with leave, from 0 on."""
    channel, number = Channel.connect(name), 0
    with contextlib.suppress(ChannelClosed):
        while True:
            with channel.admit(max_lag=1, timeout_s=DEADLINE_S) as slot:
                channel.put(item_of(number), slot=slot, timeout_s=DEADLINE_S)
                number += 1
    return number


def train_until_closed(_pipe, _member, name):
    """The numbers that it took, one with each version."""
    channel, numbers = Channel.connect(name), []
    channel.set_version(0, batch_items=1, timeout_s=DEADLINE_S)
    with contextlib.suppress(ChannelClosed):
        while True:
            numbers.append(number_of(channel.get(timeout_s=DEADLINE_S)))
            channel.set_version(len(numbers), timeout_s=DEADLINE_S)
    return numbers


def interrupted_makes(_pipe, _member, name, rounds, seed, interrupt):
    """(The numbers whose puts returned, how many signals came); a slot that is not given back would be the last one."""
    channel, done = Channel.connect(name), []
    interruptions = interrupt(seed)

    def make(number):
        with channel.admit(max_lag=0, timeout_s=DEADLINE_S) as slot:
            channel.put(item_of(number), slot=slot, timeout_s=DEADLINE_S)
            done.append(number)

    for number in range(rounds):
        interruptions.attempt(lambda number=number: make(number))
    make(rounds)
    return done, interruptions.num_signals


def interrupted_steps(_pipe, _member, name, rounds, seed, interrupt):
    """(The numbers that it took, how many signals came)."""
    channel, got = Channel.connect(name), []
    channel.set_version(0, batch_items=1, timeout_s=DEADLINE_S)
    interruptions = interrupt(seed)
    for _ in range(rounds):
        interruptions.attempt(lambda: got.append(channel.get(timeout_s=DEADLINE_S)))
        interruptions.attempt(lambda: channel.set_version(len(got), timeout_s=DEADLINE_S))
        channel.set_version(len(got), timeout_s=DEADLINE_S)
    return list(map(number_of, got)), interruptions.num_signals


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


def interrupted_saves(_pipe, _member, name, rounds, seed, interrupt, folder):
    """(What the last checkpoint says that it was trained on, how many signals came); each checkpoint was whole."""
    channel, trained, seen = Channel.connect(name), [], []
    interruptions = interrupt(seed)

    def work():
        with channel.lease(timeout_s=DEADLINE_S) as lease:
            state = [*trained, number_of(lease.item)]
            save_job(folder, [channel], state, lease, DEADLINE_S)

    for number in range(rounds):
        channel.put(item_of(number))
        interruptions.attempt(work)
        saved = load_job(folder, missing_ok=True)
        # Who was interrupted looks what became of it, as one who was killed.
        trained = saved.extra if saved else []
        assert trained[: len(seen)] == seen
        seen = trained
    save_job(folder, [channel], trained, (), DEADLINE_S)
    return trained, interruptions.num_signals
