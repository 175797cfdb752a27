"""`rlinf plan --auto`: the split of devices that gives the shortest step, from what a job's report has measured."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning import ComponentPlan, PlacementWish, Plan, Topology, find_places
from rlinf_scheduler.planning.explain import DeviceKey, run_devices
from rlinf_scheduler.planning.splitting import (
    Measured,
    Phases,
    Split,
    Workload,
    best_splits,
    curve,
    phases_of,
    workload_of,
)
from rlinf_scheduler.planning.wishes import GIGABYTE
from rlinf_scheduler.wording import counted, list_names, printable, text_table

_MOST_SPLITS = 8
_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48


@dataclass(frozen=True, slots=True)
class _Run:
    """What one report has measured: seconds of a step by group, how many ranks each had, and the step."""

    file: str
    seconds: Mapping[str, float]
    num_ranks: Mapping[str, int]
    step_s: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is expected of each split.

    Attributes:
        workloads: what each component needs.
        before: how many devices each has in the config.
        measured_s: the step as it was measured,
        before_s: and as these figures give it for the config: how far they can be trusted.
        phases: how phases follow each other.
        elsewhere_s: seconds of a step of what has no accelerators.
        splits: the best of each way to group components, the shortest step first.
        num_devices: how many there are.
        topology: the nodes.
    """

    workloads: tuple[Workload, ...]
    before: Mapping[str, int]
    measured_s: float
    before_s: float
    phases: Phases
    elsewhere_s: float
    splits: tuple[Split, ...]
    num_devices: int
    topology: Topology


def propose(
    plan: Plan, reports: Sequence[Path], phases: Phases | None, memory_gb: Mapping[str, float]
) -> Proposal:
    """Return what each split of a plan's accelerators would give.

    Args:
        plan: the plan of the config that the last of the reports was measured with.
        reports: files that `rlinf report --json` has written; runs with several splits tell what does not divide.
        phases: how phases follow each other; None: as the last report's step says.
        memory_gb: what components hold of each of their devices while others run.

    Raises:
        ConfigError: a file is no report, or has no steps; or nothing of it is in the plan.
    """
    runs = [_read_run(path) for path in reports]
    placed = {name: component for name, component in plan.components.items() if _num_devices(component)}
    names = [name for name in placed if all(run.seconds.get(name) for run in runs)]
    if not names:
        known = list_names(runs[-1].seconds)
        raise ConfigError(
            f"no component with accelerators has worked in a step of {runs[-1].file}; there are {known}"
        )
    unknown = [name for name in memory_gb if name not in names]
    if unknown:
        raise ConfigError(f"'{unknown[0]}' is not to be split; there are {list_names(names)}")
    last = runs[-1]
    before = {name: _num_devices(placed[name]) for name in names}
    workloads = tuple(
        workload_of(
            name,
            [Measured(_devices_in(run, name, placed[name]), run.seconds[name]) for run in runs],
            width=_width(placed[name]),
            memory_gb=memory_gb.get(name, 0.0),
        )
        for name in names
    )
    elsewhere_s = sum(seconds for name, seconds in last.seconds.items() if name not in placed)
    if phases is None:
        phases = phases_of(last.step_s, [last.seconds[name] for name in names], elsewhere_s)
    num_devices = plan.topology.num_accelerators
    splits = best_splits(
        workloads,
        num_devices,
        phases,
        elsewhere_s=elsewhere_s,
        device_memory_gb=_device_memory_gb(plan.topology, memory_gb),
    )
    before_s = _step_as_planned([placed[name] for name in names], workloads, phases, elsewhere_s)
    return Proposal(
        workloads,
        before,
        last.step_s,
        before_s,
        phases,
        elsewhere_s,
        tuple(splits),
        num_devices,
        plan.topology,
    )


def render_proposal(found: Proposal) -> str:
    """What was measured, the best splits, and the first as a placement."""
    rows = [("component", "devices", "of a step", "divides", "does not")]
    rows += [
        (
            printable(workload.name),
            str(found.before[workload.name]),
            f"{workload.seconds(found.before[workload.name]):.3g} s",
            f"{workload.work_s:.3g} s of a device",
            f"{workload.fixed_s:.3g} s" if workload.fixed_s else "-",
        )
        for workload in found.workloads
    ]
    splits = [("step", "against now", "split")]
    splits += [
        (f"{split.step_s:.3g} s", f"{found.before_s / split.step_s:.2f} x", printable(str(split)))
        for split in found.splits[:_MOST_SPLITS]
    ]
    head = f"a step takes {found.measured_s:.3g} s; its phases run {found.phases}, by which it would be "
    head += f"{found.before_s:.3g} s"
    lines = [
        head,
        *text_table(rows, right={1, 2}),
        "",
        f"expected on {counted(found.num_devices, 'accelerator')}:",
    ]
    lines += [*text_table(splits, right={0, 1}), "", *placement_of(found.topology, found.splits[0])]
    return "".join(f"{line}\n" for line in lines)


