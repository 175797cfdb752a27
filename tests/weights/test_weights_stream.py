"""Streams of whole tensors: what comes, from which version, in how much memory, and what is given back when."""

import gc
import threading
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
import torch

import weights_peers
from rlinf_scheduler.errors import WeightsError
from rlinf_scheduler.weights.held import Slice
from weights_job import DEADLINE_S, VERSION_BYTES, answer_of, wait_until
from weights_peers import numbers_in, state

SHAPE = (64, 32)
# Less than a tensor, some of those of `state`, and all.
BUCKETS = [1, 500_000, 64 << 20]


def columns(rank, dtype=np.float32):
    """Half of the columns of a tensor, and some that each rank has whole."""
    whole = np.arange(64 * 32, dtype=dtype).reshape(SHAPE)
    return {
        "model.w": Slice(whole[:, rank * 16 : rank * 16 + 16].copy(), (0, rank * 16), SHAPE),
        "model.scale": np.float64([7.0]).reshape(()),
        "model.none": np.zeros((0, 4), np.int8),
        "model.bias": torch.arange(5, dtype=torch.bfloat16),
        "model.flag": torch.tensor([True, False]),
    }


@pytest.mark.parametrize("machine", ["here", "there"])
@pytest.mark.parametrize("bucket_bytes", BUCKETS)
def test_tensors_come_whole_as_they_were_published_and_in_that_order(job, machine, bucket_bytes):
    actors, reader = [job.rank(rank, 2) for rank in range(2)], job.member("rollout:0", machine)
    for rank, actor in enumerate(actors):
        actor.publish("policy", columns(rank), 3)
    stream = reader.stream("policy", bucket_bytes=bucket_bytes, timeout_s=DEADLINE_S)
    assert stream.version == 3
    assert reader.read["policy"].bytes_by_way().keys() == {"node" if machine == "here" else "network"}
    got = dict(stream)
    assert list(got) == list(columns(0))
    assert np.array_equal(got["model.w"], np.arange(64 * 32, dtype=np.float32).reshape(SHAPE))
    for key in ("model.scale", "model.none"):
        assert got[key].dtype == columns(0)[key].dtype
        assert np.array_equal(got[key], columns(0)[key])
    for key in ("model.bias", "model.flag"):
        assert torch.equal(got[key], columns(0)[key])


def test_some_keys_are_asked_for(job):
    actor, reader = job.rank(0, 1), job.member("rollout:0")
    actor.publish("policy", state(4), 4)
    stream = reader.stream("policy", keys=["layer.7", "*.2"], timeout_s=DEADLINE_S)
    assert [(key, float(each[0])) for key, each in stream] == [("layer.2", 4), ("layer.7", 4)]
    with pytest.raises(WeightsError, match=r"no key of version 4 is 'layer.77', of keys=; did you mean"):
        reader.stream("policy", keys="layer.77", timeout_s=DEADLINE_S)


@pytest.mark.parametrize("machine", ["here", "there"])
def test_all_are_of_one_version_whatever_is_published_or_dies_meanwhile(job, machine):
    process, pipe, endpoint = job.start(weights_peers.publish_on_demand, "actor:0")
    reader, gone = job.member("rollout:0", machine), threading.Event()
    job.messengers["rollout:0"].on_peer_lost(lambda lost: gone.set() if lost == endpoint.process_id else None)
    pipe.send(1)
    answer_of(pipe)
    stream = reader.stream("policy", bucket_bytes=1, timeout_s=DEADLINE_S)
    got = dict([next(stream)])
    for version in (2, 3, 4):
        pipe.send(version)
        answer_of(pipe)
    assert next(reader.stream("policy", min_version=4, timeout_s=DEADLINE_S))[1][0] == 4
    got.update([next(stream)])
    process.kill()
    assert gone.wait(DEADLINE_S)
    got.update(stream)
    assert len(got) == len(state(1))
    assert numbers_in(got) == {1}


def test_what_is_kept_of_a_bucket_stays_as_it_is_and_may_be_written_to(job):
    actor, reader = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", {f"layer.{number}": np.full(1000, number) for number in range(40)}, 1)
    kept = []
    for number, (_, array) in enumerate(reader.stream("policy", bucket_bytes=20_000, timeout_s=DEADLINE_S)):
        assert (array == number).all()
        if number % 3 == 0:
            kept.append(array[10:])  # a view of it is enough
            array += 100
    del array
    assert [set(each) for each in kept] == [{number + 100} for number in range(0, 40, 3)]
    assert {float(each[0]) for _, each in reader.stream("policy", keys="layer.3", timeout_s=DEADLINE_S)} == {
        3
    }


def test_a_stream_has_two_buckets_at_a_time(job):
    actor, reader = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(1, num_tensors=40, elements=250_000), 1)
    stream = reader.stream("policy", bucket_bytes=2_000_000, timeout_s=DEADLINE_S)
    gc.collect()
    tracemalloc.start()
    try:
        places = {array.ctypes.data for _, array in stream}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(places) == 4, "two buckets of two tensors each, over and over"
    assert peak < 4_500_000


def leave(stream):
    for _ in stream:
        break


def fail(stream):
    with suppress(KeyboardInterrupt):
        for _ in stream:
            raise KeyboardInterrupt


@pytest.mark.parametrize("end", [leave, fail, list, lambda stream: None, lambda stream: stream.close()])
@pytest.mark.parametrize("is_kept", [False, True])
def test_whoever_leaves_a_stream_gives_the_version_back(job, end, is_kept):
    actor, reader = job.member("actor:0"), job.member("rollout:0")
    for version in range(12):
        actor.publish("policy", state(version), version)
        stream = reader.stream("policy", timeout_s=DEADLINE_S)
        end(stream)
        if is_kept:
            stream.close()
        else:
            del stream
    assert job.arena("actor:0").touched_bytes < 4 * VERSION_BYTES
    wait_until(lambda: job.arena("actor:0").num_held == 1, job.messengers["actor:0"])


def test_a_stream_whose_wait_was_in_vain_says_what_it_waited_for(job):
    actor, reader = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(1), 1)
    with pytest.raises(WeightsError, match="version 0 is over"):
        reader.stream("policy", version=0, timeout_s=DEADLINE_S)
    with pytest.raises(TypeError):
        reader.stream("policy", bucket_bytes="64 MiB")
