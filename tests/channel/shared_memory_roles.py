"""What other processes do in the tests of channels over shared memory."""

from __future__ import annotations

import errno
import gc
import os
import random
import sys
import threading
from pathlib import Path

import numpy as np

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.session import current_session

DEADLINE_S = 60.0
MIB = 1 << 20


def payloads():
    return current_session().messenger.payloads


def make_ready(channel):
    """Return when it is known whether the channel's process reads what this process writes, and the reverse."""
    channel.qsize()
    known = threading.Event()
    payloads().when_ready(channel._ref.endpoint, known.set)
    assert known.wait(DEADLINE_S)
    return payloads().reads_ours(channel._ref.endpoint.process_id)


def full_of(value, size_bytes=MIB):
    return np.full(size_bytes, value, np.uint8)


def contents(item):
    """What an array is full of; None if it is not the same everywhere."""
    low, high = int(item.min()), int(item.max())
    return low if low == high else None


def in_shared_memory(array):
    """Whether an array lies in somebody's arena."""
    address = array.ctypes.data
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            begin, end = (int(edge, 16) for edge in line.split()[0].split("-"))
            if begin <= address < end:
                return "memfd:rlinf-arena" in line
    return False


def mapped():
    """The arenas that this process has mapped, as inodes."""
    lines = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
    return {line.split()[4] for line in lines if "memfd:rlinf-arena" in line}


def put_and_leave(channel, values):
    assert make_ready(channel)
    for value in values:
        channel.put(full_of(value))


def put_async_and_leave(channel, values):
    assert make_ready(channel)
    for value in values:
        channel.put(full_of(value), async_op=True)


def put_and_stay(channel, ready, values):
    put_and_leave(channel, values)
    ready.put("put")
    ready.get("never")


def put_and_measure(channel, count, size_bytes=MIB):
    """Put one item after the other; how much memory the arena has taken in the end."""
    assert make_ready(channel)
    for number in range(count):
        channel.put(full_of(number % 251, size_bytes), timeout_s=DEADLINE_S)
    return payloads().arena.touched_bytes


def get_and_check(channel, count):
    """Get items, each dropped before the next; how many of them were in shared memory."""
    assert make_ready(channel)
    shared = 0
    for number in range(count):
        item = channel.get(timeout_s=DEADLINE_S)
        assert contents(item) == number % 251
        shared += in_shared_memory(item)
    return shared


def get_and_hold(channel, ready, count, overwrite=None):
    """Get items and hold them, or write into them, until this process is killed."""
    assert make_ready(channel)
    held = [channel.get(timeout_s=DEADLINE_S) for _ in range(count)]
    if overwrite is not None:
        for item in held:
            item[:] = overwrite
    ready.put([in_shared_memory(item) for item in held])
    ready.get("never")


def get_and_die(channel, overwrite):
    """Be gone at once when an item was got; before that, write into it."""
    assert make_ready(channel)
    item = channel.get(timeout_s=DEADLINE_S)
    if overwrite is not None:
        item[:] = overwrite
    os.kill(os.getpid(), 9)


def get_async_and_die(channel):
    assert make_ready(channel)
    handle = channel.get(async_op=True, timeout_s=DEADLINE_S)
    handle.wait()[:] = 99
    os.kill(os.getpid(), 9)


def run_out_of_descriptors():
    """From now on this process can open no shared memory."""

    def refuse(pid, fd):
        raise OSError(errno.EMFILE, "too many open files")

    payloads()._open.close()
    kernel.open_of = refuse


def get_without_descriptors(channel, count):
    run_out_of_descriptors()
    items = [channel.get(timeout_s=DEADLINE_S) for _ in range(count)]
    return [contents(item) for item in items], [in_shared_memory(item) for item in items]


def hold_without_descriptors(ready, name):
    """Hold a channel in a process that cannot open what it is sent, though it could when it was asked."""
    Channel.create(name)
    known = kernel.open_of

    def refuse(pid, fd):
        # Offers come before items.
        if current_session().messenger.on_io_thread() and "receive" in _callers():
            raise OSError(errno.EMFILE, "too many open files")
        return known(pid, fd)

    kernel.open_of = refuse
    ready.put("there")
    ready.get("never")


def _callers():
    frame, names = sys._getframe(1), set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def put_stamped(channel, num_threads, num_items):
    """Put tensors that say from their first element to their last which one they are."""
    assert make_ready(channel)

    def run(thread):
        sizes = random.Random(thread)
        for number in range(num_items):
            size = sizes.randint(25_000, 250_000)
            channel.put(np.full(size, thread * 1000 + number, np.int32), timeout_s=DEADLINE_S)

    run_threads(run, num_threads)


def get_stamped(channel, num_threads, num_items):
    """Get what `put_stamped` puts, holding some of it for a while; the stamps that each thread saw, in order."""
    seen = [[] for _ in range(num_threads)]

    def check(item):
        assert (item == item[0]).all(), "torn"
        return divmod(int(item[0]), 1000)

    def run(thread):
        order, held = random.Random(thread), []
        for _ in range(num_items):
            item = channel.get(timeout_s=DEADLINE_S)
            seen[thread].append(check(item))
            held.append((seen[thread][-1], item))
            if len(held) > 5:
                stamp, item = held.pop(order.randrange(len(held)))
                assert check(item) == stamp
                item[:] = -1
        for stamp, item in held:
            assert check(item) == stamp

    run_threads(run, num_threads)
    return seen


def run_threads(function, num_threads):
    problems = []

    def run(thread):
        try:
            function(thread)
        except BaseException as problem:  # noqa: BLE001 - raised below
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    gc.collect()
    if problems:
        raise problems[0]
