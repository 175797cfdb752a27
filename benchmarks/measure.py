"""What the benchmarks share: sides that run in turn, medians, tables, targets, and the command line's options.

A *side* is one way to do a workload: a function that does it `count` times and returns the seconds that it took.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

Side = Callable[[int], float]

KIB, MIB = 1 << 10, 1 << 20
# How much longer a calibration's next run may be than the last one: a first run's start-up must not hide the pace.
_GROWTH = 16


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured.

    Attributes:
        only: a piece of the names of the workloads that are run; "" is in every name.
        rounds: how often every side runs; figures are the medians.
        budget_s: how long one side runs in one round, about, in seconds.
    """

    only: str
    rounds: int
    budget_s: float

    def wants(self, name: str) -> bool:
        """Whether the workload `name` is to be run."""
        return self.only in name


def read_options(description: str, rounds: int = 3, budget_s: float = 0.3) -> Options:
    """The command line's: `--only NAME` runs the workloads with NAME in their names, `--quick` measures roughly."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--only", default="", metavar="NAME", help="run the workloads with NAME in their names"
    )
    parser.add_argument("--quick", action="store_true", help="one short round: whether it runs, not how fast")
    given = parser.parse_args()
    return Options(given.only, 1 if given.quick else rounds, budget_s / 8 if given.quick else budget_s)


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def repeated(work: Callable[[], object]) -> Side:
    """The side that calls `work` over and over."""

    def run(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            work()
        return time.perf_counter() - started

    return run


def count_for(run: Side, budget_s: float, least: int = 1, most: int = 1_000_000) -> int:
    """How often `run` does its work in `budget_s` seconds: `least` to `most`, found by running it.

    The first run is a warm-up and counts for nothing.
    """
    run(1)
    count = least
    while True:
        took = max(run(count), 1e-9)
        fitting = int(count * budget_s / took)
        if took >= budget_s / 2 or count >= most:
            return min(max(fitting, least), most)
        count = min(max(2 * count, fitting // 2), _GROWTH * count, most)


def in_turn(sides: Sequence[Side], counts: Sequence[int], rounds: int) -> list[float]:
    """Each side's median seconds for doing its work once; in every round each side runs once."""
    took: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for run, count, seconds in zip(sides, counts, took, strict=True):
            seconds.append(run(count) / count)
    return [statistics.median(seconds) for seconds in took]


def compare(
    sides: Sequence[Side], options: Options, shares: Sequence[float] | None = None, least: int = 1
) -> list[float]:
    """Each side's median seconds for doing its work once, after finding how often it fits into its time.

    Args:
        sides: what is compared; the first runs first.
        options: say how long a side runs in a round, and how many rounds there are.
        shares: each side's part of that time; 1 by default.
        least: how often every side does its work in a round at least.
    """
    budgets = [options.budget_s * share for share in shares or [1.0] * len(sides)]
    counts = [count_for(run, budget, least) for run, budget in zip(sides, budgets, strict=True)]
    return in_turn(sides, counts, options.rounds)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of `values` that at least `percent` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = -int(-len(ordered) * percent // 100)
    return ordered[max(rank, 1) - 1]


def size_text(size_bytes: int) -> str:
    """A size in bytes as people write it: "1 KiB"."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def duration_text(seconds: float) -> str:
    """Seconds with three digits and a unit: "24.1 us"."""
    for scale, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * scale < 1000:
            return f"{_three_digits(seconds * scale)} {unit}"
    return f"{_three_digits(seconds)} s"


def rate_text(a_second: float) -> str:
    """How many a second: "39,100"."""
    return f"{a_second:,.0f}" if a_second >= 100 else _three_digits(a_second)


def speed_text(size_bytes: int, seconds: float) -> str:
    """GB (10^9 bytes) a second; "" where there are too few bytes for it to mean anything."""
    return f"{size_bytes / seconds / 1e9:.2f}" if size_bytes >= 64 * KIB else ""


def ratio_text(ratio: float) -> str:
    """How many times: "8.6 x"."""
    return f"{_three_digits(ratio)} x"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


class Table:
    """Lines of text in columns, each printed as soon as it is known: the first column left, the others right."""

    def __init__(self, title: str, columns: Sequence[str], first_width: int = 44, width: int = 11) -> None:
        self._first_width = first_width
        self._widths = [max(width, len(column) + 2) for column in columns]
        self.row(title, *columns)

    def row(self, name: str, *cells: str) -> None:
        """Print a line."""
        padded = [f"{cell:>{width}}" for cell, width in zip(cells, self._widths, strict=False)]
        print(f"{name:{self._first_width}}{''.join(padded)}".rstrip(), flush=True)


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure is to reach.

    Attributes:
        what: the figure, in words.
        wanted: the value to reach.
        measured: this run's value; None if its workload was not run.
        unit: printed behind both.
        at_least: whether more is better.
    """

    what: str
    wanted: float
    measured: float | None
    unit: str
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether this run reached it."""
        if self.measured is None:
            return False
        return self.measured >= self.wanted if self.at_least else self.measured <= self.wanted

    @property
    def outcome(self) -> str:
        """The last column: whether it is met."""
        if self.measured is None:
            return "not run"
        return "met" if self.met else "not met"


def print_targets(targets: Sequence[Target]) -> None:
    """Print a line a target: what was wanted, what this run measured, and whether that is enough."""
    print()
    table = Table("target", ("wanted", "measured", ""), first_width=56, width=16)
    for target in targets:
        sign = ">=" if target.at_least else "<="
        measured = "" if target.measured is None else f"{_three_digits(target.measured)} {target.unit}"
        table.row(target.what, f"{sign} {target.wanted:g} {target.unit}", measured, target.outcome)


@contextmanager
def stopwatch(name: str) -> Iterator[None]:
    """Print how long the block took, its set-up included."""
    started = time.perf_counter()
    yield
    print(f"\n{name} took {time.perf_counter() - started:.0f} s")
