"""How long planning takes, and that it grows in step with the cluster.

A plan decides and checks where every process runs; `placements` then makes one record a process, which a launch does
for the component that it starts. Components are collocated: each is on all accelerators, in a way of its own. Times are
the best of five: what else runs on the machine only adds to them. The lines after that are of five components placed by
properties, on nodes of two models; the last is the whole command, Python's start included.

    python benchmarks/placement.py [--only SHAPE] [--quick]
"""

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from measure import read_options, stopwatch
from rlinf.scheduler import ComponentPlacement
from rlinf_scheduler.planning import PlacementRule, Topology, plan_components

REPEATS = 5
SIZES = [
    ("64x8", 4),
    ("512x8", 4),
    ("1024x8", 8),
    ("2048x8", 8),
    ("4096x8", 8),
    ("8192x8", 8),
    ("65536x1", 4),
]
SMALL = "cluster: {component_placement: {actor: 0-7, rollout: 8-15, env: {node_group: node, placement: '0-1:0-7'}}}"

BY_PROPERTIES = ("1024x8", "8192x8", "65536x1")
GIB = 1 << 30
MODELS = (("A800-SXM4-80GB", (("rack", "b"),)), ("H100 80GB HBM3", (("rack", "a"),)))


def rules(num_accelerators: int, node_size: int, num_components: int) -> list[PlacementRule]:
    """Components that each use every accelerator: from a node for a process to four processes for an accelerator."""
    last, half = num_accelerators - 1, num_accelerators // 2
    widths = [width for width in (2, 4, 8) if width <= node_size]
    texts = ["all"]
    texts += [f"0-{last}:0-{num_accelerators // width - 1}" for width in widths]
    texts += [
        f"0-{last}:0-{2 * num_accelerators - 1}",
        f"0-{half - 1},{half}-{last}:{half}-{num_accelerators - 1}",
        f"{half}-{last},0-{half - 1}",
        f"0-{last}:0-{4 * num_accelerators - 1}",
    ]
    return [PlacementRule((f"component{index}",), text) for index, text in enumerate(texts[:num_components])]


def measure(shape: str, num_components: int, repeats: int) -> tuple[int, int, int, float, float]:
    """Accelerators, processes, nodes times components, and the best seconds to plan and to make every record."""
    topology = Topology.parse(shape)
    node_size = topology.nodes[0].num_accelerators
    chosen = rules(topology.num_accelerators, node_size, num_components)
    planning, recording = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        plan = plan_components(topology, chosen)
        planned = time.perf_counter()
        num_processes = sum(len(component.placements()) for component in plan.components.values())
        recording.append(time.perf_counter() - planned)
        planning.append(planned - started)
    steps = topology.num_nodes * num_components
    return topology.num_accelerators, num_processes, steps, min(planning), min(recording)


def measure_wishes(shape: str, repeats: int) -> float:
    """Seconds from a config that says what places must be, and nodes, to the numbers and the plan."""
    bare = Topology.parse(shape)
    half, size = bare.num_nodes // 2, bare.nodes[0].num_accelerators
    nodes = [
        replace(node, accelerator_model=model, memory_bytes=80 * GIB, labels=labels)
        for node, (model, labels) in zip(bare.nodes, [MODELS[0]] * half + [MODELS[1]] * half, strict=True)
    ]
    quarter = bare.num_accelerators // 4
    h100 = {"gpu": "H100", "memory_gb": ">=80", "label": {"rack": "a"}}
    rollout = {"node_group": {"gpu": "A800"}, "count": quarter, "processes": quarter, "not_with": "actor"}
    wishes = {
        "actor": {"node_group": h100, "count": quarter, "per_node": max(1, size // 2)},
        "rollout": rollout,
        "critic": {"node_group": {"gpu": "H100"}, "count": quarter // 2, "not_with": "rollout"},
        "reward": {"with": "rollout", "count": 2},
        "env": {"node_group": "node", "count": 1, "processes": 16, "beside": "rollout"},
    }
    took, topology = [], replace(bare, nodes=tuple(nodes))
    for _ in range(repeats):
        started = time.perf_counter()
        ComponentPlacement({"cluster": {"component_placement": wishes}}, topology)
        took.append(time.perf_counter() - started)
    return min(took)


def measure_command(repeats: int) -> float:
    """Seconds that `rlinf plan` takes for a small file."""
    program = Path(sys.executable).with_name("rlinf")
    took = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "small.yaml")
        file.write_text(SMALL)
        for _ in range(repeats):
            started = time.perf_counter()
            subprocess.run([program, "plan", file, "--nodes", "2x8"], check=True, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - started)
    return min(took)


def main() -> None:
    """Print a line a size."""
    options = read_options("How long planning takes.", rounds=REPEATS)
    with stopwatch("placement.py"):
        print_table([size for size in SIZES if options.wants(size[0])], options.rounds)
        for shape in filter(options.wants, BY_PROPERTIES):
            took_s = measure_wishes(shape, options.rounds)
            print(f"five components by properties on {shape}: {took_s * 1e3:.0f} ms")
        if options.wants("command"):
            print(f"rlinf plan of a small file on 2x8: {measure_command(options.rounds) * 1e3:.0f} ms")


def print_table(sizes: list[tuple[str, int]], repeats: int) -> None:
    """Print a line a size."""
    print(
        f"{'nodes':>8} {'devices':>8} {'components':>10} {'processes':>10} {'plan ms':>9} {'us/process':>10}"
        f" {'us/node':>8} {'placements ms':>14} {'us/process':>10}"
    )
    for shape, num_components in sizes:
        devices, processes, steps, plan_s, record_s = measure(shape, num_components, repeats)
        print(
            f"{shape:>8} {devices:>8} {num_components:>10} {processes:>10} {plan_s * 1e3:>9.1f}"
            f" {plan_s / processes * 1e6:>10.2f} {plan_s / steps * 1e6:>8.2f} {record_s * 1e3:>14.1f}"
            f" {record_s / processes * 1e6:>10.2f}"
        )


if __name__ == "__main__":
    main()
