"""A job's status, made of what its processes said now and the time before."""

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import tries
from rlinf_scheduler.observe.process_stats import (
    DeviceMemory,
    GoneProcess,
    ProcessStats,
    PublishedVersion,
    Silent,
)
from rlinf_scheduler.observe.status import JobStatus
from rlinf_scheduler.observe.summing_up import JobFacts, JobStats, LostRank, status_of
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.queueing.stats import ChannelStats, ChannelUser

NODES = Topology.parse("2x2").nodes


def stats(process="actor:0", clock_s=10.0, **more):
    return ProcessStats(process, 100, "host", clock_s, takes_calls=process != "driver", **more)


def look(*every, at_s=1000.0, **more):
    return JobStats(at_s, {each.process: each for each in every}, **more)


def rank_of(status, address):
    (rank,) = (rank for rank in status.ranks if rank.address == address)
    return rank


def test_a_rank_is_idle_runs_waits_or_starts():
    every = look(
        stats("a:0"),
        stats("a:1", method="train", method_since_s=3.0),
        stats("a:2", method="train", wait="get('c')", wait_since_s=1.0),
        stats("a:3", is_starting=True),
    )
    states = [rank.state for rank in status_of(every, None, JobFacts()).ranks]
    assert states == ["idle", "running", "waiting", "starting"]


def test_processor_time_becomes_a_part_of_one_core():
    before, now = stats(clock_s=10.0, cpu_s=3.0), stats(clock_s=12.0, cpu_s=6.0)
    assert rank_of(status_of(look(now), look(before), JobFacts()), "actor:0").cpu_percent == 150.0
    assert rank_of(status_of(look(now), None, JobFacts()), "actor:0").cpu_percent == 0.0


def test_another_process_in_a_ranks_place_has_no_rate_yet():
    before = msgspec.structs.replace(stats(clock_s=10.0, cpu_s=30.0), pid=99)
    now = stats(clock_s=12.0, cpu_s=60.0)
    assert rank_of(status_of(look(now), look(before), JobFacts()), "actor:0").cpu_percent == 0.0


def holder(clock_s, putters=(), **channel):
    users = tuple(ChannelUser(name, num_put=number) for name, number in dict(putters).items())
    counted = ChannelStats(name="c", users=users, **channel)
    return stats("Channels:0", clock_s, kind="channels", channels=(counted,))


def test_a_channels_rates_are_of_the_time_between_two_looks():
    before = holder(10.0, num_puts=100, num_delivered=50, bytes_in=1000, putters={"r:0": 60, "r:1": 40})
    now = holder(
        12.0, num_puts=120, num_delivered=51, bytes_in=5000, putters={"r:0": 70, "r:2": 10}, num_items=69
    )
    (channel,) = status_of(look(now), look(before), JobFacts()).channels
    assert (channel.puts_per_s, channel.gets_per_s, channel.bytes_per_s) == (10.0, 0.5, 2000.0)
    assert channel.putters == {"r:0": 5.0, "r:2": 5.0}
    assert (channel.depth, channel.num_put, channel.held_by) == (69, 120, "Channels:0")


def test_a_process_whose_channels_carry_items_is_running():
    before, now = holder(10.0, num_puts=100, num_delivered=50), holder(12.0, num_puts=120, num_delivered=52)
    rank = rank_of(status_of(look(now), look(before), JobFacts()), "Channels:0")
    assert (rank.state, rank.items_per_s) == ("running", 11.0)
    rank = rank_of(
        status_of(look(before), look(holder(8.0, num_puts=100, num_delivered=50)), JobFacts()), "Channels:0"
    )
    assert (rank.state, rank.items_per_s) == ("idle", 0.0)


def test_a_channel_that_was_not_there_before_has_no_rate():
    before = stats("Channels:0", 10.0)
    (channel,) = status_of(
        look(holder(12.0, num_puts=9, putters={"r:0": 9})), look(before), JobFacts()
    ).channels
    assert (channel.puts_per_s, channel.putters) == (0.0, {"r:0": 0.0})


@settings(max_examples=tries(20))
@given(then=st.integers(0, 1 << 40), now=st.integers(0, 1 << 40), span_s=st.floats(0, 1e6))
def test_no_rate_is_negative_or_without_bound(then, now, span_s):
    first, second = holder(5.0, num_puts=then), holder(5.0 + span_s, num_puts=now)
    (channel,) = status_of(look(second), look(first), JobFacts()).channels
    assert channel.puts_per_s >= 0
    assert channel.puts_per_s == 0 or channel.puts_per_s * ((5.0 + span_s) - 5.0) <= 1.001 * now


