"""send and recv of large objects: where their bytes lie, how often they are copied, what is held back."""

import os
import threading
import time

import numpy as np
import pytest
import torch

import arena_peers
from rlinf_scheduler.comm import DirectoryClient, DirectoryServer, framing
from rlinf_scheduler.errors import CommTimeout, PeerDied, SharedMemoryUnreadable
from rlinf_scheduler.mailbox import Mailbox

DEADLINE_S = 60.0
SIZE = 100_000
LIMIT_BYTES = 2 * 8 * SIZE + 1000


@pytest.fixture
def trio(new_messenger):
    """The mailboxes of three processes of one machine, and their messengers, by name."""
    names = ("env:0", "rollout:0", "actor:0")
    messengers = {name: new_messenger(name) for name in names}
    DirectoryServer(messengers["env:0"])
    boxes = {}
    for name, messenger in messengers.items():
        directory = DirectoryClient(messenger, messengers["env:0"].endpoint)
        boxes[name] = Mailbox(messenger, directory, name, limit_bytes=LIMIT_BYTES)
        directory.register(name, messenger.endpoint)
    return boxes, messengers


def test_a_tensor_is_copied_once_from_shared_memory_into_its_target(trio):
    boxes, messengers = trio
    arena = messengers["env:0"].payloads.arena
    target = torch.zeros(SIZE)
    boxes["env:0"].send_tensor(torch.arange(SIZE), "rollout:0", timeout_s=DEADLINE_S).wait()
    with pytest.raises(Exception, match="not a float32 tensor"):
        boxes["rollout:0"].recv_tensor(target, "env:0", timeout_s=DEADLINE_S).wait()
    target = target.long()
    handle = boxes["rollout:0"].recv_tensor(target, "env:0", timeout_s=DEADLINE_S)
    assert not arena.unused()
    assert handle.wait() is target
    assert torch.equal(target, torch.arange(SIZE))
    assert arena.generation == 1
    del handle
    arena_peers.eventually(arena.unused)


def test_a_received_array_is_a_view_that_gives_its_block_back(trio):
    boxes, messengers = trio
    arena = messengers["env:0"].payloads.arena
    boxes["env:0"].send(np.ones(SIZE), "rollout:0", timeout_s=DEADLINE_S).wait()
    handle = boxes["rollout:0"].recv("env:0", timeout_s=DEADLINE_S)
    array = handle.wait()
    array += 1
    assert array.sum() == 2 * SIZE
    assert not arena.unused()
    del array, handle
    arena_peers.eventually(arena.unused)


def test_large_and_small_objects_keep_their_order(trio):
    boxes, _ = trio
    sending = [
        boxes["env:0"].send(
            np.full(SIZE if number % 3 == 0 else 1, number), "rollout:0", timeout_s=DEADLINE_S
        )
        for number in range(30)
    ]
    received = [boxes["rollout:0"].recv("env:0", timeout_s=DEADLINE_S).wait()[0] for _ in range(30)]
    assert received == list(range(30))
    for handle in sending:
        handle.wait(DEADLINE_S)


def test_shared_memory_in_flight_is_bounded_too(trio):
    boxes, _ = trio
    handles = [boxes["env:0"].send(np.full(SIZE, n), "rollout:0", timeout_s=DEADLINE_S) for n in range(6)]
    handles[1].wait(DEADLINE_S)
    assert not any(handle.done() for handle in handles[2:])
    assert boxes["rollout:0"].held_bytes("env:0") <= LIMIT_BYTES
    for number in range(6):
        assert boxes["rollout:0"].recv("env:0", timeout_s=DEADLINE_S).wait()[0] == number
    for handle in handles:
        handle.wait(DEADLINE_S)


def test_a_full_mailbox_holds_up_no_other_receiver(trio):
    boxes, _ = trio
    held = [boxes["env:0"].send(np.zeros(SIZE), "rollout:0", timeout_s=DEADLINE_S) for _ in range(4)]
    boxes["env:0"].send("through", "actor:0", timeout_s=DEADLINE_S).wait()
    assert boxes["actor:0"].recv("env:0", timeout_s=DEADLINE_S).wait() == "through"
    assert not held[-1].done()
    assert held[-1].cancel()


