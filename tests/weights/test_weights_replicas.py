"""Weights between machines, and many readers at once."""

import threading

import pytest

import weights_peers
from rlinf_scheduler.errors import (
    WeightsMismatch,
)
from weights_job import DEADLINE_S, VERSION_BYTES, answer_of, count_replicas, hold_up_copies, wait_until
from weights_peers import numbers_in, state


def test_another_machine_gets_a_version_once(job, monkeypatch):
    actor = job.member("actor:0")
    sent = count_replicas(monkeypatch, actor)
    readers = [job.member(f"rollout:{rank}", "there") for rank in range(4)]
    intos = [state(-1) for _ in readers]
    for version in range(5):
        handles = [
            reader.fetch("policy", into, min_version=version, timeout_s=DEADLINE_S)
            for reader, into in zip(readers, intos, strict=True)
        ]
        actor.publish("policy", state(version), version)
        assert [handle.wait() for handle in handles] == [version] * 4
        assert [numbers_in(into) for into in intos] == [{version}] * 4
        assert len(sent) == version + 1
    # One of them keeps the newest version for the others, and nobody an older one.
    arenas = [job.arena(f"rollout:{rank}") for rank in range(4)]
    wait_until(lambda: sum(arena.num_held for arena in arenas) == 1, job.messengers["actor:0"])


