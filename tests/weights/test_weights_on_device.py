"""Weights between ranks of one device, on pretend devices whose memory really is shared between processes."""

import gc
import logging
import os
import sys
import threading

import numpy as np
import pytest
import torch

import device_peers
from device_peers import DEVICE, idle_bytes, tensors, values_in
from rlinf.testing.device_memory import PretendDevice
from rlinf_scheduler.devices import Devices, barred, devices
from rlinf_scheduler.errors import (
    CommError,
    CommTimeout,
    ConfigError,
    PeerDied,
    PeerNotFound,
    WeightsMismatch,
)
from rlinf_scheduler.weights.held import Slice
from weights_job import DEADLINE_S, answer_of, wait_until
from weights_peers import fetch_on_demand

MIB = 1 << 20
BUCKET_BYTES = 4 * MIB  # of `tensors`


def newest(actor):
    """What an actor has of its newest version."""
    return actor._versions._versions["policy"][actor._versions.version("policy")]


def through_host_memory(caplog):
    """What was said of that; other threads of this process may say other things."""
    return [record.getMessage() for record in caplog.records if "host memory" in record.getMessage()]


def fetched(reader, into, **options):
    return reader.fetch("policy", into, timeout_s=DEADLINE_S, **options).wait()


# -- what a reader gets ---------------------------------------------------------------------------


def test_ranks_of_one_device_get_versions_there_and_open_their_memory_once(job):
    one, other = PretendDevice(DEVICE), PretendDevice(DEVICE)
    actor, rollout = job.member("actor:0", device=one), job.member("rollout:0", device=other)
    into = tensors(-1)
    for version in range(10):
        actor.publish("policy", tensors(version), version)
        assert fetched(rollout, into) == version
        assert values_in(into) == {version}
    assert one.used_bytes == 2 * BUCKET_BYTES  # the newest version, and the one that replaces it
    assert other.num_opened == other.num_open == 2
    assert job.arena("actor:0").touched_bytes < MIB, "no weights in host memory"


@pytest.mark.parametrize(("device", "machine"), [("GPU-two", "here"), (None, "here"), (DEVICE, "there")])
def test_who_has_not_that_device_gets_them_through_host_memory(job, device, machine):
    actor = job.member("actor:0", device=PretendDevice(DEVICE))
    beside = job.member("rollout:0", device=PretendDevice(DEVICE))
    own = None if device is None else PretendDevice(device)
    elsewhere = job.member("rollout:1", machine, device=own)
    into, too = tensors(-1), tensors(-1)
    for version in range(3):
        actor.publish("policy", tensors(version), version)
        assert (fetched(elsewhere, into), fetched(beside, too)) == (version, version)
        assert values_in(into) == values_in(too) == {version}
    assert own is None or own.num_opened == 0


def test_shards_of_ranks_of_one_device_are_put_together_there_and_elsewhere(job):
    whole = torch.arange(512 * 256.0).reshape(512, 256)
    actors = [job.rank(rank, 2, device=PretendDevice(DEVICE)) for rank in range(2)]
    own = PretendDevice(DEVICE)
    readers = [job.member("rollout:0", device=own), job.member("rollout:1")]
    for rank, actor in enumerate(actors):
        shard = Slice(whole[256 * rank :][:256].clone(), (256 * rank, 0), whole.shape)
        actor.publish("policy", {"w": shard}, 1)
    for reader in readers:
        for place in (torch.zeros(512, 100), torch.zeros(512, 100, dtype=torch.bfloat16)):
            assert fetched(reader, {"w": Slice(place, (0, 50), whole.shape)}) == 1
            assert torch.equal(place, whole[:, 50:150].to(place.dtype))
    assert own.num_opened == 2


