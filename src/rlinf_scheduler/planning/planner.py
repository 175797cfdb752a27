"""Component placement: from the text of a placement and a topology to a plan, with every rule checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from rlinf_scheduler.errors import ConfigError, PlacementError, raise_config_errors
from rlinf_scheduler.planning.caret import Span
from rlinf_scheduler.planning.cutting import cut_evenly
from rlinf_scheduler.planning.environments import EnvironmentTable
from rlinf_scheduler.planning.grammar import MAX_RANK, RankRange, Segment, error_at, parse_segments
from rlinf_scheduler.planning.node_groups import CLUSTER_GROUP
from rlinf_scheduler.planning.plan import ComponentPlan, Cut, Plan, number_runs
from rlinf_scheduler.planning.resources import ResourceTable, ResourceTables
from rlinf_scheduler.planning.topology import Topology


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """One entry of `component_placement`.

    Attributes:
        components: the components that it holds for; each is placed by itself, on the same resources.
        text: the placement, e.g. "0-1:0-3,3-5". It is parsed here, once.
        node_groups: the groups whose resources it numbers, in the order written.
        path: where it stands in the config, for errors; `text_path` and `groups_path` are those of its parts.
        segments: the text, parsed.

    Raises:
        PlacementError: the text is no placement; `PlacementErrors` where several of its segments are none.
    """

    components: tuple[str, ...]
    text: str
    node_groups: tuple[str, ...] = (CLUSTER_GROUP,)
    path: str = field(default="", compare=False)
    text_path: str = field(default="", compare=False)
    groups_path: str = field(default="", compare=False)
    segments: tuple[Segment, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        try:
            segments = parse_segments(self.text)
        except PlacementError as error:
            raise error.at(path=self.text_path, component=self.name) from None
        object.__setattr__(self, "segments", segments)

    @property
    def name(self) -> str:
        """The components, as an error names them."""
        return ",".join(self.components)


@dataclass(frozen=True, slots=True)
class _FilledSegment:
    """A segment with what it leaves open filled in: `resources` are shared evenly among `processes`."""

    segment: Segment
    resources: range
    processes: range
    resources_span: Span


def plan_components(topology: Topology, rules: Iterable[PlacementRule]) -> Plan:
    """Plan every component.

    Args:
        topology: the nodes, with their node groups.
        rules: what the file says; components share resources freely.

    Raises:
        PlacementError: a rule cannot be carried out; the error points at the spot and names the component.
        ConfigErrors: several rules cannot.

    >>> rule = PlacementRule(("actor",), "0-7:0-3")
    >>> plan = plan_components(Topology.parse("1x8"), [rule])
    >>> [p.local_hardware_ranks for p in plan.components["actor"].placements()]
    [(0, 1), (2, 3), (4, 5), (6, 7)]
    """
    plan, errors = try_plan_components(topology, rules)
    raise_config_errors(errors)
    return plan


def try_plan_components(
    topology: Topology, rules: Iterable[PlacementRule], tables: ResourceTables | None = None
) -> tuple[Plan, list[ConfigError]]:
    """Plan what can be planned; and what is wrong with the rest, in the rules' order.

    Args:
        topology: where.
        rules: what goes where.
        tables: of this topology; for plans that are made one after another.
    """
    plans: dict[str, ComponentPlan] = {}
    errors: list[ConfigError] = []
    tables = ResourceTables(topology) if tables is None else tables
    environments = EnvironmentTable(topology.node_groups)
    for rule in rules:
        try:
            plan = _plan_rule(topology, rule, tables)
            _check_environments(environments, plan, rule)
        except ConfigError as error:
            errors.extend(error.each())
            continue
        for name in rule.components:
            if name in plans:
                problem = f"component '{name}' is placed twice"
                errors.append(PlacementError(problem, path=rule.path))
            plans[name] = plan.named(name)
    return Plan(topology, plans), errors


def plan_rule(topology: Topology, rule: PlacementRule) -> ComponentPlan:
    """Plan one rule, under the name of its first component.

    Raises:
        PlacementError: the rule cannot be carried out.
    """
    return _plan_rule(topology, rule, ResourceTables(topology))


def resources_of_processes(rule: PlacementRule, table: ResourceTable) -> Iterator[range]:
    """The resources of every process of a rule, in rank order.

    Raises:
        PlacementError: the rule cannot be carried out on these resources.

    >>> rule = PlacementRule(("actor",), "0:0-1,1-2:2")
    >>> list(resources_of_processes(rule, ResourceTable(Topology.parse("4"), ["cluster"])))
    [range(0, 1), range(0, 1), range(1, 3)]
    """
    for assignment in _assign(rule, table):
        resources, num_processes = assignment.resources, len(assignment.processes)
        width, sharing = max(1, len(resources) // num_processes), max(1, num_processes // len(resources))
        for first in resources[::width]:
            yield from (range(first, first + width) for _ in range(sharing))


def _plan_rule(topology: Topology, rule: PlacementRule, tables: ResourceTables) -> ComponentPlan:
    try:
        table = tables[rule.node_groups]
    except PlacementError as error:
        raise error.at(path=rule.groups_path, component=rule.name) from None
    try:
        assignments = _assign(rule, table)
        runs = number_runs(chain.from_iterable(_cuts(rule.text, a, table) for a in assignments))
    except PlacementError as error:
        raise error.at(path=rule.text_path, component=rule.name) from None
    return ComponentPlan(
        name=rule.components[0],
        topology=topology,
        node_groups=rule.node_groups,
        runs=runs,
        resource_ranks=tuple(a.resources for a in assignments),
        has_hardware=table.has_hardware,
    )


def _check_environments(environments: EnvironmentTable, plan: ComponentPlan, rule: PlacementRule) -> None:
    if not environments:
        return
    for run in plan.runs:
        try:
            environments.on_node(run.cut.node_group, run.node_rank)
        except ConfigError as error:
            raise error.at(component=rule.name) from None


def _assign(rule: PlacementRule, table: ResourceTable) -> list[_FilledSegment]:
    text = rule.text
    assignments: list[_FilledSegment] = []
    next_rank = 0
    for segment in rule.segments:
        resources, span = _resources(text, segment, table)
        processes = _processes(text, segment, len(resources), next_rank)
        _check_counts(text, segment, len(resources), processes)
        assignments.append(_FilledSegment(segment, resources, processes, span))
        next_rank = processes.stop
    _check_used_once(text, assignments, table)
    return assignments


def _resources(text: str, segment: Segment, table: ResourceTable) -> tuple[range, Span]:
    chosen = segment.resources
    if chosen is None:
        return range(len(table)), segment.span
    if chosen.last >= len(table):
        missing = RankRange(max(chosen.first, len(table)), chosen.last)
        are = f" {missing} is" if len(missing) == 1 else f"s {missing} are"
        raise error_at(text, chosen.span, f"{table.noun}{are} not there; {table.describe()}")
    return range(chosen.first, chosen.last + 1), chosen.span


def _processes(text: str, segment: Segment, num_resources: int, next_rank: int) -> range:
    chosen = segment.processes
    if chosen is None:
        return range(next_rank, next_rank + num_resources)
    if chosen.first == next_rank:
        return range(chosen.first, chosen.last + 1)
    hint = str(Segment(segment.resources, RankRange(next_rank, next_rank + len(chosen) - 1)))
    if chosen.first < next_rank:
        problem = f"process ranks start again at {chosen.first}, but those before it reach {next_rank - 1}"
    elif next_rank == 0:
        problem = f"process ranks start at {chosen.first}, not at 0"
    else:
        gap = RankRange(next_rank, chosen.first - 1)
        problem = (
            f"process rank{'s' if len(gap) > 1 else ''} {gap} {'are' if len(gap) > 1 else 'is'} left out"
        )
    problem += "; every rank from 0 on appears once, in ascending order"
    raise error_at(text, chosen.span, problem, hint)


def _check_counts(text: str, segment: Segment, num_resources: int, processes: range) -> None:
    num_processes = len(processes)
    if num_resources % num_processes == 0 or num_processes % num_resources == 0:
        return
    resources = "all" if segment.resources is None else str(segment.resources)
    nearest = [
        f"{resources}:{RankRange(processes.start, processes.start + count - 1)}"
        for count in _nearest_counts(num_resources, num_processes)
        if processes.start + count - 1 <= MAX_RANK
    ]
    problem = f"{num_processes} processes cannot share {num_resources} resources evenly"
    raise error_at(text, segment.span, f"{problem}; one count divides the other", " or ".join(nearest))


def _nearest_counts(num_resources: int, num_processes: int) -> tuple[int, int]:
    """The nearest lower and higher number of processes that fits.

    >>> _nearest_counts(2, 201), _nearest_counts(8, 3)
    ((200, 202), (2, 4))
    """
    if num_processes > num_resources:
        lower = num_processes - num_processes % num_resources
        return lower, lower + num_resources
    fits = [count for count in range(1, num_resources + 1) if num_resources % count == 0]
    return max(c for c in fits if c < num_processes), min(c for c in fits if c > num_processes)


def _check_used_once(text: str, assignments: list[_FilledSegment], table: ResourceTable) -> None:
    ordered = sorted(assignments, key=lambda a: (a.resources.start, a.processes.start))
    reached = -1
    for assignment in ordered:
        if assignment.resources.start <= reached:
            problem = f"{table.noun} {assignment.resources.start} is used twice in one component"
            raise error_at(text, assignment.resources_span, problem)
        reached = assignment.resources.stop - 1
    if found := table.taken_twice([assignment.resources for assignment in ordered]):
        position, problem = found
        raise error_at(text, ordered[position].resources_span, problem)


def _cuts(text: str, assignment: _FilledSegment, table: ResourceTable) -> Iterator[Cut]:
    def fail(problem: str) -> PlacementError:
        return error_at(text, assignment.segment.span, problem)

    processes = assignment.processes
    return cut_evenly(table, assignment.resources, len(processes), processes.start, fail)
