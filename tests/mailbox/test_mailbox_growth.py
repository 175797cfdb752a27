"""Mailboxes keep nothing of what is over; whoever waits hears when somebody leaves or stands still."""

import threading
import time
from functools import partial

import numpy as np
import pytest

from code_steps import lines_run
from rlinf_scheduler.comm import DirectoryClient, DirectoryServer
from rlinf_scheduler.errors import CommError, CommTimeout, PeerDied
from rlinf_scheduler.mailbox import Mailbox
from rlinf_scheduler.queueing.stats import depths_of
from weights_job import wait_until

DEADLINE_S = 60.0


@pytest.fixture
def boxes(pair, names):
    both = []
    for messenger, directory, name in zip(pair, names, ("env:0", "rollout:0"), strict=True):
        both.append(Mailbox(messenger, directory, name, limit_bytes=100_000))
        directory.register(name, messenger.endpoint)
    return both


def nothing_is_left(box):
    inbox, outbox = box._inbox, box._outbox
    return not (
        depths_of(inbox._state.queues)
        or inbox._coming
        or inbox._receiving
        or inbox._receiving_from
        or inbox.messenger.payloads.arena.num_held
        or outbox.transfers.under_way
        or any(recipient.sendings or recipient.client.num_open for recipient in outbox._recipients.values())
    )


def test_topics_that_are_done_are_forgotten(boxes):
    env, rollout = boxes
    for turn in range(50):
        groups = [("env", 0), ("rollout", 0)]
        topic = groups if turn % 2 else groups[::-1]
        receiving = rollout.broadcast(None, topic, ("env", 0), timeout_s=DEADLINE_S)
        env.broadcast(np.zeros(10_000 * (turn % 3)), topic, ("env", 0), timeout_s=DEADLINE_S).wait()
        receiving.wait()
        env.send(turn, "rollout:0", timeout_s=DEADLINE_S).wait()
        assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait() == turn
    del receiving
    for box in boxes:
        box.recv("env:0", timeout_s=DEADLINE_S).cancel()  # something to do
        wait_until(lambda box=box: nothing_is_left(box), box._inbox.messenger)


def test_nothing_is_kept_of_a_peer_that_is_gone(boxes):
    env, rollout = boxes
    env.send("unread", "rollout:0", timeout_s=DEADLINE_S).wait()
    waiting = [env.send(bytes(90_000), "rollout:0", timeout_s=DEADLINE_S) for _ in range(5)]
    receiving = env.recv("rollout:0", timeout_s=DEADLINE_S)
    waiting[0].wait(DEADLINE_S)
    rollout._inbox.messenger.close()
    with pytest.raises(PeerDied, match="rollout:0"):
        receiving.wait(DEADLINE_S)
    for handle in waiting[1:]:
        with pytest.raises(PeerDied, match="rollout:0"):
            handle.wait(DEADLINE_S)
    wait_until(lambda: nothing_is_left(env) and not env._outbox._recipients, env._inbox.messenger)


def machine_of(transport):
    return "there" if transport == "tcp" else None


def test_nobody_sends_under_the_name_of_another_process(boxes, new_messenger, names, caplog, transport):
    env, rollout = boxes
    liar = new_messenger("liar:0", machine_of(transport))
    box = Mailbox(liar, DirectoryClient(liar, names[0]._endpoint), "env:0")
    env.send("true", "rollout:0", timeout_s=DEADLINE_S).wait()
    for _ in range(3):
        with pytest.raises(CommError, match="'liar:0' says that it is 'env:0', which is another process"):
            box.send("false", "rollout:0", timeout_s=DEADLINE_S).wait()
    assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait() == "true"

    def told():
        return [record for record in caplog.records if "another process" in record.message]

    wait_until(told, rollout._inbox.messenger)  # a line is written beside the I/O thread
    assert len(told()) == 1
    with pytest.raises(CommTimeout):
        rollout.recv("env:0", timeout_s=0.3).wait()


def test_a_name_is_free_for_another_process_when_its_process_is_gone(boxes, new_messenger, names, transport):
    env, rollout = boxes
    first, second = (new_messenger(f"{name}:0", machine_of(transport)) for name in ("first", "second"))
    directory = names[0]._endpoint
    lost = threading.Event()
    rollout._inbox.messenger.on_peer_lost(
        lambda gone: lost.set() if gone == first.endpoint.process_id else None
    )
    for messenger in (first, second):
        client = DirectoryClient(messenger, directory)
        client.register("actor:0", messenger.endpoint)
        Mailbox(messenger, client, "actor:0").send(messenger.name, "rollout:0", timeout_s=DEADLINE_S).wait()
        assert rollout.recv("actor:0", timeout_s=DEADLINE_S).wait() == messenger.name
        messenger.close()
        assert lost.wait(DEADLINE_S)
    del env


def test_what_waits_when_its_own_process_leaves_fails(boxes):
    env, rollout = boxes
    waiting = [
        rollout.recv("env:0", timeout_s=DEADLINE_S),
        rollout.recv("actor:0", timeout_s=DEADLINE_S),
        rollout.send("nobody", "actor:0", timeout_s=DEADLINE_S),
    ]
    rollout._inbox.messenger.close()
    for handle in waiting:
        assert isinstance(handle.exception(), CommError)
    with pytest.raises(CommError, match="left the cluster"):
        rollout.recv("env:0")
    with pytest.raises(CommError, match="left the cluster"):
        rollout.send(1, "env:0")
    del env


