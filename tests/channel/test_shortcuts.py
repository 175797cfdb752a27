"""Threads that block have a way of their own to the channel's process; nobody can tell by what they get."""

import errno
import os
import queue
import random
import resource
import signal
import socket
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import regression_roles as roles
from alarms import Bell
from job_processes import DEADLINE_S, Job
from rlinf.testing.local import LocalRuntime
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.channel.features.shortcuts import (
    ACCEPT_PAUSE_S,
    MAX_SHORTCUTS,
    ShortcutListener,
    ShortcutsFeature,
)
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.channel.shortcut import WELCOME, ShortcutRequest
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import (
    ChannelClosed,
    ChannelEmpty,
    ChannelFull,
    ChannelLost,
    ChannelTimeout,
    ChannelUnanswered,
    SlotExpired,
)
from served import served
from waits import wait_until


def num_sockets(pid):
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:  # closed meanwhile
            continue
    return count


def take_the_shortcut(holder, channel, num_more=2):
    """Use the channel until this thread has its own socket there (and, of the first one, where it was made)."""
    before = num_sockets(holder.pid)

    def has_it():
        channel.put("warm", queue_name="warm", timeout_s=DEADLINE_S)
        assert channel.get("warm", timeout_s=DEADLINE_S) == "warm"
        return num_sockets(holder.pid) >= before + num_more

    wait_until(has_it)
    for _ in range(3):  # the other end of it is here now, too
        has_it()


@pytest.fixture
def held():
    with Job() as job:
        holder, channel = job.hold(maxsize=4)
        take_the_shortcut(holder, channel)
        yield job, holder, channel


def test_blocking_and_asynchronous_puts_of_one_thread_keep_their_order():
    with Job() as job:
        holder, channel = job.hold()
        take_the_shortcut(holder, channel)
        dice = random.Random(5)
        for number in range(3000):
            if dice.random() < 0.5:
                channel.put(number, timeout_s=DEADLINE_S)
            else:
                channel.put(number, async_op=True)
        assert [channel.get(timeout_s=DEADLINE_S) for _ in range(3000)] == list(range(3000))


def test_blocking_gets_stand_behind_asynchronous_ones():
    with Job() as job:
        holder, channel = job.hold()
        take_the_shortcut(holder, channel)
        for number in range(1000):
            channel.put(number, async_op=True)
        handles = {}
        for number in range(0, 1000, 2):
            handles[number] = channel.get(async_op=True)
            assert channel.get(timeout_s=DEADLINE_S) == number + 1
        assert all(handle.wait(DEADLINE_S) == number for number, handle in handles.items())


def test_an_item_whose_handle_is_dropped_comes_before_what_is_asked_for_next(held):
    _, _, channel = held
    for _ in range(200):
        for number in range(3):
            channel.put(number, timeout_s=DEADLINE_S)
        handle = channel.get(async_op=True)
        wait_until(handle.done)
        del handle
        assert [channel.get(timeout_s=DEADLINE_S) for _ in range(3)] == [0, 1, 2]


@pytest.mark.usefixtures("patient")
def test_refusals_say_what_they_always_say(held):
    _, _, channel = held
    with pytest.raises(ChannelEmpty):
        channel.get_nowait()
    with pytest.raises(ChannelTimeout):
        channel.get(timeout_s=0)
    for number in range(4):
        channel.put_nowait(number)
    with pytest.raises(ChannelFull):
        channel.put_nowait(4)
    with pytest.raises(ChannelTimeout, match="4 of 4 items"):
        channel.put(4, timeout_s=0.05)
    assert [channel.get_nowait() for _ in range(4)] == [0, 1, 2, 3]
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.put(5)
    with pytest.raises(ChannelClosed):
        channel.get()


def test_a_put_that_timed_out_has_put_nothing(held):
    _, _, channel = held
    for number in range(4):
        channel.put(number)
    for _ in range(20):
        with pytest.raises(ChannelTimeout):
            channel.put("late", timeout_s=0.002)
    assert [channel.get(timeout_s=DEADLINE_S) for _ in range(4)] == [0, 1, 2, 3]
    assert channel.empty()


