"""Groups as a user meets them: launched on simulated nodes, called, failing, dying."""

import asyncio
import sys
import threading
import types

import numpy as np
import pytest
from ray_workers import (
    Broken,
    Clashing,
    Dies,
    DiesWhileOthersConstruct,
    Forgetful,
    NeverReady,
    Probe,
    RaisesInInit,
)

from rlinf.scheduler import FlexiblePlacementStrategy, NodePlacementStrategy, PackedPlacementStrategy, Worker
from rlinf.scheduler.errors import (
    CodecError,
    ConfigError,
    LaunchError,
    LaunchTimeout,
    PlacementError,
    ResultTimeout,
    WorkerDied,
    WorkerError,
)

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def probes(ray_cluster):
    """Four ranks, two a node."""
    strategy = FlexiblePlacementStrategy([[0], [1], [4], [5]])
    group = Probe.create_group(offset=10).launch(ray_cluster, placement_strategy=strategy, name="probes")
    yield group
    group.terminate()


def test_results_come_in_rank_order(probes):
    assert probes.add(1, b=2).wait(30) == [13, 14, 15, 16]


def test_every_rank_knows_who_it_is(probes):
    who = probes.who().wait(30)
    assert [w["rank"] for w in who] == [w["_rank"] for w in who] == [0, 1, 2, 3]
    assert [w["local_rank"] for w in who] == [0, 1, 0, 1]
    assert [w["node_rank"] for w in who] == [0, 0, 1, 1]
    assert [w["address"] for w in who] == [f"probes:{rank}" for rank in range(4)]
    assert all(w["pid"] == w["real_pid"] for w in who)
    assert len({w["pid"] for w in who}) == 4


def test_a_worker_has_one_thread_of_the_librarys(probes):
    assert probes.threads().wait(30) == [[f"comm-probes:{rank}"] for rank in range(4)]


def test_methods_run_on_the_main_thread(probes):
    assert all(w["main_thread"] for w in probes.who().wait(30))


