"""Machines that have a version get what has changed in the next one, and make it of that: as a whole, or not at all."""

import signal
import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

import weights_peers
from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.replication import Key, deltas, publisher, reading
from rlinf_scheduler.comm.replication.records import Kept
from rlinf_scheduler.comm.shm.io_thread import run_at
from rlinf_scheduler.errors import PeerDied, WeightsError
from rlinf_scheduler.weights import delta, versions
from rlinf_scheduler.weights.held import encode_held
from rlinf_scheduler.weights.records import SERVICE
from weights_job import DEADLINE_S, answer_of, wait_until
from weights_peers import ELEMENTS, sparse

NAME = "policy"


@pytest.fixture
def pays(monkeypatch):
    """What has changed is sent wherever it is shorter: nothing is measured."""
    monkeypatch.setattr(deltas.Pays, "copied", lambda *_: None)


def fetch(reader, version, **options):
    into = sparse(-1)
    assert reader.fetch(NAME, into, min_version=version, timeout_s=DEADLINE_S, **options).wait() == version
    assert all((into[key] == value).all() for key, value in sparse(version).items())


def copies(actor):
    """How many machines have made a version of what has changed, and why others have not."""
    counts = dict(actor.copies(NAME))
    return counts.pop(deltas.DELTA, 0), counts


def came(job, actor, expected):
    """That its versions have come so, which the publisher hears a moment later than the reader."""
    wait_until(lambda: copies(actor) == expected, job.messengers["actor:0"])


def settled(job, actor):
    """Return when no machine copies anything of a publisher."""
    there = actor._versions._publisher._published
    wait_until(
        lambda: not any(each.publication.is_busy for each in list(there.values())), job.messengers["actor:0"]
    )


def publish(job, actor, version, **options):
    """Publish a version, once no machine copies the one before."""
    settled(job, actor)
    actor.publish(NAME, sparse(version), version, **options)


def pair(job):
    """A publisher, and a reader elsewhere that has its first version."""
    actor, reader = job.member("actor:0"), job.member("rollout:0", "there")
    publish(job, actor, 1)
    fetch(reader, 1)
    return actor, reader


def held(job, name):
    return job.arena(name).num_held


def test_another_machine_gets_what_has_changed(job, pays):
    actor, reader = pair(job)
    for version in range(2, 6):
        publish(job, actor, version)
        fetch(reader, version)
    came(job, actor, (4, {}))
    assert [each.by for each in reader.read[NAME].carriers] == ["what has changed"]
    (there,) = actor._versions._publisher.copies.values()
    assert there.delta_bytes < 0.1 * ELEMENTS * 4
    # The newest version: nothing of those before, nor of what has changed in it.
    wait_until(lambda: held(job, "rollout:0") == 1, job.messengers["rollout:0"])
    assert set(actor._versions._publisher._published) == {Key(NAME, 5)}
    wait_until(lambda: held(job, "actor:0") == 1, job.messengers["actor:0"])


def test_any_process_of_a_machine_makes_it_of_what_another_one_there_has(job, pays):
    actor, _ = pair(job)
    others = [job.member(f"rollout:{number}", "there") for number in (1, 2)]
    for version, reader in enumerate(others * 2, start=2):
        publish(job, actor, version)
        fetch(reader, version)
    came(job, actor, (4, {}))
    for number in range(3):
        wait_until(lambda number=number: held(job, f"rollout:{number}") <= 2, job.driver)


@pytest.mark.parametrize("size", ["comes with the answer", "is asked for", "goes from hand to hand"])
def test_machines_hand_on_what_has_changed_and_one_that_joins_gets_it_as_a_whole(
    job, pays, monkeypatch, size
):
    if size != "comes with the answer":
        monkeypatch.setattr(publisher, "MIN_PIECE_BYTES", 0)
    if size == "goes from hand to hand":
        monkeypatch.setattr(publisher, "SHARED_BYTES", 1)
    actor, first = pair(job)
    second, late = job.member("rollout:1", "elsewhere"), job.member("rollout:2", "late")
    fetch(second, 1)
    publish(job, actor, 2)
    for reader in (first, second, late):
        fetch(reader, 2)
    came(job, actor, (2, {deltas.NO_BASE: 1}))
    publish(job, actor, 3)
    for reader in (first, second, late):
        fetch(reader, 3)
    came(job, actor, (5, {deltas.NO_BASE: 1}))


def test_a_version_that_a_machine_has_left_out_is_no_base_of_the_next(job, pays):
    actor, reader = pair(job)
    publish(job, actor, 2)
    publish(job, actor, 3)
    fetch(reader, 3)
    came(job, actor, (0, {}))
    wait_until(lambda: held(job, "rollout:0") == 1, job.messengers["rollout:0"])


@pytest.mark.parametrize("delta", [False, True, "auto"])
def test_on_one_machine_nothing_is_compared(job, monkeypatch, delta):
    compared = []
    monkeypatch.setattr(versions, "diff", lambda *args: compared.append(args))
    actor, reader = job.member("actor:0"), job.member("rollout:0")
    for version in (1, 2):
        publish(job, actor, version, delta=delta)
        fetch(reader, version)
    assert not compared


