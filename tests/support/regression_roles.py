"""What the other processes do in the tests of single defects."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import threading
import time

import numpy as np

from interruptions import Alarm
from job_processes import DEADLINE_S, stay
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import ChannelClosed, SchedulerError


def hold_and_obey(pipe, _member, name, maxsize=0):
    """Hold a channel and do what the pipe says: count what it has in memory, run out of descriptors, recover."""
    channel = Channel.create(name, maxsize=maxsize)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
    hoard = []
    pipe.send("held")
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            return channel
        if command == "count":
            gc.collect()
            pipe.send(len(gc.get_objects()))
        elif command == "starve":
            with contextlib.suppress(OSError):
                while True:
                    hoard.append(os.open("/dev/null", os.O_RDONLY))
            pipe.send("starved")
        elif command == "recover":
            while hoard:
                os.close(hoard.pop())
            pipe.send("recovered")


def end_io_thread(pipe, _member, name):
    """Hold a channel, and let an exception end the thread that serves it."""
    channel = Channel.create(name)
    threading.excepthook = lambda *_: None
    pipe.send("held")
    pipe.recv()
    for thread in threading.enumerate():
        if thread.name.startswith("comm-"):
            ident = ctypes.c_ulong(thread.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
    pipe.send("ends when it wakes")
    stay(pipe)
    return channel


# -- deadlines ------------------------------------------------------------------------------------

CALLS = {
    "get": lambda channel: channel.get("empty", timeout_s=0.5),
    "get_batch": lambda channel: channel.get_batch(3, "empty", timeout_s=0.5),
    "put": lambda channel: channel.put("x", timeout_s=0.5),
    "large put": lambda channel: channel.put(np.zeros(1 << 20, np.uint8), timeout_s=0.5),
    "handle of a get": lambda channel: channel.get("empty", async_op=True, timeout_s=0.5).wait(),
    "handle of a put": lambda channel: channel.put("x", async_op=True, timeout_s=0.5).wait(),
    "get_nowait": lambda channel: channel.get_nowait("empty"),
    "put_nowait": lambda channel: channel.put_nowait("x"),
    "qsize": lambda channel: channel.qsize(),
    "stats": lambda channel: channel.stats(),
    "delete": lambda channel: channel.delete(timeout_s=0.5),
}


def wait_in_vain(pipe, _member, name, calls, limit_s):
    """How each call on a channel that does not answer ended: {its name: (seconds, the error's class)}."""
    channel = Channel.connect(name)
    for number in range(10):  # whatever a thread gets after a while for itself, it has
        channel.put(number)
        channel.get()
    ended = {}

    def run(call):
        started = time.monotonic()
        try:
            CALLS[call](channel)
            outcome = None
        except SchedulerError as error:
            outcome = type(error).__name__
        ended[call] = (time.monotonic() - started, outcome)

    pipe.send("ready")
    pipe.recv()
    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    return dict(ended)


# -- order ----------------------------------------------------------------------------------------


def cancel_and_get(_pipe, _member, name, rounds):
    """The numbers that a single consumer gets which gives up every other get."""
    channel, got = Channel.connect(name), []
    for number in range(rounds):
        handle = channel.get(async_op=True)
        for _ in range(number % 40):
            handle.done()
        if handle.cancel():
            got.append(channel.get(timeout_s=DEADLINE_S))
        else:
            got.append(handle.wait(DEADLINE_S))
    return got


def drop_and_get(_pipe, _member, name, rounds):
    """The numbers that a single consumer gets which drops every other get."""
    channel, got = Channel.connect(name), []
    for number in range(rounds):
        handle = channel.get(async_op=True)
        for _ in range(number % 40):
            handle.done()
        del handle
        got.append(channel.get(timeout_s=DEADLINE_S))
    return got


def put_small_until_closed(_pipe, _member, name):
    channel, number = Channel.connect(name), 0
    while True:
        try:
            channel.put(number, 1, timeout_s=DEADLINE_S)
        except ChannelClosed:
            return number
        number += 1


# -- memory ---------------------------------------------------------------------------------------


def put_much(pipe, _member, name, num_items, size_bytes):
    channel = Channel.connect(name)
    item = bytes(size_bytes)
    handles = [channel.put(item, async_op=True) for _ in range(num_items)]
    channel.qsize()
    pipe.send("put")
    stay(pipe)
    return len(handles)


# After so many items two processes share memory, if they ever do.
WARM_UP = 20


def put_arrays(pipe, _member, name, size_bytes):
    """Put an array full of each number that comes through the pipe."""
    channel = Channel.connect(name)
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        channel.put(np.full(size_bytes, number, np.uint8), timeout_s=DEADLINE_S)
        pipe.send("put")


def fork_with_an_array(pipe, _member, name):
    """What a forked child reads in an array that its parent received and dropped: its contents, or the error."""
    channel = Channel.connect(name)
    for _ in range(WARM_UP):
        channel.get(timeout_s=DEADLINE_S)
    array = channel.get(timeout_s=DEADLINE_S)
    may_read, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(may_read, 1)
        os._exit(_outcome_of_reading(array))
    del array
    gc.collect()
    pipe.send("dropped")
    for _ in range(pipe.recv()):
        other = channel.get(timeout_s=DEADLINE_S)
        other[:] = 99
        del other
    os.write(tell, b".")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _outcome_of_reading(array):
    try:
        return 0 if int(array.min()) == int(array.max()) == 1 else 1
    except Exception:  # noqa: BLE001 - any error is an answer
        return 3


def die_with_waiting_gets(pipe, _member, name, count):
    channel = Channel.connect(name)
    handles = [channel.get("never", async_op=True, timeout_s=86_400) for _ in range(count)]
    channel.qsize()
    pipe.send("waiting")
    stay(pipe)
    return len(handles)


# -- signals --------------------------------------------------------------------------------------


class SignalsWhileRead:
    """An item during whose decoding a signal comes, once."""

    due = True

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return _read_with_signal, (self.number,)


def _read_with_signal(number):
    if SignalsWhileRead.due:
        SignalsWhileRead.due = False
        signal.raise_signal(signal.SIGUSR1)
    return number


def get_while_a_signal_comes(_pipe, _member, name):
    """(What the first get raised, what the second one got.)"""

    def raise_alarm(*_):
        raise Alarm

    signal.signal(signal.SIGUSR1, raise_alarm)
    channel = Channel.connect(name)
    try:
        channel.get(timeout_s=DEADLINE_S)
    except Exception as error:  # noqa: BLE001 - its class is what matters
        raised = type(error).__name__
    else:
        raised = "nothing"
    return raised, channel.get(timeout_s=DEADLINE_S)


def wait_with_deadline(_pipe, _member, name, timeout_s):
    """Every operation, with so many seconds."""
    channel = Channel.connect(name)
    # So many that the nearest deadline of either process is this one, whatever else it has waited for before.
    handles = [channel.get("q", async_op=True, timeout_s=timeout_s) for _ in range(700)]
    for number in range(700):
        channel.put(number, queue_name="q", timeout_s=DEADLINE_S)
        assert handles[number].wait(DEADLINE_S) == number
    channel.put("x", timeout_s=timeout_s)
    return channel.get(timeout_s=timeout_s)


def get_many_and_die(_pipe, _member, name, count):
    """Take one item after the other, and be killed while more are on their way."""
    channel = Channel.connect(name, timeout_s=DEADLINE_S)
    for _ in range(count):
        channel.get(timeout_s=DEADLINE_S)
    on_their_way = [channel.get(async_op=True) for _ in range(5)]
    os.kill(os.getpid(), signal.SIGKILL)
    return on_their_way
