"""What a job does as families of metrics, by the conventions of Prometheus: base units, bounded labels. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from rlinf_scheduler.addresses import worker_address
from rlinf_scheduler.observe.status import (
    IDLE_RANK,
    LOST,
    RUNNING,
    STARTING,
    UNRESPONSIVE,
    WAITING,
    ChannelStatus,
    JobStatus,
    RankStatus,
    WeightsStatus,
)

GAUGE, COUNTER = "gauge", "counter"
STATES = (RUNNING, IDLE_RANK, WAITING, STARTING, UNRESPONSIVE, LOST)
# The values of a family's labels, and its value.
Sample: TypeAlias = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric, for all that it is measured of.

    Queues are no labels: their names may be used once each.

    Attributes:
        name: as it is exposed; a counter's ends in "_total".
        kind: "gauge" or "counter".
        help: what it is.
        unit: its base unit, which its name has, too; "" for what is counted.
        labels: their names.
        samples: of a job.
    """

    name: str
    kind: str
    help: str
    unit: str
    labels: tuple[str, ...]
    samples: Callable[[JobStatus], Iterable[Sample]]


def _of_job(value: Callable[[JobStatus], float]) -> Callable[[JobStatus], Iterable[Sample]]:
    return lambda status: [((), value(status))]


def _of_ranks(value: Callable[[RankStatus], float | None]) -> Callable[[JobStatus], Iterator[Sample]]:
    def samples(status: JobStatus) -> Iterator[Sample]:
        for group in status.groups:
            for rank in group.ranks:
                number = value(rank)
                if number is not None:
                    address = worker_address(rank.address)
                    # Of a worker below a rank "3/0": no two have the same.
                    yield (group.name, str(rank.rank) if address is None else address.way), number

    return samples


def _of_channels(value: Callable[[ChannelStatus], float]) -> Callable[[JobStatus], Iterator[Sample]]:
    return lambda status: (((each.name,), value(each)) for each in status.channels)


def _of_weights(value: Callable[[WeightsStatus], float]) -> Callable[[JobStatus], Iterator[Sample]]:
    return lambda status: (((each.name,), value(each)) for each in status.weights)


def _group_ranks(status: JobStatus) -> Iterator[Sample]:
    for group in status.groups:
        states = Counter(rank.state for rank in group.ranks if not rank.is_below)
        yield from (((group.name, state), states[state]) for state in STATES)


def _nodes_up(status: JobStatus) -> Iterator[Sample]:
    yield from (((str(node.rank),), float(node.state == "alive")) for node in status.nodes)


def _devices(status: JobStatus, *, is_total: bool) -> Iterator[Sample]:
    for node in status.nodes:
        for device in node.devices:
            size_bytes = device.memory_total_bytes if is_total else device.memory_used_bytes
            if size_bytes is not None:
                yield (str(node.rank), str(device.index)), size_bytes


def _is_there(rank: RankStatus) -> bool:
    return rank.state not in (UNRESPONSIVE, LOST)


def _longest_wait_s(channel: ChannelStatus) -> float:
    return max((each.since_s for each in channel.waiting), default=0.0)


_RANK, _CHANNEL, _WEIGHTS, _DEVICE = ("group", "rank"), ("channel",), ("weights",), ("node", "device")