@pytest.mark.parametrize("size", [1 << 10, 60_000, 1 << 20])
def test_items_of_any_size_come_whole(held, size):
    _, _, channel = held
    rows = np.random.default_rng(0).integers(0, 255, size, np.uint8)
    for number in range(40):
        channel.put((number, rows), weight=1, timeout_s=DEADLINE_S)
        got, same = channel.get(timeout_s=DEADLINE_S)
        assert got == number
        assert np.array_equal(same, rows)
        same[:] = 0  # it is the consumer's own


def test_a_batch_that_is_too_large_for_it_comes_all_the_same():
    with Job() as job:
        holder, channel = job.hold()
        take_the_shortcut(holder, channel)
        items = [bytes([number]) * 50_000 for number in range(8)]
        for item in items:
            channel.put(item, weight=1)
        assert channel.get_batch(8, timeout_s=DEADLINE_S) == items
        many = [(number, "x" * 10) for number in range(5000)]
        for item in many:
            channel.put(item, weight=1, async_op=True)
        assert channel.get_batch(5000, timeout_s=DEADLINE_S) == many


def test_a_stopped_server_takes_nothing_out_of_order(held):
    _, holder, channel = held
    for number in range(4):
        channel.put(number)
    holder.stop()
    with pytest.raises(ChannelTimeout):
        channel.get(timeout_s=0.1)
    with pytest.raises(ChannelUnanswered):
        channel.put("perhaps", timeout_s=0.1)
    holder.go_on()
    assert [channel.get(timeout_s=DEADLINE_S) for _ in range(4)] == [0, 1, 2, 3]
    assert channel.empty()  # there was no room for it in time


def test_who_waits_for_a_process_that_is_killed_is_told(held):
    _, holder, channel = held
    with ThreadPoolExecutor(1) as pool:

        def wait_for_an_item():
            take_the_shortcut(holder, channel, num_more=1)
            waiting.set()
            return channel.get()

        waiting = threading.Event()
        waits = pool.submit(wait_for_an_item)
        assert waiting.wait(DEADLINE_S)
        wait_until(lambda: any(depth.num_getters for depth in channel.stats().queues))
        holder.kill()
        with pytest.raises(ChannelLost):
            waits.result(DEADLINE_S)


def test_who_waits_on_a_channel_that_is_deleted_is_told(held):
    _, holder, channel = held
    with ThreadPoolExecutor(1) as pool:

        def wait_for_an_item():
            take_the_shortcut(holder, channel, num_more=1)
            return channel.get()

        waits = pool.submit(wait_for_an_item)
        wait_until(lambda: any(depth.num_getters for depth in channel.stats().queues))
        channel.delete()
        with pytest.raises((ChannelLost, ChannelClosed)):
            waits.result(DEADLINE_S)


def test_an_item_on_its_way_to_a_killed_consumer_comes_back():
    with Job() as job:
        _, channel = job.hold()
        for number in range(2000):
            channel.put(number, async_op=True)
        consumer = job.start(roles.get_many_and_die, channel.name, 500)
        consumer.process.join(DEADLINE_S)
        channel.close()
        rest = sorted(channel)
        # Once each, and besides what it never took only what it took in its last moments.
        assert rest == list(range(rest[0], 2000))
        assert 400 < rest[0] <= 500


def test_threads_that_end_leave_nothing_behind(held):
    _, holder, channel = held
    before = num_sockets(holder.pid)

    def use_it():
        take_the_shortcut(holder, channel, num_more=1)

    for _ in range(5):
        thread = threading.Thread(target=use_it)
        thread.start()
        thread.join(DEADLINE_S)
        wait_until(lambda: num_sockets(holder.pid) == before)


def test_more_threads_than_there_are_shortcuts_work_as_well():
    with Job() as job:
        holder, channel = job.hold()
        before = num_sockets(holder.pid)
        num_threads = MAX_SHORTCUTS + 30
        all_there = threading.Barrier(num_threads)

        def use_it(number):
            for _ in range(30):
                channel.put(number, queue_name=number, timeout_s=DEADLINE_S)
                assert channel.get(number, timeout_s=DEADLINE_S) == number
            all_there.wait(DEADLINE_S)

        with ThreadPoolExecutor(num_threads) as pool:
            for done in [pool.submit(use_it, number) for number in range(num_threads)]:
                done.result(DEADLINE_S)
            assert before < num_sockets(holder.pid) <= before + 1 + MAX_SHORTCUTS


