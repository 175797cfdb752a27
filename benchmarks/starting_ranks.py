"""What starting ranks costs beside as many bare Ray actors: time, processor time and memory, as the number grows.

Two simulated nodes; both sides start, are called once, are measured and ended, in turn. Memory is what a process has
for itself alone (USS); processor time is what it has used until all are ready. Neither side uses torch. Bare actors are
started all at once, as one does; more than 64 at the pace of groups, since they do not come up otherwise.

    python benchmarks/starting_ranks.py [--ranks 4,16,64,200] [--rounds 3] [--picture docs/launch-growth.png] [--quick]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from measure import MIB, Table, Target, duration_text, print_targets, ratio_text, stopwatch
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker
from rlinf_scheduler.ray_backend.backend import cores_of_machines
from rlinf_scheduler.worker.processes import limits_of

NUM_NODES = 2
TIMEOUT_S = 900.0
# So many bare actors at once are up within the minute that Ray gives a process; of 200 it ends some that are nearly
# there, and starts them again, for minutes.
AT_ONCE = 64
# So much of the machine's memory stays for others.
SPARE_BYTES = 3 << 30
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Rank(Worker):
    """Does nothing but be there."""

    def look(self) -> tuple[int, bool]:
        """This process's id, and whether torch was loaded into it."""
        import sys

        return self.info.pid, "torch" in sys.modules


@ray.remote(num_cpus=0)
class BareActor:
    """The same as a bare Ray actor."""

    def look(self) -> tuple[int, bool]:
        """As `Rank.look`."""
        import os
        import sys

        return os.getpid(), "torch" in sys.modules


@dataclass(frozen=True, slots=True)
class Cost:
    """What starting some processes cost.

    Attributes:
        took_s: from the first step until each has answered, in seconds.
        cpu_s: processor time of one process until then, in seconds; the mean.
        memory_bytes: what one process has for itself, in bytes; the mean.
        num_with_torch: how many have torch loaded.
    """

    took_s: float
    cpu_s: float
    memory_bytes: float
    num_with_torch: int


class Launches:
    """Both sides, on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def ours(self, num_ranks: int) -> Cost:
        """A group."""
        began = time.perf_counter()
        strategy = NodePlacementStrategy([rank * NUM_NODES // num_ranks for rank in range(num_ranks)])
        group = Rank.create_group().launch(
            self._cluster, strategy, name=f"ranks-{num_ranks}", launch_timeout_s=TIMEOUT_S
        )
        answers = group.look().wait(TIMEOUT_S)
        cost = _cost(began, answers)
        group.terminate()
        _wait_until_gone([pid for pid, _ in answers])
        return cost

    def bare(self, num_ranks: int) -> Cost:
        """As many actors, spread by Ray."""
        (pace,) = limits_of(["127.0.0.1"], cores_of_machines()).values()
        began = time.perf_counter()
        actors, asked, starting = [], [], []
        for _ in range(num_ranks):
            if num_ranks > AT_ONCE and len(starting) == pace:
                _, starting = ray.wait(starting, num_returns=1, timeout=TIMEOUT_S)
            actors.append(BareActor.options(scheduling_strategy="SPREAD").remote())
            asked.append(actors[-1].look.remote())
            starting.append(asked[-1])
        answers = ray.get(asked, timeout=TIMEOUT_S)
        cost = _cost(began, answers)
        for actor in actors:
            ray.kill(actor)
        _wait_until_gone([pid for pid, _ in answers])
        return cost


def _cost(began: float, answers: list[tuple[int, bool]]) -> Cost:
    took_s = time.perf_counter() - began
    pids = [pid for pid, _ in answers]
    return Cost(
        took_s,
        statistics.mean(map(cpu_s_of, pids)),
        statistics.mean(map(own_memory_of, pids)),
        sum(with_torch for _, with_torch in answers),
    )


def cpu_s_of(pid: int) -> float:
    """Processor time that a process has used, in seconds: proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def own_memory_of(pid: int) -> int:
    """Memory that a process shares with no other, in bytes: proc_pid_smaps(5)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def free_memory() -> int:
    """How much the machine has left, in bytes: proc_meminfo(5)."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _wait_until_gone(pids: list[int]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > until:
            raise TimeoutError(f"processes of the last launch are still there after {TIMEOUT_S:.0f} s")
        time.sleep(0.05)


