"""RLinf's names of workers, groups and results."""

import asyncio
import pickle
import sys
from types import SimpleNamespace

import pytest
import torch

from forked_job import ForkedJob
from rlinf.scheduler import (
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    Worker,
    WorkerAddress,
    WorkerGroup,
    WorkerGroupFuncResult,
    WorkerInfo,
)
from rlinf.scheduler.hardware.accelerators.accelerator import AcceleratorType, type_of
from rlinf_scheduler import worker as core
from rlinf_scheduler.errors import ConfigError, WorkerError
from rlinf_scheduler.hardware.profilers import CAPTURE
from rlinf_workers import Actor, Forgetful
from waits import wait_until

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def rlinf_job():
    job = ForkedJob()
    yield job
    job.close()


@pytest.fixture(scope="module")
def actor(rlinf_job):
    strategy = FlexiblePlacementStrategy([[1], [4], [5, 6]])
    return Actor.create_group({"lr": 1}, placement="mine").launch(rlinf_job, strategy, name="actor")


def wait(result):
    return result.wait(DEADLINE_S)


def test_a_rank_says_who_and_where_it_is(actor):
    first, _, last = wait(actor.who())
    assert first["early"] == (0, 3, 0)
    assert last["early"] == (2, 3, 1)
    assert last["shard"] == (2, 3)
    assert last["name"] == ("actor:2", "actor:2", "actor:2", "actor")
    assert last["root"] == ("actor", 2, 0)
    assert (first["place"], last["place"]) == ((0, 0, 1), (1, 1, 1))
    assert last["info"] == (2, 3, 1, 1)
    assert last["global"] == ([5, 6], (5, 6))
    assert last["hardware"] == 2
    assert last["kind"] == (True, "simulated", "NO_ACCEL")
    assert last["torch"] == ("cpu", "cpu", False)
    assert (last["placement"], last["current"]) == ("mine", True)


def test_a_rank_finds_rlinfs_variables(actor):
    assert wait(actor[2].environment()) == [
        {
            "GROUP_NAME": "actor",
            "WORKER_NAME": "actor:2",
            "CLUSTER_NODE_RANK": "1",
            "NODE_GROUP_LABEL": "cluster",
            "NODE_LOCAL_RANK": "1",
            "NODE_LOCAL_WORLD_SIZE": "2",
            "LOCAL_ACCELERATOR_RANK": "1",
            "LOCAL_HARDWARE_RANKS": "1,2",
            "VISIBLE_DEVICES": "5,6",
            "ISOLATE_ACCELERATOR": "1",
            "ACCELERATOR_TYPE": "NO_ACCEL",
            "LOCAL_RANK": "0",
        }
    ]


def test_a_program_sets_what_it_reads(rlinf_job):
    group = Actor.create_group({}).launch(rlinf_job, NodePlacementStrategy([0]), name="reassigned")
    assert wait(group.reassign()) == [(7, 8, "other", None)]
    assert wait(group.get("rank")) == [0]


def test_a_group_is_ended_by_the_name_that_rlinfs_tests_use(rlinf_job):
    group = Actor.create_group({}).launch(rlinf_job, NodePlacementStrategy([0]), name="closed")
    group._close()
    with pytest.raises(WorkerError, match="the group was terminated"):
        wait(group.get("rank"))


def test_timers_add_up_over_calls_until_they_are_popped(actor):
    wait(actor.pop_execution_times())
    wait(actor.recv())
    actor.evaluate().wait(DEADLINE_S)
    result = actor.run_training()
    assert isinstance(result, WorkerGroupFuncResult)
    reduced, each = result.consume_durations(return_per_rank=True)
    assert set(reduced) == {"actor/recv_traj", "evaluate", "run_training", "sample", "inner"}
    assert [set(rank) for rank in each] == [set(reduced)] * 3
    assert reduced["sample"] == max(rank["sample"] for rank in each)
    assert result.consume_durations() == {}
    assert set(result.durations()) == {"run_training", "sample", "inner"}


def test_a_methods_own_duration_is_popped_or_else_that_of_the_call(actor):
    wait(actor.pop_execution_times())
    twice = [actor.evaluate(), actor.evaluate()]
    total = twice[-1].consume_duration("sum")
    assert 0 < total < 60
    assert twice[0].consume_duration("min") > 0  # popped already: that of the call
    assert actor.who().consume_duration() > 0
    with pytest.raises(WorkerError, match="no timer 'generate' was measured"):
        wait(actor.pop_execution_time("generate"))


def test_the_duration_of_a_call_that_failed_is_its_failure(actor):
    with pytest.raises(WorkerError, match="no timer 'x'"):
        actor.pop_execution_time("x").consume_durations()