def test_it_can_be_switched_off(job, pays):
    actor, reader = pair(job)
    publish(job, actor, 2, delta=False)
    fetch(reader, 2)
    came(job, actor, (0, {}))


def test_what_else_it_may_be_is_said(job):
    with pytest.raises(WeightsError, match="delta is True, False or 'auto', not 'always'"):
        job.member("actor:0").publish(NAME, sparse(1), 1, delta="always")


def test_where_too_much_has_changed_it_goes_as_a_whole(job, pays):
    actor, reader = pair(job)
    new = {key: value + 1 for key, value in sparse(1).items()}
    settled(job, actor)
    actor.publish(NAME, new, 2)
    into = sparse(-1)
    assert reader.fetch(NAME, into, min_version=2, timeout_s=DEADLINE_S).wait() == 2
    assert all((into[key] == value).all() for key, value in new.items())
    came(job, actor, (0, {deltas.TOO_LONG: 1}))
    wait_until(lambda: held(job, "rollout:0") == 1, job.messengers["rollout:0"])


def test_other_tensors_go_as_a_whole(job, pays):
    actor, reader = pair(job)
    settled(job, actor)
    actor.publish(NAME, {"other": np.ones(ELEMENTS)}, 2)
    into = {"other": np.zeros(ELEMENTS)}
    assert reader.fetch(NAME, into, min_version=2, timeout_s=DEADLINE_S).wait() == 2
    assert into["other"].all()
    came(job, actor, (0, {}))


def test_after_some_versions_one_goes_as_a_whole(job, monkeypatch, pays):
    monkeypatch.setattr(versions.Versions, "max_chain", 3)
    actor, reader = pair(job)
    made = []
    for version in range(2, 11):
        publish(job, actor, version)
        made.append(copies(actor)[0])
        fetch(reader, version)
    assert made == [0, 1, 2, 3, 3, 4, 5, 6, 6]


