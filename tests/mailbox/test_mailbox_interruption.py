"""Signals in the middle of send, recv and broadcast: every item is accounted for, and what follows works."""

import signal
import threading

import numpy as np
import pytest

from effort import tries
from rlinf_scheduler.comm import DirectoryClient, DirectoryServer
from rlinf_scheduler.mailbox import Mailbox
from weights_job import wait_until

pytestmark = pytest.mark.interrupted

DEADLINE_S = 60.0
NUM_ITEMS, NUM_ECHOES = tries(300), tries(400)
SIZES = [1, 1000, 20_000]  # in numbers; the last goes through shared memory where there is some
MEMBERS = [("env", 0), ("rollout", 0), ("actor", 0)]


@pytest.fixture
def boxes(transport, new_messenger):
    """Three mailboxes: of "env:0" and, on another machine if by TCP, of "rollout:0" and "actor:0"."""
    machines = ("here", "there", "there") if transport == "tcp" else (None, None, None)
    made = {}
    for name, machine in zip(("env:0", "rollout:0", "actor:0"), machines, strict=True):
        messenger = new_messenger(name, machine)
        if not made:
            first = messenger
            DirectoryServer(first)
        directory = DirectoryClient(messenger, first.endpoint)
        made[name] = Mailbox(messenger, directory, name, limit_bytes=1 << 20)
        directory.register(name, messenger.endpoint)
    return made


def item(number):
    return np.full(SIZES[number % 3], number)


def in_background(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_an_interrupted_recv_takes_nothing(boxes, alarms):
    env, rollout = boxes["env:0"], boxes["rollout:0"]
    alarm, got = alarms(1), []

    def send_all():
        for handle in [
            env.send(item(number), "rollout:0", timeout_s=DEADLINE_S) for number in range(NUM_ITEMS)
        ]:
            handle.wait(DEADLINE_S)

    sending = in_background(send_all)
    while len(got) < NUM_ITEMS:
        alarm.interrupt(lambda: got.append(rollout.recv("env:0", timeout_s=DEADLINE_S).wait()))
    sending.join(DEADLINE_S)
    assert [int(array[0]) for array in got] == list(range(NUM_ITEMS))
    assert all((array == array[0]).all() for array in got)
    assert alarm.num_raised > NUM_ITEMS // 20
    wait_until(lambda: not rollout.held_bytes("env:0"), rollout._inbox.messenger)


def test_an_interrupted_wait_of_a_recv_can_be_done_again(boxes, alarms):
    env, rollout = boxes["env:0"], boxes["rollout:0"]
    alarm, got = alarms(2), []
    sending = in_background(
        lambda: [
            env.send(item(number), "rollout:0", timeout_s=DEADLINE_S).wait() for number in range(NUM_ITEMS)
        ]
    )
    for _ in range(NUM_ITEMS):
        handle = rollout.recv("env:0", timeout_s=DEADLINE_S)
        while not alarm.interrupt(handle.wait):
            pass
        got.append(handle.wait()[0])
    sending.join(DEADLINE_S)
    assert got == list(range(NUM_ITEMS))
    assert alarm.num_raised > NUM_ITEMS // 20


def test_an_interrupted_send_arrives_once_or_not_at_all_and_in_order(boxes, alarms):
    env, rollout = boxes["env:0"], boxes["rollout:0"]
    alarm, done, got = alarms(3), [], []

    def receive_all():
        while (number := int(rollout.recv("env:0", timeout_s=DEADLINE_S).wait()[0])) >= 0:
            got.append(number)

    receiving = in_background(receive_all)
    for number in range(NUM_ITEMS):
        array = item(number)
        if alarm.interrupt(lambda array=array: env.send(array, "rollout:0", timeout_s=DEADLINE_S).wait()):
            done.append(number)
    env.send(np.array([-1]), "rollout:0", timeout_s=DEADLINE_S).wait()
    receiving.join(DEADLINE_S)
    assert got == sorted(set(got))
    assert set(done) <= set(got)
    assert alarm.num_raised > NUM_ITEMS // 20
    messenger = env._outbox.messenger
    wait_until(messenger.payloads.arena.unused, messenger)
    wait_until(lambda: not env._outbox.transfers.under_way, messenger)


def test_an_interrupted_broadcast_arrives_at_each_member_once_or_not_at_all(boxes, alarms):
    alarm, done = alarms(4), []
    got = {name: [] for name in ("rollout:0", "actor:0")}

    def receive_all(name):
        while (
            number := int(boxes[name].broadcast(None, MEMBERS, ("env", 0), timeout_s=DEADLINE_S).wait()[0])
        ) >= 0:
            got[name].append(number)

    receiving = [in_background(lambda name=name: receive_all(name)) for name in got]
    for number in range(NUM_ITEMS // 2):
        array = item(number)
        if alarm.interrupt(
            lambda array=array: boxes["env:0"].broadcast(array, MEMBERS, timeout_s=DEADLINE_S).wait()
        ):
            done.append(number)
    boxes["env:0"].broadcast(np.array([-1]), MEMBERS, timeout_s=DEADLINE_S).wait()
    for thread in receiving:
        thread.join(DEADLINE_S)
    for numbers in got.values():
        assert numbers == sorted(set(numbers))
        assert set(done) <= set(numbers)
    assert alarm.num_raised > NUM_ITEMS // 40


def test_a_signal_handler_may_send_and_receive(boxes):
    env, rollout = boxes["env:0"], boxes["rollout:0"]
    echoing = in_background(
        lambda: [
            rollout.send(
                rollout.recv("env:0", timeout_s=DEADLINE_S).wait(), "env:0", timeout_s=DEADLINE_S
            ).wait()
            for _ in range(NUM_ECHOES)
        ]
    )
    num_handled = 0
    box = boxes["actor:0"]

    def use_it(_number, _frame):
        nonlocal num_handled
        num_handled += 1
        env.send(num_handled, "actor:0", timeout_s=DEADLINE_S).wait()
        assert box.recv("env:0", timeout_s=DEADLINE_S).wait() == num_handled
        signal.setitimer(signal.ITIMER_REAL, 0.0007)

    before = signal.signal(signal.SIGALRM, use_it)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        for number in range(NUM_ECHOES):
            env.send(number, "rollout:0", timeout_s=DEADLINE_S).wait()
            assert env.recv("rollout:0", timeout_s=DEADLINE_S).wait() == number
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # its handler sets the timer anew
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    echoing.join(DEADLINE_S)
    assert num_handled > NUM_ECHOES // 25