def test_a_worker_pops_its_own_timers(actor):
    wait(actor.pop_execution_times())
    assert wait(actor[0].pop_own()) == [(True, {})]


def test_a_view_measures_its_rank_and_pops_those_of_the_whole_group(actor):
    wait(actor.pop_execution_times())
    wait(actor.evaluate())
    _, each = actor.execute_on(1).evaluate().consume_durations(return_per_rank=True)
    assert len(each) == 3


def test_results_are_awaited_by_both_names(actor):
    async def run():
        return await actor.evaluate(3), await actor.evaluate(4).async_wait()

    assert asyncio.run(run()) == ([3] * 3, [4] * 3)


def test_a_group_and_its_views_have_rlinfs_names(actor):
    for each in (actor, actor.execute_on(1), actor.scatter([1, 2, 3])):
        assert each.worker_group_name == "actor"
        assert isinstance(each, WorkerGroup)
    assert [each.rank for each in actor.worker_info_list] == [0, 1, 2]
    assert wait(actor.worker_info_list[2].worker.evaluate(5)) == [5]
    assert wait(actor.scatter([1, 2, 3]).evaluate()) == [1, 2, 3]


def test_a_method_of_the_class_wins_over_rlinfs_names_too(rlinf_job):
    strategy = NodePlacementStrategy([0, 0])
    group = Forgetful.create_group(start=10).launch(
        cluster=rlinf_job, placement_strategy=strategy, name="greedy"
    )
    assert wait(group.worker_group_name()) == ["10", "11"]
    assert wait(group.execute_on(1).worker_group_name()) == ["11"]
    assert wait(group.shutdown()) == ["not yet"] * 2
    plain = WorkerGroup.plain(group)
    assert (plain.worker_group_name, plain.name) == ("greedy", "greedy")


def test_a_launch_takes_what_rlinfs_does_in_its_order(rlinf_job):
    strategy = FlexiblePlacementStrategy([[2]])
    group = Forgetful.create_group().launch(rlinf_job, strategy, "ordered", 4, False, True, True)
    assert core.WorkerGroup.plain(group).placements[0].isolate_gpu is False
    with pytest.raises(ConfigError, match="max_concurrency=False: it is a whole number") as caught:
        Forgetful.create_group().launch(rlinf_job, strategy, "swapped", False)
    assert "isolate_gpu=... is written by its name" in str(caught.value)


def test_any_number_of_methods_at_a_time_is_as_many_as_a_rank_has_threads_for(rlinf_job):
    strategy = NodePlacementStrategy([0])
    group = Forgetful.create_group(7).launch(rlinf_job, strategy, "any number", max_concurrency=2**31 - 1)
    assert wait(group.worker_group_name()) == ["7"]


def test_a_rank_gets_ports_up_to_one(actor):
    ((low, other),) = wait(actor[0].ports(25_000))
    assert low <= 25_000
    assert other != low
    with pytest.raises(WorkerError, match="no TCP port up to 80 is for ranks"):
        wait(actor[0].ports(80))


def test_a_rank_learns_of_other_workers(actor, rlinf_job):
    Forgetful.create_group().launch(rlinf_job, NodePlacementStrategy([1, 1]), name="others")
    assert wait(actor[0].others("others", "nobody")) == [(2, 1, None, [True, False])]


def test_a_rank_finds_a_group_by_its_name(actor, rlinf_job):
    Forgetful.create_group().launch(rlinf_job, NodePlacementStrategy([1, 1]), name="found")
    assert wait(actor[0].found("found")) == [(["not yet"], {})]
    with pytest.raises(WorkerError, match="there is no group 'lost'; there is "):
        wait(actor[0].found("lost"))


def test_what_the_class_logs_in_a_rank_comes_to_the_driver(actor, rlinf_job):
    told = []
    bus = rlinf_job.session.bus
    bus.subscribe(told.append)
    wait(actor[0].log())
    wait_until(lambda: any(getattr(event, "message", "") == "logged by the class" for event in told))
    bus.unsubscribe(told.append)


def test_a_worker_outside_of_a_group_is_one_of_one():
    worker = Actor({}, placement=3)
    assert (worker._rank, worker._world_size, worker.placement) == (0, 1, 3)
    assert (worker.get_name(), worker.worker_info.group_world_size) == ("local:0", 1)
    worker.start_profile(3)
    worker.stop_profile()
    assert (worker.hardware_infos, worker.global_accelerator_ids) == ([], [])
    assert Worker.current_worker is None
    with worker.worker_timer("x"):
        pass
    assert set(worker.pop_execution_times()) == {"x"}


