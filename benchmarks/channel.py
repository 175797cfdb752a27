"""Items through a channel against `ray.util.queue`, between two worker processes of one node.

Both sides run the same loops on the same items in turn in one run, with the same bound; what counts is the ratio.
A time per item is from the first put to the last get, over the number of items. Beside it stand the bare limits,
measured in the same processes in the same rounds: one copy of the item between two warm buffers, and one round trip
on a Unix socket.

    python benchmarks/channel.py [--only NAME] [--quick]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import ray
from ray.util.queue import Queue

import channel_memory
from channel_peers import PAUSE_S, Peer, PlainPeer, Workload
from measure import (
    KIB,
    MIB,
    Options,
    Side,
    Table,
    Target,
    compare,
    duration_text,
    percentile,
    print_targets,
    rate_text,
    ratio_text,
    read_options,
    speed_text,
    stopwatch,
)
from one_node import one_node, socket_path
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy

TIMEOUT_S = 120.0
MAXSIZE_SMALL, MAXSIZE_LARGE = 1024, 8
WINDOW_SMALL, WINDOW_LARGE = 256, 8
# Of the time of a side: what is regular needs fewer repetitions.
BARE_SHARE = 0.2


def _workloads() -> list[Workload]:
    sizes = [16, KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB]
    return [
        *(Workload("tensor", size) for size in sizes),
        *(Workload("bytes", size) for size in (16, KIB, 64 * KIB, MIB)),
        *(Workload("dict", size) for size in (64 * KIB, MIB, 16 * MIB)),
        *(Workload("array", size) for size in (MIB, 16 * MIB)),
        Workload("tensor", 16 * MIB, how="read"),
        Workload("array", 16 * MIB, how="references"),
        Workload("list", 256 * KIB),
        *(Workload("bytes", size, WINDOW_SMALL) for size in (16, KIB)),
        *(Workload("tensor", size, WINDOW_SMALL) for size in (KIB, 64 * KIB)),
        Workload("tensor", MIB, WINDOW_LARGE),
    ]


class Bench:
    """The processes of both sides."""

    def __init__(self, cluster: Cluster, pipe: str, plain_pipe: str) -> None:
        peers = Peer.create_group().launch(cluster, placement_strategy=NodePlacementStrategy([0, 0]))
        self.producer, self.consumer = peers.execute_on(0), peers.execute_on(1)
        Channel.create("small", maxsize=MAXSIZE_SMALL)
        Channel.create("large", maxsize=MAXSIZE_LARGE)
        self.plain_producer, self.plain_consumer = PlainPeer.remote(), PlainPeer.remote()
        self.small_queue = Queue(maxsize=MAXSIZE_SMALL, actor_options={"num_cpus": 0})
        self.large_queue = Queue(maxsize=MAXSIZE_LARGE, actor_options={"num_cpus": 0})
        self.consumer.listen(pipe).wait(TIMEOUT_S)
        self.producer.dial(pipe).wait(TIMEOUT_S)
        ray.get(self.plain_consumer.listen.remote(plain_pipe), timeout=TIMEOUT_S)
        ray.get(self.plain_producer.dial.remote(plain_pipe), timeout=TIMEOUT_S)

    def check(self, workload: Workload) -> None:
        """Raise unless an item of the workload comes out of the channel as it went in."""
        name = "large" if workload.large else "small"
        intact = self.consumer.check(name, workload)
        self.producer.produce(name, workload, 1).wait(TIMEOUT_S)
        if not intact.wait(TIMEOUT_S)[0]:
            raise RuntimeError(f"{workload.name}: what came out is not what went in")

    def channel(self, workload: Workload) -> Side:
        """Items through the channel."""
        name = "large" if workload.large else "small"

        def run(count: int) -> float:
            ended = self.consumer.consume(name, workload, count)
            (began,) = self.producer.produce(name, workload, count).wait(TIMEOUT_S)
            return ended.wait(TIMEOUT_S)[0] - began

        return run

    def ray_queue(self, workload: Workload) -> Side:
        """Items through Ray's queue."""
        queue = self.large_queue if workload.large else self.small_queue

        def run(count: int) -> float:
            ended = self.plain_consumer.consume.remote(queue, workload, count)
            began = ray.get(self.plain_producer.produce.remote(queue, workload, count), timeout=TIMEOUT_S)
            return ray.get(ended, timeout=TIMEOUT_S) - began

        return run

    def memcpy(self, size: int) -> Side:
        """Warm copies in the producer's process."""
        return lambda count: self.producer.memcpy(size, count).wait(TIMEOUT_S)[0]

    def pings(self, count: int, pause_s: float = 0.0) -> list[float]:
        """Round trips between the producer's and the consumer's process."""
        answered = self.consumer.pong(count)
        (took,) = self.producer.ping(count, pause_s=pause_s).wait(TIMEOUT_S)
        answered.wait(TIMEOUT_S)
        return took

    def pings_between_processors(self, count: int) -> list[float]:
        """The same with each end on a processor of its own, as three processes at work have to be."""
        for processor, peer in enumerate((self.producer, self.consumer)):
            peer.stay_on(processor).wait(TIMEOUT_S)
        took = self.pings(count)
        for peer in (self.producer, self.consumer):
            peer.stay_on(None).wait(TIMEOUT_S)
        return took

    def turns(self, count: int) -> list[float]:
        """Seconds from put to get through the channel, there and back in turn without pauses."""
        answered = self.consumer.take_turns("small", count, False)
        (took,) = self.producer.take_turns("small", count, True).wait(TIMEOUT_S)
        return took + answered.wait(TIMEOUT_S)[0]

    def latencies(self, count: int) -> list[float]:
        """Seconds from put to get through the channel, to a consumer that waits."""
        took = self.consumer.get_stamps("small", count)
        self.producer.put_stamps("small", count).wait(TIMEOUT_S)
        return took.wait(TIMEOUT_S)[0]

    def ray_latencies(self, count: int) -> list[float]:
        """The same through Ray's queue."""
        took = self.plain_consumer.get_stamps.remote(self.small_queue, count)
        ray.get(self.plain_producer.put_stamps.remote(self.small_queue, count), timeout=TIMEOUT_S)
        return ray.get(took, timeout=TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Throughput:
    """One line's figures.

    Attributes:
        ratio: Ray queue's time per item over the channel's.
        share_of_memcpy: a warm copy's time over the channel's.
    """

    ratio: float
    share_of_memcpy: float


def measure_throughput(bench: Bench, options: Options) -> dict[Workload, Throughput]:
    """Print a line a workload."""
    chosen = [workload for workload in _workloads() if options.wants(workload.name)]
    if not chosen:
        return {}
    columns = (
        "channel",
        "Ray queue",
        "ratio",
        "items/s",
        "GB/s",
        "Ray GB/s",
        "memcpy",
        "of memcpy",
        "ping-pong",
    )
    table = Table("seconds per item", columns)
    found = {}
    for workload in chosen:
        bench.check(workload)
        size = workload.size
        sides = (
            bench.channel(workload),
            bench.ray_queue(workload),
            bench.memcpy(size),
            lambda n: sum(bench.pings(n)),
        )
        ours, theirs, memcpy, ping = compare(sides, options, shares=(1, 1, BARE_SHARE, BARE_SHARE), least=2)
        found[workload] = Throughput(theirs / ours, memcpy / ours)
        large = size >= 64 * KIB
        table.row(
            workload.name,
            duration_text(ours),
            duration_text(theirs),
            ratio_text(theirs / ours),
            rate_text(1 / ours),
            speed_text(size, ours),
            speed_text(size, theirs),
            duration_text(memcpy) if large else "",
            f"{memcpy / ours:.0%}" if large else "",
            duration_text(ping),
        )
    return found


def measure_latency(bench: Bench, options: Options) -> float | None:
    """Print the latencies of 16 bytes; returns the channel's median in socket round trips, both back to back."""
    if not options.wants("latency"):
        return None
    count = max(20, int(options.budget_s / 0.001))
    # Back to back, a kernel may run both ends of a socket on one processor, which is quicker than to wake another.
    # With a pause before each, everybody has fallen asleep.
    ways: dict[str, Callable[[int], list[float]]] = {
        "channel, there and back in turn": bench.turns,
        "channel, after a pause": bench.latencies,
        "Ray queue, after a pause": bench.ray_latencies,
        "Unix socket there and back, two processors": bench.pings_between_processors,
        "Unix socket there and back": bench.pings,
        "Unix socket there and back, after a pause": lambda n: bench.pings(n, PAUSE_S),
    }
    for way in ways.values():
        way(max(20, count // 10))
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            took[name] += way(count)
    unit = median(took["Unix socket there and back, two processors"])
    print()
    table = Table("latency, put to get of 16 B", ("median", "p99", "ping-pongs"))
    for name, seconds in took.items():
        middle = median(seconds)
        table.row(name, duration_text(middle), duration_text(percentile(seconds, 99)), f"{middle / unit:.1f}")
    return median(took["channel, there and back in turn"]) / unit


def targets(
    throughput: dict[Workload, Throughput], latency: float | None, memory: float | None
) -> list[Target]:
    """What this run's figures are held against."""

    def ratio(workload: Workload) -> float | None:
        return throughput[workload].ratio if workload in throughput else None

    large = Workload("tensor", 16 * MIB)
    share = throughput[large].share_of_memcpy if large in throughput else None
    return [
        Target("1 KiB, one at a time, against Ray's queue", 10, ratio(Workload("bytes", KIB)), "x"),
        Target("1 KiB, in flight, against Ray's queue", 40, ratio(Workload("bytes", KIB, WINDOW_SMALL)), "x"),
        Target("1 MiB tensor, one at a time, against Ray's queue", 20, ratio(Workload("tensor", MIB)), "x"),
        Target("16 MiB tensor, one at a time, against Ray's queue", 30, ratio(large), "x"),
        Target("16 MiB tensor, share of a warm memcpy's speed", 0.5, share, "memcpy"),
        Target("latency put to get, median", 4, latency, "ping-pongs", at_least=False),
        Target(
            "memory of a pipeline with maxsize 8", channel_memory.BOUND_ITEMS, memory, "items", at_least=False
        ),
    ]


def main() -> None:
    """Print the tables."""
    options = read_options("Items through a channel against ray.util.queue.")
    with stopwatch("channel.py"), one_node() as cluster, socket_path() as pipe, socket_path() as plain_pipe:
        bench = Bench(cluster, pipe, plain_pipe)
        throughput = measure_throughput(bench, options)
        latency = measure_latency(bench, options)
        memory = channel_memory.measure(cluster, options)
        print_targets(targets(throughput, latency, memory))


if __name__ == "__main__":
    main()