def test_an_object_whose_shared_memory_cannot_be_opened_comes_as_bytes_and_in_order(trio, monkeypatch):
    boxes, messengers = trio
    boxes["env:0"].send("first", "rollout:0", timeout_s=DEADLINE_S).wait()
    payloads = messengers["rollout:0"].payloads
    receive, refused = payloads.receive, []

    def refuse(frames, **options):
        if len(frames) == 1 and len(frames[0]) < 1000:
            refused.append(frames)
            raise SharedMemoryUnreadable("not to be opened")
        return receive(frames, **options)

    with monkeypatch.context() as patch:
        patch.setattr(payloads, "receive", refuse)
        sending = [
            boxes["env:0"].send(obj, "rollout:0", timeout_s=DEADLINE_S) for obj in (np.ones(SIZE), [1] * 1000)
        ]
        assert boxes["rollout:0"].recv("env:0", timeout_s=DEADLINE_S).wait() == "first"
        assert boxes["rollout:0"].recv("env:0", timeout_s=DEADLINE_S).wait().all()
        assert boxes["rollout:0"].recv("env:0", timeout_s=DEADLINE_S).wait() == [1] * 1000
    assert refused
    for handle in sending:
        handle.wait(DEADLINE_S)
    # What was sent as bytes is kept until it is acknowledged, which may come after the answer.
    arena_peers.eventually(messengers["env:0"].payloads.arena.unused)


def test_threads_that_receive_from_different_peers_do_not_wait_for_each_other(trio):
    boxes, _ = trio
    late = []

    def receive_late():
        late.append(boxes["rollout:0"].recv("env:0", timeout_s=DEADLINE_S).wait())

    thread = threading.Thread(target=receive_late)
    thread.start()
    for number in range(20):
        boxes["actor:0"].send(number, "rollout:0", timeout_s=DEADLINE_S)
        assert boxes["rollout:0"].recv("actor:0", timeout_s=DEADLINE_S).wait() == number
    assert not late
    boxes["env:0"].send("late", "rollout:0", timeout_s=DEADLINE_S).wait()
    thread.join(DEADLINE_S)
    assert late == ["late"]


@pytest.mark.usefixtures("patient_transfers")
def test_a_timeout_says_how_much_the_receiver_holds(trio):
    boxes, _ = trio
    boxes["env:0"].send(np.zeros(2 * SIZE), "rollout:0", timeout_s=DEADLINE_S).wait()
    with pytest.raises(CommTimeout, match=r"room in its mailbox, which holds 16\d{5} bytes from here"):
        boxes["env:0"].send(np.zeros(SIZE), "rollout:0", timeout_s=0.1).wait(DEADLINE_S)


class Slow:
    """An object that takes longer to pickle than its send may take."""

    def __reduce__(self):
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            os.sched_yield()
        return (str, ())


@pytest.mark.usefixtures("patient_transfers")
def test_the_time_to_pickle_counts(trio):
    boxes, _ = trio
    boxes["env:0"].send(bytes(LIMIT_BYTES), "actor:0", timeout_s=DEADLINE_S).wait(DEADLINE_S)
    late = boxes["env:0"].send(Slow(), "actor:0", timeout_s=0.01)
    with pytest.raises(CommTimeout, match="room in its mailbox") as caught:
        late.wait(DEADLINE_S)
    assert caught.value.waited_s >= 0.05


def test_what_does_not_fit_into_the_receivers_memory_ends_the_connection(pair, names, monkeypatch):
    for name, directory, messenger in zip(("client:0", "server:0"), names, pair, strict=True):
        directory.register(name, messenger.endpoint)
    box = Mailbox(pair[0], names[0], "client:0")
    Mailbox(pair[1], names[1], "server:0")
    monkeypatch.setattr(pair[0].payloads, "arena", None)
    allocate = framing.allocate

    def no_room(size):
        if size > 1 << 20:
            raise MemoryError
        return allocate(size)

    monkeypatch.setattr(framing, "allocate", no_room)
    with pytest.raises(PeerDied):
        box.send(bytes(8 << 20), "server:0", timeout_s=DEADLINE_S).wait(DEADLINE_S)