def test_the_environment_is_what_torch_distributed_reads(probes):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "CUDA_VISIBLE_DEVICES")
    environments = probes.environment(*names, "MASTER_ADDR", "MASTER_PORT").wait(30)
    assert [[e[name] for name in names] for e in environments] == [
        ["0", "4", "0", "2", "0", "0"],
        ["1", "4", "0", "2", "0", "1"],
        ["2", "4", "0", "2", "1", "4"],
        ["3", "4", "0", "2", "1", "5"],
    ]
    assert len({(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in environments}) == 1


def test_execute_on_reaches_these_ranks_only_and_changes_nothing(probes):
    assert probes.execute_on(3, 1).add(0).wait(30) == [13, 11]
    assert probes.add(0).wait(30) == [10, 11, 12, 13]
    for bad in ((4,), (-1,), (0, 0), (), (True,)):
        with pytest.raises(PlacementError):
            probes.execute_on(*bad)
    assert probes.add(0).wait(30) == [10, 11, 12, 13]


def test_an_exception_arrives_with_its_traceback_and_the_driver_goes_on(probes):
    with pytest.raises(WorkerError, match=r"rank 2 of 'probes' raised in fail_on\(\)") as caught:
        probes.fail_on(2).wait(30)
    assert "raise LookupError" in caught.value.remote_traceback
    assert isinstance(caught.value.cause, LookupError)
    assert probes.add(0).wait(30) == [10, 11, 12, 13]


def test_failures_can_be_had_as_values(probes):
    results = probes.fail_on(1).results(return_exceptions=True, timeout_s=30)
    assert [results[0], *results[2:]] == [0, 2, 3]
    assert isinstance(results[1], WorkerError)
    assert results[1].rank == 1


def test_an_exception_that_cannot_be_pickled_still_arrives_as_text(probes):
    with pytest.raises(WorkerError, match="OnlyHere") as caught:
        probes.execute_on(0).raise_unpicklable().wait(30)
    assert caught.value.cause is None


def test_a_result_that_cannot_be_sent_is_the_calls_failure(probes):
    with pytest.raises(WorkerError, match="lock"):
        probes.execute_on(0).unpicklable().wait(30)
    assert probes.execute_on(0).add(0).wait(30) == [10]


def test_any_text_in_an_exception_arrives_and_the_worker_lives_on(probes):
    with pytest.raises(WorkerError, match=r"a name like"):
        probes.raise_half_a_surrogate_pair().wait(30)
    assert probes.add(0).wait(30) == [10, 11, 12, 13]


def test_a_waiting_coroutine_outlives_a_garbage_collection(probes):
    assert probes.execute_on(0).wait_through_a_collection().wait(30) == ["went on"]


def test_after_terminate_calls_say_so(ray_cluster):
    group = Probe.create_group().launch(ray_cluster, placement_strategy=PackedPlacementStrategy(0, 0))
    group.terminate()
    with pytest.raises(WorkerDied, match="the group was terminated"):
        group.add(1)


def test_an_unknown_method_is_named_at_once_with_the_nearest(probes):
    with pytest.raises(AttributeError, match="did you mean 'environment'"):
        probes.enviroment()


def test_a_wait_that_passes_its_deadline_names_the_missing_ranks(probes):
    pending = probes.execute_on(1).hold()
    with pytest.raises(ResultTimeout, match=r"probes\.hold\(\).*probes:1"):
        pending.wait(0.01)
    assert not pending.done()
    probes.execute_on(1).let_go().wait(30)
    assert pending.wait(30) == [1]


def test_coroutines_run_side_by_side_on_one_rank(probes):
    first = probes.execute_on(0).rendezvous(2)
    second = probes.execute_on(0).rendezvous(2)
    assert first.wait(30) == second.wait(30) == [2]


def test_results_can_be_awaited(probes):
    async def awaited():
        async def one(result):
            return await result.async_wait()

        return await asyncio.gather(one(probes.add(0)), one(probes.who()))

    sums, who = asyncio.run(awaited())
    assert sums == [10, 11, 12, 13]
    assert [w["rank"] for w in who] == [0, 1, 2, 3]


def test_large_arguments_and_results_are_every_ranks_own(probes):
    values = np.arange(1 << 20, dtype=np.uint8)
    results = probes.echo({"values": values, "rest": "x"}).wait(30)
    for rank, result in enumerate(results):
        result["values"] += rank
    assert [(result["values"] - rank == values).all() for rank, result in enumerate(results)] == [True] * 4


def test_a_worker_sees_the_same_cluster(probes):
    assert probes.topology_seen().wait(30) == [(2, 8)] * 4


def test_log_lines_arrive_before_the_result(probes, caplog):
    with caplog.at_level("INFO", logger="rlinf.worker"):
        probes.log("here I am").wait(30)
    lines = [record.getMessage() for record in caplog.records if record.name == "rlinf.worker.probes"]
    assert sorted(lines) == [f"[probes:{rank}] here I am" for rank in range(4)]


def test_gloo_initialises_across_two_nodes_from_the_environment(ray_cluster):
    strategy = FlexiblePlacementStrategy([[2], [3], [6], [7]])
    group = Probe.create_group().launch(ray_cluster, placement_strategy=strategy, name="gloo")
    assert group.all_reduce().wait(60) == [
        (6.0, 0, 4, 0),
        (6.0, 1, 4, 0),
        (6.0, 2, 4, 1),
        (6.0, 3, 4, 1),
    ]
    group.terminate()


def test_an_init_that_fails_raises_with_its_traceback_and_leaves_nothing(ray_cluster):
    strategy = PackedPlacementStrategy(0, 1)
    with pytest.raises(LaunchError, match="the checkpoint is not there") as caught:
        Broken.create_group(1).launch(ray_cluster, placement_strategy=strategy, name="broken")
    assert "rank 1 failed in __init__" in str(caught.value)
    again = Broken.create_group(7).launch(ray_cluster, placement_strategy=strategy, name="broken")
    again.terminate()


def test_a_process_that_dies_in_init_ends_the_launch_at_once(ray_cluster):
    with pytest.raises(LaunchError, match="rank 0 died while still in __init__"):
        Dies.create_group().launch(ray_cluster, placement_strategy=PackedPlacementStrategy(0, 0))


def test_a_rank_that_dies_when_it_is_ready_ends_a_launch_that_waits_for_others(ray_cluster):
    with pytest.raises(LaunchError, match="rank 1 died while waiting for the other ranks"):
        DiesWhileOthersConstruct.create_group().launch(
            ray_cluster, placement_strategy=PackedPlacementStrategy(0, 1), launch_timeout_s=40
        )


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), KeyboardInterrupt("again"), SystemExit(3)])
def test_what_init_raised_is_the_cause_of_the_launch_error_with_causes_of_its_own(ray_cluster, error):
    with pytest.raises(LaunchError) as caught:
        RaisesInInit.create_group(error).launch(ray_cluster, placement_strategy=NodePlacementStrategy([0]))
    raised = caught.value.__cause__
    assert (type(raised), raised.args) == (type(error), error.args)
    assert isinstance(raised.__cause__, LookupError)
    assert f"rank 0 failed in __init__: {type(error).__name__}: {error}" in caught.value.problem
    assert "LookupError: the cause" in str(caught.value)