def test_a_replica_drops_what_its_publisher_has_replaced(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0", "there")
    there = job.messengers["rollout:0"]
    actor.publish("policy", state(1), 1)
    rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait()
    wait_until(lambda: job.arena("rollout:0").num_held == 1, there)
    actor.publish("policy", state(2), 2)
    wait_until(lambda: job.arena("rollout:0").num_held == 0, there)


def test_a_replica_drops_what_its_publisher_left(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0", "there")
    actor.publish("policy", state(1), 1)
    rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait()
    wait_until(lambda: job.arena("rollout:0").num_held == 1, job.messengers["rollout:0"])
    job.messengers["actor:0"].close()
    wait_until(job.arena("rollout:0").unused, job.messengers["rollout:0"])


def test_a_version_that_is_replaced_while_it_is_copied_is_dropped(job, monkeypatch):
    actor, rollout = job.member("actor:0"), job.member("rollout:0", "there")
    begun, may_copy = hold_up_copies(monkeypatch, rollout, job.messengers["rollout:0"])
    actor.publish("policy", state(1), 1)
    fetching = rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S)
    assert begun.wait(DEADLINE_S)
    actor.publish("policy", state(2), 2)
    may_copy()
    assert fetching.wait() == 1
    del fetching
    wait_until(lambda: job.arena("rollout:0").generation == 1, job.messengers["rollout:0"])
    wait_until(lambda: job.arena("rollout:0").num_held == 0, job.messengers["rollout:0"])


def test_a_replica_that_dies_with_the_bytes_is_replaced_by_who_waits(job, monkeypatch):
    actor, second, third = (
        job.member("actor:0"),
        job.member("rollout:1", "there"),
        job.member("rollout:2", "there"),
    )
    sent = count_replicas(monkeypatch, actor)
    _, pipe, _ = job.start(weights_peers.stop_when_it_is_replica, "rollout:0", machine="there")
    intos = [state(-1), state(-1)]
    actor.publish("policy", state(1), 1)
    pipe.send("fetch")
    wait_until(lambda: sent, job.driver)
    handles = [
        reader.fetch("policy", into, timeout_s=DEADLINE_S)
        for reader, into in zip((second, third), intos, strict=True)
    ]
    assert [handle.wait() for handle in handles] == [1, 1]
    assert [numbers_in(into) for into in intos] == [{1}, {1}]
    assert sent[0] == "rollout:0"
    assert len(sent) == 2


def test_readers_sent_to_a_killed_replica_come_back_to_the_publisher(job, monkeypatch):
    actor, second, third = (
        job.member("actor:0"),
        job.member("rollout:1", "there"),
        job.member("rollout:2", "there"),
    )
    sent = count_replicas(monkeypatch, actor)
    process, pipe, _ = job.start(weights_peers.fetch_on_demand, "rollout:0", machine="there")
    actor.publish("policy", state(1), 1)
    pipe.send({"timeout_s": DEADLINE_S})
    assert answer_of(pipe) == (1, {1.0})
    assert second.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 1
    assert sent == ["rollout:0"]
    # The publisher does not hear of its end.
    monkeypatch.setattr(actor._versions._publisher, "_lose", lambda *_: None)
    job.messengers["actor:0"]._peers.on_lost.clear()
    process.kill()
    process.join(DEADLINE_S)
    monkeypatch.undo()
    sent = count_replicas(monkeypatch, actor)
    into = state(-1)
    assert third.fetch("policy", into, timeout_s=DEADLINE_S).wait() == 1
    assert numbers_in(into) == {1}
    assert sent == ["rollout:2"]
    assert second.fetch("policy", into, timeout_s=DEADLINE_S).wait() == 1
    assert sent == ["rollout:2"]


def test_a_fetch_that_does_not_fit_reads_nothing(job, monkeypatch):
    actor, first, second = (
        job.member("actor:0"),
        job.member("rollout:0", "there"),
        job.member("rollout:1", "there"),
    )
    sent = count_replicas(monkeypatch, actor)
    actor.publish("policy", state(1), 1)
    with pytest.raises(WeightsMismatch):
        first.fetch("policy", {}, timeout_s=DEADLINE_S).wait()
    assert second.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 1
    assert sent == ["rollout:1"]


def test_a_replica_that_cannot_be_read_from_drops_what_it_holds(job, monkeypatch):
    actor, first, second = (
        job.member("actor:0"),
        job.member("rollout:0", "there"),
        job.member("rollout:1", "there"),
    )
    sent = count_replicas(monkeypatch, actor)
    there = job.messengers["rollout:0"]
    actor.publish("policy", state(1), 1)
    assert first.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 1
    wait_until(lambda: job.arena("rollout:0").num_held == 1, there)
    there.unserve("weights.copy")
    assert second.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 1
    assert sent == ["rollout:0", "rollout:1"]
    wait_until(job.arena("rollout:0").unused, there)


def test_a_replica_that_cannot_hold_the_bytes_gives_up(job, monkeypatch):
    actor, first, second = (
        job.member("actor:0"),
        job.member("rollout:0", "there"),
        job.member("rollout:1", "there"),
    )
    sent = count_replicas(monkeypatch, actor)

    def no_memory(*_args, **_options):
        raise MemoryError

    monkeypatch.setattr(job.messengers["rollout:0"].payloads, "reserve", no_memory)
    actor.publish("policy", state(1), 1)
    assert first.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 1
    assert second.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 1
    assert sent == ["rollout:0", "rollout:1"]


def test_two_publishers_of_one_name_do_not_mix_on_a_replica(job):
    """A successor begins with the version that its predecessor had."""
    process, pipe, _ = job.start(weights_peers.publish_on_demand, "actor:0")
    first, second, successor = (
        job.member("rollout:0", "there"),
        job.member("rollout:1", "there"),
        job.member("actor:1"),
    )
    pipe.send(1)
    answer_of(pipe)
    assert first.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 1
    gone = threading.Event()
    job.driver.on_peer_lost(lambda _: gone.set())
    process.kill()
    assert gone.wait(DEADLINE_S)
    successor.publish("policy", state(100), 1)
    for reader in (first, second):
        into = state(-1)
        assert reader.fetch("policy", into, timeout_s=DEADLINE_S).wait() == 1
        assert numbers_in(into) == {100}


# -- all at once ----------------------------------------------------------------------------------


def test_no_reader_ever_sees_a_mixture_of_versions(job):
    last = 60
    actor = job.member("actor:0")
    actor.publish("policy", state(0), 0)
    machines = {"rollout:0": "here", "rollout:1": "here", "rollout:2": "there", "rollout:3": "there"}
    readers = [
        job.start(weights_peers.fetch_continually, name, last, machine=machine)
        for name, machine in machines.items()
    ]
    for version in range(1, last + 1):
        actor.publish("policy", state(version), version)
    for _, pipe, _ in readers:
        num_fetches, broken = answer_of(pipe, 60)
        assert broken == []
        assert num_fetches > 0
    # The present one, the next one, and one that each reader is at.
    assert job.arena("actor:0").touched_bytes < 6.5 * VERSION_BYTES


def test_readers_that_are_killed_in_the_middle_disturb_nobody(job):
    last = 40
    actor = job.member("actor:0")
    actor.publish("policy", state(0), 0)
    start = weights_peers.fetch_continually
    victims = [
        job.start(start, f"victim:{machine}", 10_000, machine=machine) for machine in ("here", "there")
    ]
    stayers = [job.start(start, f"rollout:{machine}", last, machine=machine) for machine in ("here", "there")]
    for version in range(1, last + 1):
        actor.publish("policy", state(version), version)
        if version == last // 2:
            for process, _, _ in victims:
                process.kill()
    for _, pipe, _ in stayers:
        _, broken = answer_of(pipe, 60)
        assert broken == []
