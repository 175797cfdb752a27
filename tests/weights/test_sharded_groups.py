"""Weights from ranks that shard them with torch to ranks that shard them otherwise; real processes, over gloo."""

import pytest
import torch
from sharded_workers import ShardedWorker

from forked_job import ForkedJob
from launched import launched
from rlinf.scheduler import PackedPlacementStrategy

DEADLINE_S = 60


@pytest.fixture(scope="module")
def groups():
    """Four ranks that publish, and two on the other node that fetch."""
    job = ForkedJob()
    try:
        with launched(
            job,
            trainer=(ShardedWorker, PackedPlacementStrategy(0, 3)),
            readers=(ShardedWorker, PackedPlacementStrategy(4, 5)),
        ) as both:
            for group in [group.join() for group in both]:
                group.wait(DEADLINE_S)
            yield both
            for group in [group.leave() for group in both]:
                group.wait(DEADLINE_S)
    finally:
        job.close()


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(each, other[key]) for key, each in one.items())


@pytest.mark.parametrize(
    ("how", "mesh", "into", "readers"),
    [
        pytest.param("fsdp", (2,), "plain", (), id="two shards into whole modules"),
        pytest.param("fsdp", (4,), "tp", (2,), id="four uneven shards into tensor parallelism"),
        pytest.param("fsdp", (2, 2), "fsdp", (2,), id="replicas of shards into shards"),
        pytest.param("tp", (2,), "fsdp", (2,), id="tensor parallelism into shards"),
        pytest.param("fsdp+tp", (2, 2), "plain", (), id="shards of tensor parallelism into whole modules"),
        pytest.param("fsdp+tp", (2, 2), "tp", (2,), id="shards of tensor parallelism into less of it"),
        pytest.param("plain", (), "fsdp", (2,), id="whole modules into shards"),
    ],
)
def test_a_model_arrives_as_torch_gathers_it(groups, request, how, mesh, into, readers):
    trainer, fetchers = groups
    name = request.node.callspec.id
    fetching = fetchers.fetch(name, into, readers)
    published = trainer.publish(name, how, mesh).wait(DEADLINE_S)
    assert all(equal(each, published[0]) for each in published[1:] if each is not None)
    assert all(equal(each, published[0]) for each in fetching.wait(DEADLINE_S))


def test_slices_of_a_framework_without_dtensors_arrive(groups):
    trainer, fetchers = groups
    whole = trainer.publish("slices", "fsdp", (4,)).wait(DEADLINE_S)[0]
    for dim in (0, -1):
        parts = fetchers.fetch_slices("slices", dim).wait(DEADLINE_S)
        assert equal({key: torch.cat([each[key] for each in parts], dim) for key in whole}, whole)


@pytest.mark.parametrize(("how", "mesh"), [("fsdp", (4,)), ("fsdp+tp", (2, 2))])
def test_an_engine_of_its_own_loader_gets_a_stream_of_whole_tensors(groups, how, mesh):
    trainer, fetchers = groups
    name = f"streamed {how}"
    streaming = fetchers.stream(name, bucket_bytes=300)
    whole = trainer.publish(name, how, mesh).wait(DEADLINE_S)[0]
    for version, tensors in streaming.wait(DEADLINE_S):
        assert version == 1
        assert [key for key, _ in tensors] == list(whole)
        assert equal(dict(tensors), whole)


def test_the_plan_says_who_has_read_how_much_from_whom(groups):
    trainer, fetchers = groups
    whole = trainer.publish("planned", "fsdp", (4,)).wait(DEADLINE_S)[0]
    fetchers.fetch("planned", "tp", (2,)).wait(DEADLINE_S)
    sources, readers, plan = fetchers.look("planned").wait(DEADLINE_S)[0]
    assert readers == {"readers:0": 1, "readers:1": 1}
    for read in plan.readers.values():
        assert {source for source, _, _ in read.flows} <= set(sources)
        assert {way for _, _, way in read.flows} == {"node"}
    sizes = sum(size for read in plan.readers.values() for _, size, _ in read.flows)
    shared = sum(each.nbytes for key, each in whole.items() if key in ("up.weight", "up.bias", "down.weight"))
    assert sizes == 2 * sum(each.nbytes for each in whole.values()) - shared
    assert "readers:0        1" in str(plan)


def test_shards_become_another_dtype_under_other_names(groups):
    trainer, fetchers = groups
    whole = trainer.publish("converted", "fsdp+tp", (2, 2)).wait(DEADLINE_S)[0]
    for got in fetchers.fetch("converted", "tp", (2,), torch.bfloat16, keys="*.weight").wait(DEADLINE_S):
        assert equal(
            got, {k: each.bfloat16() if "weight" in k else 0 * each.bfloat16() for k, each in whole.items()}
        )


def test_a_mesh_may_change_from_one_version_to_the_next(groups):
    trainer, fetchers = groups
    for version, (how, mesh) in enumerate([("fsdp", (4,)), ("fsdp+tp", (2, 2)), ("fsdp", (2,))], 1):
        whole = trainer.publish("moving", how, mesh, version).wait(DEADLINE_S)[0]
        for got in fetchers.fetch("moving", "fsdp", (2,), min_version=version).wait(DEADLINE_S):
            assert equal(got, whole)