def flip(monkeypatch, number):
    """Let a bit of what has changed be another one."""
    compare = versions.diff

    def compare_and_flip(*args):
        found = compare(*args)
        frames = [bytearray(each) for each in found.frames()]
        frames[number][len(frames[number]) // 2] ^= 1
        return Encoded(bytes(frames[0]), [memoryview(each) for each in frames[1:]])

    monkeypatch.setattr(versions, "diff", compare_and_flip)


@pytest.mark.parametrize("number", range(4))
def test_what_is_damaged_is_not_taken_and_the_version_comes_as_a_whole(
    job, monkeypatch, pays, number, caplog
):
    actor, reader = pair(job)
    with monkeypatch.context() as patched:
        flip(patched, number)
        publish(job, actor, 2)
        fetch(reader, 2)
    wait_until(lambda: sum(actor.copies(NAME).values()) == 1, job.messengers["actor:0"])
    num_made, whole = copies(actor)
    assert (num_made, len(whole), sum(whole.values())) == (0, 1, 1)
    assert "copied as a whole, not made of what has changed" in caplog.text
    publish(job, actor, 3)
    fetch(reader, 3)
    came(job, actor, (1, whole))


def test_another_base_is_found_out(job, pays):
    actor, reader = pair(job)
    ((_, there),) = reader._replicas._pieces.held.items()
    there.payload.bytes_frames()[1][8:16] = b"\1" * 8
    publish(job, actor, 2)
    fetch(reader, 2)
    came(job, actor, (0, {"a checksum is wrong": 1}))


def test_a_machine_without_room_for_two_gives_the_old_one_up(job, monkeypatch, pays):
    actor, reader = pair(job)
    arena = job.arena("rollout:0")
    allocate = arena.allocate
    monkeypatch.setattr(
        arena,
        "allocate",
        lambda size, wait_s: allocate(size, wait_s) if wait_s or not held(job, "rollout:0") else None,
    )
    publish(job, actor, 2)
    fetch(reader, 2)
    came(job, actor, (0, {reading.NO_ROOM: 1}))
    wait_until(lambda: held(job, "rollout:0") == 1, job.messengers["rollout:0"])


def test_what_has_changed_in_a_version_that_was_refused_is_of_no_other_one(job, pays, monkeypatch):
    actor, reader = pair(job)
    settled(job, actor)
    compare, may_end, offered = versions.diff, [threading.Event(), threading.Event()], threading.Event()
    waits = iter(may_end)
    there = actor._versions
    offer = there._publisher.offer_delta

    def compare_late(*args):
        mine = next(waits)
        found = compare(*args[:3])
        assert mine.wait(DEADLINE_S)
        return found

    def note_offer(*args):
        offer(*args)
        offered.set()

    monkeypatch.setattr(versions, "diff", compare_late)
    monkeypatch.setattr(there._publisher, "offer_delta", note_offer)

    payload = actor._packed(NAME, encode_held(NAME, sparse(5))[0])

    def refused():
        there.put(NAME, 2, payload)
        there.withdraw(NAME, 2, 1)

    run_at(job.messengers["actor:0"], refused)
    actor.publish(NAME, sparse(2), 2)
    into = sparse(-1)
    handle = reader.fetch(NAME, into, min_version=2, timeout_s=DEADLINE_S)
    may_end[0].set()
    assert offered.wait(DEADLINE_S)
    may_end[1].set()
    assert handle.wait() == 2
    assert all((into[key] == value).all() for key, value in sparse(2).items())
    came(job, actor, (1, {}))


def test_a_version_that_nobody_wants_any_more_is_compared_no_further(job, pays, monkeypatch):
    actor, _ = pair(job)
    settled(job, actor)
    begun, may_go_on, found = threading.Event(), threading.Event(), []

    def compare_late(old, new, limit_bytes, is_over):
        begun.set()
        assert may_go_on.wait(DEADLINE_S)
        found.append(delta.diff(old, new, limit_bytes, is_over))

    monkeypatch.setattr(versions, "diff", compare_late)
    actor.publish(NAME, sparse(2), 2)
    assert begun.wait(DEADLINE_S)
    actor.publish(NAME, sparse(3), 3, delta=False)
    may_go_on.set()
    wait_until(lambda: found, job.messengers["actor:0"])
    assert found == [None]


def test_who_says_twice_that_it_has_a_version_says_nothing_of_its_link(job):
    actor, reader = pair(job)
    settled(job, actor)
    measured = actor._versions._publisher._pays._copied
    before, here = dict(measured), job.messengers["rollout:0"].endpoint
    kept = Kept(Key(NAME, 1), here)
    there = job.messengers["actor:0"].endpoint
    assert job.messengers["rollout:0"].request(there, f"{SERVICE}.kept", kept, reply_type=bool).result().head
    assert before
    assert measured == before
    del reader


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_is_gone_holds_up_nobody(job, pays, number):
    actor, reader = job.member("actor:0"), job.member("rollout:1", "there")
    process, pipe, _ = job.start(weights_peers.fetch_sparse, "rollout:0", machine="there")
    publish(job, actor, 1)
    pipe.send(1)
    assert answer_of(pipe) == 1
    process.kill() if number == signal.SIGKILL else process.terminate()
    process.join(DEADLINE_S)
    publish(job, actor, 2)
    fetch(reader, 2)


def test_a_publisher_that_dies_while_it_is_made_leaves_nothing_behind(job, pays):
    process, pipe, _ = job.start(weights_peers.publish_sparse, "actor:0")
    reader = job.member("rollout:0", "there")
    pipe.send(1)
    assert answer_of(pipe) == 1
    fetch(reader, 1)
    apply, lost = reader._replicas.apply, threading.Event()
    job.messengers["rollout:0"].on_peer_lost(lambda _: lost.set())

    def kill_and_apply(*args):
        process.kill()
        assert lost.wait(DEADLINE_S)
        apply(*args)

    reader._replicas.apply = kill_and_apply
    pipe.send(2)
    assert answer_of(pipe) == 2
    into = sparse(-1)
    with pytest.raises(PeerDied, match="actor:0"):
        reader.fetch(NAME, into, min_version=2, timeout_s=DEADLINE_S).wait()
    assert all((into[key] == value).all() for key, value in sparse(-1).items())
    wait_until(job.arena("rollout:0").unused, job.messengers["rollout:0"])


def test_who_does_not_want_it_any_more_leaves_the_machine_as_it_was(job, pays):
    actor, reader = pair(job)
    apply, handles, begun = reader._replicas.apply, [], threading.Event()

    def cancel_and_apply(*args):
        assert begun.wait(DEADLINE_S)
        handles[0].cancel()
        apply(*args)

    reader._replicas.apply = cancel_and_apply
    publish(job, actor, 2)
    handles.append(reader.fetch(NAME, sparse(-1), min_version=2, timeout_s=DEADLINE_S))
    begun.set()
    with pytest.raises(CancelledError):
        handles[0].wait()
    reader._replicas.apply = apply
    fetch(reader, 2)


def test_a_link_on_which_copying_is_quicker_gets_whole_versions():
    pays, size = deltas.Pays(), 1 << 30
    delta = deltas.Delta(None, {"there": None}, forced=False)
    assert pays.limit_bytes(delta, size) == int(0.75 * size), "nothing is known of the link"
    for _ in range(10):
        pays.compared(size, 0.25)
        pays.copied("there", size, 10)
    assert 0.65 * size < pays.limit_bytes(delta, size) < 0.75 * size
    delta.size_bytes = size // 2
    assert pays.pays(delta, "there", size)
    # Over a link of which copying takes half as long as making it takes.
    pays.made(delta, "there", size, 12)
    assert not pays.pays(delta, "there", size)
    assert pays.limit_bytes(delta, size) > 0
    for _ in range(10):
        pays.copied("there", size, 0.4)
    assert pays.limit_bytes(delta, size) == 0
    # It is tried again now and then.
    assert any(pays.limit_bytes(delta, size) for _ in range(100))
    forced = deltas.Delta(None, {"there": None}, forced=True)
    assert pays.limit_bytes(forced, size) == int(0.9 * size)