@pytest.mark.interrupted
def test_a_signal_handler_uses_the_channel_while_its_thread_waits(held):
    """The thread's socket is in use: the handler must not read the answer that the thread waits for."""
    _, _, channel = held
    heard = []

    def handle():
        channel.put("from the handler", queue_name="other", timeout_s=DEADLINE_S)
        heard.append(channel.get("other", timeout_s=DEADLINE_S))
        channel.put("answer", timeout_s=DEADLINE_S)

    with Bell(signal.SIGUSR1, handle) as bell:
        for _ in range(50):
            sender = threading.Thread(target=ring_when_waiting, args=(bell, channel))
            sender.start()
            assert channel.get(timeout_s=DEADLINE_S) == "answer"
            sender.join(DEADLINE_S)
    assert heard == ["from the handler"] * 50


def ring_when_waiting(bell, channel):
    wait_until(lambda: any(depth.num_getters or depth.num_putters for depth in channel.stats().queues))
    bell.ring()


def test_a_stranger_gets_no_shortcut():
    with LocalRuntime() as runtime:
        messenger = runtime.messenger
        listener = ShortcutsFeature(served(messenger))
        invitations = []
        ready = threading.Event()

        def invite():
            invitations.extend((listener.invite("friend"), listener.invite("friend")))
            ready.set()

        messenger.submit(invite)
        assert ready.wait(DEADLINE_S)
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stranger.settimeout(DEADLINE_S)
        stranger.connect(invitations[0].path)
        stranger.send(b"let me in, please")
        assert stranger.recv(100) == b""
        stranger.close()
        # A word opens the listener once.
        friends = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        for friend in friends:
            friend.settimeout(DEADLINE_S)
            friend.connect(invitations[1].path)
            friend.send(invitations[1].token)
        assert friends[1].recv(100) == b""
        assert friends[0].recv(100) == WELCOME
        friends[0].send(b"no operation")
        assert friends[0].recv(100) == b""
        for friend in friends:
            friend.close()
        messenger.submit(listener.close)


def test_a_channel_of_this_process_has_them_too():
    with LocalRuntime():
        channel = Channel.create("own")
        for number in range(200):
            channel.put(number)
            assert channel.get(timeout_s=DEADLINE_S) == number
        assert channel.stats().num_gets == 200


def test_a_put_whose_memory_cannot_be_read_comes_as_bytes():
    """The server's process has no descriptor left for it; the item comes another way, once."""
    with Job() as job:
        short = job.start(roles.hold_and_obey, "short")
        assert short.receive() == "held"
        channel = Channel.connect("short", timeout_s=DEADLINE_S)
        take_the_shortcut(short, channel)
        short.pipe.send("starve")
        assert short.receive() == "starved"
        rows = np.arange(100_000)
        for number in range(20):
            channel.put((number, rows), timeout_s=DEADLINE_S)
            got, same = channel.get(timeout_s=DEADLINE_S)
            assert got == number
            assert np.array_equal(same, rows)


def connection_of(channel):
    return channel._connection()


def test_a_get_whose_shortcut_breaks_goes_on_the_usual_way():
    """The server lives; nothing is left behind on the I/O thread."""
    with LocalRuntime():
        channel = Channel.create("breaks")
        with ThreadPoolExecutor(1) as pool:
            shortcut = pool.submit(take_own_shortcut, channel).result(DEADLINE_S)
            for number in range(20):
                waits = pool.submit(channel.get, timeout_s=DEADLINE_S)
                wait_until(lambda: any(depth.num_getters for depth in channel.stats().queues))
                shortcut.end()
                channel.put(number)
                assert waits.result(DEADLINE_S) == number
                shortcut = pool.submit(take_own_shortcut, channel).result(DEADLINE_S)
        client = connection_of(channel).client
        wait_until(lambda: not (client.operations or client.deliveries._here or client.deliveries._soon))
        assert channel.stats().queues == ()


