"""Groups as a user meets them: launched on simulated nodes, called, failing, dying."""

import asyncio
import os

import numpy as np
import pytest
from ray_workers import Broken, Probe

from rlinf.scheduler import FlexiblePlacementStrategy, PackedPlacementStrategy
from rlinf_scheduler.errors import (
    LaunchError,
    PlacementError,
    ResultTimeout,
    WorkerDied,
    WorkerError,
)
from waits import seen, wait_until

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def probes(ray_cluster):
    """Four ranks, two a node."""
    strategy = FlexiblePlacementStrategy([[0], [1], [4], [5]])
    group = Probe.create_group(offset=10).launch(ray_cluster, placement_strategy=strategy, name="probes")
    yield group
    group.terminate()


def test_results_come_in_rank_order(probes):
    assert probes.add(1, b=2).wait(60) == [13, 14, 15, 16]


def test_every_rank_knows_who_it_is(probes):
    who = probes.who().wait(60)
    assert [w["rank"] for w in who] == [w["_rank"] for w in who] == [0, 1, 2, 3]
    assert [w["local_rank"] for w in who] == [0, 1, 0, 1]
    assert [w["node_rank"] for w in who] == [0, 0, 1, 1]
    assert [w["address"] for w in who] == [f"probes:{rank}" for rank in range(4)]
    assert all(w["pid"] == w["real_pid"] for w in who)
    assert len({w["pid"] for w in who}) == 4


def test_a_worker_has_one_thread_of_the_librarys(probes):
    assert probes.threads().wait(60) == [[f"comm-probes:{rank}"] for rank in range(4)]


def test_methods_run_on_the_main_thread(probes):
    assert all(w["main_thread"] for w in probes.who().wait(60))


def test_a_child_that_a_thread_of_a_rank_forks_ends_where_it_leaves_that_thread(probes):
    assert probes.execute_on(0).fork_in_a_thread().wait(60) == [[0]]


