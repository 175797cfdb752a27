"""How long planning takes, and that it grows in step with the cluster.

A plan decides and checks where every process runs; `placements` then makes one record a process, which a launch does
for the component that it starts. Components are colocated: each is on all accelerators, in a way of its own.
"""

import statistics
import time

from rlinf.scheduler.placement import PlacementRule, Topology, plan_components

REPEATS = 5
# From half the accelerators for each process to four processes for each accelerator; none is like another.
SIZES = [("64x8", 4), ("512x8", 4), ("1024x8", 8), ("2048x8", 8), ("4096x8", 8), ("8192x8", 8)]


def rules(num_accelerators: int, num_components: int) -> list[PlacementRule]:
    """Components that each use every accelerator, in different ways."""
    last = num_accelerators - 1
    texts = ["all"]
    texts += [f"0-{last}:0-{num_accelerators // share - 1}" for share in (2, 4, 8)]
    half = num_accelerators // 2
    texts += [
        f"0-{half - 1},{half}-{last}:{half}-{half + half // 2 - 1}",
        f"{half}-{last}:0-{half - 1},0-{half - 1}:{half}-{last}",
        f"0-{last}:0-{2 * num_accelerators - 1}",
        f"0-{last}:0-{last}",
    ]
    return [PlacementRule((f"component{index}",), text) for index, text in enumerate(texts[:num_components])]


def measure(shape: str, num_components: int) -> tuple[int, int, float, float]:
    """Accelerators, processes, and the median seconds to plan and to make every record."""
    topology = Topology.parse(shape)
    chosen = rules(topology.num_accelerators, num_components)
    planning, recording = [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        plan = plan_components(topology, chosen)
        planned = time.perf_counter()
        num_processes = sum(len(component.placements()) for component in plan.components.values())
        recording.append(time.perf_counter() - planned)
        planning.append(planned - started)
    return topology.num_accelerators, num_processes, statistics.median(planning), statistics.median(recording)


def main() -> None:
    """Print a line a size."""
    print(
        f"{'nodes':>8} {'devices':>8} {'components':>10} {'processes':>10} {'plan ms':>9} {'us/process':>10}"
        f" {'us/node':>8} {'placements ms':>14} {'us/process':>10}"
    )
    for shape, num_components in SIZES:
        devices, processes, plan_s, record_s = measure(shape, num_components)
        nodes = devices // 8 * num_components
        print(
            f"{shape:>8} {devices:>8} {num_components:>10} {processes:>10} {plan_s * 1e3:>9.1f}"
            f" {plan_s / processes * 1e6:>10.2f} {plan_s / nodes * 1e6:>8.2f} {record_s * 1e3:>14.1f}"
            f" {record_s / processes * 1e6:>10.2f}"
        )


if __name__ == "__main__":
    main()