def test_a_class_that_cannot_be_imported_there_is_told_in_the_words_of_the_import(ray_cluster, monkeypatch):
    module = types.ModuleType("only_in_the_driver")
    monkeypatch.setitem(sys.modules, "only_in_the_driver", module)
    module.Stranger = type("Stranger", (Worker,), {"__module__": "only_in_the_driver"})
    with pytest.raises(LaunchError) as caught:
        module.Stranger.create_group().launch(ray_cluster, placement_strategy=NodePlacementStrategy([0]))
    told = "rank 0 failed to import its class: ModuleNotFoundError: No module named 'only_in_the_driver'"
    assert caught.value.problem == told
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert caught.value.__cause__.name == "only_in_the_driver"
    assert "CodecError" not in str(caught.value)


def test_an_argument_that_cannot_be_sent_is_an_error_before_anything_starts(ray_cluster):
    with pytest.raises(CodecError, match="lock"):
        Probe.create_group(threading.Lock()).launch(ray_cluster, name="unsendable")


def test_a_launch_that_is_late_says_which_rank_waits_for_what(ray_cluster):
    strategy = PackedPlacementStrategy(0, 1)
    with pytest.raises(LaunchTimeout, match=r"rank 1 on node 0 .*: still in __init__") as caught:
        NeverReady.create_group(1).launch(ray_cluster, placement_strategy=strategy, launch_timeout_s=8)
    assert "rank 0" not in str(caught.value)


def test_a_class_that_forgets_super_init_works(ray_cluster):
    group = Forgetful.create_group().launch(ray_cluster, placement_strategy=NodePlacementStrategy([1]))
    assert group.find().wait(30) == [0]
    group.terminate()


def test_a_killed_rank_ends_pending_and_later_calls(ray_cluster):
    strategy = PackedPlacementStrategy(0, 1)
    group = Probe.create_group().launch(ray_cluster, placement_strategy=strategy, name="mortal")
    pending = group.die(1)
    with pytest.raises(WorkerDied, match="rank 1 of 'mortal' died"):
        pending.wait(30)
    with pytest.raises(WorkerDied, match="rank 1 of 'mortal'"):
        group.add(1).wait(30)
    group.terminate()


def test_with_ignore_the_living_ranks_go_on(ray_cluster):
    strategy = PackedPlacementStrategy(0, 1)
    group = Probe.create_group().launch(
        ray_cluster, placement_strategy=strategy, name="tolerant", on_failure="ignore"
    )
    with pytest.raises(WorkerDied):
        group.execute_on(1).die(1).wait(30)
    assert group.execute_on(0).add(1).wait(30) == [1]
    with pytest.raises(WorkerDied):
        group.execute_on(1).add(1).wait(30)
    group.terminate()


def test_two_groups_cannot_have_one_name(ray_cluster, probes):
    with pytest.raises(LaunchError, match="'probes'"):
        Probe.create_group().launch(
            ray_cluster, placement_strategy=PackedPlacementStrategy(0, 0), name="probes"
        )


def test_a_method_name_that_a_group_needs_itself_is_refused():
    with pytest.raises(ConfigError, match="terminate"):
        Clashing.create_group()


@pytest.mark.parametrize("arguments", [{"on_failure": "pray"}, {"max_concurrency": 0}, {"name": "a:b"}])
def test_bad_launch_options_are_refused_before_anything_starts(ray_cluster, arguments):
    with pytest.raises(ConfigError):
        Probe.create_group().launch(ray_cluster, **arguments)


def test_a_failure_that_nobody_waits_for_is_logged(probes, caplog, monkeypatch):
    monkeypatch.setattr("rlinf.scheduler.worker.supervision.UNREAD_GRACE_S", 0.05)
    logged = threading.Event()
    monkeypatch.setattr(caplog.handler, "emit", lambda record: (logged.set(), caplog.records.append(record)))
    unread = probes.fail_on(2)
    assert logged.wait(20)
    assert "no such thing on rank 2" in caplog.records[-1].getMessage()
    assert "of 4 ranks have answered" in repr(unread)