def test_a_put_whose_shortcut_breaks_puts_its_item_once():
    with LocalRuntime():
        channel = Channel.create("breaks", maxsize=1)
        with ThreadPoolExecutor(1) as pool:
            for number in range(20):
                shortcut = pool.submit(take_own_shortcut, channel).result(DEADLINE_S)
                channel.put("first")
                waits = pool.submit(channel.put, number, timeout_s=DEADLINE_S)
                wait_until(lambda: any(depth.num_putters for depth in channel.stats().queues))
                shortcut.end()
                assert [channel.get(timeout_s=DEADLINE_S) for _ in range(2)] == ["first", number]
                waits.result(DEADLINE_S)
                assert channel.empty()


def test_a_put_with_a_slot_whose_shortcut_breaks_has_its_slot():
    with LocalRuntime():
        channel = Channel.create("breaks")
        channel.set_version(0, batch_items=4)
        take_own_shortcut(channel).end()
        with channel.admit(max_lag=0, timeout_s=DEADLINE_S) as slot:
            channel.put("made", slot=slot, timeout_s=DEADLINE_S)
        assert channel.get(timeout_s=DEADLINE_S) == "made"
        with pytest.raises(SlotExpired):
            channel.put("once more", slot=slot, timeout_s=DEADLINE_S)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("by_shortcut", [False, True])
def test_a_put_that_is_interrupted_gives_its_slot_back_once_its_block_is_left(by_shortcut):
    def interrupt():
        raise Interrupted

    with Bell(signal.SIGALRM, interrupt) as bell, LocalRuntime():
        channel = Channel.create("full", max_bytes=1500)
        channel.set_version(0, batch_items=4)
        with channel.admit(max_lag=0, timeout_s=DEADLINE_S) as first:
            channel.put(bytes(1000), slot=first, timeout_s=DEADLINE_S)
        if by_shortcut:
            take_own_shortcut(channel)
        interrupts = threading.Thread(target=ring_when_waiting, args=(bell, channel))
        interrupts.start()
        with channel.admit(max_lag=0, timeout_s=DEADLINE_S) as slot, pytest.raises(Interrupted):
            channel.put(bytes(1000), slot=slot, timeout_s=DEADLINE_S)
        interrupts.join(DEADLINE_S)
        wait_until(lambda: not any(held.operation.startswith("slot") for held in held_of(channel)))
        with pytest.raises(SlotExpired):
            channel.put(bytes(1000), slot=slot, timeout_s=DEADLINE_S)


def held_of(channel):
    return [held for queue in channel.explain().queues for held in queue.held]


def take_own_shortcut(channel):
    """Use the channel until this thread has a shortcut; it."""
    own = connection_of(channel).direct_way._own

    def has_it():
        channel.put("warm", queue_name="warm", timeout_s=DEADLINE_S)
        assert channel.get("warm", timeout_s=DEADLINE_S) == "warm"
        return getattr(own, "shortcut", None) is not None

    wait_until(has_it)
    return own.shortcut


def test_what_is_sent_after_the_channel_is_lost_leaves_nothing_behind(held):
    _, holder, channel = held
    connection = connection_of(channel)
    client = connection.client
    holder.kill()
    wait_until(lambda: client.lost)
    operation = ChannelOperation("get", "default", None, connection._messenger.now)
    client.direct.append(operation)
    client.hand_over(client.query_outcome, operation)
    wait_until(lambda: not (client.direct or client.inbox or client.deliveries._soon or client.operations))


def test_who_is_told_to_wait_elsewhere_is_told_when_the_channel_is_lost(held):
    _, holder, channel = held
    connection = connection_of(channel)
    client = connection.client
    holder.kill()
    wait_until(lambda: client.lost)
    promise = Promise()
    operation = ChannelOperation("get", "default", None, connection._messenger.now)
    operation.promise_to(promise)
    client.direct.append(operation)
    client.hand_over(client.expect, operation)
    with pytest.raises(ChannelLost):
        promise.result(DEADLINE_S)


def test_a_deadline_holds_for_items_that_come_elsewhere(held):
    """The server has said that they come the usual way; they do not."""
    _, _, channel = held
    connection = connection_of(channel)
    client = connection.client
    promise = Promise()
    operation = ChannelOperation("get", "default", 0.05, connection._messenger.now)
    operation.promise_to(promise)
    client.direct.append(operation)
    client.hand_over(client.expect, operation)
    with pytest.raises(ChannelTimeout):
        promise.result(DEADLINE_S)


