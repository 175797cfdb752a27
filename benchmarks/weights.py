"""Weights from two FSDP2 ranks to two readers of one node, against gathering them first, as people do today.

All sides run in turn in one run; what counts is the ratio. A time is from the first rank that begins to the last reader
that has its tensors. The other sides are `full_tensor()` and a gloo broadcast, layer by layer, and a whole state
dict through Ray's store, as arrays.

    python benchmarks/weights.py [--only NAME] [--quick]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import ray

from measure import (
    MIB,
    Options,
    Table,
    Target,
    duration_text,
    print_targets,
    ratio_text,
    read_options,
    size_text,
    stopwatch,
)
from one_node import one_node, socket_path
from rlinf.scheduler import Cluster, NodePlacementStrategy
from weights_ranks import NUM_RANKS, READERS, TIMEOUT_S, TRAINERS, PlainRank, Rank, weights_name

SIZES = (256 * MIB, 1024 * MIB)
KINDS = {"two TP readers": False, "two whole readers": True}
OURS, BROADCAST, STORE = "publish + fetch", "full_tensor + broadcast (gloo)", "state dict + ray.put"
SAMPLE_EVERY_S = 0.02


class Bench:
    """The ranks of both sides, whose trainers have shards of a model of so many bytes."""

    def __init__(self, cluster: Cluster, folder: Path, size: int) -> None:
        def launch(name: str, numbers: Sequence[int]) -> Any:
            strategy = NodePlacementStrategy([0] * len(numbers))
            group = Rank.create_group().launch(cluster, placement_strategy=strategy, name=name)
            joins = [
                group.execute_on(rank).join_gloo(str(folder / f"ours-{size}"), number)
                for rank, number in enumerate(numbers)
            ]
            return group, joins

        self._cluster, self._name = cluster, weights_name(size)
        self._trainers, trainers = launch("actor", TRAINERS)
        self._readers, readers = launch("rollout", READERS)
        store = str(folder / f"theirs-{size}")
        plain = [PlainRank.remote() for _ in range(NUM_RANKS)]
        joins = [rank.join_gloo.remote(store, number) for number, rank in enumerate(plain)]
        self._plain_trainers, self._plain_readers = plain[: len(TRAINERS)], plain[len(TRAINERS) :]
        self._pids = [pid for join in (*trainers, *readers) for pid in join.wait(TIMEOUT_S)]
        self._plain_pids: list[int] = ray.get(joins)
        self._before = {pid: _pss(pid) for pid in (*self._pids, *self._plain_pids)}
        self._version = 0
        self._trainers.train(size).wait(TIMEOUT_S)
        ray.get([rank.train.remote(size) for rank in self._plain_trainers])

    def close(self) -> None:
        """End all ranks."""
        self._readers.terminate()
        self._trainers.terminate()
        for rank in (*self._plain_trainers, *self._plain_readers):
            ray.kill(rank)

    def make_room(self, size: int, whole: bool) -> None:
        """Have the readers make the place for what they read."""
        self._readers.make_room(size, whole).wait(TIMEOUT_S)
        ray.get([rank.make_room.remote(size, whole) for rank in self._plain_readers])

    def sides(self) -> dict[str, Callable[[], list[float]]]:
        """What is compared: each takes one step and returns its seconds, and the parts of them that are known."""
        return {OURS: self._publish_and_fetch, BROADCAST: self._broadcast, STORE: self._share}

    def pids(self, side: str) -> tuple[Sequence[int], Sequence[int]]:
        """The processes of a side: trainers and readers."""
        pids = self._pids if side == OURS else self._plain_pids
        return pids[: len(TRAINERS)], pids[len(TRAINERS) :]

    def added(self, pid: int) -> int:
        """How much more memory a process has than before its model."""
        return _pss(pid) - self._before[pid]

    def check(self) -> None:
        """Raise unless what is copied is what is needed, of all readers and publishers, and each side brings it."""
        self._version += 1
        self._trainers.change(self._version).wait(TIMEOUT_S)
        ray.get([rank.change.remote(self._version) for rank in self._plain_trainers])
        fetched = self._readers.fetch_counted(self._version)
        self._trainers.publish(self._version).wait(TIMEOUT_S)
        counted = fetched.wait(TIMEOUT_S)
        there = self._cluster.weights[self._name]
        plan = sorted(there.plan().readers.items())
        for copied, (name, read) in zip(counted, plan, strict=True):
            planned = sum(size for _, size, _ in read.flows)
            print(
                f"    {name}: {copied.needed / MIB:.0f} MiB needed, {planned / MIB:.0f} planned,"
                f" {copied.copied / MIB:.0f} copied"
            )
            if {*copied} != {planned}:
                raise RuntimeError(f"not what is needed is copied: {copied}, {planned} planned")
        published = there.sources
        print(
            "    published: " + ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in published.items())
        )
        if not all(self._readers.check(self._version).wait(TIMEOUT_S)):
            raise RuntimeError("the weights that were fetched are not those that were published")
        for step in (self._broadcast, self._share):
            ray.get([rank.clear.remote() for rank in self._plain_readers])
            step()
            if not all(ray.get([rank.check.remote(self._version) for rank in self._plain_readers])):
                raise RuntimeError(f"{step.__name__} brings something else")

    def _publish_and_fetch(self) -> list[float]:
        self._version += 1
        fetched = self._readers.fetch(self._version)
        published = self._trainers.publish(self._version).wait(TIMEOUT_S)
        ended = max(fetched.wait(TIMEOUT_S))
        began = min(begin for begin, _ in published)
        return [ended - began, max(end for _, end in published) - began]

    def _broadcast(self) -> list[float]:
        return _seconds(
            rank.broadcast_layers.remote() for rank in (*self._plain_trainers, *self._plain_readers)
        )

    def _share(self) -> list[float]:
        first, *others = self._plain_trainers
        return _seconds(
            [first.share.remote(self._plain_readers), *(rank.share.remote([]) for rank in others)]
        )


def measure(bench: Bench, size: int, kind: str, options: Options) -> float:
    """Print the times of one kind of readers; returns ours, of the better other one's."""
    print(f"\n{size_text(size)} from two FSDP2 ranks to {kind}")
    bench.make_room(size, KINDS[kind])
    bench.check()
    sides = bench.sides()
    took: dict[str, list[list[float]]] = {name: [] for name in sides}
    for number in range(1 + options.rounds):
        for name, step in sides.items():
            seconds = step()
            if number or options.rounds == 1:  # the first round warms up
                took[name].append(seconds)
    medians = {
        name: [median(column) for column in zip(*rounds, strict=True)] for name, rounds in took.items()
    }
    best = min(seconds for name, (seconds, *_) in medians.items() if name != OURS)
    table = Table("", ("time", "publish", "of the best", "least", "most"))
    for name, (seconds, *parts) in medians.items():
        all_s = [each for each, *_ in took[name]]
        publish = duration_text(parts[0]) if parts else ""
        spread = duration_text(min(all_s)), duration_text(max(all_s))
        table.row(name, duration_text(seconds), publish, ratio_text(seconds / best), *spread)
    _measure_memory(bench, size)
    return medians[OURS][0] / best


