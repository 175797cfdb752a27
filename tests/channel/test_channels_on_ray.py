"""Channels as a job creates them: held by processes beside a worker."""

import os
import signal
import threading
import time
from itertools import pairwise

import pytest
from channel_workers import Maker

from rlinf.scheduler import Channel, PackedPlacementStrategy
from rlinf_scheduler.errors import ChannelError, ChannelExists, ChannelLost, WorkerError
from rlinf_scheduler.events import ChannelOpened, ChannelRestored, WorkerLost

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


@pytest.fixture
def processes_of(driver):
    """The process id of whatever holds a channel that was opened in this test."""
    pids = {}
    driver.subscribe(lambda event: isinstance(event, ChannelOpened) and pids.update({event.name: event.pid}))

    def of(name):
        driver.session.bus.flush()
        return pids[name]

    return of


def test_from_the_driver_a_channel_is_held_on_node_zero(driver, makers):
    channel = Channel.create("driven")
    makers.execute_on(1).put("driven", ["a", "b"]).wait(60)
    assert [channel.get(timeout_s=60), channel.get(timeout_s=60)] == ["a", "b"]
    assert where(driver, "driven") == (0, ())


def test_a_worker_creates_a_channel_beside_itself(driver, makers):
    makers.execute_on(1).make("beside-me").wait(60)
    assert where(driver, "beside-me") == (1, (2,))
    makers.execute_on(0).put("beside-me", [1, 2, 3]).wait(60)
    assert makers.execute_on(1).get_async("beside-me", 3).wait(60) == [[1, 2, 3]]


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
    short.put("heritage", ["kept"]).wait(60)
    short.terminate()
    assert Channel.connect("heritage").get(timeout_s=60) == "kept"


def two_that_share(processes_of):
    """Two channels of one process, however full the present one is."""
    held = {}
    for number in range(6):
        channel = Channel.create(f"phoenix-{number}")
        pid = processes_of(channel.name)
        if pid in held:
            return held[pid], channel
        held[pid] = channel
    pytest.fail("no process has two of six")


def test_a_process_that_is_killed_loses_its_channels_which_can_be_created_again(driver, processes_of):
    first, beside = two_that_share(processes_of)
    first.put("lost with its process")
    lost = {}
    all_lost = threading.Event()

    def hear(event):
        if isinstance(event, WorkerLost) and event.group in (first.name, beside.name):
            lost[event.group] = event.reason
            if len(lost) == 2:
                all_lost.set()

    driver.subscribe(hear)
    os.kill(processes_of(first.name), signal.SIGKILL)
    for channel in (first, beside):
        with pytest.raises(ChannelLost, match=channel.name):
            channel.get(timeout_s=60)
    assert all_lost.wait(60)
    assert all(f"'{name}'" in reason for name in lost for reason in lost.values())
    second = Channel.create(first.name)
    second.put("fresh")
    assert second.get(timeout_s=60) == "fresh"


def wait_for_the_end_of(pid):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        os.sched_yield()
    return False


def test_a_channel_may_have_its_own_process_which_is_where_its_worker_is_and_ends_with_it(
    driver, makers, processes_of
):
    channel = Channel.create(
        "short", group_affinity="makers", group_rank_affinity=1, own_process=True, maxsize=2
    )
    assert where(driver, "short") == (1, (2,))
    pid = processes_of("short")
    channel.delete(timeout_s=60)
    with pytest.raises(ChannelError):
        channel.put("too late")
    assert wait_for_the_end_of(pid)


def test_a_worker_and_the_driver_share_a_process_on_one_node(driver, makers, processes_of):
    # The channels of other tests may leave one place in a process: the next channel then begins another one.
    names = ["of-the-driver", "of-a-worker", "of-the-driver-too", "of-a-worker-too"]
    for name in names:
        if "driver" in name:
            Channel.create(name)
        else:
            makers.execute_on(0).make(name).wait(60)
    makers.execute_on(1).make("of-another-node").wait(60)
    here = [processes_of(name) for name in names]
    assert any(one == other for one, other in pairwise(here))
    assert processes_of("of-another-node") not in here
    makers.execute_on(1).put("of-a-worker", ["x"]).wait(60)
    assert Channel.connect("of-a-worker").get(timeout_s=60) == "x"


def test_a_durable_channel_outlives_its_process_and_every_worker_goes_on(
    driver, makers, processes_of, tmp_path
):
    restored = []
    driver.subscribe(lambda event: isinstance(event, ChannelRestored) and restored.append(event))
    channel = Channel.create("outlives", durable=tmp_path / "journal")
    makers.execute_on(1).put("outlives", ["a", "b"]).wait(60)
    waiting = channel.get(queue_name="later", async_op=True)
    with channel.lease(timeout_s=30) as lease:
        os.kill(processes_of("outlives"), signal.SIGKILL)
        makers.execute_on(0).put("outlives", ["c"]).wait(60)
        assert lease.item == "a"
    assert [channel.get(timeout_s=30), channel.get(timeout_s=30)] == ["b", "c"]
    channel.put("d", queue_name="later")
    assert waiting.wait(60) == "d"
    driver.session.bus.flush()
    assert [(event.name, event.epoch) for event in restored] == [("outlives", 2)]
    channel.delete()
