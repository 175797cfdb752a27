"""Tensors between workers of one node, against Ray actor calls, Ray's store and torch's gloo.

All sides run in turn in one run; what counts is the ratio. A time is from the first send to the last arrival, over the
number of sends. First stand the bare limits, measured in the same processes.

    python benchmarks/comm.py [--only NAME] [--quick]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from comm_ranks import NUM_TARGETS, SOURCE, TARGETS, TIMEOUT_S, PlainRank, Rank
from measure import (
    KIB,
    MIB,
    Options,
    Side,
    Table,
    Target,
    compare,
    duration_text,
    print_targets,
    ratio_text,
    read_options,
    size_text,
    speed_text,
    stopwatch,
)
from one_node import one_node, socket_path
from rlinf.scheduler import Cluster, NodePlacementStrategy
from rlinf_scheduler.ray_backend import variables

SIZES = (KIB, MIB, 16 * MIB, 256 * MIB)
LARGEST = SIZES[-1]
# Our nodes start theirs with a setting of glibc's, by which they copy large memory faster; Ray's own do not.
AS_RAY_STARTS_IT = {"env_vars": {variables.COPYING_VARIABLE: ""}}
# Of the time of a side: what is regular needs fewer repetitions.
BARE_SHARE = 0.2


class Bench:
    """The ranks of both sides: a source and four targets each."""

    def __init__(self, cluster: Cluster, pipe: str) -> None:
        def launch(name: str, num_ranks: int) -> Any:
            strategy = NodePlacementStrategy([0] * num_ranks)
            return Rank.create_group().launch(cluster, placement_strategy=strategy, name=name)

        self.source, self.targets = launch(SOURCE, 1), launch(TARGETS, NUM_TARGETS)
        self.target = self.targets.execute_on(0)
        self.target.listen(pipe).wait(TIMEOUT_S)
        self.source.dial(pipe).wait(TIMEOUT_S)
        plain = PlainRank.options(runtime_env=AS_RAY_STARTS_IT)
        self.actors = [plain.remote() for _ in range(1 + NUM_TARGETS)]
        store = str(Path(pipe).with_name("gloo"))
        _get(
            [actor.join_gloo.remote(store, rank, len(self.actors)) for rank, actor in enumerate(self.actors)]
        )

    def p2p(self, size: int, in_place: bool) -> Side:
        """`send` and `recv`, or `send_tensor` and `recv_tensor`."""

        def run(count: int) -> float:
            if in_place:
                ended, began = self.target.recv_tensors(size, count), self.source.send_tensors(size, count)
            else:
                ended, began = self.target.recv_many(count), self.source.send_many(size, count)
            return ended.wait(TIMEOUT_S)[0] - began.wait(TIMEOUT_S)[0]

        return run

    def check(self, way: Side, receivers: Any, size: int) -> None:
        """Raise unless what is sent this way arrives as it was."""
        way(1)
        if not all(receivers.received_intact(size).wait(TIMEOUT_S)):
            raise RuntimeError(f"what was received is not the {size_text(size)} that were sent")

    def ray_call(self, kind: str, size: int, put: bool) -> Side:
        """A call of one actor on another with the item, as it is or put into the store."""
        source, target, *_ = self.actors
        return lambda count: _get(source.call_many.remote(target, kind, size, count, put))

    def gloo_p2p(self, size: int) -> Side:
        """Gloo's send and recv."""
        source, target, *_ = self.actors

        def run(count: int) -> float:
            began, ended = _get([source.gloo_send.remote(size, count), target.gloo_recv.remote(size, count)])
            return ended - began

        return run

    def broadcast(self, size: int) -> Side:
        """`broadcast` from the source to all targets, which take views."""

        def run(count: int) -> float:
            received = self.targets.broadcasts(size, count)
            (sent,) = self.source.broadcasts(size, count).wait(TIMEOUT_S)
            return _from_first_to_last(sent, received.wait(TIMEOUT_S))

        return run

    def ray_share(self, kind: str, size: int) -> Side:
        """One `ray.put`, and every target gets it."""
        source, *targets = self.actors
        return lambda count: _get(source.share_many.remote(targets, kind, size, count))

    def gloo_broadcast(self, size: int) -> Side:
        """Gloo's broadcast."""

        def run(count: int) -> float:
            sent, *received = _get([actor.gloo_broadcasts.remote(size, count) for actor in self.actors])
            return _from_first_to_last(sent, received)

        return run

    def has_weights(self, size: int) -> None:
        """The sources make weights, the targets make the place for them."""
        self.source.has_weights(size, True).wait(TIMEOUT_S)
        self.targets.has_weights(size, False).wait(TIMEOUT_S)
        _get([actor.has_weights.remote(size, actor is self.actors[0]) for actor in self.actors])

    def weights(self) -> Side:
        """A version published and fetched by every target, `count` times."""
        version = 0

        def run(count: int) -> float:
            nonlocal version
            took = 0.0
            for _ in range(count):
                version += 1
                fetched = self.targets.fetch(version)
                (began,) = self.source.publish(version).wait(TIMEOUT_S)
                took += max(fetched.wait(TIMEOUT_S)) - began
            return took

        return run

    def check_weights(self) -> None:
        """Raise unless every target has the source's weights."""
        (expected,) = self.source.weights_sum().wait(TIMEOUT_S)
        if any(found != expected for found in self.targets.weights_sum().wait(TIMEOUT_S)):
            raise RuntimeError("what was fetched is not what was published")

    def ray_weights(self, as_arrays: bool) -> Side:
        """One `ray.put` of the weights, and every target loads them."""
        source, *targets = self.actors
        return lambda count: _get(source.share_weights.remote(targets, count, as_arrays))

    def gloo_weights(self) -> Side:
        """Gloo's broadcast of one tensor after the other."""

        def run(count: int) -> float:
            sent, *received = _get([actor.gloo_weights.remote(count) for actor in self.actors])
            return _from_first_to_last(sent, received)

        return run

    def memcpy(self, size: int) -> Side:
        """Warm copies in the source's process."""
        return lambda count: self.source.memcpy(size, count).wait(TIMEOUT_S)[0]

    def memcpy_into_fresh_pages(self, size: int) -> Side:
        """Copies into memory that was never touched, in the source's process."""
        return lambda count: self.source.memcpy_into_fresh_pages(size, count).wait(TIMEOUT_S)[0]

    def pings(self, size: int) -> Side:
        """Round trips on a Unix socket between the source's and a target's process."""

        def run(count: int) -> float:
            answered = self.target.pong(count, size)
            (took,) = self.source.ping(count, size).wait(TIMEOUT_S)
            answered.wait(TIMEOUT_S)
            return sum(took)

        return run


