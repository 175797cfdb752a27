"""What a job does as families of metrics, by the conventions of Prometheus: base units, bounded labels. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from rlinf_scheduler.addresses import worker_address
from rlinf_scheduler.observe.process_stats import IDLE_RANK, LOST, RUNNING, STARTING, UNRESPONSIVE, WAITING
from rlinf_scheduler.observe.status import ChannelStatus, JobStatus, RankStatus, WeightsStatus

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
        unit: its base unit, which its name has, too; "" for what is counted.
    """

    name: str
    kind: str
    help: str
    unit: str
    labels: tuple[str, ...]
    samples: Callable[[JobStatus], Iterable[Sample]]


def _family(
    name: str, help: str, labels: tuple[str, ...], samples: Callable[[JobStatus], Iterable[Sample]]
) -> MetricFamily:
    """A family whose name says, as Prometheus has it, what kind it is and in which unit."""
    unit = name.removesuffix("_total").rpartition("_")[2]
    kind = COUNTER if name.endswith("_total") else GAUGE
    return MetricFamily(name, kind, help, unit if unit in ("seconds", "bytes") else "", labels, samples)


def _of_job(name: str, help: str, value: Callable[[JobStatus], float]) -> MetricFamily:
    return _family(f"rlinf_{name}", help, (), lambda status: [((), value(status))])


def _of_ranks(name: str, help: str, value: Callable[[RankStatus], float | None]) -> MetricFamily:
    def samples(status: JobStatus) -> Iterator[Sample]:
        for group in status.groups:
            for rank in group.ranks:
                number = value(rank)
                if number is not None:
                    address = worker_address(rank.address)
                    # Of a worker below a rank "3/0": no two have the same.
                    yield (group.name, str(rank.rank) if address is None else address.way), number

    return _family(f"rlinf_rank_{name}", help, ("group", "rank"), samples)


def _of_channels(name: str, help: str, value: Callable[[ChannelStatus], float]) -> MetricFamily:
    def samples(status: JobStatus) -> Iterator[Sample]:
        return (((each.name,), value(each)) for each in status.channels)

    return _family(f"rlinf_channel_{name}", help, ("channel",), samples)


def _of_weights(name: str, help: str, value: Callable[[WeightsStatus], float]) -> MetricFamily:
    def samples(status: JobStatus) -> Iterator[Sample]:
        return (((each.name,), value(each)) for each in status.weights)

    return _family(f"rlinf_weights_{name}", help, ("weights",), samples)


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


_DEVICE = ("node", "device")

FAMILIES = (
    _of_job(
        "look_duration_seconds",
        "How long it took to ask all processes of the job.",
        lambda status: status.took_s,
    ),
    _family("rlinf_node_up", "1 for a node that is alive, else 0.", ("node",), _nodes_up),
    _family(
        "rlinf_device_memory_used_bytes",
        "Memory of an accelerator that is used, by whichever process; of those that a rank has initialised.",
        _DEVICE,
        lambda status: _devices(status, is_total=False),
    ),
    _family(
        "rlinf_device_memory_total_bytes",
        "Memory of an accelerator; of those that a rank has initialised.",
        _DEVICE,
        lambda status: _devices(status, is_total=True),
    ),
    _family("rlinf_group_ranks", "Ranks of a group in each state.", ("group", "state"), _group_ranks),
    _of_ranks("up", "1 for a rank that answers, else 0.", lambda rank: float(_is_there(rank))),
    _of_ranks(
        "cpu_seconds_total",
        "Processor time that a rank's process has used.",
        lambda rank: rank.cpu_s if _is_there(rank) else None,
    ),
    _of_ranks(
        "resident_memory_bytes",
        "Memory that a rank's process has, shared memory included.",
        lambda rank: rank.rss_bytes if _is_there(rank) else None,
    ),
    _of_ranks(
        "device_memory_bytes",
        "Memory that a rank's PyTorch has reserved on its accelerators.",
        lambda rank: rank.device_memory_bytes,
    ),
    _of_ranks(
        "call_duration_seconds",
        "For how long a rank's present call runs; 0 without one.",
        lambda rank: rank.method_since_s if _is_there(rank) else None,
    ),
    _of_ranks(
        "wait_duration_seconds",
        "For how long a rank waits in this library; 0 if it does not.",
        lambda rank: rank.wait_since_s if _is_there(rank) else None,
    ),
    _of_ranks(
        "queued_calls",
        "Calls that a rank has got and not begun.",
        lambda rank: rank.calls_queued if _is_there(rank) else None,
    ),
    _of_ranks(
        "pulled_bytes_total",
        "What a rank's process has pulled from other machines.",
        lambda rank: rank.pulled_bytes if _is_there(rank) else None,
    ),
    _of_ranks(
        "restarts_total", "Processes that had a rank's place before, and died.", lambda rank: rank.restarts
    ),
    _of_channels("items", "Items that getters of a channel can take.", lambda channel: channel.depth),
    _of_channels(
        "held_bytes", "Bytes that a channel holds, leased items included.", lambda channel: channel.bytes
    ),
    _of_channels("leased_items", "Items of a channel that are on lease.", lambda channel: channel.leased),
    _of_channels(
        "queues",
        "Queues of a channel that hold something or are waited for.",
        lambda channel: channel.num_queues,
    ),
    _of_channels(
        "oldest_item_age_seconds",
        "Age of the item of a channel that has waited longest; 0 without one.",
        lambda channel: channel.oldest_age_s or 0.0,
    ),
    _of_channels(
        "longest_wait_seconds",
        "For how long the get or put has waited that has waited longest; 0 without one.",
        _longest_wait_s,
    ),
    _of_channels("put_items_total", "Items that a channel has accepted.", lambda channel: channel.num_put),
    _of_channels(
        "got_items_total",
        "Items that a channel has delivered; those that come back count again.",
        lambda channel: channel.num_got,
    ),
    _of_channels("put_bytes_total", "Bytes that a channel has accepted.", lambda channel: channel.bytes_put),
    _of_weights(
        "version",
        "The newest version of published weights; -1 for none yet.",
        lambda weights: weights.version,
    ),
    _of_weights("size_bytes", "Size of the newest version.", lambda weights: weights.bytes),
    _of_weights(
        "lag_versions",
        "By how many versions the reader that is farthest behind is behind.",
        lambda weights: weights.lag,
    ),
    _of_weights("readers", "Processes that have fetched the weights.", lambda weights: len(weights.readers)),
    _family(
        "rlinf_weights_read_bytes",
        "What all readers have read of the weights last, by its way: device, node or network.",
        ("way", "weights"),
        lambda status: (
            ((way, each.name), size)
            for each in status.weights
            for way, size in sorted(each.read_bytes.items())
        ),
    ),
    _family(
        "rlinf_weights_copies_total",
        "Copies of versions that have come to other machines: as a delta, or as a whole, by the reason.",
        ("how", "weights"),
        lambda status: (
            ((how, each.name), number)
            for each in status.weights
            for how, number in sorted(each.copies.items())
        ),
    ),
    _of_weights("delta_bytes", "Size of the last deltas.", lambda weights: weights.delta_bytes),
    _family(
        "rlinf_events_total",
        "Events of the job, by their class.",
        ("kind",),
        lambda status: (((kind,), number) for kind, number in sorted(status.event_counts.items())),
    ),
)
