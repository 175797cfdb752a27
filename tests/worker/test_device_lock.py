"""Workers of several groups take turns on the devices that they share."""

import multiprocessing
import signal
import threading
import time
from dataclasses import replace

import pytest

from local_group import DEADLINE_S
from rlinf.scheduler import Worker
from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.errors import (
    CallArgumentError,
    CallCancelled,
    ConfigError,
    DeviceLockTimeout,
    PeerDied,
    WorkerError,
)
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker import device_lock
from rlinf_scheduler.worker.device_lock import DeviceLock, DeviceLockServer
from waits import wait_until

INSIDE = threading.Lock()  # of all ranks here: nobody else is in a block


class Sharer(Worker):
    def __init__(self):
        super().__init__()
        self.inside, self.gate = threading.Event(), threading.Event()

    def take_turns(self, number):
        for _ in range(number):
            with self.device_lock():
                alone = INSIDE.acquire(blocking=False)
                self.rank  # noqa: B018 - some time passes
                if not alone:
                    return False
                INSIDE.release()
        return True

    def hold(self):
        with self.device_lock():
            self.inside.set()
            self.gate.wait(DEADLINE_S)

    def fail_inside(self):
        with self.device_lock():
            raise LookupError("inside")

    def try_for(self, timeout_s):
        with self.device_lock(timeout_s=timeout_s):
            return "had it"

    def hold_without_parentheses(self):
        with self.device_lock as lock:
            self.inside.set()
            self.gate.wait(DEADLINE_S)
            return type(lock).__name__

    def fail_without_parentheses(self):
        with self.device_lock:
            raise LookupError("inside")

    def meet(self, timeout_s=None, *, comes=True):
        if not comes:
            return None
        with self.device_lock(timeout_s, group=True):
            self.inside.set()
            self.gate.wait(DEADLINE_S)
            return time.monotonic()

    def enter_twice(self):
        lock = self.device_lock()
        with lock, lock:
            pass


@pytest.fixture(autouse=True)
def answered(monkeypatch):
    """Who has waited for too long is told for whom, also on a busy machine."""
    monkeypatch.setattr(device_lock, "_GRACE_S", DEADLINE_S)


def on(*devices, node=0):
    return [
        Placement(
            rank=0, node_id="n", node_rank=node, local_hardware_ranks=devices, has_accelerators=bool(devices)
        )
    ]


@pytest.fixture
def pair(job):
    return [job.launch(Sharer, 1, name=name, placements=on(0)) for name in ("actor", "rollout")]


def spread(*devices):
    return [replace(on(device)[0], rank=rank) for rank, device in enumerate(devices)]


def test_all_ranks_of_a_group_are_in_their_turn_together_whatever_order_two_groups_come_in(job):
    actor, critic = [
        job.launch(Sharer, 2, name=name, placements=spread(0, 1)) for name in ("actor", "critic")
    ]
    for group in (actor, critic):
        for worker in group.workers:
            worker.gate.set()
    for _ in range(20):
        calls = [actor.execute_on(0).meet(DEADLINE_S), critic.execute_on(1).meet(DEADLINE_S)]
        calls += [actor.execute_on(1).meet(DEADLINE_S), critic.execute_on(0).meet(DEADLINE_S)]
        for call in calls:
            call.wait(DEADLINE_S)


def test_a_rank_that_does_not_enter_holds_up_no_other_group_and_is_named(job):
    actor, critic = [
        job.launch(Sharer, 2, name=name, placements=spread(0, 1)) for name in ("actor", "critic")
    ]
    late = actor.execute_on(0).meet(0.3)
    for worker in critic.workers:
        worker.gate.set()
    critic.meet(DEADLINE_S).wait(DEADLINE_S)
    with pytest.raises(WorkerError, match="'actor:1' has not asked for its part") as caught:
        late.wait(DEADLINE_S)
    assert type(caught.value.cause) is DeviceLockTimeout


def test_a_rank_that_is_gone_is_named_to_those_who_wait_for_it(job):
    actor = job.launch(Sharer, 3, name="actor", placements=spread(0, 1, 2))
    waiting = actor.execute_on(0, 2).meet(DEADLINE_S)
    actor.workers[1]._rlinf_session.close()
    with pytest.raises(WorkerError, match="'actor:1' is gone") as caught:
        waiting.wait(DEADLINE_S)
    assert type(caught.value.cause) is PeerDied
    assert len(job.session.service(DeviceLockServer)._turns) == 0
    with pytest.raises(WorkerError, match="'actor:1' is gone"):  # it was so before, too
        actor.execute_on(0).meet(DEADLINE_S).wait(DEADLINE_S)


def test_a_worker_below_a_rank_is_in_no_group_and_one_alone_needs_nobody(job):
    (worker,) = job.launch(Sharer, 1, name="actor", placements=on(0)).workers
    with worker.device_lock(DEADLINE_S, group=True), Sharer().device_lock(group=True):
        pass
    role = worker._rlinf_role
    worker._rlinf_role = replace(role, info=replace(role.info, address=WorkerAddress("actor", (0, 1))))
    with pytest.raises(ConfigError, match="'actor:0/1' is a rank of no group"):
        worker.device_lock(group=True)