def test_a_handler_that_finds_the_new_shortcut_first_does_not_share_it(held):
    """It comes between two looks of the interrupted thread at what it has asked for."""
    _, _, channel = held
    connection = connection_of(channel)
    request = ShortcutRequest()
    request.shortcut = object()
    taken = []

    class Interrupted(dict):
        def get(self, key, default=None):
            return self._then_handle(super().get(key, default))

        def pop(self, key, default=None):
            return self._then_handle(super().pop(key, default))

        def _then_handle(self, found):
            if not self.handled:
                self.handled = True
                taken.append(connection.direct_way._ask_for_one(self))
            return found

    own = Interrupted(request=request)
    own.handled = False
    taken.append(connection.direct_way._ask_for_one(own))
    assert taken.count(request.shortcut) == 1


def test_a_forked_child_holds_none_of_its_parents_shortcuts():
    others = num_sockets(os.getpid())
    with LocalRuntime():
        channel = Channel.create("forked")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(take_own_shortcut, channel).result(DEADLINE_S)
            read, write = os.pipe()
            pid = os.fork()
            if not pid:
                try:
                    os.write(write, b"%d" % num_sockets(os.getpid()))
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            assert num_sockets(os.getpid()) >= 3
            assert int(os.read(read, 10)) <= others  # of those some may have been closed meanwhile
            os.close(read)
            os.close(write)


def test_a_process_that_has_used_up_half_of_its_descriptors_invites_nobody():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with LocalRuntime() as runtime:
        messenger = runtime.messenger
        listeners = [ShortcutsFeature(served(messenger)) for _ in range(2)]
        invitations = queue.SimpleQueue()

        def invite(listener):
            messenger.submit(lambda: invitations.put(listener.invite("friend").path))
            return invitations.get(timeout=DEADLINE_S)

        assert invite(listeners[0])
        num_open = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + num_open // 2, hard))
        try:
            # Whichever channel of the process the thread wants one to.
            assert [invite(listener) for listener in listeners] == ["", ""]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert invite(listeners[1])
        closed = threading.Event()
        messenger.submit(lambda: ([listener.close() for listener in listeners], closed.set()))
        assert closed.wait(DEADLINE_S)


def test_a_process_without_descriptors_takes_shortcuts_later_and_does_not_spin():
    accepts = 0
    with LocalRuntime() as runtime:
        messenger = runtime.messenger
        welcome = []
        listener = ShortcutListener(messenger, lambda *came: welcome.append(came))
        ready = threading.Event()

        class Starved:
            """A listener that finds no descriptor, twice."""

            def __init__(self, listener):
                self.listener = listener

            def __getattr__(self, name):
                return getattr(self.listener, name)

            def accept(self):
                nonlocal accepts
                accepts += 1
                if accepts < 3:
                    raise OSError(errno.EMFILE, "too many open files")
                return self.listener.accept()

        def invite():
            invitations.append(listener.invite("friend", 0))
            listener._listener = Starved(listener._listener)
            ready.set()

        invitations = []
        messenger.submit(invite)
        assert ready.wait(DEADLINE_S)
        began = time.monotonic()
        friend = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        friend.settimeout(DEADLINE_S)
        friend.connect(invitations[0].path)
        friend.send(invitations[0].token)
        assert friend.recv(100) == WELCOME
        assert time.monotonic() - began >= 2 * ACCEPT_PAUSE_S
        assert accepts == 3
        friend.close()
        messenger.submit(listener.close)


@pytest.mark.parametrize("error", [TimeoutError, ConnectionResetError, CancelledError])
def test_what_a_signal_handler_raises_is_not_held_for_the_shortcuts_own(held, error):
    """A handler that raises TimeoutError is how many programs end a call that takes too long."""
    _, _, channel = held

    def handle():
        raise error("of the handler")

    with Bell(signal.SIGUSR1, handle) as bell:
        for _ in range(5):
            take_own_shortcut(channel)
            sender = threading.Thread(target=ring_when_waiting, args=(bell, channel))
            sender.start()
            with pytest.raises(error, match="of the handler"):
                channel.get(timeout_s=DEADLINE_S)
            sender.join(DEADLINE_S)
    channel.put("item")
    assert channel.get(timeout_s=DEADLINE_S) == "item"