def measure(launches: Launches, sizes: list[int], rounds: int) -> dict[int, tuple[Cost, Cost]]:
    """For each size both sides' costs: of the rounds in which each was quickest. It ends where memory would."""
    table = Table(
        "ranks", ("group", "bare", "ratio", "CPU a rank", "bare", "ratio", "MiB a rank", "bare"), 8, 10
    )
    found: dict[int, tuple[Cost, Cost]] = {}
    a_rank = 0.0
    for size in sizes:
        if size * a_rank > free_memory() - SPARE_BYTES:
            print(f"{size} ranks of {a_rank / MIB:.0f} MiB do not fit into what this machine has left")
            break
        sides: list[list[Cost]] = [[], []]
        for _ in range(rounds if size <= 16 else 1):
            for costs, start in zip(sides, (launches.ours, launches.bare), strict=True):
                costs.append(start(size))
        ours, bare = (min(costs, key=lambda cost: cost.took_s) for costs in sides)
        found[size] = ours, bare
        a_rank = ours.memory_bytes
        table.row(
            str(size),
            duration_text(ours.took_s),
            duration_text(bare.took_s),
            ratio_text(ours.took_s / bare.took_s),
            duration_text(ours.cpu_s),
            duration_text(bare.cpu_s),
            ratio_text(ours.cpu_s / bare.cpu_s),
            f"{ours.memory_bytes / MIB:.0f}",
            f"{bare.memory_bytes / MIB:.0f}",
        )
    return found


def draw(found: dict[int, tuple[Cost, Cost]], path: str) -> None:
    """Write the growth as a picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sizes = list(found)
    plots: list[tuple[str, Callable[[Cost], float]]] = [
        ("seconds until all are ready", lambda cost: cost.took_s),
        ("processor seconds a rank", lambda cost: cost.cpu_s),
        ("MiB a rank, its own", lambda cost: cost.memory_bytes / MIB),
    ]
    figure, axes = plt.subplots(1, len(plots), figsize=(12, 3.4))
    for index, (axis, (label, value)) in enumerate(zip(axes, plots, strict=True)):
        highest = max(value(cost) for sides in found.values() for cost in sides)
        for side, (name, marker) in enumerate((("group", "o"), ("bare Ray actors", "s"))):
            axis.plot(sizes, [value(found[size][side]) for size in sizes], marker=marker, label=name)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, list(map(str, sizes)))
        axis.set_xlabel("ranks")
        axis.set_title(label, fontsize=10)
        axis.set_ylim(0, 1.1 * highest)
        axis.grid(alpha=0.3)
        if index == 0:
            axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the table and the targets; draw the picture if one is wanted."""
    parser = argparse.ArgumentParser(description="What starting ranks costs beside bare Ray actors.")
    parser.add_argument("--ranks", default="4,16,64,200", help="how many, one after the other")
    parser.add_argument("--rounds", type=int, default=3, help="how often up to 16 ranks are started")
    parser.add_argument("--picture", default="", metavar="FILE", help="draw the growth")
    parser.add_argument("--quick", action="store_true", help="4 ranks, once: whether it runs, not how fast")
    given: Any = parser.parse_args()
    sizes = [4] if given.quick else [int(size) for size in given.ranks.split(",")]
    with stopwatch("starting_ranks.py"), Cluster(simulate=f"{NUM_NODES}x0") as cluster:
        found = measure(Launches(cluster), sizes, 1 if given.quick else given.rounds)
    if given.picture:
        draw(found, given.picture)
    ratios = {size: ours.took_s / bare.took_s for size, (ours, bare) in found.items()}
    growth = found[200][0].cpu_s / found[16][0].cpu_s if {16, 200} <= found.keys() else None
    print_targets(
        [
            Target("16 ranks, beside bare Ray actors", 1.2, ratios.get(16), "x", at_least=False),
            Target("64 ranks, beside bare Ray actors", 1.2, ratios.get(64), "x", at_least=False),
            Target("processor time of a rank of 200, of one of 16", 1.2, growth, "x", at_least=False),
            Target(
                "ranks that have torch and do not use it",
                0,
                sum(ours.num_with_torch for ours, _ in found.values()),
                "",
                at_least=False,
            ),
        ]
    )


if __name__ == "__main__":
    main()
