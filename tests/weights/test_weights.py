"""Publishing and fetching weights: between messengers of this process, and with processes that are killed."""

import gc
import logging
import threading
import time

import numpy as np
import pytest
import torch

import weights_peers
from rlinf_scheduler.errors import (
    CommError,
    CommTimeout,
    NameTaken,
    PeerDied,
    PeerNotFound,
    ResultTimeout,
    SharedMemoryUnreadable,
    WeightsError,
    WeightsMismatch,
)
from weights_job import DEADLINE_S, VERSION_BYTES, answer_of, parked, wait_until
from weights_peers import numbers_in, state

# -- what a reader gets ---------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["here", "there"])
@pytest.mark.parametrize("elements", [10, 50_000])
def test_a_reader_gets_the_newest_version_and_its_number(job, machine, elements):
    actor, rollout = job.member("actor:0"), job.member("rollout:0", machine)
    into = state(-1, elements=elements)
    for version in (0, 1, 7):
        actor.publish("policy", state(version, elements=elements), version)
        assert rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait() == version
        assert numbers_in(into) == {version}


def test_readers_of_one_machine_copy_a_large_version_together(job):
    actor, readers = job.member("actor:0"), [job.member(f"rollout:{rank}") for rank in range(3)]
    numbers = np.arange(7 << 20, dtype=np.uint32)
    weights, places = {"a": numbers, "b": numbers[::-1].copy()}, [{} for _ in readers]
    for place in places:
        place.update(a=np.zeros_like(numbers), b=np.zeros_like(numbers))
    actor.publish("policy", weights, 1)
    fetches = [
        reader.fetch("policy", place, timeout_s=DEADLINE_S)
        for reader, place in zip(readers, places, strict=True)
    ]
    wait_until(lambda: all(fetch.done() for fetch in fetches), job.driver)
    threads = [threading.Thread(target=fetch.wait) for fetch in fetches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert all(np.array_equal(place[name], weights[name]) for place in places for name in "ab")


def test_a_module_is_filled_in_place(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    one, other = torch.nn.Linear(200, 100), torch.nn.Linear(200, 100)
    weight = other.weight
    actor.publish("policy", one.state_dict(), 3)
    assert rollout.fetch("policy", other, timeout_s=DEADLINE_S).wait() == 3
    assert other.weight is weight
    assert torch.equal(weight, one.weight)


def test_the_publisher_may_change_its_weights_at_once(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    weights, into = state(1), state(-1)
    actor.publish("policy", weights, 1)
    for array in weights.values():
        array[:] = 100
    rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait()
    assert numbers_in(into) == {1}


@pytest.mark.usefixtures("patient_transfers")
def test_a_process_can_fetch_what_it_publishes_itself(job):
    actor, into = job.member("actor:0"), state(-1)
    actor.publish("policy", state(4), 4)
    assert actor.fetch("policy", into, min_version=4, timeout_s=0).wait() == 4
    assert numbers_in(into) == {4}


def test_several_names_do_not_disturb_each_other(job):
    actor, critic, rollout = job.member("actor:0"), job.member("critic:0"), job.member("rollout:0")
    actor.publish("policy", state(1), 1)
    actor.publish("reference", state(5), 5)
    critic.publish("value", state(9), 9)
    for name, version in (("policy", 1), ("reference", 5), ("value", 9)):
        into = state(-1)
        assert rollout.fetch(name, into, timeout_s=DEADLINE_S).wait() == version
        assert numbers_in(into) == {version}


def test_weights_that_do_not_fit_are_refused_and_written_nowhere(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(1), 1)
    into = {**state(-1), "layer.10": np.full(3, -1.0)}
    with pytest.raises(WeightsMismatch, match=r"not published: layer\.10"):
        rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait()
    assert numbers_in(into) == {-1}


# -- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["here", "there"])
def test_a_fetch_waits_for_the_version_it_wants(job, machine):
    actor, rollout = job.member("actor:0"), job.member("rollout:0", machine)
    into = state(-1)
    newer = rollout.fetch("policy", into, min_version=2, timeout_s=DEADLINE_S)
    actor.publish("policy", state(0), 0)
    wait_until(lambda: parked(job), job.driver)
    actor.publish("policy", state(1), 1)
    wait_until(lambda: parked(job), job.driver)
    assert not newer.done()
    actor.publish("policy", state(3), 3)
    assert newer.wait(DEADLINE_S) == 3
    assert numbers_in(into) == {3}


@pytest.mark.parametrize("machine", ["here", "there"])
@pytest.mark.parametrize("elements", [10, 50_000])
def test_exactly_the_version_that_is_asked_for_is_fetched(job, machine, elements):
    actor, rollout = job.member("actor:0"), job.member("rollout:0", machine)
    into = state(-1, elements=elements)
    actor.publish("policy", state(1, elements=elements), 1)
    assert rollout.fetch("policy", into, version=1, timeout_s=DEADLINE_S).wait() == 1
    next_one = rollout.fetch("policy", into, version=2, timeout_s=DEADLINE_S)
    wait_until(lambda: parked(job), job.driver)
    assert "version=2" in rollout_wait(next_one)
    actor.publish("policy", state(2, elements=elements), 2)
    assert next_one.wait() == 2
    assert numbers_in(into) == {2}


def rollout_wait(handle):
    return handle.settled.awaits().operation


@pytest.mark.parametrize("waits", [True, False])
def test_a_version_that_is_over_or_was_skipped_is_refused_at_once_and_nothing_is_written(job, waits):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    into = state(-1)
    if waits:
        actor.publish("policy", state(1), 1)
        fetch = rollout.fetch("policy", into, version=2, timeout_s=DEADLINE_S)
        wait_until(lambda: parked(job), job.driver)
        actor.publish("policy", state(3), 3)
    else:
        actor.publish("policy", state(3), 3)
        fetch = rollout.fetch("policy", into, version=2, timeout_s=DEADLINE_S)
    over = "version 2 is over: 'actor:0' publishes version 3 now, and keeps no older one"
    with pytest.raises(WeightsError, match=over):
        fetch.wait()
    assert numbers_in(into) == {-1}


def test_shards_under_several_names_are_of_one_version_where_their_reader_says_which(job):
    """The publishers move on between two reads."""
    actors, rollout = [job.member(f"actor:{rank}") for rank in range(2)], job.member("rollout:0")
    into = [state(-1), state(-1)]
    for rank, actor in enumerate(actors):
        actor.publish(f"policy/{rank}", state(1), 1)
    version = rollout.fetch("policy/0", into[0], timeout_s=DEADLINE_S).wait()
    for rank, actor in enumerate(actors):
        actor.publish(f"policy/{rank}", state(2), 2)
    with pytest.raises(WeightsError, match="version 1 is over"):
        rollout.fetch("policy/1", into[1], version=version, timeout_s=DEADLINE_S).wait()


@pytest.mark.parametrize("timeout_s", [0, 0.3])
def test_a_deadline_says_that_exactly_this_version_was_wanted(job, timeout_s):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(3), 3)
    with pytest.raises(CommTimeout, match=r"'weights/policy'.*version 5; version 3 is published"):
        rollout.fetch("policy", state(-1), version=5, timeout_s=timeout_s).wait()


def test_a_version_is_asked_for_in_one_way(job):
    with pytest.raises(
        WeightsError, match="version= is exactly that one, and min_version= that or a newer one"
    ):
        job.member("rollout:0").fetch("policy", state(-1), version=1, min_version=1)


def test_a_fetch_that_is_done_writes_only_when_it_is_waited_for(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    into = state(-1)
    actor.publish("policy", state(1), 1)
    handle = rollout.fetch("policy", into, timeout_s=DEADLINE_S)
    assert handle.settled.exception(DEADLINE_S) is None
    assert handle.done()
    assert numbers_in(into) == {-1}
    handle.wait()
    assert numbers_in(into) == {1}


@pytest.mark.parametrize(("before", "version"), [(3, 3), (3, 2)])
def test_versions_grow(job, before, version):
    actor = job.member("actor:0")
    actor.publish("policy", state(before), before)
    with pytest.raises(WeightsError, match=f"version {version} cannot follow version {before}"):
        actor.publish("policy", state(version), version)


@pytest.mark.parametrize("version", [-1, 1.5, "1", None, 1 << 63])
def test_a_version_is_a_whole_number(job, version):
    with pytest.raises(WeightsError, match="a version is a whole number from 0 to"):
        job.member("actor:0").publish("policy", state(0), version)


def test_a_refused_version_leaves_the_one_before(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(1), 1)
    with pytest.raises(WeightsError, match="neither tensor nor array"):
        actor.publish("policy", {"a": "text"}, 2)
    assert rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 1
    actor.publish("policy", state(2), 2)


# -- deadlines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [0, 0.3])
def test_a_deadline_says_which_version_is_there_and_which_was_wanted(job, timeout_s):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(3), 3)
    with pytest.raises(CommTimeout, match=r"'weights/policy'.*version 5 or newer; version 3 is published"):
        rollout.fetch("policy", state(-1), min_version=5, timeout_s=timeout_s).wait()
    wait_until(lambda: not parked(job), job.driver)


@pytest.mark.parametrize("timeout_s", [0, 0.2])
@pytest.mark.usefixtures("patient_transfers")
def test_a_name_that_nobody_publishes_is_not_found_and_the_others_are_listed(job, timeout_s):
    job.member("actor:0").publish("policy", state(1), 1)
    with pytest.raises(PeerNotFound, match=r"'weights/polciy'.*there are: weights/policy"):
        job.member("rollout:0").fetch("polciy", state(-1), timeout_s=timeout_s).wait()


@pytest.mark.parametrize("timeout_s", ["a", -1, float("nan"), True])
def test_a_deadline_that_is_none_is_refused_at_once(job, timeout_s):
    rollout = job.member("rollout:0")
    with pytest.raises(CommError, match="timeout_s is a number of seconds of at least 0"):
        rollout.fetch("policy", state(-1), timeout_s=timeout_s)


def test_a_publisher_that_does_not_answer_is_named_at_the_deadline(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(1), 1)
    assert rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 1
    go_on = threading.Event()
    job.messengers["actor:0"].submit(lambda: go_on.wait(DEADLINE_S))
    with pytest.raises(CommTimeout, match="waiting for its publisher's answer"):
        rollout.fetch("policy", state(-1), timeout_s=0.2).wait()
    go_on.set()
    assert rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 1


@pytest.mark.usefixtures("patient_transfers")
def test_who_waits_for_a_replica_that_does_nothing_says_so(job, monkeypatch):
    actor, first, second = (
        job.member("actor:0"),
        job.member("rollout:0", "there"),
        job.member("rollout:1", "there"),
    )
    asked = threading.Event()
    monkeypatch.setattr(first._replicas, "keep", lambda *_: asked.set())
    actor.publish("policy", state(1), 1)
    stuck = first.fetch("policy", state(-1), timeout_s=DEADLINE_S)
    assert asked.wait(DEADLINE_S)
    assert not stuck.done()
    with pytest.raises(CommTimeout, match="version 1 is published, and on its way to this machine, or waits"):
        second.fetch("policy", state(-1), timeout_s=0.3).wait()


@pytest.mark.parametrize("give_up", ["drop", "cancel"])
def test_a_fetch_that_is_given_up_leaves_nothing_behind(job, give_up):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(1), 1)
    handle = rollout.fetch("policy", state(-1), min_version=2, timeout_s=DEADLINE_S)
    wait_until(lambda: parked(job), job.driver)
    if give_up == "cancel":
        handle.cancel()
    else:
        del handle
        gc.collect()
    wait_until(lambda: not parked(job), job.driver)


def test_the_wait_of_a_handle_may_be_shorter_than_its_fetch(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    handle = rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S)
    with pytest.raises(ResultTimeout, match="fetch of weights 'policy'"):
        handle.wait(0.1)
    actor.publish("policy", state(1), 1)
    assert handle.wait(DEADLINE_S) == 1


# -- one publisher --------------------------------------------------------------------------------


def test_a_second_publisher_is_refused_and_hears_who_the_first_is(job):
    first, second, rollout = job.member("actor:0"), job.member("actor:1"), job.member("rollout:0")
    first.publish("policy", state(1), 1)
    for _ in range(2):
        with pytest.raises(NameTaken, match="'weights/policy' is taken, by process 'actor:0'"):
            second.publish("policy", state(2), 2)
    assert rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 1


@pytest.mark.parametrize("machine", ["here", "there"])
def test_another_takes_over_from_a_killed_publisher(job, machine):
    process, pipe, endpoint = job.start(weights_peers.publish_on_demand, "actor:0", machine="here")
    rollout, successor = job.member("rollout:0", machine), job.member("actor:1")
    gone = threading.Event()
    job.driver.on_peer_lost(lambda process_id: gone.set() if process_id == endpoint.process_id else None)
    pipe.send(8)
    assert answer_of(pipe) == 8
    into = state(-1)
    assert rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait() == 8
    waiting = rollout.fetch("policy", into, min_version=9, timeout_s=DEADLINE_S)
    process.kill()
    with pytest.raises(PeerDied, match="weights/policy"):
        waiting.wait()
    assert gone.wait(DEADLINE_S)
    with pytest.raises(PeerDied, match="weights/policy"):
        rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait()
    successor.publish("policy", state(2), 2)
    assert rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait() == 2
    assert numbers_in(into) == {2}


def test_what_was_fetched_from_a_killed_publisher_is_still_written(job):
    process, pipe, endpoint = job.start(weights_peers.publish_on_demand, "actor:0")
    rollout, gone, into = job.member("rollout:0"), threading.Event(), state(-1)
    job.messengers["rollout:0"].on_peer_lost(lambda lost: gone.set() if lost == endpoint.process_id else None)
    pipe.send(5)
    answer_of(pipe)
    handle = rollout.fetch("policy", into, timeout_s=DEADLINE_S)
    assert handle.settled.exception(DEADLINE_S) is None
    process.kill()
    assert gone.wait(DEADLINE_S)
    assert handle.wait() == 5
    assert numbers_in(into) == {5}


@pytest.mark.parametrize("machine", ["here", "there"])
def test_a_publisher_killed_in_the_middle_of_a_fetch_leaves_nothing_half_written(job, machine):
    process, _, publisher = job.start(weights_peers.publish_large, "actor:0")
    rollout, into = job.member("rollout:0", machine), state(-1, elements=2_000_000)
    handle = rollout.fetch("policy", into, timeout_s=DEADLINE_S)
    wait_until(lambda: publisher.process_id in job.messengers["rollout:0"].transports(), job.driver)
    process.kill()
    try:
        assert handle.wait() == 1
    except PeerDied:
        assert numbers_in(into) == {-1}
    else:
        assert numbers_in(into) == {1}


def test_closing_does_not_wait_for_readers_of_what_is_published(job):
    actor = job.member("actor:0")
    actor.publish("policy", state(1), 1)
    started = time.monotonic()
    job.messengers["actor:0"].close(DEADLINE_S)
    assert time.monotonic() - started < DEADLINE_S / 2


def test_a_process_that_has_left_cannot_publish_or_fetch(job):
    actor = job.member("actor:0")
    actor.publish("policy", state(0), 0)
    job.messengers["actor:0"].close()
    with pytest.raises(CommError, match="left the cluster"):
        actor.publish("policy", state(1), 1)
    with pytest.raises(CommError):
        actor.fetch("policy", state(1), timeout_s=DEADLINE_S).wait()


# -- memory ---------------------------------------------------------------------------------------


def test_who_has_begun_to_read_sees_its_version_whatever_is_published(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    old, new = state(-1), state(-1)
    actor.publish("policy", state(1), 1)
    handle = rollout.fetch("policy", old, timeout_s=DEADLINE_S)
    assert handle.settled.exception(DEADLINE_S) is None
    for version in (2, 3):
        actor.publish("policy", state(version), version)
        assert rollout.fetch("policy", new, timeout_s=DEADLINE_S).wait() == version
        assert numbers_in(new) == {version}
    assert handle.wait() == 1
    assert numbers_in(old) == {1}


def test_fifty_versions_take_the_memory_of_three(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    into = state(-1)
    for version in range(50):
        actor.publish("policy", state(version), version)
        assert rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait() == version
    assert job.arena("actor:0").touched_bytes < 3 * VERSION_BYTES
    wait_until(lambda: job.arena("actor:0").num_held == 1, job.messengers["actor:0"])


def test_a_reader_that_fails_to_use_a_version_gives_it_back(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    errors = []
    for version in range(20):
        actor.publish("policy", state(version), version)
        with pytest.raises(WeightsMismatch) as caught:
            rollout.fetch("policy", {}, timeout_s=DEADLINE_S).wait()
        errors.append(caught.value)
    assert len(errors) == 20
    assert job.arena("actor:0").touched_bytes < 4 * VERSION_BYTES, "though all errors are kept"


def test_what_a_killed_reader_held_is_used_again(job):
    actor = job.member("actor:0")
    actor.publish("policy", state(0), 0)
    process, _, _ = job.start(weights_peers.hold_without_reading, "rollout:0")
    process.kill()
    process.join(DEADLINE_S)
    for version in range(1, 10):
        actor.publish("policy", state(version), version)
    assert job.arena("actor:0").touched_bytes < 3.5 * VERSION_BYTES


@pytest.mark.parametrize("limit_bytes", [0, VERSION_BYTES // 2])
@pytest.mark.parametrize("machine", ["here", "there"])
def test_without_room_in_shared_memory_readers_get_bytes(job, machine, limit_bytes, caplog):
    caplog.set_level(logging.WARNING)
    actor = job.member("actor:0", arena_limit_bytes=limit_bytes)
    readers = [job.member(f"rollout:{rank}", machine, arena_limit_bytes=limit_bytes) for rank in range(2)]
    for version in (1, 2):
        actor.publish("policy", state(version), version)
        for rollout in readers:
            into = state(-1)
            assert rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait() == version
            assert numbers_in(into) == {version}
    (told,) = [record.message for record in caplog.records if "no room in shared memory" in record.message]
    assert f"{limit_bytes >> 20} MiB" in told
    assert "RLINF_ARENA_MIB" in told


@pytest.mark.parametrize("machine", ["here", "there"])
def test_a_reader_that_cannot_open_shared_memory_gets_bytes(job, machine, monkeypatch):
    actor, other, rollout = (
        job.member("actor:0"),
        job.member("rollout:0", machine),
        job.member("rollout:1", machine),
    )
    payloads = job.messengers["rollout:1"].payloads
    receive, refused = payloads.receive, []

    def refuse(frames):
        if len(frames) == 1:
            refused.append(frames)
            raise SharedMemoryUnreadable("no such file")
        return receive(frames)

    monkeypatch.setattr(payloads, "receive", refuse)
    into = state(-1)
    for version in (1, 2, 3):
        actor.publish("policy", state(version), version)
        assert other.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == version
        assert rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait() == version
        assert numbers_in(into) == {version}
    assert len(refused) == 1, "whoever heard that it cannot sends bytes from then on"