def _get(references: Any) -> Any:
    return ray.get(references, timeout=TIMEOUT_S)


def _from_first_to_last(sent: tuple[float, float], received: Sequence[tuple[float, float]]) -> float:
    return max(ended for _, ended in received) - sent[0]


def measure_bare(bench: Bench, options: Options) -> None:
    """Print what the machine can do."""
    if not options.wants("bare"):
        return
    columns = "memcpy", "GB/s", "fresh pages", "GB/s", "Unix socket"
    table = Table("bare limits (socket: there, and 16 B back)", columns)
    for size in (16, *SIZES):
        sides = bench.memcpy(size), bench.memcpy_into_fresh_pages(size), bench.pings(size)
        warm, fresh, ping = compare(sides, options, [BARE_SHARE] * 3)
        large = size >= MIB
        table.row(
            size_text(size),
            duration_text(warm) if large else "",
            speed_text(size, warm),
            duration_text(fresh) if large else "",
            speed_text(size, fresh),
            duration_text(ping),
        )
    print()


def measure_p2p(bench: Bench, options: Options) -> None:
    """Print a line a size: one tensor from a worker to another."""
    if not options.wants("p2p"):
        return
    ours = "send/recv", "in place"
    theirs = "Ray call", "Ray put", "Ray array", "gloo"
    columns = *ours, *theirs, "memcpy", "to Ray", "to gloo", "GB/s", "of memcpy"
    table = Table("p2p, time of a tensor", columns, first_width=24)
    for size in SIZES:
        sides = [
            bench.p2p(size, in_place=False),
            bench.p2p(size, in_place=True),
            bench.ray_call("tensor", size, put=False),
            bench.ray_call("tensor", size, put=True),
            # Ray moves arrays without pickling them; the receiver has a read-only view.
            bench.ray_call("array", size, put=True),
            bench.gloo_p2p(size),
            bench.memcpy(size),
        ]
        for way in sides[:2]:
            bench.check(way, bench.target, size)
        found = compare(sides, options, [1, 1, 1, 1, 1, 1, BARE_SHARE])
        by_value, in_place, *rays, gloo, memcpy = found
        table.row(
            size_text(size),
            *(duration_text(seconds) for seconds in found),
            # Against the fastest of Ray's ways; gloo receives in place, and is compared with what does.
            ratio_text(min(rays) / by_value),
            ratio_text(gloo / in_place),
            speed_text(size, by_value),
            f"{memcpy / by_value:.0%}" if size >= MIB else "",
        )
    print()


