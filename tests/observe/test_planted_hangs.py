"""Hangs that are planted in real processes: each is named with the right rank and operation within two seconds."""

import math
import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest
from hanging_workers import Hanging, SlowToStart

from rlinf.scheduler import Channel, PackedPlacementStrategy
from rlinf_scheduler.observe import survey
from rlinf_scheduler.observe.why import why
from waits import seen

LIMIT_S, DEADLINE_S = 2.0, 60.0


@pytest.fixture
def gate(tmp_path):
    """Who reads from it stands there until it is opened."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def open_gate(path):
    with path.open("wb") as file:
        file.write(b".")


def asked(job, is_there, *told):
    """Ask until what was planted has happened, and is named and told within two seconds; what was said then."""

    def ask():
        began = time.monotonic()
        return why(job.session), time.monotonic() - began < LIMIT_S

    def is_told(asked):
        found, in_time = asked
        return in_time and is_there(found) and all(each in str(found) for each in told)

    return seen(ask, is_told)[0]


@contextmanager
def planted(*results):
    try:
        yield
    finally:
        for result in results:
            result.cancel()
        for result in results:
            result.results(return_exceptions=True, timeout_s=DEADLINE_S)


@contextmanager
def behind(gate, *results):
    """Calls one of which stands before a gate for as long as the block."""
    try:
        yield
    finally:
        open_gate(gate)
        for result in results:
            result.wait(DEADLINE_S)


def has_culprit(address, operation):
    return lambda found: (
        found.culprit is not None
        and (found.culprit.address == address and operation in found.culprit.operation)
    )


def in_a_ring(*waits):
    return lambda found: (
        found.culprit is not None
        and (bool(found.culprit.cycle) and all(wait in found.culprit.reason for wait in waits))
    )


def test_a_forgotten_put(job, groups):
    actor, rollout = groups
    Channel.create("forgotten")
    rollout.put("forgotten", 1).wait(DEADLINE_S)
    with planted(actor.execute_on(0).take_batch("forgotten", 3)):
        found = asked(job, has_culprit("rollout:0", "idle"), "actor:0 waits")
    assert (
        "get_batch('forgotten', 3): 2 of 3 are there; its producers: rollout:0 is idle: no call runs there"
        in str(found)
    )


def test_a_wrong_queue_name(job, groups):
    actor, rollout = groups
    Channel.create("misnamed")
    rollout.execute_on(1).put("misnamed", 2, "trajectorys").wait(DEADLINE_S)
    with planted(actor.execute_on(1).take("misnamed", "trajectories")):
        found = asked(job, has_culprit("actor:1", "get('misnamed', 'trajectories')"))
    assert (
        "nobody has ever put into it; 2 items lie in queue 'trajectorys', put by rollout:1, where nobody gets any"
        in found.culprit.reason
    )


def test_a_full_queue_whose_consumer_waits_elsewhere(job, groups):
    actor, rollout = groups
    Channel.create("full", maxsize=1)
    Channel.create("other")
    producer = rollout.execute_on(0).put_both("full", "other", 5)
    with planted(producer, actor.execute_on(0).take_one_and_wait_elsewhere("full", "other")):
        found = asked(
            job, in_a_ring("put('full'): the queue is full with 1 item (maxsize 1)", "get('other')")
        )
    assert set(found.culprit.cycle) == {"actor:0", "rollout:0"}


def test_recvs_in_a_circle(job, groups):
    actor, rollout = groups
    first, second = actor.execute_on(0).receive("rollout", 1), rollout.execute_on(1).receive("actor", 0)
    with planted(first, second):
        found = asked(job, in_a_ring("recv('rollout:1')", "recv('actor:0')"))
    assert set(found.culprit.cycle) == {"actor:0", "rollout:1"}


def test_a_process_that_is_stopped(job, groups):
    actor, rollout = groups
    (pid,) = rollout.execute_on(1).where().wait(DEADLINE_S)
    with planted(actor.execute_on(0).receive("rollout", 1)):
        asked(job, has_culprit("rollout:1", "idle"))
        os.kill(pid, signal.SIGSTOP)
        try:
            found = asked(job, has_culprit("rollout:1", "stopped"), "actor:0 waits for it")
        finally:
            os.kill(pid, signal.SIGCONT)
    assert found.culprit.waiters == ("actor:0",)


def test_a_process_whose_interpreter_is_held(job, groups, gate, monkeypatch):
    actor, rollout = groups
    told = "something keeps its interpreter (the GIL)", "actor:0 waits for it"
    monkeypatch.setattr(survey, "SIGNAL_AFTER_S", math.inf)
    held = rollout.execute_on(0).hold_the_interpreter(str(gate))
    with planted(actor.execute_on(0).receive("rollout", 0)), behind(gate, held):
        found = asked(job, has_culprit("rollout:0", "does not answer"), *told)
        assert found.graph.silent["rollout:0"].stacks == ()
        # As when two of its heartbeats are missing.
        monkeypatch.setattr(survey, "SIGNAL_AFTER_S", 0.0)
        asked(job, has_culprit("rollout:0", "hanging_workers.py:"), *told, " hold_the_interpreter\n")


def test_weights_that_nobody_publishes(job, groups):
    actor, rollout = groups
    actor.execute_on(0).publish("policy", 3).wait(DEADLINE_S)
    with planted(rollout.execute_on(0).fetch("polcy")):
        found = asked(job, has_culprit("rollout:0", "fetch_weights('polcy')"))
    assert "nobody publishes weights 'polcy'; did you mean 'policy'?" in found.culprit.reason


def test_a_version_that_its_publisher_does_not_come_to(job, groups, gate):
    actor, rollout = groups
    actor.execute_on(0).publish("newer", 3).wait(DEADLINE_S)
    with planted(rollout.execute_on(0).fetch("newer", 5)), behind(gate, actor.execute_on(0).stand(str(gate))):
        told = "actor:0 publishes them: version 3 is there, and 5 is wanted"
        found = asked(job, has_culprit("actor:0", "hanging_workers.py"), told)
    assert found.culprit.operation.endswith("(open)")


def test_a_batch_that_cannot_come(job, groups):
    """Its producers have ended."""
    actor, _ = groups
    Channel.create("starved")
    passing = Hanging.create_group().launch(job, PackedPlacementStrategy(0, 0), name="passing")
    passing.put("starved", 2).wait(DEADLINE_S)
    passing.shutdown()
    with planted(actor.execute_on(1).take_batch("starved", 4)):
        told = "2 of 4 are there; passing:0, who used it, has ended"
        asked(job, has_culprit("actor:1", "get_batch('starved', 4)"), told)


def test_a_broadcast_that_one_member_does_not_call(job, groups):
    actor, _ = groups
    with planted(actor.execute_on(1).gather(2)):
        asked(job, has_culprit("actor:0", "idle"), "actor:1 waits", "broadcast('actor:0')")


def test_a_launch_that_waits_for_a_rank(job, gate):
    launched = []

    def launch():
        strategy = PackedPlacementStrategy(0, 1)
        launched.append(SlowToStart.create_group(str(gate)).launch(job, strategy, name="slow"))

    launching = threading.Thread(target=launch)
    launching.start()
    try:
        told = "driver waits", "slow:1: still in __init__"
        asked(job, has_culprit("slow:1", "hanging_workers.py"), *told)
    finally:
        open_gate(gate)
        launching.join(DEADLINE_S)
        launched[0].terminate()


def test_a_channel_whose_process_is_stopped(job, groups):
    actor, _ = groups
    Channel.create("dead", own_process=True)

    def holders():
        doing = why(job.session).graph.doing.values()
        return [each for each in doing if [channel.name for channel in each.channels] == ["dead"]]

    (holder,) = seen(holders, bool)
    with planted(actor.execute_on(0).take("dead")):
        asked(job, has_culprit("actor:0", "get('dead')"))
        os.kill(holder.pid, signal.SIGSTOP)
        try:
            found = asked(job, has_culprit(holder.process, "stopped"), "actor:0 waits for it")
        finally:
            os.kill(holder.pid, signal.SIGCONT)
    assert found.culprit.waiters == ("actor:0",)
    assert f"channel 'dead' is held by {holder.process}" in str(found)


def test_devices_that_another_rank_has(job, groups, gate):
    actor, rollout = groups
    with behind(gate, actor.execute_on(0).lock(str(gate))):
        asked(job, lambda found: [turn.process for turn in found.graph.doing["driver"].turns] == ["actor:0"])
        second = rollout.execute_on(0).lock("/dev/null")
        told = "rollout:0 waits in device_lock() of", ": actor:0 has "
        asked(job, has_culprit("actor:0", "hanging_workers.py"), *told)
    second.wait(DEADLINE_S)


def test_a_call_that_waits_for_its_own_rank(job, groups):
    actor, _ = groups
    with planted(actor.execute_on(0).receive("actor", 0)):
        found = asked(job, in_a_ring("recv('actor:0')"))
    assert found.culprit.cycle == ("actor:0",)


def test_a_task_that_awaits(job, groups):
    actor, _ = groups
    Channel.create("awaited")
    with planted(actor.execute_on(0).wait_in_a_task("awaited")):
        found = asked(job, has_culprit("actor:0", "get('awaited')"))
    assert "nobody has ever put into it" in found.culprit.reason


@pytest.mark.parametrize("limit_s", [None, 0.2], ids=["its own deadline", "the handle's"])
@pytest.mark.parametrize(
    ("wait", "arguments", "told"),
    [
        ("recv", ("rollout", 0), "rollout:0 is idle: no call runs there"),
        ("fetch_weights", ("vain", {}, 3), "fetch_weights('vain', min_version=3)"),
        ("get", (), "get('vain'): it is empty"),
    ],
)
def test_a_wait_that_is_over_says_why(job, groups, monkeypatch, wait, arguments, told, limit_s):
    actor, rollout = groups
    monkeypatch.setattr("rlinf_scheduler.observe.why.MAX_AGE_S", 0.0)  # not what the one before was told
    if wait == "fetch_weights":
        rollout.execute_on(0).publish("vain", 1 if limit_s is None else 2).wait(DEADLINE_S)
    elif wait == "get":
        channel = Channel.create("vain")
    said = actor.execute_on(0).wait_in_vain(wait, *arguments, limit_s=limit_s).wait(DEADLINE_S)[0]
    assert told in said.partition("\n")[2], said
    if wait == "get":
        channel.delete()