FAMILIES = (
    MetricFamily(
        "rlinf_look_duration_seconds",
        GAUGE,
        "How long it took to ask all processes of the job.",
        "seconds",
        (),
        _of_job(lambda status: status.took_s),
    ),
    MetricFamily("rlinf_node_up", GAUGE, "1 for a node that is alive, else 0.", "", ("node",), _nodes_up),
    MetricFamily(
        "rlinf_device_memory_used_bytes",
        GAUGE,
        "Memory of an accelerator that is used, by whichever process; of those that a rank has initialised.",
        "bytes",
        _DEVICE,
        lambda status: _devices(status, is_total=False),
    ),
    MetricFamily(
        "rlinf_device_memory_total_bytes",
        GAUGE,
        "Memory of an accelerator; of those that a rank has initialised.",
        "bytes",
        _DEVICE,
        lambda status: _devices(status, is_total=True),
    ),
    MetricFamily(
        "rlinf_group_ranks", GAUGE, "Ranks of a group in each state.", "", ("group", "state"), _group_ranks
    ),
    MetricFamily(
        "rlinf_rank_up",
        GAUGE,
        "1 for a rank that answers, else 0.",
        "",
        _RANK,
        _of_ranks(lambda rank: float(_is_there(rank))),
    ),
    MetricFamily(
        "rlinf_rank_cpu_seconds_total",
        COUNTER,
        "Processor time that a rank's process has used.",
        "seconds",
        _RANK,
        _of_ranks(lambda rank: rank.cpu_s if _is_there(rank) else None),
    ),
    MetricFamily(
        "rlinf_rank_resident_memory_bytes",
        GAUGE,
        "Memory that a rank's process has, shared memory included.",
        "bytes",
        _RANK,
        _of_ranks(lambda rank: rank.rss_bytes if _is_there(rank) else None),
    ),
    MetricFamily(
        "rlinf_rank_device_memory_bytes",
        GAUGE,
        "Memory that a rank's PyTorch has reserved on its accelerators.",
        "bytes",
        _RANK,
        _of_ranks(lambda rank: rank.device_memory_bytes),
    ),
    MetricFamily(
        "rlinf_rank_call_duration_seconds",
        GAUGE,
        "For how long a rank's present call runs; 0 without one.",
        "seconds",
        _RANK,
        _of_ranks(lambda rank: rank.method_since_s if _is_there(rank) else None),
    ),
    MetricFamily(
        "rlinf_rank_wait_duration_seconds",
        GAUGE,
        "For how long a rank waits in this library; 0 if it does not.",
        "seconds",
        _RANK,
        _of_ranks(lambda rank: rank.wait_since_s if _is_there(rank) else None),
    ),
    MetricFamily(
        "rlinf_rank_queued_calls",
        GAUGE,
        "Calls that a rank has got and not begun.",
        "",
        _RANK,
        _of_ranks(lambda rank: rank.calls_queued if _is_there(rank) else None),
    ),
    MetricFamily(
        "rlinf_rank_restarts_total",
        COUNTER,
        "Processes that had a rank's place before, and died.",
        "",
        _RANK,
        _of_ranks(lambda rank: rank.restarts),
    ),
    MetricFamily(
        "rlinf_channel_items",
        GAUGE,
        "Items that getters of a channel can take.",
        "",
        _CHANNEL,
        _of_channels(lambda channel: channel.depth),
    ),
    MetricFamily(
        "rlinf_channel_held_bytes",
        GAUGE,
        "Bytes that a channel holds, leased items included.",
        "bytes",
        _CHANNEL,
        _of_channels(lambda channel: channel.bytes),
    ),
    MetricFamily(
        "rlinf_channel_leased_items",
        GAUGE,
        "Items of a channel that are on lease.",
        "",
        _CHANNEL,
        _of_channels(lambda channel: channel.leased),
    ),
    MetricFamily(
        "rlinf_channel_queues",
        GAUGE,
        "Queues of a channel that hold something or are waited for.",
        "",
        _CHANNEL,
        _of_channels(lambda channel: channel.num_queues),
    ),
    MetricFamily(
        "rlinf_channel_oldest_item_age_seconds",
        GAUGE,
        "Age of the item of a channel that has waited longest; 0 without one.",
        "seconds",
        _CHANNEL,
        _of_channels(lambda channel: channel.oldest_age_s or 0.0),
    ),
    MetricFamily(
        "rlinf_channel_longest_wait_seconds",
        GAUGE,
        "For how long the get or put has waited that has waited longest; 0 without one.",
        "seconds",
        _CHANNEL,
        _of_channels(_longest_wait_s),
    ),
    MetricFamily(
        "rlinf_channel_put_items_total",
        COUNTER,
        "Items that a channel has accepted.",
        "",
        _CHANNEL,
        _of_channels(lambda channel: channel.num_put),
    ),
    MetricFamily(
        "rlinf_channel_got_items_total",
        COUNTER,
        "Items that a channel has delivered; those that come back count again.",
        "",
        _CHANNEL,
        _of_channels(lambda channel: channel.num_got),
    ),
    MetricFamily(
        "rlinf_channel_put_bytes_total",
        COUNTER,
        "Bytes that a channel has accepted.",
        "bytes",
        _CHANNEL,
        _of_channels(lambda channel: channel.bytes_put),
    ),
    MetricFamily(
        "rlinf_weights_version",
        GAUGE,
        "The newest version of published weights; -1 for none yet.",
        "",
        _WEIGHTS,
        _of_weights(lambda weights: weights.version),
    ),
    MetricFamily(
        "rlinf_weights_size_bytes",
        GAUGE,
        "Size of the newest version.",
        "bytes",
        _WEIGHTS,
        _of_weights(lambda weights: weights.bytes),
    ),
    MetricFamily(
        "rlinf_weights_lag_versions",
        GAUGE,
        "By how many versions the reader that is farthest behind is behind.",
        "",
        _WEIGHTS,
        _of_weights(lambda weights: weights.lag),
    ),
    MetricFamily(
        "rlinf_weights_readers",
        GAUGE,
        "Processes that have fetched the weights.",
        "",
        _WEIGHTS,
        _of_weights(lambda weights: len(weights.readers)),
    ),
    MetricFamily(
        "rlinf_events_total",
        COUNTER,
        "Events of the job, by their class.",
        "",
        ("kind",),
        lambda status: (((kind,), number) for kind, number in sorted(status.event_counts.items())),
    ),
)