def test_readers_that_wait_are_answered_wherever_their_tensors_are(job):
    actor = job.member("actor:0", device=PretendDevice(DEVICE))
    readers = [
        job.member("rollout:0", device=PretendDevice(DEVICE)),
        job.member("rollout:1"),
        job.member("rollout:2", "there"),
    ]
    intos = [tensors(-1) for _ in readers]
    handles = [
        reader.fetch("policy", into, min_version=2, timeout_s=DEADLINE_S)
        for reader, into in zip(readers, intos, strict=True)
    ]
    for version in (1, 2):
        actor.publish("policy", tensors(version), version)
    assert [handle.wait() for handle in handles] == [2, 2, 2]
    assert [values_in(into) for into in intos] == [{2}] * 3


def test_a_process_fetches_there_what_it_publishes_itself(job):
    device = PretendDevice(DEVICE)
    actor, into = job.member("actor:0", device=device), tensors(-1)
    actor.publish("policy", tensors(4), 4)
    assert fetched(actor, into) == 4
    assert values_in(into) == {4}
    assert device.num_opened == 0


DTYPES = sorted(
    {
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype) and not str(value).startswith("torch.q") and value.itemsize <= 16
    },
    key=str,
)


def test_every_dtype_arrives_bit_by_bit(job):
    actor = job.member("actor:0", device=PretendDevice(DEVICE))
    rollout = job.member("rollout:0", device=PretendDevice(DEVICE))
    bits = torch.randint(0, 256, (1 << 16,), dtype=torch.uint8)
    # Other bits of a bool are no bool.
    given = {str(dtype): bits % 2 if dtype == torch.bool else bits for dtype in DTYPES}
    weights = {
        name: data.clone().view(dtype) for (name, data), dtype in zip(given.items(), DTYPES, strict=True)
    }
    into = {
        name: torch.zeros_like(tensor.view(torch.uint8)).view(tensor.dtype)
        for name, tensor in weights.items()
    }
    actor.publish("policy", weights, 1)
    fetched(rollout, into)
    assert len(DTYPES) > 15
    for name, tensor in weights.items():
        assert torch.equal(into[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_strided_tied_empty_and_other_values_arrive_as_what_they_are(job):
    actor = job.member("actor:0", device=PretendDevice(DEVICE))
    rollout = job.member("rollout:0", device=PretendDevice(DEVICE))
    matrix, array = torch.randn(300, 200), np.arange(10.0)
    tied = torch.randn(5000)
    weights = {
        "t": matrix.t(), "a": tied, "b": tied, "none": torch.empty(0, 3), "array": array, "as": matrix,
        "into array": tied, "scalar": torch.tensor(3.0),
    }  # fmt: skip
    into = {
        "t": torch.zeros(200, 300), "a": torch.zeros(5000), "b": torch.zeros(10_000)[::2],
        "none": torch.empty(0, 3), "array": np.zeros(10), "as": torch.zeros(300, 200, dtype=torch.bfloat16),
        "into array": np.zeros(5000, np.float64), "scalar": torch.tensor(0.0),
    }  # fmt: skip
    actor.publish("policy", weights, 1)
    fetched(rollout, into)
    assert torch.equal(into["t"], matrix.t())
    assert torch.equal(into["a"], tied)
    assert torch.equal(into["b"], tied)
    assert np.array_equal(into["array"], array)
    assert torch.equal(into["as"], matrix.to(torch.bfloat16))
    assert np.array_equal(into["into array"], tied.double().numpy())
    assert into["scalar"] == 3


def test_a_module_is_filled_in_inference_mode_too(job):
    actor = job.member("actor:0", device=PretendDevice(DEVICE))
    rollout = job.member("rollout:0", device=PretendDevice(DEVICE))
    one = torch.nn.Linear(200, 100)
    with torch.inference_mode():
        other = torch.nn.Linear(200, 100)
    actor.publish("policy", one.state_dict(), 3)
    with torch.inference_mode():
        assert fetched(rollout, other) == 3
    assert torch.equal(other.weight, one.weight)


def test_what_does_not_fit_is_written_nowhere(job):
    actor = job.member("actor:0", device=PretendDevice(DEVICE))
    rollout = job.member("rollout:0", device=PretendDevice(DEVICE))
    actor.publish("policy", tensors(1), 1)
    into = {**tensors(-1), "layer.9": torch.zeros(3)}
    with pytest.raises(WeightsMismatch, match=r"not published: layer\.9"):
        fetched(rollout, into)
    assert values_in(into) == {-1, 0}


@pytest.mark.interrupted
def test_an_interrupted_fetch_leaves_no_half_version(job, alarms):
    actor = job.member("actor:0", device=PretendDevice(DEVICE))
    rollout = job.member("rollout:0", device=PretendDevice(DEVICE))
    alarm, into = alarms(1, max_delay_s=0.002), tensors(-1)
    for version in range(100):
        actor.publish("policy", tensors(version), version)
        handle = rollout.fetch("policy", into, timeout_s=DEADLINE_S)
        if not alarm.interrupt(handle.wait):
            settle_copies(rollout)
            assert len(values_in(into)) == 1
        assert handle.wait() == version
        assert values_in(into) == {version}
        del handle
    assert alarm.num_raised > 5


def settle_copies(weights):
    """Return when what was asked of the device is done."""
    weights._devices._thread.ask(lambda: None).result(DEADLINE_S)


@pytest.mark.interrupted
def test_an_interrupted_publication_is_a_version_or_none_and_leaves_no_bucket_behind(
    job, alarms, monkeypatch
):
    # What is raised where Python drops it is kept until the test ends, with all that its frames refer to.
    monkeypatch.setattr(sys, "unraisablehook", lambda _raised: None)
    device = PretendDevice(DEVICE)
    actor, into = job.member("actor:0", device=device), tensors(-1)
    actor.publish("policy", tensors(0), 0)
    alarm, newest = alarms(2, max_delay_s=0.002), 0
    for version in range(1, 60):
        weights = tensors(version)
        if alarm.interrupt(lambda: actor.publish("policy", weights, version)):  # noqa: B023 - called at once
            newest = version
        got = fetched(actor, into)
        assert newest <= got <= version
        assert values_in(into) == {got}
        newest = got
    assert alarm.num_raised > 5
    wait_until(lambda: idle_bytes(actor) == device.used_bytes - BUCKET_BYTES, job.messengers["actor:0"])


# -- room -----------------------------------------------------------------------------------------


def test_a_reader_that_keeps_a_version_sends_what_comes_to_host_memory_until_it_lets_go(job, caplog):
    device = PretendDevice(DEVICE, total_bytes=8 * BUCKET_BYTES)  # of which a quarter is for buckets
    actor, rollout = (
        job.member("actor:0", device=device),
        job.member("rollout:0", device=PretendDevice(DEVICE)),
    )
    kept = []
    for version in range(2):
        actor.publish("policy", tensors(version), version)
        kept.append(rollout.fetch("policy", tensors(-1), timeout_s=DEADLINE_S))
        assert kept[-1].settled.exception(DEADLINE_S) is None
    into = tensors(-1)
    with caplog.at_level(logging.WARNING):
        for version in (2, 3):
            actor.publish("policy", tensors(version), version)
            assert fetched(rollout, into) == version
    assert values_in(into) == {3}
    told = through_host_memory(caplog)
    assert len(told) == 1
    assert f"no room for 4 MiB on {DEVICE}: 2 buckets are in use, all take 8 of 8 MiB" in told[0]
    assert str(os.getpid()) in told[0], "who has them open"
    assert device.used_bytes == 2 * BUCKET_BYTES
    for version, handle in enumerate(kept):
        assert handle.wait() == version
    del handle, kept[:]
    gc.collect()
    wait_until(lambda: idle_bytes(actor) == 2 * BUCKET_BYTES, job.messengers["rollout:0"])
    actor.publish("policy", tensors(4), 4)
    assert newest(actor).staged is not None
    assert fetched(rollout, into) == 4


def test_buckets_that_are_too_small_are_closed_by_their_readers_and_given_back(job):
    device, other = PretendDevice(DEVICE, total_bytes=12 * BUCKET_BYTES), PretendDevice(DEVICE)
    actor, rollout = job.member("actor:0", device=device), job.member("rollout:0", device=other)
    small, large, version = tensors(1), tensors(2, elements=750_000), 0
    for version in range(3):
        actor.publish("policy", small, version)
        fetched(rollout, tensors(-1))
    assert device.used_bytes == 2 * BUCKET_BYTES
    # Version 2 is in one of them, and goes; so does the other, once its reader has closed it.
    actor.publish("policy", large, 3)
    wait_until(lambda: idle_bytes(actor) == device.used_bytes, job.messengers["actor:0"])
    actor.publish("policy", large, 4)
    wait_until(lambda: idle_bytes(actor) == device.used_bytes == 0, job.messengers["actor:0"])
    assert other.num_open == 0
    actor.publish("policy", large, 5)
    assert fetched(rollout, into := tensors(-1, elements=750_000)) == 5
    assert values_in(into) == {2}
    assert (device.used_bytes, other.num_open) == (12 * MIB, 1)


def test_small_weights_and_a_process_without_buckets_go_through_host_memory(job, monkeypatch):
    device = PretendDevice(DEVICE)
    actor = job.member("actor:0", device=device)
    actor.publish("policy", tensors(1, elements=10), 1)
    monkeypatch.setenv("RLINF_DEVICE_POOL_MIB", "0")
    critic = job.member("critic:0", device=device)
    critic.publish("value", tensors(1), 1)
    assert device.used_bytes == 0
    assert fetched(critic, into := tensors(-1, elements=10)) == 1
    assert values_in(into) == {1}


def test_a_limit_that_is_none_is_refused(job, monkeypatch):
    monkeypatch.setenv("RLINF_DEVICE_POOL_MIB", "much")
    with pytest.raises(ConfigError, match="RLINF_DEVICE_POOL_MIB is 'much'"):
        job.member("actor:0", device=PretendDevice(DEVICE))


# -- what goes wrong ------------------------------------------------------------------------------


def test_who_cannot_open_them_gets_bytes_and_one_warning_says_why(job, caplog):
    actor = job.member("actor:0", device=PretendDevice(DEVICE))
    rollout = job.member("rollout:0", device=PretendDevice(DEVICE, opens=False))
    into = tensors(-1)
    with caplog.at_level(logging.WARNING):
        for version in range(3):
            actor.publish("policy", tensors(version), version)
            assert fetched(rollout, into) == version
            assert values_in(into) == {version}
    assert through_host_memory(caplog) == [
        "weights 'policy' of 'actor:0' comes through host memory: this device opens nothing of others"
    ]


def test_nothing_is_kept_of_whom_a_process_could_not_open_once(job, monkeypatch):
    monkeypatch.setattr(barred, "BARRED_S", 0.01)
    actor = job.member("actor:0", device=PretendDevice(DEVICE))
    rollout = job.member("rollout:0", device=PretendDevice(DEVICE, opens=False))
    actor.publish("policy", tensors(1), 1)
    assert fetched(rollout, tensors(-1)) == 1
    wait_until(lambda: not rollout._devices._barred, job.messengers["rollout:0"])


def test_a_device_that_does_nothing_is_waited_for_once(job, monkeypatch):
    actor = job.member("actor:0", device=PretendDevice(DEVICE))
    rollout = job.member("rollout:0", device=PretendDevice(DEVICE))
    actor.publish("policy", tensors(1), 1)
    waits, wait, goes_on = [], Devices._wait, threading.Event()
    handle = rollout.fetch("policy", tensors(-1), timeout_s=DEADLINE_S)
    assert handle.settled.exception(DEADLINE_S) is None
    monkeypatch.setattr(Devices, "_wait", lambda *about: waits.append(about) or wait(*about))
    rollout._devices._thread.put(lambda: goes_on.wait(DEADLINE_S))
    monkeypatch.setattr(devices, "COPY_TIMEOUT_S", 0.01)
    with pytest.raises(CommTimeout, match=f"copy of weights 'policy' with '{DEVICE}' not done after 0.0 s, "):
        handle.wait()
    assert len(waits) == 1
    goes_on.set()


def test_processes_share_them_and_what_killed_ones_had_is_not_lost(job):
    publisher, actor, _ = job.start(device_peers.publish_on_demand, "actor:0")
    reader, rollout, _ = job.start(fetch_on_demand, "rollout:0", device_peers.reader)
    for version in range(1, 5):
        actor.send(version)
        assert answer_of(actor) <= 2 * BUCKET_BYTES
        rollout.send({"min_version": version, "timeout_s": DEADLINE_S})
        assert answer_of(rollout) == (version, {float(version)}, min(version, 2), min(version, 2))
    # Killed in the middle of a copy, the reader gives its bucket back.
    rollout.send({})
    assert answer_of(rollout) == "in the middle"
    reader.kill()
    reader.join(DEADLINE_S)
    actor.send("idle?")
    while answer_of(actor) < BUCKET_BYTES:
        actor.send("idle?")
    # Killed in the middle of a copy, the publisher leaves its readers what they have.
    device = PretendDevice(DEVICE)
    beside, into = job.member("rollout:1", device=device), tensors(-1)
    kept = beside.fetch("policy", into, timeout_s=DEADLINE_S)
    assert kept.settled.exception(DEADLINE_S) is None
    actor.send(-5)
    assert answer_of(actor) == "in the middle"
    publisher.kill()
    publisher.join(DEADLINE_S)
    with pytest.raises((PeerDied, PeerNotFound)):
        beside.fetch("policy", tensors(-1), min_version=5, timeout_s=1).wait()
    assert device.num_open == 1
    assert kept.wait() == 4
    assert values_in(into) == {4}
    del kept
    gc.collect()
    wait_until(lambda: device.num_open == 0, job.messengers["rollout:1"])


def test_who_leaves_gives_its_memory_back(job):
    device, other = PretendDevice(DEVICE), PretendDevice(DEVICE)
    actor, rollout = job.member("actor:0", device=device), job.member("rollout:0", device=other)
    actor.publish("policy", tensors(1), 1)
    fetched(rollout, tensors(-1))
    assert (device.used_bytes, other.num_open) == (BUCKET_BYTES, 1)
    messenger = job.messengers["rollout:0"]
    messenger.close()
    wait_until(lambda: other.num_open == 0, job.messengers["actor:0"])
    with pytest.raises(CommError, match="has left the cluster"):
        rollout.fetch("policy", tensors(-1), timeout_s=1)
    lonely = PretendDevice(DEVICE)
    critic = job.member("critic:0", device=lonely)
    critic.publish("value", tensors(1), 1)
    assert lonely.used_bytes == BUCKET_BYTES
    job.messengers["critic:0"].close()
    wait_until(lambda: lonely.used_bytes == 0, job.messengers["actor:0"])


def test_readers_that_come_and_go_leave_nothing_at_their_publisher(job):
    actor = job.member("actor:0", device=PretendDevice(DEVICE))
    actor.publish("policy", tensors(1), 1)
    bucket = newest(actor).staged._bucket
    for _ in range(3):
        rollout = job.member("rollout:0", device=PretendDevice(DEVICE))
        assert fetched(rollout, tensors(-1)) == 1
        assert len(bucket.readers) == 1
        job.messengers["rollout:0"].close()
        wait_until(lambda: not bucket.readers, job.messengers["actor:0"])


def test_a_publisher_that_was_started_again_is_warned_of_once_and_takes_no_more_memory(job, caplog):
    rollout = job.member("rollout:0", device=PretendDevice(DEVICE, opens=False))
    with caplog.at_level(logging.WARNING):
        for version in range(3):
            actor = job.member("actor:0", device=PretendDevice(DEVICE))
            actor.publish("policy", tensors(version), version)
            assert fetched(rollout, into := tensors(-1), min_version=version) == version
            assert values_in(into) == {version}
            job.messengers["actor:0"].close()
            wait_until(lambda: not rollout._devices._barred, job.messengers["rollout:0"])
            wait_until(lambda: "policy" not in job.index._index.names, job.driver)
    assert through_host_memory(caplog) == [
        "weights 'policy' of 'actor:0' comes through host memory: this device opens nothing of others"
    ]
    assert len(rollout._devices._said) == 1
