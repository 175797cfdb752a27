"""Weights for many machines: they copy from each other, whatever happens to those that they copy from."""

import contextlib
import signal
import threading

import pytest

import weights_peers
from rlinf_scheduler.comm.replication import publication, publisher, reading
from weights_job import DEADLINE_S, count_replicas, wait_until
from weights_peers import numbers_in, state


@pytest.fixture
def held_up(monkeypatch):
    """Lets readers begin to keep what they get, and end only when it is told."""
    may_write = threading.Event()

    def hold_up(reader):
        write = reader._replicas._write

        def write_later(frames):
            assert may_write.wait(DEADLINE_S)
            return write(frames)

        monkeypatch.setattr(reader._replicas, "_write", write_later)

    yield hold_up, may_write.set
    may_write.set()


def test_eight_machines_get_a_version_mostly_from_each_other(job, monkeypatch, held_up):
    hold_up, go_on = held_up
    actor = job.member("actor:0")
    sent = count_replicas(monkeypatch, actor)
    actor.publish("policy", state(1), 1)
    readers = [job.member(f"rollout:{number}", f"machine{number}") for number in range(8)]
    for reader in readers:
        hold_up(reader)
    intos = [state(-1) for _ in readers]
    handles = [
        reader.fetch("policy", into, timeout_s=DEADLINE_S)
        for reader, into in zip(readers, intos, strict=True)
    ]
    wait_until(lambda: len(sent) == publication.COPIES_AT_ONCE, job.messengers["actor:0"])
    wait_until(lambda: waiting_at(actor) == 6, job.messengers["actor:0"])
    go_on()
    assert [handle.wait() for handle in handles] == [1] * 8
    assert [numbers_in(into) for into in intos] == [{1}] * 8
    assert len(sent) < 6
    actor.publish("policy", state(2), 2)
    for number in range(8):
        wait_until(
            lambda number=number: job.arena(f"rollout:{number}").num_held == 0, job.messengers["actor:0"]
        )


def published_by(weights):
    (published,) = weights._versions._publisher._published.values()
    return published


def waiting_at(weights):
    """How many readers have asked, and been told that they have to wait."""
    return len(published_by(weights).questions)


@pytest.fixture
def busy(job, monkeypatch, held_up):
    """A publisher of whom one machine copies, for as long as it is told to, so that others get nothing there.

    Gives the function that lets it end.
    """
    hold_up, go_on = held_up
    monkeypatch.setattr(publication, "COPIES_AT_ONCE", 1)
    with contextlib.ExitStack() as stack:

        def start(replica, slow_s):
            """Let this become a replica, and then keep the publisher busy; the publisher, and whom it sends to."""
            actor = job.member("actor:0")
            actor.publish("policy", state(1), 1)
            monkeypatch.setattr(publisher, "SLOW_S", slow_s)
            replica()
            slow = job.member("slow:0", "slow")
            hold_up(slow)
            sent = count_replicas(monkeypatch, actor)
            handle = slow.fetch("policy", state(-1), timeout_s=DEADLINE_S)
            wait_until(lambda: sent == ["slow:0"], job.messengers["actor:0"])
            stack.callback(handle.wait, DEADLINE_S)
            stack.callback(go_on)
            return actor, sent

        yield start, go_on


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_who_copied_from_a_replica_that_died_or_stopped_gets_it_from_another(job, monkeypatch, busy, number):
    monkeypatch.setattr(reading, "COPY_TIMEOUT_S", 1.0)
    start, _ = busy

    def replica():
        job.start(weights_peers.signal_itself_when_it_is_asked, "rollout:0", number, machine="there")

    start(replica, 1.0)
    reader, into = job.member("rollout:1", "elsewhere"), state(-1)
    handle = reader.fetch("policy", into, timeout_s=DEADLINE_S)
    # The publisher is busy, too, with one that takes too long: that one makes room.
    assert handle.wait() == 1
    assert numbers_in(into) == {1}


def test_readers_of_a_machine_do_not_stop_with_its_replica(job, monkeypatch):
    monkeypatch.setattr(reading, "COPY_TIMEOUT_S", 0.5)
    actor = job.member("actor:0")
    actor.publish("policy", state(1), 1)
    job.start(weights_peers.signal_itself_when_it_is_asked, "rollout:0", signal.SIGSTOP, machine="there")
    for name in ("rollout:1", "rollout:2"):
        into = state(-1)
        assert job.member(name, "there").fetch("policy", into, timeout_s=DEADLINE_S).wait() == 1
        assert numbers_in(into) == {1}


def test_who_no_longer_wants_what_it_copies_makes_room_for_the_next(job, busy):
    start, _ = busy

    def replica():
        first = job.member("rollout:0", "there")
        first.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait()

    _, sent = start(replica, DEADLINE_S)
    held, asked = threading.Event(), threading.Event()
    there = job.messengers["rollout:0"]
    when_ready = there.payloads.when_ready

    def later(endpoint, answer):
        asked.set()
        if held.is_set():
            when_ready(endpoint, answer)

    there.payloads.when_ready = later
    second, third = job.member("rollout:1", "second"), job.member("rollout:2", "third")
    given_up = second.fetch("policy", state(-1), timeout_s=DEADLINE_S)
    assert asked.wait(DEADLINE_S)
    into = state(-1)
    handle = third.fetch("policy", into, timeout_s=DEADLINE_S)
    held.set()
    given_up.cancel()
    assert handle.wait() == 1
    assert numbers_in(into) == {1}
    assert sent == ["slow:0"]
