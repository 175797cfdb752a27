"""What growing and shrinking costs: a new rank beside a bare Ray actor, the pause of the others, a shrink with work.

One group on two simulated nodes; both sides of a figure in turn, the median of the rounds. Neither side uses torch.

    python benchmarks/resizing.py [--rounds 7] [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

from measure import Table, Target, duration_text, print_targets, ratio_text, stopwatch
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker, WorkerGroup

TIMEOUT_S = 120.0
# What a rank that leaves is at, in seconds.
WORK_S = 1.0


class Rank(Worker):
    """Does nothing but be there."""

    def look(self) -> int:
        """This process's id."""
        return self.info.pid

    def work(self, for_s: float) -> None:
        """Take so long, in seconds."""
        threading.Event().wait(for_s)


@ray.remote(num_cpus=0)
class BareActor:
    """The same as a bare Ray actor."""

    def look(self) -> int:
        """As `Rank.look`."""
        import os

        return os.getpid()


def grown(group: WorkerGroup[Rank]) -> float:
    """How long it takes from `grow(1)` until the new rank has answered a call, in seconds."""
    began = time.perf_counter()
    (number,) = group.grow(1, timeout_s=TIMEOUT_S)
    group.execute_on(number).look().wait(TIMEOUT_S)
    return time.perf_counter() - began


def started() -> float:
    """How long a bare Ray actor takes until it has answered a call, in seconds."""
    began = time.perf_counter()
    actor = BareActor.remote()
    ray.get(actor.look.remote(), timeout=TIMEOUT_S)
    took_s = time.perf_counter() - began
    ray.kill(actor)
    return took_s


def longest_pause(group: WorkerGroup[Rank], meanwhile: Callable[[], object]) -> float:
    """The longest call of a rank that is called again and again while something else goes on, in seconds."""
    with ThreadPoolExecutor(1) as pool:
        other, longest = pool.submit(meanwhile), 0.0
        while not other.done():
            began = time.perf_counter()
            group.execute_on(0).look().wait(TIMEOUT_S)
            longest = max(longest, time.perf_counter() - began)
        other.result()
    return longest


def shrunk(group: WorkerGroup[Rank]) -> float:
    """How long a shrink takes beyond the work that the rank has, which is three calls that wait in its line."""
    number = group.ranks[-1]
    began = time.perf_counter()
    calls = [group.execute_on(number).work(WORK_S / 3) for _ in range(3)]
    group.shrink(1)
    took_s = time.perf_counter() - began
    for call in calls:
        call.wait(TIMEOUT_S)
    return took_s - WORK_S


def measure(group: WorkerGroup[Rank], rounds: int) -> dict[str, float]:
    """The figures in seconds, by what they are of."""
    found: dict[str, list[float]] = {}

    def note(what: str, value_s: float) -> None:
        found.setdefault(what, []).append(value_s)

    started()  # Ray keeps a process ready, and has started it by now
    for _ in range(rounds):
        note("grow", grown(group))
        note("actor", started())
        note("shrink", shrunk(group))
        note("pause", longest_pause(group, lambda: grown(group)))
        note("actor pause", longest_pause(group, started))
        note("shrink pause", longest_pause(group, lambda: shrunk(group)))
    return {what: statistics.median(values) for what, values in found.items()}


def main() -> None:
    """Print the table and the targets."""
    parser = argparse.ArgumentParser(description="What growing and shrinking a group costs.")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is done")
    parser.add_argument("--quick", action="store_true", help="once: whether it runs, not how fast")
    given: Any = parser.parse_args()
    with stopwatch("resizing.py"), Cluster(simulate="2x0") as cluster:
        group = Rank.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="resized")
        found = measure(group, 1 if given.quick else given.rounds)
        group.terminate()
    table = Table("resizing", ("group", "bare Ray actor", "ratio"))
    for what, ours, bare in (
        ("until it answers", "grow", "actor"),
        ("pause of the others", "pause", "actor pause"),
    ):
        ratio = ratio_text(found[ours] / found[bare])
        table.row(what, duration_text(found[ours]), duration_text(found[bare]), ratio)
    table.row("a shrink, beyond the work", duration_text(found["shrink"]))
    table.row("pause of the others meanwhile", duration_text(found["shrink pause"]))
    print_targets(
        [
            Target(
                "a new rank, beside a bare Ray actor",
                1.3,
                found["grow"] / found["actor"],
                "x",
                at_least=False,
            ),
            Target("pause of the others", 0.1, found["pause"], "s", at_least=False),
        ]
    )


if __name__ == "__main__":
    main()
