"""Channels as a job creates them: a process each, placed beside a worker."""

import os
import signal
import threading
import time

import pytest
from channel_workers import Maker

from rlinf.scheduler import Channel, PackedPlacementStrategy
from rlinf.scheduler.errors import ChannelError, ChannelExists, WorkerError
from rlinf.scheduler.events import WorkerLost
from rlinf.scheduler.worker.supervision import groups_of

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def makers(ray_cluster):
    """Two ranks: accelerator 1 of node 0, accelerator 2 of node 1."""
    from rlinf.scheduler import FlexiblePlacementStrategy

    group = Maker.create_group().launch(ray_cluster, FlexiblePlacementStrategy([[1], [6]]), name="makers")
    yield group
    group.terminate()


def where(cluster, name):
    """The node and the accelerators of the process that holds a channel."""
    import pickle

    entries = {entry.name: entry for entry in cluster.session.directory.list()}
    info = entries[f"{name}:0"].info
    placement = pickle.loads(info["placement"])
    return placement.node_rank, placement.local_hardware_ranks


def test_from_the_driver_a_channel_is_held_on_node_zero(driver, makers):
    channel = Channel.create("driven")
    makers.execute_on(1).put("driven", ["a", "b"]).wait(30)
    assert [channel.get(timeout_s=20), channel.get(timeout_s=20)] == ["a", "b"]
    assert where(driver, "driven") == (0, ())


def test_a_worker_creates_a_channel_beside_itself(driver, makers):
    makers.execute_on(1).make("beside-me").wait(60)
    assert where(driver, "beside-me") == (1, (2,))
    makers.execute_on(0).put("beside-me", [1, 2, 3]).wait(30)
    assert makers.execute_on(1).get_async("beside-me", 3).wait(30) == [[1, 2, 3]]


def test_affinity_places_a_channel_beside_any_worker(driver, makers):
    Channel.create("beside-rank-1", group_affinity="makers", group_rank_affinity=1)
    assert where(driver, "beside-rank-1") == (1, (2,))
    makers.execute_on(1).make("beside-rank-0", group_affinity="makers", group_rank_affinity=0).wait(60)
    assert where(driver, "beside-rank-0") == (0, (1,))


def test_a_name_that_is_taken_is_refused_to_driver_and_worker(driver, makers):
    Channel.create("taken")
    with pytest.raises(ChannelExists, match="taken"):
        Channel.create("taken")
    with pytest.raises(WorkerError, match="ChannelExists"):
        makers.execute_on(0).make("taken").wait(60)
    with pytest.raises(ChannelExists, match="makers"):
        Channel.create("makers")


def test_affinity_to_nobody_is_an_error_that_names_whom_there_is(driver, makers):
    with pytest.raises(ChannelError, match=r"no group 'maker' of workers: .*did you mean 'makers'"):
        Channel.create("lonely", group_affinity="maker", group_rank_affinity=3)
    with pytest.raises(WorkerError, match=r"no group 'maker' of workers: .*did you mean 'makers'"):
        makers.execute_on(0).make("lonely", group_affinity="maker").wait(60)
    with pytest.raises(ChannelError, match="group_affinity"):
        Channel.create("lonely", group_rank_affinity=3)


def test_a_channel_outlives_the_worker_that_created_it(driver):
    short = Maker.create_group().launch(driver, PackedPlacementStrategy(0, 0), name="short-lived")
    short.make("heritage").wait(60)
    short.put("heritage", ["kept"]).wait(30)
    short.terminate()
    assert Channel.connect("heritage").get(timeout_s=20) == "kept"


def test_a_channel_whose_process_was_killed_can_be_created_again(driver):
    first = Channel.create("phoenix")
    first.put("lost with its process")
    lost = threading.Event()
    driver.subscribe(lambda event: isinstance(event, WorkerLost) and event.group == "phoenix" and lost.set())
    group = next(g for g in groups_of(driver.session) if g.name == "phoenix")
    os.kill(group.ranks[0].pid, signal.SIGKILL)
    assert lost.wait(20)
    deadline = time.monotonic() + 20
    while any(g.name == "phoenix" for g in list(groups_of(driver.session))):
        assert time.monotonic() < deadline
        os.sched_yield()
    second = Channel.create("phoenix")
    second.put("fresh")
    assert second.get(timeout_s=20) == "fresh"


def wait_for_the_end_of(pid):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        os.sched_yield()
    return False


def test_a_deleted_channel_ends_its_process_and_frees_its_name_at_once(driver):
    for round_number in range(2):
        channel = Channel.create("short")
        channel.put(round_number)
        (group,) = [g for g in groups_of(driver.session) if g.name == "short"]
        channel.delete(timeout_s=20)
        with pytest.raises(ChannelError):
            channel.put("too late")
        assert group.ended.wait(20)
        assert wait_for_the_end_of(group.ranks[0].pid)