def placement_of(topology: Topology, split: Split) -> Iterator[str]:
    """Yield the lines of a split as a config has it."""
    wishes = []
    for pool in split.pools:
        first = pool.workloads[0].name
        for workload in pool.workloads:
            wishes.append(
                PlacementWish(
                    (workload.name,),
                    count=pool.num_devices,
                    processes=pool.num_devices // workload.width,
                    sharing=() if workload.name == first else (first,),
                )
            )
    found = find_places(topology, wishes)
    yield "component_placement:"
    yield from (f"  {rule.name}: {rule.text}" for rule in found.rules)
    yield from (f"  # {error}" for error in found.errors)


def draw_curve(found: Proposal) -> str:
    """The step for each number of devices of the component with the most work, the others having the rest, as SVG."""
    first = max(found.workloads, key=lambda workload: workload.work_s).name
    points = list(
        curve(found.workloads, found.num_devices, found.phases, first, elsewhere_s=found.elsewhere_s)
    )
    if not points:
        raise ConfigError(
            f"{counted(found.num_devices, 'device')} cannot be split so that each component has its own"
        )
    now = found.before[first], found.measured_s
    highest = max(step_s for _, step_s in (*points, now))

    def at(num_devices: int, step_s: float) -> tuple[float, float]:
        right = _MARGIN + (_WIDTH - 2 * _MARGIN) * num_devices / found.num_devices
        return right, _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * step_s / highest

    line = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in points)
    best = min(points, key=lambda point: point[1])
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
        f'<text x="{x:.1f}" y="{y + below:.1f}" text-anchor="middle">{label}</text>'
        for (x, y), colour, label, below in (
            (at(*best), "#2a7", f"{best[1]:.3g} s on {best[0]}", 20),
            (at(*now), "#c33", f"now {now[1]:.3g} s", -10),
        )
    )
    ticks = "".join(
        f'<text x="{at(number, 0)[0]:.1f}" y="{at(0, 0)[1] + 16:.1f}" text-anchor="middle">{number}</text>'
        for number in sorted({0, found.num_devices // 2, found.num_devices})
    ) + "".join(
        f'<text x="{_MARGIN - 6}" y="{at(0, highest * part)[1] + 4:.1f}" text-anchor="end">{highest * part:.2g}</text>'
        for part in (0, 0.5, 1)
    )
    base = _HEIGHT - _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="white"/>'
        f'<path d="M{_MARGIN} {_MARGIN / 2}V{base}H{_WIDTH - _MARGIN / 2}" fill="none" stroke="#999"/>'
        f'<polyline points="{line}" fill="none" stroke="#36c" stroke-width="2"/>{marks}{ticks}'
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">devices of {escape(printable(first))}, of '
        f"{found.num_devices}; the rest is the others'</text>"
        f'<text x="12" y="18">seconds a step, phases {found.phases}</text></svg>\n'
    )


def _read_run(path: Path) -> _Run:
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        step = data["step"] or {"count": 0, "mean_s": 0.0}
        groups = [group for group in data["groups"] if any(m["spent"]["count"] for m in group["methods"])]
        run = _Run(
            str(path),
            {group["name"]: group["busy"] * group["lived_s"] / max(1, step["count"]) for group in groups},
            {group["name"]: group["num_ranks"] for group in groups},
            step["mean_s"],
        )
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is no report; `rlinf report --json` writes one") from None
    if not run.step_s > 0:
        raise ConfigError(f"{path}: the report has no steps; `--step GROUP.METHOD` says what a step is")
    return run


def _step_as_planned(
    components: Sequence[ComponentPlan], workloads: Sequence[Workload], phases: Phases, elsewhere_s: float
) -> float:
    """Return the step that the workloads give where components are now: those on one device take turns."""
    seconds = [
        workload.seconds(_num_devices(each)) for each, workload in zip(components, workloads, strict=True)
    ]
    if phases == "in turn":
        return elsewhere_s + sum(seconds)
    busy: dict[DeviceKey, float] = defaultdict(float)
    for component, each in zip(components, seconds, strict=True):
        for device in {device for run in component.runs for device in run_devices(run)}:
            busy[device] += each
    return max([elsewhere_s, *busy.values()])


def _devices_in(run: _Run, name: str, component: ComponentPlan) -> int:
    if run.num_ranks[name] == component.world_size:
        return _num_devices(component)
    return run.num_ranks[name] * _width(component)


def _num_devices(component: ComponentPlan) -> int:
    return len({device for run in component.runs if run.cut.kind.accelerators for device in run_devices(run)})


def _width(component: ComponentPlan) -> int:
    return max(1, len(component.runs[0].cut.local_hardware_ranks[0]))


def _device_memory_gb(topology: Topology, memory_gb: Mapping[str, float]) -> float:
    if not memory_gb:
        return math.inf
    sizes = [node.memory_bytes for node in topology.nodes if node.num_accelerators]
    if not all(sizes):
        hint = "a fleet's file says it: `memory_bytes` of an accelerator"
        raise ConfigError(
            "the memory of the accelerators is not known, so `--memory` cannot be kept to", hint=hint
        )
    return min(sizes) / GIGABYTE