def _measure_memory(bench: Bench, size: int) -> None:
    """Print the most memory that processes have during three steps of each side, in sizes of the model."""
    table = Table("    most memory, beyond the empty process", ("a trainer", "a reader", "all four"))
    for name, step in bench.sides().items():
        trainers, readers = bench.pids(name)
        with _watched(bench, [*trainers, *readers]) as samples:
            for _ in range(3):
                step()
        most = {pid: max(sample[pid] for sample in samples) for pid in samples[0]}
        total = max(sum(sample.values()) for sample in samples)
        figures = max(most[pid] for pid in trainers), max(most[pid] for pid in readers), total
        table.row(f"    {name}", *(f"{figure / MIB:.0f} MiB" for figure in figures))
    print(
        f"    (a shard of a trainer has {size // len(TRAINERS) / MIB:.0f} MiB; shared pages count for their share)"
    )


@contextmanager
def _watched(bench: Bench, pids: Sequence[int]) -> Iterator[list[dict[int, int]]]:
    """Sample what processes have meanwhile."""
    over = threading.Event()
    samples = [{pid: bench.added(pid) for pid in pids}]

    def watch() -> None:
        while not over.wait(SAMPLE_EVERY_S):
            samples.append({pid: bench.added(pid) for pid in pids})

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _pss(pid: int) -> int:
    """A process's memory: its own pages, and of those that it shares its share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel does not say how much memory process {pid} has")


def _seconds(calls: Any) -> list[float]:
    times = ray.get(list(calls))
    return [max(end for _, end in times) - min(begin for begin, _ in times)]


def main() -> None:
    """Run every workload and print the tables."""
    options = read_options(__doc__, rounds=7)
    ratios: dict[str, float] = {}
    with stopwatch("all"), one_node() as cluster, socket_path() as path:
        for size in SIZES:
            names = {kind: f"{size_text(size)} to {kind}" for kind in KINDS}
            wanted = [kind for kind, name in names.items() if options.wants(name)]
            if not wanted:
                continue
            bench = Bench(cluster, Path(path).parent, size)
            for kind in wanted:
                ratios[names[kind]] = measure(bench, size, kind, options)
            bench.close()
    print_targets([Target(name, 0.5, ratio, "x", at_least=False) for name, ratio in ratios.items()])


if __name__ == "__main__":
    main()