def test_a_process_that_does_not_answer_is_unresponsive_since_it_answered_last():
    silent = look(silent=(Silent("a:1", 7, "stopped", "its process is stopped", 3.0),))
    known = stats("a:1", node_rank=1, devices=(0,), method="train", num_restarts=2)
    rank = rank_of(status_of(silent, None, JobFacts(earlier={"a:1": (known, 980.0)})), "a:1")
    assert (rank.state, rank.silent_s, rank.detail) == ("unresponsive", 20.0, "its process is stopped")
    assert (rank.node_rank, rank.devices, rank.method, rank.restarts) == (1, (0,), "train", 2)
    rank = rank_of(status_of(silent, None, JobFacts()), "a:1")
    assert (rank.state, rank.silent_s) == ("unresponsive", 3.0)


def test_a_rank_that_was_lost_is_told_of_once_until_another_process_has_its_place():
    facts = JobFacts(lost={"a:1": LostRank("killed by signal 9", 990.0)})
    gone = look(silent=(Silent("a:1", 7, "gone"),), gone=(GoneProcess("a:1", "its connection ended", 10.0),))
    status = status_of(gone, None, facts)
    assert (rank_of(status, "a:1").state, rank_of(status, "a:1").silent_s) == ("lost", 10.0)
    assert status.gone[0].reason == "its connection ended"
    assert rank_of(status_of(look(stats("a:1")), None, facts), "a:1").state == "idle"


def test_groups_come_with_the_driver_first_and_ranks_in_their_order():
    every = look(
        holder(1.0),
        *(stats(f"rollout:{rank}") for rank in (10, 2, 0)),
        stats("actor:0"),
        stats("driver", kind="driver"),
    )
    groups = status_of(every, None, JobFacts()).groups
    assert [group.name for group in groups] == ["driver", "actor", "rollout", "Channels"]
    assert [rank.rank for rank in groups[2].ranks] == [0, 2, 10]


def test_devices_know_who_sees_them_and_how_full_they_are():
    memory = (DeviceMemory(1, 10, 30, 80),)
    facts = JobFacts(nodes=NODES, ailing_nodes={1: ("lost", "its raylet ended")})
    every = look(
        stats("a:0", node_rank=0, devices=(0, 1), device_memory=memory),
        stats("b:0", node_rank=0, devices=(1,)),
    )
    status = status_of(every, None, facts)
    first, second = status.nodes[0].devices
    assert (first.holders, first.memory_used_bytes) == (("a:0",), None)
    assert (second.holders, second.memory_used_bytes, second.memory_total_bytes) == (("a:0", "b:0"), 30, 80)
    assert (status.nodes[1].state, status.nodes[1].detail) == ("lost", "its raylet ended")
    assert rank_of(status, "a:0").device_memory_bytes == 10
    assert rank_of(status, "b:0").device_memory_bytes is None


def test_weights_say_who_is_how_far_behind():
    every = look(
        stats("actor:0", weights=(PublishedVersion("policy", 8, 1 << 20, {"delta": 2, "why": 1}, 10),)),
        stats("actor:1", weights=(PublishedVersion("policy", 8, 1 << 20, {"delta": 1}, 5),)),
        stats("r:0", fetched={"policy": 8}, read_bytes={"policy": {"node": 5}}),
        stats("r:1", fetched={"policy": 5, "old": 2}, read_bytes={"policy": {"network": 2, "node": 1}}),
    )
    old, policy = status_of(every, None, JobFacts()).weights
    assert (policy.version, policy.publisher, policy.lag, policy.bytes) == (8, "actor:1", 3, 1 << 20)
    assert (policy.copies, policy.delta_bytes) == ({"delta": 3, "why": 1}, 15)
    assert policy.readers == {"r:0": 8, "r:1": 5}
    assert policy.read_bytes == {"node": 6, "network": 2}
    assert (old.publisher, old.version, old.lag) == ("", 2, 0)


def test_it_travels_and_becomes_plain_data():
    every = look(
        holder(2.0, num_items=1), stats("driver", kind="driver"), silent=(Silent("a:1", 7, "stopped"),)
    )
    status = status_of(every, look(holder(1.0)), JobFacts(nodes=NODES))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(status), type=JobStatus) == status
    data = json.loads(json.dumps(status.to_dict()))
    assert data["groups"][0]["ranks"][0]["address"] == "driver"
    assert data["channels"][0]["depth"] == 1