def free(group):
    group.workers[0].gate.set()


def test_nobody_is_in_a_block_beside_another(job):
    groups = [job.launch(Sharer, 1, name=f"g{index}", placements=on(0, index + 1)) for index in range(4)]
    calls = [group.take_turns(50) for group in groups]
    assert [call.wait(DEADLINE_S) for call in calls] == [[True]] * 4


def test_a_deadline_says_who_has_the_device(pair):
    actor, rollout = pair
    held = actor.hold()
    assert actor.workers[0].inside.wait(DEADLINE_S)
    with pytest.raises(WorkerError, match="'actor:0' has them for") as caught:
        rollout.try_for(0.05).wait(DEADLINE_S)
    assert type(caught.value.cause) is DeviceLockTimeout
    assert caught.value.cause.devices == ("device 0 of node 0",)
    free(actor)
    held.wait(DEADLINE_S)
    assert rollout.try_for(DEADLINE_S).wait(DEADLINE_S) == ["had it"]


def test_a_block_that_fails_gives_its_turn_back(pair):
    actor, rollout = pair
    with pytest.raises(WorkerError, match="inside"):
        actor.fail_inside().wait(DEADLINE_S)
    assert rollout.try_for(DEADLINE_S).wait(DEADLINE_S) == ["had it"]


def test_a_cancelled_wait_leaves_the_line(pair):
    actor, rollout = pair
    held = actor.hold()
    assert actor.workers[0].inside.wait(DEADLINE_S)
    waiting = rollout.try_for(None)
    waiting.cancel()
    assert [type(end) for end in waiting.results(True, DEADLINE_S)] == [CallCancelled]
    free(actor)
    held.wait(DEADLINE_S)
    assert actor.try_for(DEADLINE_S).wait(DEADLINE_S) == ["had it"]


def test_devices_of_different_nodes_and_workers_without_any_wait_for_nobody(job):
    places = {"a": on(0), "b": on(0, node=0)[:0] or on(1), "c": on()}
    groups = [job.launch(Sharer, 1, name=name, placements=place) for name, place in places.items()]
    calls = [group.hold() for group in groups]
    for group in groups:
        assert group.workers[0].inside.wait(DEADLINE_S)
        free(group)
    for call in calls:
        call.wait(DEADLINE_S)


def test_a_block_cannot_be_entered_twice(pair):
    with pytest.raises(WorkerError, match="entered already") as caught:
        pair[0].enter_twice().wait(DEADLINE_S)
    assert type(caught.value.cause) is ConfigError
    assert pair[1].try_for(DEADLINE_S).wait(DEADLINE_S) == ["had it"]


def test_a_block_needs_no_parentheses(pair):
    actor, rollout = pair
    held = actor.hold_without_parentheses()
    assert actor.workers[0].inside.wait(DEADLINE_S)
    with pytest.raises(WorkerError, match="'actor:0' has them for"):
        rollout.try_for(0.05).wait(DEADLINE_S)
    free(actor)
    assert held.wait(DEADLINE_S) == ["DeviceLock"]
    with pytest.raises(WorkerError, match="inside"):
        actor.fail_without_parentheses().wait(DEADLINE_S)
    assert rollout.try_for(DEADLINE_S).wait(DEADLINE_S) == ["had it"]


def test_a_misspelt_option_of_a_block_is_found():
    with pytest.raises(CallArgumentError, match=r"Sharer\.device_lock\(\): .*did you mean 'timeout_s'"):
        Sharer().device_lock(timeout=3)


def test_a_worker_of_no_job_has_its_devices_alone():
    with Sharer().device_lock(timeout_s=0) as one, Sharer().device_lock(timeout_s=0) as other:
        assert one is not other


def hold_until_killed(pipe, secret, home):
    with DeviceLock(Session(secret, "actor:0", home=home), ["device 0"]):
        pipe.send("inside")
        pipe.recv()


def test_a_process_that_is_killed_gives_its_turn_back(job):
    rollout = job.make_session("rollout:0")
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=hold_until_killed, args=(theirs, job.session.secret, job.session.home), daemon=True
    )
    process.start()
    try:
        assert ours.poll(DEADLINE_S)
        with pytest.raises(DeviceLockTimeout, match="'actor:0' has them"):
            DeviceLock(rollout, ["device 0"], 0.02).__enter__()
        process.kill()
        with DeviceLock(rollout, ["device 0"], DEADLINE_S):
            pass
    finally:
        process.kill()
        process.join(DEADLINE_S)
        ours.close()
        theirs.close()


class Interrupted(Exception):
    pass


@pytest.mark.interrupted
def test_an_interruption_at_any_moment_gives_the_turn_back(job):
    rollout = job.make_session("rollout:0")
    service = job.session.service(DeviceLockServer)

    def interrupt(_signal, _frame):
        raise Interrupted

    former = signal.signal(signal.SIGALRM, interrupt)
    num_interrupted = 0
    try:
        for round_number in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + (round_number % 30) * 1e-5)
                with DeviceLock(rollout, ["device 0"], DEADLINE_S):
                    pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                num_interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert num_interrupted > 10
    wait_until(lambda: len(service._turns) == 0)
    assert not service._waiting
