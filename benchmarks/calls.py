"""Calls on a group against plain Ray actor calls, and a launch against starting plain Ray actors.

Both sides run in turn in one process on one simulated node; what counts is the ratio. Times are medians.

    python benchmarks/calls.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import ray

from rlinf.scheduler import Cluster, PackedPlacementStrategy, Worker

NUM_RANKS = 4
ROUNDS = 5
CALLS = 200


class Echo(Worker):
    """Returns what it is given."""

    def echo(self, value: object) -> object:
        """Return `value`."""
        return value


@ray.remote(num_cpus=0)
class PlainEcho:
    """The same as a bare Ray actor."""

    def echo(self, value: object) -> object:
        """Return `value`."""
        return value


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turn(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median seconds of both, run alternately after one warm-up each."""
    ours()
    theirs()
    pairs = [(timed(ours), timed(theirs)) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def main() -> None:
    """Print one line a workload."""
    with Cluster(simulate=f"1x{NUM_RANKS}") as cluster:
        strategy = PackedPlacementStrategy(0, NUM_RANKS - 1)

        def launch_ours() -> object:
            group = Echo.create_group().launch(cluster, placement_strategy=strategy, name="launched")
            group.echo(0).wait(60)
            return group.terminate()

        def launch_theirs() -> None:
            actors = [PlainEcho.remote() for _ in range(NUM_RANKS)]
            ray.get([actor.echo.remote(0) for actor in actors])
            for actor in actors:
                ray.kill(actor)

        group = Echo.create_group().launch(cluster, placement_strategy=strategy)
        actors = [PlainEcho.remote() for _ in range(NUM_RANKS)]
        ray.get([actor.echo.remote(0) for actor in actors])
        one = group.execute_on(0)
        small, large = "x" * 100, b"x" * (1 << 20)

        def row(
            name: str, ours: Callable[[], object], theirs: Callable[[], object], per: int, rounds: int
        ) -> None:
            a, b = in_turn(ours, theirs, rounds)
            print(f"{name:44}{a / per * 1e6:12.0f} us{b / per * 1e6:12.0f} us{b / a:9.1f} x")

        print(f"{'per call':44}{'group':>15}{'Ray actor':>15}{'ratio':>11}")
        row(
            "one rank, 100 B, one at a time",
            lambda: [one.echo(small).wait(30) for _ in range(CALLS)],
            lambda: [ray.get(actors[0].echo.remote(small)) for _ in range(CALLS)],
            CALLS,
            ROUNDS,
        )
        row(
            "one rank, 100 B, 200 in flight",
            lambda: [r.wait(30) for r in [one.echo(small) for _ in range(CALLS)]],
            lambda: ray.get([actors[0].echo.remote(small) for _ in range(CALLS)]),
            CALLS,
            ROUNDS,
        )
        row(
            f"all {NUM_RANKS} ranks, 100 B, one at a time",
            lambda: [group.echo(small).wait(30) for _ in range(CALLS)],
            lambda: [ray.get([a.echo.remote(small) for a in actors]) for _ in range(CALLS)],
            CALLS,
            ROUNDS,
        )
        row(
            "one rank, 1 MiB there and back",
            lambda: [one.echo(large).wait(30) for _ in range(20)],
            lambda: [ray.get(actors[0].echo.remote(large)) for _ in range(20)],
            20,
            ROUNDS,
        )
        row(f"launch {NUM_RANKS} ranks, call each, end them", launch_ours, launch_theirs, 1, 2)


if __name__ == "__main__":
    main()
