"""Jobs as data: what views and metrics of a job are tried on."""

from dataclasses import replace

from rlinf_scheduler.observe.status import (
    ChannelStatus,
    DeviceStatus,
    EventRecord,
    GroupStatus,
    JobStatus,
    NodeStatus,
    RankStatus,
    WaitingOperation,
    WeightsStatus,
)


def whole_job():
    """A job that has a sample for each metric."""
    rank = RankStatus("actor:0", 0, 0, 7, "host", (0,), "running", cpu_s=12.5, rss_bytes=1 << 30)
    lost = RankStatus("actor:1", 1, state="lost", detail="killed")
    rank_with_device = RankStatus(
        "actor:2", 2, device_memory_bytes=3 << 30, wait='get("a\\b\n")', wait_since_s=2.0
    )
    device = DeviceStatus(0, "NVIDIA H200", "GPU-1", ("actor:0",), 1 << 30, 140 << 30)
    return JobStatus(
        1.0,
        "train",
        7,
        nodes=(NodeStatus(0, "a", "10.0.0.1", devices=(device,)), NodeStatus(1, "b", "10.0.0.2", "lost")),
        groups=(GroupStatus("actor", (rank, lost, rank_with_device)),),
        channels=(
            ChannelStatus('odd "name"\n\\', "Channels:0", depth=4, num_put=9, num_got=5, bytes_put=90),
        ),
        weights=(
            WeightsStatus(
                "policy", 8, "actor:0", 1 << 20, {"actor:1": 7}, 1, {"node": 1 << 20}, {"delta": 3}, 7
            ),
        ),
        event_counts={"WorkerLost": 1},
    )


def group_of(name, num_ranks, **more):
    ranks = (
        RankStatus(f"{name}:{number}", number, number // 8, 100 + number, "host", (number % 8,), **more)
        for number in range(num_ranks)
    )
    return GroupStatus(name, tuple(ranks))


def with_rank(group, number, **more):
    ranks = list(group.ranks)
    ranks[number] = replace(ranks[number], **more)
    return replace(group, ranks=tuple(ranks))


def large_job():
    """512 ranks, of which one is stopped."""
    driver = GroupStatus(
        "driver", (RankStatus("driver", 0, state="waiting", wait="actor.train()"),), "driver"
    )
    names = ("actor", "critic", "env", "judge", "ref", "reward", "rollout", "tools")
    groups = [group_of(name, 64, state="running", method="step", cpu_percent=90.0) for name in names]
    groups[0] = with_rank(groups[0], 37, state="unresponsive", detail="its process is stopped", silent_s=12.0)
    waiting = WaitingOperation("actor:0", "'default'", "get_batch of weight 4096", 41.0)
    channels = [
        ChannelStatus(f"channel-{number}", "Channels:0", puts_per_s=float(number)) for number in range(30)
    ]
    channels.append(ChannelStatus("stuck", "Channels:0", depth=3900, waiting=(waiting,)))
    weights = WeightsStatus("policy", 812, "actor:0", 14 << 30, {"rollout:0": 810}, 2)
    events = [EventRecord(1e9 + number, "GroupLaunched", f"event {number}") for number in range(200)]
    nodes = tuple(NodeStatus(rank, f"node{rank}", "10.0.0.1") for rank in range(64))
    return JobStatus(
        1e9,
        "python train.py",
        4711,
        "driver",
        0.01,
        nodes,
        (driver, *groups),
        tuple(channels),
        (weights,),
        tuple(events),
    )
