"""Workers that send, receive and broadcast, within one process and without Ray."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf.scheduler import CollectiveGroupOptions, Worker
from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import ClusterSecret
from rlinf_scheduler.errors import ClusterError, CommError, CommTimeout, PeerNotFound
from rlinf_scheduler.host.info import Role
from rlinf_scheduler.mailbox import Mailbox, open_mailbox
from rlinf_scheduler.session import Session, set_current

GROUPS = [("actor", 0), ("rollout", [0, 1])]


@pytest.fixture
def workers():
    """actor:0, rollout:0 and rollout:1."""
    alone = Role.alone().info
    secret = ClusterSecret.generate()
    sessions, made = [], []
    for group, rank in (("actor", 0), ("rollout", 0), ("rollout", 1)):
        session = Session(secret, f"{group}:{rank}", home=sessions[0].home if sessions else None)
        mailbox = Mailbox(session.messenger, session.directory, session.name, limit_bytes=1_000_000)
        session.provide(open_mailbox, mailbox)
        session.provide(Role, Role(replace(alone, address=WorkerAddress(group, rank))))
        session.directory.register(session.name, session.messenger.endpoint)
        set_current(session)
        sessions.append(session)
        made.append(Worker())
    set_current(None)
    yield made
    for session in sessions:
        session.close()


@pytest.fixture
def at_once():
    """Runs a function in a thread of its own; gives what waits for its result."""
    threads = []

    def run(function, *args, **kwargs):
        results = []
        thread = threading.Thread(target=lambda: results.append(function(*args, **kwargs)))
        thread.start()
        threads.append(thread)

        def result():
            thread.join(60)
            return results[0]

        return result

    yield run
    for thread in threads:
        thread.join(60)


def test_a_worker_without_accelerators_computes_on_the_processor_also_where_there_are_no_nodes(workers):
    assert [str(worker.torch_device) for worker in workers] == ["cpu"] * 3
    assert workers[0].torch_platform.__name__ == "torch.cpu"


def test_send_and_recv_sync_and_async(workers):
    actor, rollout, _ = workers
    receiving = rollout.recv("actor", 0, async_op=True, timeout_s=60)
    assert actor.send({"step": 1}, "rollout", 0, timeout_s=60) is None
    assert receiving.wait() == {"step": 1}
    sending = actor.send("two", "rollout", 0, async_op=True, timeout_s=60)
    assert rollout.recv("actor", 0, timeout_s=60) == "two"
    sending.wait()


def test_what_is_sent_may_be_named_and_have_a_payload_beside_it(workers):
    actor, rollout, _ = workers
    sent = {"weights": torch.ones(50_000), "bare": 1}
    actor.send(object=sent, dst_group_name="rollout", dst_rank=0, async_op=True, piggyback_payload=("key", 3))
    received, payload = rollout.recv(src_group_name="actor", src_rank=0, timeout_s=60)
    assert payload == ("key", 3)
    assert torch.equal(received["weights"], sent["weights"])
    actor.send("alone", "rollout", 0, piggyback_payload=None, timeout_s=60)
    assert rollout.recv("actor", 0, timeout_s=60) == "alone"


def test_options_are_accepted_wherever_bytes_go_and_change_nothing(workers, at_once):
    actor, rollout, other = workers
    options = CollectiveGroupOptions(accel_max_ctas=1, use_ring_broadcast=True)
    actor.send([], "rollout", 0, async_op=True, options=options)
    rollout.recv("actor", 0, options=options, timeout_s=60)
    target = torch.zeros(3)
    actor.send_tensor(torch.ones(3), "rollout", 0, async_op=True, options=options)
    rollout.recv_tensor(target, "actor", 0, options=options, timeout_s=60)
    assert torch.equal(target, torch.ones(3))
    receiving = [
        at_once(each.broadcast, groups=GROUPS, src=("actor", 0), options=options, timeout_s=60)
        for each in (rollout, other)
    ]
    actor.broadcast(object={"step": 1}, groups=GROUPS, src=("actor", 0), options=options, timeout_s=60)
    assert [received() for received in receiving] == [{"step": 1}] * 2


def test_send_tensor_and_recv_tensor_sync_and_async(workers):
    actor, rollout, _ = workers
    target = torch.zeros(50_000)
    receiving = rollout.recv_tensor(target, "actor", 0, async_op=True, timeout_s=60)
    actor.send_tensor(torch.ones(50_000), "rollout", 0, timeout_s=60)
    assert receiving.wait() is target
    sending = actor.send_tensor(torch.full((50_000,), 2.0), "rollout", 0, async_op=True, timeout_s=60)
    rollout.recv_tensor(target, "actor", 0, timeout_s=60)
    sending.wait()
    assert torch.equal(target, torch.full((50_000,), 2.0))


def test_a_sync_send_waits_for_shared_memory_and_an_async_one_does_not(workers, monkeypatch):
    actor, rollout, _ = workers
    asked = []
    outbox = actor._rlinf_session.service(open_mailbox)._outbox
    arena = outbox.messenger.payloads.arena
    allocate = arena.allocate

    def watch(size_bytes, wait_s=0.0):
        asked.append(wait_s)
        return allocate(size_bytes, wait_s)

    monkeypatch.setattr(arena, "allocate", watch)
    array = np.zeros(50_000)
    actor.send(array, "rollout", 0, timeout_s=60)
    actor.send(array, "rollout", 0, async_op=True, timeout_s=60).wait()
    assert len(asked) == 2
    assert asked[0] > 0
    assert asked[1] == 0
    for _ in range(2):
        rollout.recv("actor", 0, timeout_s=60)


def test_broadcast_sync_and_async(workers, at_once):
    actor, *rollouts = workers
    for async_op in (False, True):
        sent = np.full(100_000, int(async_op))
        receiving = [
            at_once(rollout.broadcast, groups=GROUPS, src=("actor", 0), timeout_s=60) for rollout in rollouts
        ]
        result = actor.broadcast(sent, groups=GROUPS, src=("actor", 0), async_op=async_op, timeout_s=60)
        assert (result.wait() if async_op else result) is sent
        for received in receiving:
            array = received()
            assert (array == int(async_op)).all()
            array[:] = -1


def test_the_first_member_is_the_source_unless_it_is_said(workers):
    actor, rollout, _ = workers
    receiving = rollout.broadcast(groups=[("actor", 0), ("rollout", 0)], async_op=True, timeout_s=60)
    actor.broadcast("from the first", [("actor", 0), ("rollout", 0)], timeout_s=60)
    assert receiving.wait() == "from the first"


def test_who_is_missing_is_named_at_the_deadline(workers):
    actor, rollout, _ = workers
    with pytest.raises(PeerNotFound, match="'critic:0'"):
        actor.broadcast("value", [("actor", 0), ("critic", [0])], ("actor", 0), timeout_s=0.1)
    with pytest.raises(CommTimeout, match="'actor:0'"):
        rollout.broadcast(None, GROUPS, ("actor", 0), timeout_s=0.1)
    with pytest.raises(PeerNotFound, match="'critic:0'"):
        actor.send("value", "critic", 0, timeout_s=0.1)
    with pytest.raises(CommTimeout, match="'actor:0'"):
        rollout.recv("actor", 0, timeout_s=0.1)


def test_who_is_no_member_is_told_so(workers):
    with pytest.raises(CommError, match="'rollout:1' is none of the members of this broadcast: 'actor:0'"):
        workers[2].broadcast(None, [("actor", 0), ("rollout", 0)], ("actor", 0))


def test_a_worker_that_nobody_launched_is_told_to_be_launched():
    with pytest.raises(ClusterError, match="launch its group to communicate"):
        Worker().broadcast("value", GROUPS, ("actor", 0))
