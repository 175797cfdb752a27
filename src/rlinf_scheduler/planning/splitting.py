"""Which split of devices among components gives the shortest step, from what each was measured to need. Pure.

A component's time in a step is taken as `fixed_s + work_s / devices`: Amdahl's law, with both parts measured where it
ran on several numbers of devices, and all of it divisible where it ran on one. Components in one pool take turns on the
pool's devices; pools run one after another (phases in turn) or at the same time (phases side by side).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.wording import counted, name_list

Phases = Literal["in turn", "side by side"]
MAX_COMPONENTS = 7  # there are 877 ways to group as many
_AS_GOOD = 1.05
MOST_TRIED = 64  # devices, of which every division is tried


@dataclass(frozen=True, slots=True)
class Workload:
    """What a component needs of a step.

    Attributes:
        name: the component.
        work_s: what can be divided among devices, in seconds of one device.
        width: devices of a process: it is given multiples of them.
        fixed_s: what it takes on any number of devices, in seconds.
        memory_gb: memory of each of its devices that it holds while others run, in units of 10**9 bytes.
    """

    name: str
    work_s: float
    width: int = 1
    fixed_s: float = 0.0
    memory_gb: float = 0.0

    def seconds(self, num_devices: int) -> float:
        """Return the seconds of a step that it takes on so many devices."""
        return self.fixed_s + self.work_s / num_devices


@dataclass(frozen=True, slots=True)
class Pool:
    """Components that take turns on the same devices."""

    workloads: tuple[Workload, ...]
    num_devices: int

    @property
    def seconds(self) -> float:
        """The seconds of a step in which any of them runs."""
        return sum(workload.seconds(self.num_devices) for workload in self.workloads)

    @property
    def names(self) -> tuple[str, ...]:
        """The components."""
        return tuple(workload.name for workload in self.workloads)


@dataclass(frozen=True, slots=True)
class Split:
    """Devices divided into pools, and the step that this is expected to give."""

    pools: tuple[Pool, ...]
    step_s: float

    @property
    def devices(self) -> dict[str, int]:
        """How many devices each component has."""
        return {name: pool.num_devices for pool in self.pools for name in pool.names}

    def __str__(self) -> str:
        parts = (f"{name_list(pool.names)} on {pool.num_devices}" for pool in self.pools)
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run says of a component: its seconds of a step on so many devices."""

    num_devices: int
    seconds: float


def workload_of(
    name: str, measured: Sequence[Measured], *, width: int = 1, memory_gb: float = 0.0
) -> Workload:
    """Return the workload that fits what was measured best: least squares of both parts, none below zero.

    >>> workload_of("actor", [Measured(2, 5.0), Measured(4, 3.0)])
    Workload(name='actor', work_s=8.0, width=1, fixed_s=1.0, memory_gb=0.0)
    """
    points = [(1 / each.num_devices, each.seconds) for each in measured]
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread > 0 else math.inf
    if not 0 <= slope * mean_x <= mean_y:  # nothing is known of the fixed part, or it would be below zero
        squares = sum(x * x for x, _ in points)
        slope = 0.0 if slope < 0 else sum(x * y for x, y in points) / squares
    fixed_s = max(0.0, mean_y - slope * mean_x) if spread > 0 else 0.0
    return Workload(name, round(slope, 9), width, round(fixed_s, 9), memory_gb)


def best_splits(
    workloads: Sequence[Workload],
    num_devices: int,
    phases: Phases,
    *,
    elsewhere_s: float = 0.0,
    device_memory_gb: float = math.inf,
) -> list[Split]:
    """Return the best split of each way to group components, the shortest step first.

    Args:
        workloads: what each needs.
        num_devices: how many there are.
        phases: how pools follow each other.
        elsewhere_s: seconds of a step of what is not to be placed.
        device_memory_gb: what a device has: components of one pool hold theirs at the same time.

    Raises:
        PlacementError: too many components, or no split has room for all of them.

    >>> splits = best_splits([Workload("rollout", 24.0), Workload("actor", 8.0)], 8, "side by side")
    >>> [(str(split), split.step_s) for split in splits]
    [('rollout on 6; actor on 2', 4.0), ('rollout and actor on 8', 4.0)]
    """
    if not 1 <= len(workloads) <= MAX_COMPONENTS:
        raise PlacementError(
            f"{len(workloads)} components are to be split; from 1 to {MAX_COMPONENTS} can be"
        )
    splits = [
        split
        for groups in _groupings(list(workloads))
        if all(sum(workload.memory_gb for workload in group) <= device_memory_gb for group in groups)
        and (split := _divided(groups, num_devices, phases, elsewhere_s)) is not None
    ]
    if not splits:
        least = sum(workload.width for workload in workloads)
        problem = f"no split of {counted(num_devices, 'device')} has room for all components"
        raise PlacementError(
            problem, hint=f"apart they need {least}, and beside each other all of their memory"
        )
    return sorted(splits, key=lambda split: (split.step_s, -len(split.pools)))


def preferred(splits: Sequence[Split]) -> Split:
    """Return the split that keeps most apart, of those that are within a twentieth of the shortest.

    What shares devices takes turns on them and moves its memory, which no forecast here knows.

    >>> preferred(best_splits([Workload("rollout", 61.0), Workload("actor", 21.0)], 8, "side by side")).devices
    {'rollout': 6, 'actor': 2}
    """
    near = [split for split in splits if split.step_s <= _AS_GOOD * splits[0].step_s]
    return max(near, key=lambda split: len(split.pools))


