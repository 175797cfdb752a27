"""How evenly heavy-tailed items are divided among data-parallel ranks, and how long that takes.

Lengths are lognormal, as those of generated answers are. The cost of an item is its length, or its length's square, as
of attention. *Imbalance* is the largest part's cost over the mean: 1 is best, and no division is better than the
largest item over the mean ("floor"). Times are the best of five: what else runs on the machine only adds to them.

    python benchmarks/balance.py [--only COST] [--quick]
"""

import random
import time
from collections.abc import Callable, Sequence

from measure import read_options
from rlinf_scheduler.queueing.balance import balanced, imbalance, least_loaded, round_robin

NUM_ITEMS, NUM_SHARDS = 8192, 64
REPEATS = 5
TARGET_MS = 50
Divide = Callable[[Sequence[float]], list[list[int]]]


def lengths() -> list[int]:
    """Lengths of answers: half of them below 400, a few above 10,000."""
    dice = random.Random(1)
    return [int(dice.lognormvariate(6, 1)) + 1 for _ in range(NUM_ITEMS)]


def greedy(costs: Sequence[float]) -> list[list[int]]:
    """Longest first, each to the rank that has the least to do."""
    order = sorted(range(len(costs)), key=lambda place: -costs[place])
    parts = least_loaded([costs[place] for place in order], NUM_SHARDS)
    return [[order[place] for place in part] for part in parts]


WAYS: dict[str, Divide] = {
    "round robin": lambda costs: round_robin(len(costs), NUM_SHARDS),
    "least loaded": lambda costs: least_loaded(costs, NUM_SHARDS),
    "greedy, longest first": greedy,
    "balanced": lambda costs: balanced(costs, NUM_SHARDS),
    "balanced, equal counts": lambda costs: balanced(costs, NUM_SHARDS, equal_counts=True),
}


def measured(divide: Divide, costs: Sequence[float]) -> tuple[float, list[list[int]]]:
    """Milliseconds that a division takes, and the division."""
    times = []
    parts: list[list[int]] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        parts = divide(costs)
        times.append(time.perf_counter() - began)
    return min(times) * 1e3, parts


def main() -> None:
    """Print a line for each way and each cost."""
    options = read_options(__doc__ or "")
    print(f"{NUM_ITEMS} items over {NUM_SHARDS} shards; target: balanced in under {TARGET_MS} ms")
    print(f"{'cost':10} {'':24} {'imbalance':>10} {'items':>10} {'ms':>8}")
    for name, power in (("linear", 1), ("quadratic", 2)):
        if not options.wants(name):
            continue
        costs = [length**power for length in lengths()]
        floor = max(1.0, max(costs) * NUM_SHARDS / sum(costs))
        print(f"{name:10} {'floor':24} {floor:10.4f}")
        for way, divide in WAYS.items():
            took_ms, parts = measured(divide, costs)
            sizes = [len(part) for part in parts]
            items = f"{min(sizes)}-{max(sizes)}"
            print(f"{name:10} {way:24} {imbalance(costs, parts):10.4f} {items:>10} {took_ms:8.1f}")


if __name__ == "__main__":
    main()