def test_a_worker_that_was_not_constructed_has_its_methods_and_its_timers():
    worker = object.__new__(Actor)
    worker._rank, worker.device_index = 3, 0
    assert worker.evaluate(2) == 2
    assert (worker._rank, set(worker._timer_metrics)) == (3, {"evaluate"})


def test_a_function_that_is_no_method_is_timed_too():
    @Worker.timer("double")
    def double(value):
        return 2 * value

    assert double(2) == 4


def test_a_timed_method_has_its_name_in_a_profilers_report(monkeypatch):
    told = []
    fake = SimpleNamespace(start=lambda: None, stop=lambda: None)
    nvtx = SimpleNamespace(range_push=told.append, range_pop=lambda: told.append("end"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(profiler=fake, nvtx=nvtx)))

    @Worker.timer("train")
    def step():
        told.append("works")

    async def serve():
        told.append("serves")

    step()
    CAPTURE.open()
    step()
    asyncio.run(Worker.timer("serve")(serve)())
    CAPTURE.close()
    assert told == ["works", "train", "works", "end", "serve", "serves", "end"]


def test_a_timer_of_a_generator_is_refused():
    def values(self):
        yield 1

    with pytest.raises(ConfigError, match="the generator"):
        Worker.timer("values")(values)


@pytest.mark.parametrize(
    ("vendor", "known_as"),
    [
        ("NVIDIA", AcceleratorType.NV_GPU),
        ("Ascend", AcceleratorType.NPU),
        ("", AcceleratorType.NO_ACCEL),
        ("simulated", AcceleratorType.NO_ACCEL),
    ],
)
def test_vendors_have_rlinfs_names(vendor, known_as):
    assert type_of(vendor) is known_as


@pytest.mark.skipif(torch.cuda.is_available(), reason="the platform here is that of a device")
def test_what_comes_by_a_weight_sync_to_the_cpu_is_waited_for_as_on_an_accelerator():
    # Of a device of `torch_device_type` RLinf keeps what has come until the stream that takes it has done so.
    platform = Worker.torch_platform
    assert platform.is_initialized()
    stream = platform.current_stream(Worker.torch_device_type)
    event = platform.Event()
    event.record(platform.Stream(device="cpu"))
    stream.wait_event(event)
    stream.synchronize()
    assert stream.query()


def test_addresses_have_parents_and_children():
    rank = WorkerAddress("rollout", 3)
    child = rank.get_child_address(0)
    assert (rank.root_group_name, rank.rank, rank.get_name(), rank.rank_path) == (
        "rollout",
        3,
        "rollout:3",
        [3],
    )
    assert (child.get_name(), str(child), child.get_parent_rank()) == ("rollout:3:0", "rollout:3/0", 3)
    assert child.get_parent_address() == rank
    group = rank.get_parent_address()
    assert (group.get_name(), group.rank, group.get_parent_address()) == ("rollout", 0, None)
    assert WorkerAddress.from_name("rollout:3/0") == WorkerAddress.from_name("rollout:3:0") == child
    assert sorted([child, rank, WorkerAddress("actor", 10), WorkerAddress("actor", 9)])[1].rank == 10
    assert pickle.loads(pickle.dumps(child)) == child


def test_an_address_equals_the_same_one_of_ours():
    assert WorkerAddress("a", 1) == core.WorkerAddress("a", 1)
    assert core.WorkerAddress("a", 1) == WorkerAddress("a", 1)
    assert core.WorkerAddress("a", 2) != WorkerAddress("a", 1)
    assert len({WorkerAddress("a", 1), WorkerAddress("a", [1])}) == 1
    with pytest.raises(ValueError, match="cannot hold a colon"):
        WorkerAddress("a:b", 1)


def test_what_is_known_of_a_worker_travels(actor):
    info = wait(actor[0].get("worker_info"))[0]
    assert isinstance(info, WorkerInfo)
    assert (info.node_ip, info.address) == ("127.0.0.1", WorkerAddress("actor", 0))
    assert hash(info) == hash(pickle.loads(pickle.dumps(info)))


def test_names_of_what_does_not_exist_here_say_what_to_use():
    from rlinf.scheduler.manager import CollectiveManager, Manager, PortLockManager

    with pytest.raises(TypeError, match=r"CollectiveManager\(\) is a part of RLinf's own scheduler"):
        CollectiveManager()
    with pytest.raises(AttributeError, match=r"Cluster\.groups"):
        Manager.get_runtime_env_vars()
    with pytest.raises(AttributeError, match="acquire_free_port"):
        PortLockManager.get_proxy()
