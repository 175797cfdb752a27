"""Weights that several processes have shards of: when a version is there, what readers get, and who dies meanwhile."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import weights_peers
from rlinf_scheduler.comm.replication import CarriedBy
from rlinf_scheduler.comm.shm.payload import is_descriptor
from rlinf_scheduler.comm.shm.payloads import Payloads
from rlinf_scheduler.errors import CommTimeout, NameTaken, PeerDied, SharedMemoryUnreadable, WeightsError
from rlinf_scheduler.weights import index_service
from rlinf_scheduler.weights.fetch import Fetch
from rlinf_scheduler.weights.held import Slice, encode_held
from rlinf_scheduler.weights.published import WeightsPlan
from rlinf_scheduler.weights.records import KEEP, LIST
from weights_job import DEADLINE_S, parked, wait_until

ROWS, COLUMNS = 1024, 96


def rows(version):
    """A tensor of which every element is its number, and the version."""
    return np.arange(ROWS * COLUMNS, dtype=np.float64).reshape(ROWS, COLUMNS) + version * 1e6


def shard(version, rank, ranks=2, dim=0):
    size = (ROWS, COLUMNS)[dim] // ranks
    own = np.split(rows(version), ranks, axis=dim)[rank].copy()
    offsets = (rank * size, 0) if dim == 0 else (0, rank * size)
    return {"w": Slice(own, offsets, (ROWS, COLUMNS))}


def fetched(reader, into=None, **options):
    into = np.zeros((ROWS, COLUMNS)) if into is None else into
    version = reader.fetch("policy", {"w": into}, **{"timeout_s": DEADLINE_S, **options}).wait()
    assert np.array_equal(into, rows(version))
    return version


@pytest.mark.parametrize("machine", ["here", "there"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_version_is_there_when_all_ranks_have_published_their_shards(job, machine, ranks):
    actors, reader = [job.rank(rank, ranks) for rank in range(ranks)], job.member("rollout:0", machine)
    waiting = reader.fetch("policy", {"w": (into := np.zeros((ROWS, COLUMNS)))}, timeout_s=DEADLINE_S)
    for rank, actor in enumerate(actors[:-1]):
        actor.publish("policy", shard(1, rank, ranks), 1)
    wait_until(lambda: parked(job), job.driver)
    assert not waiting.done()
    actors[-1].publish("policy", shard(1, ranks - 1, ranks), 1)
    assert waiting.wait() == 1
    assert np.array_equal(into, rows(1))
    for rank, actor in enumerate(actors):
        actor.publish("policy", shard(2, rank, ranks), 2)
    assert fetched(reader) == 2


def test_a_reader_says_how_shards_have_come_and_why_not_by_something_better(job):
    actors = [job.rank(0, 2), job.rank(1, 2, machine="there")]
    readers = [job.member(f"rollout:{number}", "there") for number in range(2)]
    for rank, actor in enumerate(actors):
        actor.publish("policy", shard(1, rank), 1)
    for reader in readers:
        fetched(reader)
    tcp, shared = CarriedBy("TCP", "RLINF_PULL is not 'nixl' here"), CarriedBy("shared memory")
    assert [reader.read["policy"].carriers for reader in readers] == [(tcp, shared), (shared, shared)]
    read = {f"rollout:{number}": reader.read["policy"] for number, reader in enumerate(readers)}
    lines = str(WeightsPlan("policy", read)).splitlines()
    assert [line.split("  ")[-1] for line in lines[1:4]] == [
        "network, TCP",
        "node, shared memory",
        "network, shared memory",
    ]
    assert lines[-1] == "by TCP to 'rollout:0': RLINF_PULL is not 'nixl' here"


def test_a_reader_that_opens_no_shared_memory_says_why_a_socket_has_carried_its_shards(job, monkeypatch):
    actor, reader = job.rank(0, 1), job.member("rollout:0")
    actor.publish("policy", {"w": rows(1)}, 1)
    fetched(reader)
    receive = Payloads.receive

    def refuse(payloads, frames, **options):
        if is_descriptor(frames):
            raise SharedMemoryUnreadable("no slot is free")
        return receive(payloads, frames, **options)

    monkeypatch.setattr(Payloads, "receive", refuse)
    fetched(reader)
    assert reader.read["policy"].carriers == (CarriedBy("a socket", "no slot is free"),)


def test_a_reader_takes_its_own_part_of_other_cuts(job):
    actors, reader = [job.rank(rank, 2) for rank in range(2)], job.member("rollout:0")
    for rank, actor in enumerate(actors):
        actor.publish("policy", shard(1, rank, dim=0), 1)
    place = np.zeros((ROWS, COLUMNS // 2))
    into = {"w": Slice(place, (0, COLUMNS // 2), (ROWS, COLUMNS))}
    assert reader.fetch("policy", into, timeout_s=DEADLINE_S).wait() == 1
    assert np.array_equal(place, rows(1)[:, COLUMNS // 2 :])


@pytest.mark.usefixtures("patient_transfers")
def test_the_version_before_is_read_until_the_newer_one_is_complete(job):
    actors, reader = [job.rank(rank, 2) for rank in range(2)], job.member("rollout:0")
    for rank, actor in enumerate(actors):
        actor.publish("policy", shard(1, rank), 1)
    actors[0].publish("policy", shard(2, 0), 2)
    assert fetched(reader) == 1
    lacks = r"version 1 is published; version 2 is not complete: nobody has \[512:1024, 0:96\] of 'w'"
    with pytest.raises(
        CommTimeout, match=f"{lacks}; it waits for 'actor:1', which has published version 1 last"
    ):
        fetched(reader, min_version=2, timeout_s=0.2)
    actors[1].publish("policy", shard(2, 1), 2)
    assert fetched(reader, min_version=2) == 2
    wait_until(lambda: job.arena("actor:0").num_held == 1, job.messengers["actor:0"])


@pytest.mark.parametrize("machine", ["here", "there"])
def test_readers_see_one_version_whatever_is_published_meanwhile(job, machine):
    actors, reader = [job.rank(rank, 3) for rank in range(3)], job.member("rollout:0", machine)
    for rank, actor in enumerate(actors):
        actor.publish("policy", uneven(0, rank), 0)

    def publish(rank):
        for version in range(1, 60):
            actors[rank].publish("policy", uneven(version, rank), version)

    threads = [threading.Thread(target=publish, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    seen = [fetched(reader) for _ in range(30)]
    for thread in threads:
        thread.join(DEADLINE_S)
    assert seen == sorted(seen)
    assert fetched(reader) == 59


def uneven(version, rank):
    """A third of the rows, as torch.chunk cuts them."""
    start = 342 * rank
    return {"w": Slice(rows(version)[start : start + 342].copy(), (start, 0), (ROWS, COLUMNS))}


@pytest.mark.usefixtures("patient_transfers")
def test_who_waits_hears_of_a_dead_rank_and_its_successor_completes_the_version(job):
    actors, reader = [job.rank(rank, 2) for rank in range(2)], job.member("rollout:0")
    for rank, actor in enumerate(actors):
        actor.publish("policy", shard(1, rank), 1)
    actors[0].publish("policy", shard(2, 0), 2)
    waiting = reader.fetch("policy", {"w": np.zeros((ROWS, COLUMNS))}, min_version=2, timeout_s=DEADLINE_S)
    wait_until(lambda: parked(job), job.driver)
    job.messengers["actor:1"].close()
    with pytest.raises(PeerDied, match="'weights/policy' is gone: published by 'actor:1'"):
        waiting.wait()
    with pytest.raises(CommTimeout, match=r"it waits for 'actor:1', which is gone: "):
        fetched(reader, min_version=2, timeout_s=0.2)
    job.rank(1, 2, name="actor:1 again").publish("policy", shard(2, 1), 2)
    assert fetched(reader) == 2


def test_a_replica_of_a_dead_rank_serves_its_readers(job):
    actors, reader = [job.rank(rank, 4) for rank in range(4)], job.member("rollout:0")
    for rank, actor in enumerate(actors):
        actor.publish("policy", shard(1, rank % 2), 1)
    waiting = reader.fetch("policy", {"w": np.zeros((ROWS, COLUMNS))}, min_version=2, timeout_s=DEADLINE_S)
    wait_until(lambda: parked(job), job.driver)
    assert fetched(reader) == 1
    job.messengers["actor:1"].close()
    assert fetched(reader) == 1
    for rank in (0, 3):
        actors[rank].publish("policy", shard(2, rank % 2), 2)
    assert waiting.wait() == 2


def test_a_source_that_dies_while_it_is_read_is_replaced_by_its_replica(job, monkeypatch):
    actors, reader = [job.rank(rank, 4) for rank in range(4)], job.member("rollout:0")
    for rank, actor in enumerate(actors):
        actor.publish("policy", shard(1, rank % 2), 1)
    begin_reading, killed = Fetch._begin_reading, []

    def kill_first(fetch, found, number):
        if not killed:
            killed.append(found.sources[number].process)
            job.messengers[killed[0]].close()
        begin_reading(fetch, found, number)

    monkeypatch.setattr(Fetch, "_begin_reading", kill_first)
    assert fetched(reader) == 1
    assert killed


def held(job):
    """The processes of which others hold the shards."""
    return set(job.index._index._names["policy"].held)


@pytest.mark.parametrize("machine", ["here", "there"])
def test_shards_of_a_killed_rank_are_read_until_its_successor_has_completed_a_version(job, machine):
    actor, reader = job.rank(0, 2), job.member("rollout:0", machine)
    process, _, endpoint = job.start(weights_peers.publish_shard, "actor:1", shard(1, 1), 1)
    actor.publish("policy", shard(1, 0), 1)
    wait_until(lambda: endpoint.process_id in held(job), job.driver)
    begun = reader.fetch("policy", {"w": (into := np.zeros((ROWS, COLUMNS)))}, timeout_s=DEADLINE_S)
    actor.publish("policy", shard(2, 0), 2)
    waiting = reader.fetch("policy", {"w": np.zeros((ROWS, COLUMNS))}, min_version=2, timeout_s=DEADLINE_S)
    wait_until(lambda: parked(job), job.driver)
    process.kill()
    with pytest.raises(PeerDied, match="'weights/policy' is gone: published by 'actor:1'"):
        waiting.wait()
    assert fetched(reader) == 1
    assert fetched(job.member("rollout:1", machine)) == 1
    assert begun.wait() == 1
    assert np.array_equal(into, rows(1))
    del begun
    job.rank(1, 2, name="actor:1 again").publish("policy", shard(2, 1), 2)
    assert fetched(reader) == 2
    wait_until(
        lambda: not any(each == endpoint.process_id for _, each in list(actor._versions._held)), job.driver
    )


def test_a_source_that_alone_has_something_and_dies_ends_the_fetch(job, monkeypatch):
    actors, reader = [job.rank(0, 2), job.rank(1, 2, machine="there")], job.member("rollout:0")
    for rank, actor in enumerate(actors):
        actor.publish("policy", shard(1, rank), 1)
    begin_reading = Fetch._begin_reading

    def kill_second(fetch, found, number):
        if number == 1:
            job.messengers["actor:1"].close()
        begin_reading(fetch, found, number)

    monkeypatch.setattr(Fetch, "_begin_reading", kill_second)
    into = np.full((ROWS, COLUMNS), -1.0)
    with pytest.raises(PeerDied, match="published by 'actor:1'"):
        reader.fetch("policy", {"w": into}, timeout_s=DEADLINE_S).wait()
    assert (into == -1).all()


@pytest.mark.usefixtures("patient_transfers")
def test_a_later_launch_of_the_group_takes_over_and_readers_are_told_what_it_has(job):
    before, reader = [job.rank(rank, 2) for rank in range(2)], job.member("rollout:0")
    for rank, actor in enumerate(before):
        actor.publish("policy", shard(7, rank), 7)
    after = [job.rank(rank, 2, launch=2, name=f"actor:{rank} anew") for rank in range(2)]
    after[0].publish("policy", shard(1, 0), 1)
    with pytest.raises(CommTimeout, match="none is published; version 1 is not complete"):
        fetched(reader, timeout_s=0.2)
    with pytest.raises(WeightsError, match="was launched anew"):
        before[1].publish("policy", shard(8, 1), 8)
    after[1].publish("policy", shard(1, 1), 1)
    assert fetched(reader) == 1
    gc.collect()  # errors
    for rank in range(2):
        wait_until(job.arena(f"actor:{rank}").unused, job.messengers[f"actor:{rank}"])


@pytest.fixture
def held_announcements(job, monkeypatch):
    """Announcements that have come to the index, which does nothing with them until they are let go."""
    steps, do = [], job.index._do
    monkeypatch.setattr(job.index, "_do", lambda *step: steps.append(step))

    def let_go(num):
        wait_until(lambda: len(steps) >= num, job.driver)
        monkeypatch.setattr(job.index, "_do", do)
        job.driver.submit(lambda: [do(*step) for step in steps])

    return let_go


def test_who_is_refused_after_its_versions_were_given_up_is_told_so(job, request):
    before, actor = job.rank(0, 2), job.messengers
    before.publish("policy", shard(7, 0), 7)
    let_go = request.getfixturevalue("held_announcements")
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(before.publish, "policy", shard(8, 0), 8)
        wait_until(lambda: before._versions.version("policy") == 8, actor["actor:0"])
        _, (endpoint, keep) = job.index._index.announce(anew(job))
        job.driver.notify(endpoint, KEEP, keep)
        wait_until(lambda: not before._versions._versions["policy"], actor["actor:0"])
        let_go(1)
        with pytest.raises(WeightsError, match="was launched anew"):
            late.result(DEADLINE_S)


def anew(job):
    """What the first rank of a later launch announces."""
    after = job.rank(0, 1, launch=2, name="actor:0 anew")
    encoded, layout = encode_held("policy", shard(1, 0, ranks=1))
    return after._announcement("policy", 1, layout, after._packed("policy", encoded))


def test_versions_of_other_layouts_that_are_published_at_once_can_be_read(job, request):
    actor, reader = job.rank(0, 1), job.member("rollout:0")
    actor.publish("policy", {"w": rows(1)}, 1)
    let_go = request.getfixturevalue("held_announcements")
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(actor.publish, "policy", {"w": rows(2), "more": np.zeros(3)}, 2)
        wait_until(lambda: actor._versions.version("policy") == 2, job.messengers["actor:0"])
        third = pool.submit(actor.publish, "policy", {"w": rows(3)}, 3)
        let_go(2)
        second.result(DEADLINE_S)
        third.result(DEADLINE_S)
    assert fetched(reader) == 3


def test_another_group_is_refused_and_two_shardings_are_an_error(job):
    actors, critic, reader = (
        [job.rank(rank, 2) for rank in range(2)],
        job.member("critic:0"),
        job.member("rollout:0"),
    )
    actors[0].publish("policy", shard(1, 0), 1)
    with pytest.raises(NameTaken, match="'weights/policy' is taken, by process 'actor:0'"):
        critic.publish("policy", shard(1, 1), 1)
    with pytest.raises(
        WeightsError,
        match=r"shards overlap and are not the same: .* of process 'actor:0' and .* of process 'actor:1'",
    ):
        actors[1].publish("policy", {"w": rows(1)}, 1)
    actors[1].publish("policy", shard(1, 1), 1)
    assert fetched(reader) == 1


def test_two_shardings_are_told_with_the_ranks_that_have_them_now(job):
    for launch in (1, 2):
        names = [f"actor:{rank} of launch {launch}" for rank in range(2)]
        actors = [job.rank(rank, 2, launch=launch, name=name) for rank, name in enumerate(names)]
        actors[0].publish("policy", shard(1, 0), 1)
        with pytest.raises(WeightsError, match=f"of process '{names[0]}' and .* of process '{names[1]}'"):
            actors[1].publish("policy", {"w": rows(1)}, 1)


@pytest.mark.usefixtures("patient_transfers")
def test_what_a_large_version_lacks_is_found_beside_the_io_thread(job, monkeypatch):
    actor, reader = job.rank(0, 2), job.member("rollout:0")
    numbers = np.random.default_rng(1).integers(1, 1 << 40, 4000)
    weights = {f"{each:x}": Slice(np.zeros(1), (0,), (2,)) for each in numbers}
    threads = []
    gap_of = index_service.gap_of

    def noted(*args):
        threads.append(threading.current_thread())
        return gap_of(*args)

    monkeypatch.setattr(job.index._index, "_gap", partial(job.index._found, noted))
    actor.publish("policy", weights, 1)
    with pytest.raises(CommTimeout, match=r"version 1 is not complete: nobody has \[1:2\] of"):
        fetched(reader, timeout_s=0.2)
    answer = job.driver.request(job.driver.endpoint, LIST, None, timeout_s=DEADLINE_S)
    assert "nobody has" in str(answer.result().head)
    (thread,) = threads
    assert thread.name != io_thread(job.driver)


def io_thread(messenger):
    name = []
    messenger.submit(lambda: name.append(threading.current_thread().name))
    wait_until(lambda: name, messenger)
    return name[0]


@pytest.mark.usefixtures("patient_transfers")
def test_stages_are_complete_when_the_ranks_that_are_named_have_published(job):
    actors, reader = [job.rank(rank, 2) for rank in range(2)], job.member("rollout:0")
    into = {"stage.0": np.zeros(10), "stage.1": np.zeros(10)}
    actors[0].publish("policy", {"stage.0": np.ones(10)}, 1, ranks=2)
    with pytest.raises(CommTimeout, match="it waits for rank 1 of 'actor', which has published nothing"):
        reader.fetch("policy", into, timeout_s=0.2).wait()
    actors[1].publish("policy", {"stage.1": np.ones(10)}, 1, ranks=2)
    assert reader.fetch("policy", into, timeout_s=DEADLINE_S).wait() == 1
    assert all((values == 1).all() for values in into.values())


def test_ranks_are_the_same_however_they_are_said(job):
    actors = [job.rank(rank, 2) for rank in range(2)]
    actors[0].publish("policy", {"stage.0": np.ones(10)}, 1, ranks=[1, 0])
    actors[1].publish("policy", {"stage.1": np.ones(10)}, 1, ranks=np.int64(2))
    into = {"stage.0": np.zeros(10), "stage.1": np.zeros(10)}
    assert job.member("rollout:0").fetch("policy", into, timeout_s=DEADLINE_S).wait() == 1


@pytest.mark.parametrize("ranks", [0, -1, "two", [], [-1], 1.5])
def test_ranks_are_how_many_or_which(job, ranks):
    with pytest.raises(WeightsError, match="ranks are how many publish, or their numbers"):
        job.rank(0, 2).publish("policy", shard(1, 0), 1, ranks=ranks)


def test_models_of_many_tensors_are_judged_and_planned_beside_the_io_thread(job, monkeypatch):
    judged, judge = [], index_service.judge

    def note(*args):
        judged.append(threading.current_thread().name)
        return judge(*args)

    monkeypatch.setattr(job.index._index, "_judge", partial(job.index._found, note))
    actors, reader = [job.rank(rank, 2) for rank in range(2)], job.member("rollout:0")
    rng = np.random.default_rng(0)
    keys = [rng.bytes(30).hex() for _ in range(600)]
    for version in (1, 2):
        for rank, actor in enumerate(actors):
            part = {key: Slice(np.full((2,), version, np.float32), (2 * rank,), (4,)) for key in keys}
            actor.publish("policy", part, version)
        into = {key: np.zeros(4, np.float32) for key in keys}
        assert reader.fetch("policy", into, timeout_s=DEADLINE_S).wait() == version
        assert all((each == version).all() for each in into.values())
    assert len(judged) == 1
    assert not judged[0].startswith("comm-")
