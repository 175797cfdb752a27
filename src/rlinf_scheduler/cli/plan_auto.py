"""`rlinf plan --auto`: the split of devices that gives the shortest step, from what a job's report has measured."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    preferred,
    workload_of,
)
from rlinf_scheduler.planning.wishes import GIGABYTE
from rlinf_scheduler.wording import counted, list_names, printable, text_table

_MOST_SPLITS = 8
_PHASES: tuple[Phases, ...] = ("in turn", "side by side")
_ALIKE = 0.2  # of a step: two forecasts that are nearer to each other are not told apart
_ROUNDED = 0.05  # of the time: calls that follow one another are not counted as side by side
# A forecast that gives less than this part of the step that was measured is of another job.
_EXPLAINED = 0.75
_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48


@dataclass(frozen=True, slots=True)
class _Run:
    """What one report has measured.

    Attributes:
        file: the report's.
        seconds: of a step, by group.
        processor_s: the same, where a group does nothing but on processors.
        side_by_side: groups whose calls or waits ran side by side, by which these seconds are not known.
        num_ranks: by group.
        step_s: the step.
    """

    file: str
    seconds: Mapping[str, float]
    processor_s: Mapping[str, float]
    side_by_side: frozenset[str]
    num_ranks: Mapping[str, int]
    step_s: float

    def with_said(self, seconds: Mapping[str, float]) -> _Run:
        """Return it with seconds that somebody knows better."""
        return replace(
            self, seconds={**self.seconds, **seconds}, side_by_side=self.side_by_side.difference(seconds)
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """The best splits of a plan's accelerators, beside what was measured.

    Attributes:
        workloads: what each component needs.
        before: how many devices each has in the config.
        sharing: how many processes share one of these.
        measured_s: the step as it was measured,
        before_s: and as these figures give it for the config: how far they can be trusted.
        phases: how phases follow each other.
        is_told: whether the measured step tells that, or somebody has.
        elsewhere_s: seconds of a step of what has no accelerators.
        splits: the best of each way to group components, the shortest step first.
        num_devices: how many there are.
        topology: the nodes.
    """

    workloads: tuple[Workload, ...]
    before: Mapping[str, int]
    sharing: Mapping[str, int]
    measured_s: float
    before_s: float
    phases: Phases
    is_told: bool
    elsewhere_s: float
    splits: tuple[Split, ...]
    num_devices: int
    topology: Topology


def propose(
    plan: Plan,
    reports: Sequence[Path],
    phases: Phases | None,
    memory_gb: Mapping[str, float],
    at_work_s: Mapping[str, Sequence[float]],
) -> Proposal:
    """Return what each split of a plan's accelerators would give.

    Args:
        plan: the plan of the config that the last of the reports was measured with.
        reports: files that `rlinf report --json` has written; runs with several splits tell what does not divide.
        phases: how phases follow each other; None: as the last report's step says.
        memory_gb: what components hold of each of their devices while others run.
        at_work_s: seconds of a step, one for each report, of components of which these do not tell it.

    Raises:
        ConfigError: a file is no report, or has no steps; or does not say what a component needs.
    """
    for name, seconds in at_work_s.items():
        if len(seconds) != len(reports):
            raise ConfigError(
                f"--at-work {name} is given {len(seconds)} times, and there are {counted(len(reports), 'report')}"
            )
    runs = [
        _read_run(path).with_said({name: seconds[index] for name, seconds in at_work_s.items()})
        for index, path in enumerate(reports)
    ]
    placed = {name: component for name, component in plan.components.items() if _num_devices(component)}
    names = list(placed)
    for run in runs:
        _check_is_known(run, names)
    unknown = [name for name in (*memory_gb, *at_work_s) if name not in names]
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
    elsewhere_s = sum(seconds for name, seconds in last.processor_s.items() if name not in placed)
    forecasts: dict[Phases, float] = {
        each: _step_as_planned([placed[name] for name in names], workloads, each, elsewhere_s)
        for each in _PHASES
    }
    nearest: Phases = min(_PHASES, key=lambda each: abs(last.step_s - forecasts[each]))
    is_told = (
        phases is not None or abs(forecasts["in turn"] - forecasts["side by side"]) > _ALIKE * last.step_s
    )
    phases = phases or nearest
    num_devices = plan.topology.num_accelerators
    splits = best_splits(
        workloads,
        num_devices,
        phases,
        elsewhere_s=elsewhere_s,
        device_memory_gb=_device_memory_gb(plan.topology, memory_gb),
    )
    return Proposal(
        workloads,
        before,
        {name: max(1, placed[name].world_size // before[name]) for name in names},
        last.step_s,
        forecasts[phases],
        phases,
        is_told,
        elsewhere_s,
        tuple(splits),
        num_devices,
        plan.topology,
    )


def render_proposal(found: Proposal) -> str:
    """Return the text of a proposal: measured times, the best splits, and the preferred one as a placement."""
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
        (
            f"{split.step_s:.3g} s",
            f"{found.before_s / split.step_s if split.step_s else math.inf:.2f} x",
            printable(str(split)),
        )
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
    lines += [*text_table(splits, right={0, 1}), *_notes(found), ""]
    lines += placement_of(found.topology, preferred(found.splits), found.sharing)
    return "".join(f"{line}\n" for line in lines)


def _notes(found: Proposal) -> Iterator[str]:
    explained = found.before_s / found.measured_s
    if explained < _EXPLAINED:
        waits = "components wait for each other, or share processors"
        yield f"note: work is {explained:.0%} of the measured step: {waits}, and this forecast leaves that out"
    if not found.is_told:
        yield "note: phases in turn and side by side would give this step alike: `--phases` says which it is"
    models = {
        node.accelerator_model or node.accelerator_type
        for node in found.topology.nodes
        if node.num_accelerators
    }
    if len(models) > 1:
        yield f"note: all accelerators are taken as alike, and they are not: {list_names(sorted(models))}"


def placement_of(topology: Topology, split: Split, sharing: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines of a split as a config has it."""
    wishes = []
    for pool in split.pools:
        first = pool.workloads[0].name
        for workload in pool.workloads:
            wishes.append(
                PlacementWish(
                    (workload.name,),
                    count=pool.num_devices,
                    processes=pool.num_devices // workload.width * sharing[workload.name],
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
        number = max(1, int(step["count"]))
        run = _Run(
            str(path),
            {group["name"]: _seconds(group["busy"] * group["lived_s"]) / number for group in groups},
            {group["name"]: _seconds(_on_processors(group) * group["lived_s"]) / number for group in groups},
            frozenset(group["name"] for group in groups if _is_side_by_side(group)),
            {group["name"]: max(1, int(group["num_ranks"])) for group in groups},
            _seconds(step["mean_s"]),
        )
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise ConfigError(f"{path} is no report; `rlinf report --json` writes one") from None
    if not run.step_s > 0:
        raise ConfigError(f"{path}: the report has no steps; `--step GROUP.METHOD` says what a step is")
    return run


def _seconds(value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(value)
    return float(value)


def _is_side_by_side(group: Mapping[str, Any]) -> bool:
    running = sum(method["spent"]["share"] for method in group["methods"])
    return bool(max(running, group["waiting"]) > 1 + _ROUNDED)


def _on_processors(group: Mapping[str, Any]) -> float:
    return float(max(group["busy"], min(1.0, group["cores"])))


def _check_is_known(run: _Run, names: Sequence[str]) -> None:
    known = list_names(run.seconds)
    if not any(name in run.seconds for name in names):
        raise ConfigError(
            f"no component with accelerators has worked in a step of {run.file}; there are {known}"
        )
    for name in names:
        if name not in run.seconds:
            raise ConfigError(
                f"'{name}' has accelerators, and no group of this name has worked in a step of {run.file}; "
                f"there are {known}",
                hint=f'`launch(..., name="{name}")` names a group as its component',
            )
        if name in run.side_by_side:
            raise ConfigError(
                f"{run.file} does not tell for how long '{name}' is at work in a step: its calls wait side by side",
                hint=f"`--at-work {name}=SECONDS` says it",
            )


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
    return max(
        1,
        round(run.num_ranks.get(name, component.world_size) * _num_devices(component) / component.world_size),
    )


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