def measure_broadcast(bench: Bench, options: Options) -> float | None:
    """Print the times of a broadcast to four ranks; returns ours in memcpys."""
    if not options.wants("broadcast"):
        return None
    ways = {
        "broadcast, views": bench.broadcast(LARGEST),
        "ray.put + get, tensors": bench.ray_share("tensor", LARGEST),
        "ray.put + get, arrays (read-only views)": bench.ray_share("array", LARGEST),
        f"gloo, {1 + NUM_TARGETS} ranks, in place": bench.gloo_broadcast(LARGEST),
        "one memcpy": bench.memcpy(LARGEST),
    }
    bench.check(bench.broadcast(LARGEST), bench.targets, LARGEST)
    title = f"broadcast of {size_text(LARGEST)} to {NUM_TARGETS} ranks"
    found = _print_ways(title, ways, options)
    for actor in bench.actors:
        actor.drop.remote()
    return found[0] / found[-1]


def measure_weights(bench: Bench, options: Options) -> None:
    """Print the times of weights that every rank copies into its own memory."""
    if not options.wants("weights"):
        return
    bench.has_weights(LARGEST)
    ways = {
        "publish_weights + fetch_weights": bench.weights(),
        "ray.put + get + copy, tensors": bench.ray_weights(as_arrays=False),
        "ray.put + get + copy, arrays": bench.ray_weights(as_arrays=True),
        f"gloo, {1 + NUM_TARGETS} ranks, tensor by tensor": bench.gloo_weights(),
        "one memcpy": bench.memcpy(LARGEST),
    }
    _print_ways(f"weights of {size_text(LARGEST)} to {NUM_TARGETS} ranks", ways, options)
    bench.check_weights()


def _print_ways(title: str, ways: dict[str, Side], options: Options) -> list[float]:
    """Print a line a way, each against the first; returns seconds. The last one is a memcpy."""
    found = compare(list(ways.values()), options)
    table = Table(title, ("time", "memcpys", "slower"))
    for name, seconds in zip(ways, found, strict=True):
        others = "" if name in (next(iter(ways)), list(ways)[-1]) else ratio_text(seconds / found[0])
        table.row(name, duration_text(seconds), f"{seconds / found[-1]:.2f}", others)
    print()
    return found


def main() -> None:
    """Print the tables."""
    options = read_options("Tensors between workers against Ray and gloo.")
    with stopwatch("comm.py"), one_node() as cluster, socket_path() as pipe:
        bench = Bench(cluster, pipe)
        measure_bare(bench, options)
        measure_p2p(bench, options)
        broadcast = measure_broadcast(bench, options)
        measure_weights(bench, options)
        what = f"broadcast of {size_text(LARGEST)} to {NUM_TARGETS} local ranks, views"
        print_targets([Target(what, 1.5, broadcast, "memcpys", at_least=False)])


if __name__ == "__main__":
    main()