def curve(
    workloads: Sequence[Workload], num_devices: int, phases: Phases, first: str, *, elsewhere_s: float = 0.0
) -> Iterator[tuple[int, float]]:
    """Yield the step for each number of devices of one component, the others having the rest, apart and divided best.

    Raises:
        PlacementError: there is no such component.
    """
    chosen = next((workload for workload in workloads if workload.name == first), None)
    if chosen is None:
        raise PlacementError(f"there is no component '{first}'")
    others = [[workload] for workload in workloads if workload is not chosen]
    for own in range(chosen.width, num_devices + 1, chosen.width):
        rest = _divided(others, num_devices - own, phases, 0.0) if others else Split((), 0.0)
        if rest is not None:
            yield own, _step([Pool((chosen,), own), *rest.pools], phases, elsewhere_s)


def _groupings(workloads: list[Workload]) -> Iterator[list[list[Workload]]]:
    """Yield every way to group workloads, in the order given."""
    if not workloads:
        yield []
        return
    first, rest = workloads[0], workloads[1:]
    for mask in range(1 << len(rest)):
        group = [first, *(each for index, each in enumerate(rest) if mask >> index & 1)]
        for others in _groupings([each for index, each in enumerate(rest) if not mask >> index & 1]):
            yield [group, *others]


def _divided(
    groups: Sequence[Sequence[Workload]], num_devices: int, phases: Phases, elsewhere_s: float
) -> Split | None:
    """Return the best division of devices among groups, or None where they do not suffice."""
    units = [math.lcm(*(workload.width for workload in group)) for group in groups]
    if sum(units) > num_devices:
        return None
    shares = _even_ends if phases == "side by side" else _least_sum
    sizes = shares(groups, units, num_devices)
    pools = tuple(Pool(tuple(group), size) for group, size in zip(groups, sizes, strict=True))
    return Split(pools, _step(pools, phases, elsewhere_s))


def _step(pools: Sequence[Pool], phases: Phases, elsewhere_s: float) -> float:
    seconds = [pool.seconds for pool in pools]
    return elsewhere_s + sum(seconds) if phases == "in turn" else max([elsewhere_s, *seconds])


def _parts(group: Sequence[Workload]) -> tuple[float, float]:
    return sum(workload.fixed_s for workload in group), sum(workload.work_s for workload in group)


def _even_ends(groups: Sequence[Sequence[Workload]], units: Sequence[int], num_devices: int) -> list[int]:
    """Return sizes with which the pool that ends last ends as early as it can."""

    def sizes(step_s: float) -> list[int]:
        found = []
        for group, unit in zip(groups, units, strict=True):
            fixed_s, work_s = _parts(group)
            needed = work_s / (step_s - fixed_s) if step_s > fixed_s else (math.inf if work_s else 0.0)
            found.append(
                num_devices + 1 if needed > num_devices else max(unit, math.ceil(needed / unit - 1e-9) * unit)
            )
        return found

    slow = max(
        fixed_s + work_s / unit for (fixed_s, work_s), unit in zip(map(_parts, groups), units, strict=True)
    )
    low, high = 0.0, slow + 1e-9
    for _ in range(100):
        middle = (low + high) / 2
        if sum(sizes(middle)) <= num_devices:
            high = middle
        else:
            low = middle
    return _with_the_rest(sizes(high), groups, units, num_devices)


def _least_sum(groups: Sequence[Sequence[Workload]], units: Sequence[int], num_devices: int) -> list[int]:
    """Return sizes with which the pools' seconds are fewest: of few devices all are tried, of many their roots."""
    if num_devices <= MOST_TRIED:
        return _least_of_all(groups, units, num_devices)
    roots = [math.sqrt(_parts(group)[1]) for group in groups]
    total = sum(roots) or 1.0
    sizes = []
    for root, unit in zip(roots, units, strict=True):
        share = num_devices * root / total
        sizes.append(max(unit, int(share / unit) * unit))
    while sum(sizes) > num_devices:  # those that have least were given more than their share
        _, index = min(
            (_gain(groups[i], sizes[i] - units[i], units[i]), i)
            for i in range(len(sizes))
            if sizes[i] > units[i]
        )
        sizes[index] -= units[index]
    return _with_the_rest(sizes, groups, units, num_devices)


def _least_of_all(groups: Sequence[Sequence[Workload]], units: Sequence[int], num_devices: int) -> list[int]:
    """Return the best sizes of all: those of the first groups on each number of devices, one group more at a time."""
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for group, unit in zip(groups, units, strict=True):
        fixed_s, work_s = _parts(group)
        found: dict[int, tuple[float, list[int]]] = {}
        for used, (seconds, sizes) in best.items():
            for size in range(unit, num_devices - used + 1, unit):
                total = seconds + fixed_s + work_s / size
                if used + size not in found or total < found[used + size][0]:
                    found[used + size] = total, [*sizes, size]
        best = found
    return min(best.items(), key=lambda each: (each[1][0], each[0]))[1][1]


def _with_the_rest(
    sizes: list[int], groups: Sequence[Sequence[Workload]], units: Sequence[int], num_devices: int
) -> list[int]:
    """Give what is left over to whom it helps most."""
    while fit := [i for i in range(len(sizes)) if units[i] <= num_devices - sum(sizes)]:
        index = max(fit, key=lambda i: (_gain(groups[i], sizes[i], units[i]), -i))
        if _gain(groups[index], sizes[index], units[index]) <= 0:
            break
        sizes[index] += units[index]
    return sizes


def _gain(group: Sequence[Workload], size: int, unit: int) -> float:
    """Return the seconds a device that a pool of some size would save with a unit more."""
    work_s = _parts(group)[1]
    return (work_s / size - work_s / (size + unit)) / unit