def test_the_environment_is_what_torch_distributed_reads(probes):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "CUDA_VISIBLE_DEVICES")
    environments = probes.environment(*names, "MASTER_ADDR", "MASTER_PORT").wait(60)
    assert [[e[name] for name in names] for e in environments] == [
        ["0", "4", "0", "2", "0", "0"],
        ["1", "4", "0", "2", "0", "1"],
        ["2", "4", "0", "2", "1", "4"],
        ["3", "4", "0", "2", "1", "5"],
    ]
    assert len({(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in environments}) == 1


def test_a_breakpoint_is_ours_although_ray_sets_its_own(probes):
    assert probes.breakpoint_hook().wait(60) == ["Breakpoints"] * 4


def test_execute_on_reaches_these_ranks_only_and_changes_nothing(probes):
    assert probes.execute_on(3, 1).add(0).wait(60) == [13, 11]
    assert probes.add(0).wait(60) == [10, 11, 12, 13]
    for bad in ((4,), (-1,), (0, 0), (), (True,)):
        with pytest.raises(PlacementError):
            probes.execute_on(*bad)
    assert probes.add(0).wait(60) == [10, 11, 12, 13]


def test_an_exception_arrives_with_its_traceback_and_the_driver_goes_on(probes):
    with pytest.raises(WorkerError, match=r"rank 2 of 'probes' raised in fail_on\(\)") as caught:
        probes.fail_on(2).wait(60)
    assert "raise LookupError" in caught.value.remote_traceback
    assert isinstance(caught.value.cause, LookupError)
    assert probes.add(0).wait(60) == [10, 11, 12, 13]


def test_failures_can_be_had_as_values(probes):
    results = probes.fail_on(1).results(return_exceptions=True, timeout_s=60)
    assert [results[0], *results[2:]] == [0, 2, 3]
    assert isinstance(results[1], WorkerError)
    assert results[1].rank == 1


def test_an_exception_that_cannot_be_pickled_still_arrives_as_text(probes):
    with pytest.raises(WorkerError, match="OnlyHere") as caught:
        probes.execute_on(0).raise_unpicklable().wait(60)
    assert caught.value.cause is None


def test_a_result_that_cannot_be_sent_is_the_calls_failure(probes):
    with pytest.raises(WorkerError, match="lock"):
        probes.execute_on(0).unpicklable().wait(60)
    assert probes.execute_on(0).add(0).wait(60) == [10]


def test_any_text_in_an_exception_arrives_and_the_worker_lives_on(probes):
    with pytest.raises(WorkerError, match=r"a name like"):
        probes.raise_half_a_surrogate_pair().wait(60)
    assert probes.add(0).wait(60) == [10, 11, 12, 13]


def test_a_waiting_coroutine_outlives_a_garbage_collection(probes):
    assert probes.execute_on(0).wait_through_a_collection().wait(60) == ["went on"]


def test_an_unknown_method_is_named_at_once_with_the_nearest(probes):
    with pytest.raises(AttributeError, match="did you mean 'environment'"):
        probes.enviroment()


def test_a_wait_that_passes_its_deadline_names_the_missing_ranks(probes):
    pending = probes.execute_on(1).hold()
    with pytest.raises(ResultTimeout, match=r"probes\.hold\(\).*probes:1"):
        pending.wait(0.01)
    assert not pending.done()
    probes.execute_on(1).let_go().wait(60)
    assert pending.wait(60) == [1]


def test_coroutines_run_side_by_side_on_one_rank(probes):
    first = probes.execute_on(0).rendezvous(2)
    second = probes.execute_on(0).rendezvous(2)
    assert first.wait(60) == second.wait(60) == [2]


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
    results = probes.echo({"values": values, "rest": "x"}).wait(60)
    for rank, result in enumerate(results):
        result["values"] += rank
    assert [(result["values"] - rank == values).all() for rank, result in enumerate(results)] == [True] * 4


def test_a_worker_sees_the_same_cluster(probes):
    assert probes.topology_seen().wait(60) == [(2, 8)] * 4


def test_log_lines_arrive_before_the_result(probes, caplog):
    with caplog.at_level("INFO", logger="rlinf.worker"):
        probes.log("here I am").wait(60)
    lines = [record.getMessage() for record in caplog.records if record.name == "rlinf.worker.probes"]
    assert sorted(lines) == [f"[probes:{rank}] here I am" for rank in range(4)]


def test_two_ranks_may_each_make_a_group_of_one_name(probes):
    made = probes[1:3].make_a_group().wait(100)
    assert made == [(f"probes:{rank}/inner", [f"probes:{rank}/inner:0"]) for rank in (1, 2)]


def test_pretend_devices_are_the_cpu_for_torch(probes):
    assert probes[0].device().wait(60) == [("cpu", "torch.cpu")]


@pytest.fixture(scope="module")
def collectives(probes):
    probes.join_collectives().wait(150)
    yield probes
    probes.leave_collectives().wait(60)


def asked(cluster, operation, told=""):
    """What the job says once a rank is the culprit at this operation, and this is told."""

    def is_told(why):
        culprit = why.culprit
        is_culprit = culprit is not None and culprit.address == "probes:3" and operation in culprit.operation
        return is_culprit and told in str(why)

    return str(seen(cluster.why, is_told))


def test_gloo_reduces_across_two_nodes_and_a_rank_that_is_lost_to_it_is_named(ray_cluster, collectives):
    first = collectives[:3].all_reduce()
    told = asked(ray_cluster, "idle")
    last = collectives[3].all_reduce()
    assert [*first.wait(60), *last.wait(60)] == [
        (6.0, 0, 4, 0),
        (6.0, 1, 4, 0),
        (6.0, 2, 4, 1),
        (6.0, 3, 4, 1),
    ]
    waiting = "probes:0, probes:1 and probes:2 wait in torch.distributed.all_reduce()"
    assert f"{waiting}: probes:3 is not in a collective" in told


def test_a_rank_that_does_not_come_to_a_barrier_is_named(ray_cluster, collectives, tmp_path):
    os.mkfifo(gate := tmp_path / "gate")
    result = collectives.meet_at_a_barrier(str(gate))
    asked(ray_cluster, "ray_workers.py", "torch.distributed.barrier(): probes:3 is not in a collective")
    gate.write_bytes(b".")
    result.wait(60)


def test_a_tensor_is_received_in_place(probes):
    sent = probes[0].send_tensor_to("probes", 3)
    # Both import torch first, which takes long on a busy machine.
    (tensor,) = probes[3].recv_tensor_from("probes", 0).wait(150)
    sent.wait(60)
    assert tensor.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_an_init_that_fails_raises_with_its_traceback_and_leaves_nothing(ray_cluster):
    strategy = PackedPlacementStrategy(0, 1)
    with pytest.raises(LaunchError, match="the checkpoint is not there") as caught:
        Broken.create_group(1).launch(ray_cluster, placement_strategy=strategy, name="broken")
    assert "rank 1 failed in __init__" in str(caught.value)
    again = Broken.create_group(7).launch(ray_cluster, placement_strategy=strategy, name="broken")
    again.terminate()


def test_a_killed_rank_ends_pending_and_later_calls(ray_cluster):
    strategy = PackedPlacementStrategy(0, 1)
    group = Probe.create_group().launch(ray_cluster, placement_strategy=strategy, name="mortal")
    pending = group.die(1)
    with pytest.raises(WorkerDied, match="rank 1 of 'mortal' died"):
        pending.wait(60)
    with pytest.raises(WorkerDied, match="rank 1 of 'mortal'"):
        group.add(1).wait(60)
    group.terminate()


def test_two_groups_cannot_have_one_name(ray_cluster, probes):
    with pytest.raises(LaunchError, match="'probes'"):
        Probe.create_group().launch(
            ray_cluster, placement_strategy=PackedPlacementStrategy(0, 0), name="probes"
        )


def test_a_failure_that_nobody_waits_for_is_logged(probes, caplog, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.worker.group_calls.UNREAD_GRACE_S", 0.05)
    unread = probes.fail_on(2)
    wait_until(lambda: any("no such thing on rank 2" in each for each in caplog.messages))
    assert "of 4 ranks have answered" in repr(unread)
    probes.fail_on(1)  # whose result is dropped at once
    wait_until(lambda: any("no such thing on rank 1" in each for each in caplog.messages))