@pytest.mark.parametrize("transport", ["unix"], indirect=True)
def test_the_loss_of_a_peer_is_no_more_work_when_many_others_are_waited_for(boxes, names):
    env, _ = boxes
    messenger, waiting = env._inbox.messenger, []

    def wait_for(number):
        for each in range(len(waiting), number):
            names[0].register(f"actor:{each}", messenger.endpoint)
            waiting.append(env.recv(f"actor:{each}", timeout_s=DEADLINE_S))
        receiving = env._inbox._receiving
        wait_until(
            lambda: len(receiving) == number and all(r.process_id for r in receiving.values()), messenger
        )
        return steps_of_a_loss(messenger, "rlinf_scheduler.mailbox")

    assert wait_for(3) == wait_for(300)


@pytest.mark.parametrize("transport", ["unix"], indirect=True)
def test_nor_is_it_when_many_large_items_wait_for_room_at_their_receivers(boxes):
    env, _ = boxes
    messenger, published, sending = env._inbox.messenger, env._outbox.publisher._published, []

    def send(number):
        sending.extend(
            env.send(np.zeros(20_000), "rollout:0", timeout_s=DEADLINE_S)
            for _ in range(number - len(sending))
        )
        wait_until(lambda: len(published) >= number - 1, messenger)  # the first one has arrived, perhaps
        return steps_of_a_loss(messenger, "rlinf_scheduler.comm.replication")

    assert send(4) == send(100)


def steps_of_a_loss(messenger, package):
    """How many lines of a package the loss of a peer takes that nobody knows."""
    steps = []

    def lose():
        callbacks = messenger.peers.on_lost[:]
        steps.append(sum(lines_run(package, partial(each, "stranger")) for each in callbacks))

    messenger.submit(lose)
    wait_until(lambda: steps, messenger)
    return steps[0]


@pytest.mark.parametrize("timeout_s", [0.0, 0.1, 0.5])
def test_a_deadline_holds_when_the_receiver_stands_still(boxes, timeout_s):
    env, rollout = boxes
    env.send("first", "rollout:0", timeout_s=DEADLINE_S).wait()
    stands, go_on = threading.Event(), threading.Event()
    rollout._inbox.messenger.submit(lambda: (stands.set(), go_on.wait(DEADLINE_S)))
    assert stands.wait(DEADLINE_S)
    started = time.monotonic()
    with pytest.raises(CommTimeout, match="waiting for its acknowledgement"):
        env.send("late", "rollout:0", timeout_s=timeout_s).wait()
    assert timeout_s <= time.monotonic() - started < DEADLINE_S / 2
    go_on.set()
    rollout.recv("env:0", timeout_s=DEADLINE_S).wait()


@pytest.mark.usefixtures("patient_transfers")
def test_a_send_whose_deadline_passes_for_want_of_room_has_sent_nothing(boxes):
    env, rollout = boxes
    env.send(bytes(90_000), "rollout:0", timeout_s=DEADLINE_S).wait()
    for size in (100, 20_000, 1_000_000):
        with pytest.raises(CommTimeout, match="room in its mailbox, which holds 90"):
            env.send(bytes(size) + bytes(20_000), "rollout:0", timeout_s=0.05).wait()
    assert len(rollout.recv("env:0", timeout_s=DEADLINE_S).wait()) == 90_000
    env.send("after", "rollout:0", timeout_s=DEADLINE_S).wait()
    assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait() == "after"


def test_small_items_without_room_are_bounded_by_a_credit(boxes):
    env, rollout = boxes
    size, num_items = 50_000, 100
    sending = [env.send(bytes(size), "rollout:0", timeout_s=DEADLINE_S) for _ in range(num_items)]
    sending[0].wait(DEADLINE_S)
    coming = rollout._inbox._coming
    wait_until(lambda: sum(map(len, coming.values())) >= 20, rollout._inbox.messenger)
    assert sum(map(len, coming.values())) * size <= 1 << 20
    for _ in range(num_items):
        assert len(rollout.recv("env:0", timeout_s=DEADLINE_S).wait()) == size
    for handle in sending:
        handle.wait(DEADLINE_S)


def test_an_item_that_was_taken_gives_its_memory_back_although_its_handle_is_kept(new_messenger, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("rlinf_scheduler.comm.operation.SWEEP_S", 0.01)
    messenger = new_messenger("alone:0")
    DirectoryServer(messenger)
    directory = DirectoryClient(messenger, messenger.endpoint)
    box = Mailbox(messenger, directory, "alone:0")
    directory.register("alone:0", messenger.endpoint)
    box.send_tensor(torch.ones(50_000), "alone:0", timeout_s=DEADLINE_S).wait()
    target = torch.zeros(50_000)
    handle = box.recv_tensor(target, "alone:0", timeout_s=DEADLINE_S)
    assert handle.wait() is target
    wait_until(messenger.payloads.arena.unused, messenger)
    assert handle.wait() is target
    assert target.all()
