"""Weights between processes of one real device: bit by bit, without growth, and whoever is killed.

`KILLS=100 pytest -m gpu tests/gpu/test_gpu_weights.py` kills so many readers, and so many publishers.
"""

import gc
import logging
import os
import random
import time

import pytest
import torch

import gpu_peers
from device_peers import idle_bytes
from gpu_peers import digest_of, on_device
from rlinf_scheduler.devices.cuda_driver import cuda_driver
from rlinf_scheduler.errors import CommError
from rlinf_scheduler.hardware.vendors import find_devices
from weights_job import DEADLINE_S, answer_of, wait_until
from weights_peers import fetch_on_demand

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
MIB = 1 << 20
BUCKET_BYTES = 64 * MIB
KILLS = int(os.environ.get("KILLS", "5"))
# What a process that has just been killed still has of the device is given back within this time.
SLACK_BYTES = 32 * MIB


def free_bytes():
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(0)[0]


def fetched(reader, into, **options):
    return reader.fetch("policy", into, timeout_s=DEADLINE_S, **options).wait()


def member(job, name, machine="here"):
    return job.member(name, machine, device=cuda_driver())


def taken_bytes(weights):
    return sum(pool.size_bytes for pool in weights._devices._staging._pools.values())


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True"])
def test_processes_with_other_masks_and_allocators_get_the_same_bits(job, allocator):
    uuid = find_devices("NVIDIA")[0].uuid
    options = {"PYTORCH_ALLOC_CONF": allocator} if allocator else {}
    by_index = {"CUDA_VISIBLE_DEVICES": "0", **options}
    by_uuid = {"CUDA_VISIBLE_DEVICES": uuid, **options}
    _, actor, _ = job.start(gpu_peers.publish_on_demand, "actor:0", by_index)
    _, rollout, _ = job.start(fetch_on_demand, "rollout:0", gpu_peers.reader, by_uuid)
    for version in range(1, 6):
        actor.send(version)
        digest, staged, _ = answer_of(actor)
        assert staged, "on the device"
        rollout.send({"min_version": version, "timeout_s": DEADLINE_S})
        assert answer_of(rollout) == (version, digest, min(version, 2))


def test_readers_on_the_device_and_in_host_memory_get_the_same_version(job):
    actor, beside = member(job, "actor:0"), member(job, "rollout:0", "there")
    _, rollout, _ = job.start(fetch_on_demand, "rollout:1", gpu_peers.reader, {})
    own, other, host = on_device(-1), on_device(-1), {key: each.cpu() for key, each in on_device(-1).items()}
    for version in range(3):
        actor.publish("policy", given := on_device(version), version)
        rollout.send({"min_version": version, "timeout_s": DEADLINE_S})
        assert fetched(actor, own) == fetched(beside, other) == fetched(actor, host) == version
        assert answer_of(rollout)[:2] == (version, digest_of(given))
        assert digest_of(own) == digest_of(other) == digest_of(host) == digest_of(given)


def test_a_thousand_versions_take_no_more_memory_than_ten(job):
    actor = member(job, "actor:0")
    _, rollout, _ = job.start(fetch_on_demand, "rollout:0", gpu_peers.reader, {})
    before = 0
    for version in range(1000):
        actor.publish("policy", on_device(version % 128), version)
        rollout.send({"min_version": version, "timeout_s": DEADLINE_S, "digest": version == 999})
        told = answer_of(rollout)
        assert told[0] == version
        if version == 10:
            before = free_bytes()
    assert told[1] == digest_of(on_device(999 % 128))
    assert taken_bytes(actor) <= 3 * BUCKET_BYTES
    assert free_bytes() >= before - SLACK_BYTES


def test_what_killed_readers_had_comes_back(job):
    actor = member(job, "actor:0")
    actor.publish("policy", on_device(0), 0)
    before = 0
    for kill in range(KILLS):
        process, _, _ = job.start(gpu_peers.fetch_without_end, f"rollout:{kill}")
        for version in range(10 * kill + 1, 10 * kill + 10):
            actor.publish("policy", on_device(version % 128), version)
        time.sleep(random.random() * 0.05)  # the moment is to be any
        process.kill()
        process.join(DEADLINE_S)
        before = before or free_bytes()
    wait_until(lambda: idle_bytes(actor) == taken_bytes(actor) - BUCKET_BYTES, job.messengers["actor:0"])
    assert taken_bytes(actor) <= 3 * BUCKET_BYTES
    wait_until(lambda: free_bytes() >= before - SLACK_BYTES, job.messengers["actor:0"])
    assert fetched(actor, into := on_device(-1)) == 10 * KILLS - 1
    assert digest_of(into) == digest_of(on_device((10 * KILLS - 1) % 128))


def test_what_killed_publishers_had_is_given_back_once_it_is_read(job):
    reader = member(job, "rollout:0")
    into, before = on_device(-1), 0
    for kill in range(KILLS):
        process, _, _ = job.start(gpu_peers.publish_without_end, f"actor:{kill}")
        fetched(reader, into)
        kept = reader.fetch("policy", into, timeout_s=DEADLINE_S)
        assert kept.settled.exception(DEADLINE_S) is None
        time.sleep(random.random() * 0.05)  # the moment is to be any
        process.kill()
        process.join(DEADLINE_S)
        version = kept.wait()
        assert digest_of(into) == digest_of(on_device(version % 128)), "whole, though who filled it is dead"
        del kept
        with pytest.raises(CommError):
            reader.fetch("policy", into, min_version=1 << 40, timeout_s=1).wait()
        wait_until(lambda: not len(reader._devices._imports), job.messengers["rollout:0"])
        before = before or free_bytes()
    wait_until(lambda: free_bytes() >= before - SLACK_BYTES, job.messengers["rollout:0"])


def test_a_reader_that_keeps_versions_for_ever_sends_the_next_ones_to_host_memory(job, caplog, monkeypatch):
    monkeypatch.setenv("RLINF_DEVICE_POOL_MIB", "128")
    actor, kept = member(job, "actor:0"), []
    with caplog.at_level(logging.WARNING):
        for version in range(4):
            actor.publish("policy", on_device(version), version)
            kept.append(actor.fetch("policy", on_device(-1), timeout_s=DEADLINE_S))
            assert kept[-1].settled.exception(DEADLINE_S) is None
    told = [record.getMessage() for record in caplog.records if "host memory" in record.getMessage()]
    assert len(told) == 1
    assert "all take 128 of 128 MiB" in told[0]
    assert [handle.wait() for handle in kept] == [0, 1, 2, 3]
