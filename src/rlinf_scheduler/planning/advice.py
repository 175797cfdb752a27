"""What a plan's reader should know before it runs: what lies idle, is split, spread or shared. One line a finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning.declared_hardware import hardware_counts
from rlinf_scheduler.planning.explain import DeviceKey, Sharing
from rlinf_scheduler.planning.plan import ComponentPlan, DeviceLists, Plan
from rlinf_scheduler.planning.topology import Topology
from rlinf_scheduler.wording import counted, did_you_mean, name_list, node_list


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """One finding.

    Attributes:
        kind: "idle-devices", "idle-nodes", "unused-nodes", "spread", "split-tensor-parallel", "collocated",
            "shared-device" or "descending".
        is_note: it is mostly meant so; the others mostly cost something.
        text: a sentence.
        components: whom it is about, in the order of the config; none where nobody is.
        node_ranks: where, ascending.
        count: how many devices, nodes, processes or groups it is about.
    """

    kind: str
    is_note: bool
    text: str
    components: tuple[str, ...]
    node_ranks: tuple[int, ...]
    count: int


def plan_warnings(
    plan: Plan, *, tensor_parallel: Mapping[str, int] | None = None, sharing: Sharing | None = None
) -> list[PlanWarning]:
    """What the reader of a plan should know, the costly first.

    Args:
        plan: the plan.
        tensor_parallel: by component, how many consecutive ranks make one tensor-parallel group. Only these
            components are looked at for groups that lie on several nodes: a placement does not say it.
        sharing: that of the plan, where somebody has it already.

    Raises:
        ConfigError: there is no such component, or its ranks do not make whole groups.

    >>> from rlinf_scheduler.planning.planner import PlacementRule, plan_components
    >>> plan = plan_components(Topology.parse("2x4"), [PlacementRule(("actor",), "2-5")])
    >>> for warning in plan_warnings(plan, tensor_parallel={"actor": 4}):
    ...     print(warning.text)
    1 of 1 tensor-parallel group of actor lies on several nodes: group 0 (ranks 0-3) on nodes 0-1
    actor spans nodes 0-1; its 4 accelerators fit on 1 node
    4 of 8 GPU accelerators are idle: 2 of node 0, 2 of node 1
    """
    users = (sharing or Sharing(plan)).users
    found = [*_split_groups(plan, tensor_parallel or {})]
    for component in plan.components.values():
        found.extend(_spread(component))
    found.extend(_idle_devices(plan.topology, users))
    found.extend(_idle_nodes(plan, users))
    found.extend(_collocated(plan, users))
    for component in plan.components.values():
        found.extend(_shared_devices(component))
        found.extend(_descending(component))
    return found


def unused_nodes(topology: Topology, num_nodes_given: int) -> list[PlanWarning]:
    """What to say where a plan's topology is only the first of the nodes that there are: nothing if it is all.

    >>> for warning in unused_nodes(Topology.parse("2x8"), 4):
    ...     print(warning.text)
    nodes 2-3 are not used: the config's num_nodes is 2, and there are 4 nodes
    """
    unused = range(topology.num_nodes, num_nodes_given)
    if not unused:
        return []
    are = "is" if len(unused) == 1 else "are"
    used = f"the config's num_nodes is {topology.num_nodes}, and there are {num_nodes_given} nodes"
    text = f"{node_list(unused)} {are} not used: {used}"
    return [PlanWarning("unused-nodes", False, text, (), tuple(unused), len(unused))]


def _split_groups(plan: Plan, sizes: Mapping[str, int]) -> Iterator[PlanWarning]:
    for name, size in sizes.items():
        component = plan.components.get(name)
        if component is None:
            raise ConfigError(
                f"there is no component '{name}'; there are: {', '.join(plan.components)}",
                hint=did_you_mean(name, plan.components),
            )
        if size < 1 or component.world_size % size:
            raise ConfigError(
                f"the {component.world_size} ranks of '{name}' do not make whole tensor-parallel groups of {size}"
            )
        warning = _split_group(component, size)
        if warning is not None:
            yield warning


def _split_group(component: ComponentPlan, size: int) -> PlanWarning | None:
    # A group lies on several nodes exactly where the node changes between two of its ranks.
    split: dict[int, set[int]] = {}
    for run, following in pairwise(component.runs):
        if following.node_rank != run.node_rank and following.first_rank % size:
            nodes = split.setdefault(following.first_rank // size, set())
            nodes.update((run.node_rank, following.node_rank))
    if not split:
        return None
    group, nodes = next(iter(split.items()))
    total = component.world_size // size
    example = f"group {group} (ranks {group * size}-{group * size + size - 1}) on {node_list(nodes)}"
    return PlanWarning(
        kind="split-tensor-parallel",
        is_note=False,
        text=f"{len(split)} of {counted(total, 'tensor-parallel group')} of {component.name} "
        f"{'lies' if len(split) == 1 else 'lie'} on several nodes: {'e.g. ' * (len(split) > 1)}{example}",
        components=(component.name,),
        node_ranks=tuple(sorted(set().union(*split.values()))),
        count=len(split),
    )


def _spread(component: ComponentPlan) -> Iterator[PlanWarning]:
    """Of accelerators only: a robot is where it is, and bare nodes are named one by one."""
    widths: dict[str, Counter[int]] = {}
    used: dict[str, set[int]] = {}
    for run in component.runs:
        if run.cut.kind.accelerators:
            kind = run.cut.kind.hardware_type
            widths.setdefault(kind, Counter()).update(_distinct_widths(run.cut.local_hardware_ranks))
            used.setdefault(kind, set()).add(run.node_rank)
    for kind, nodes in used.items():
        fewest = _nodes_that_suffice(_sizes(component, kind), widths[kind])
        if fewest < len(nodes):
            total = sum(width * number for width, number in widths[kind].items())
            devices = counted(total, "accelerator")
            fit = "fits" if total == 1 else "fit"
            yield PlanWarning(
                kind="spread",
                is_note=False,
                text=f"{component.name} spans {node_list(nodes)}; its {devices} {fit} on {counted(fewest, 'node')}",
                components=(component.name,),
                node_ranks=tuple(sorted(nodes)),
                count=len(nodes),
            )


# Most nodes are alike: their runs share the lists.
@lru_cache(maxsize=256)
def _distinct_widths(lists: DeviceLists) -> dict[int, int]:
    return dict(Counter(len(own) for own in set(lists)))


def _sizes(component: ComponentPlan, kind: str) -> list[int]:
    """The accelerators of each node of the component's groups, the most first."""
    topology = component.topology
    ranks = {rank for label in component.node_groups for rank in topology.group(label).node_ranks}
    nodes = [topology.nodes[rank] for rank in ranks]
    return sorted((n.num_accelerators for n in nodes if n.accelerator_type == kind), reverse=True)


def _nodes_that_suffice(sizes: Iterable[int], widths: Counter[int]) -> int:
    """A number of nodes on which these processes fit: wide ones first, big nodes first, each filled up."""
    waiting = dict(sorted(widths.items(), reverse=True))
    num_nodes = 0
    for size in sizes:
        if not waiting:
            break
        num_nodes += 1
        for width in list(waiting):
            placed = min(size // width, waiting[width])
            size -= placed * width
            waiting[width] -= placed
            if not waiting[width]:
                del waiting[width]
    return num_nodes


def _idle_devices(topology: Topology, users: Mapping[DeviceKey, tuple[str, ...]]) -> Iterator[PlanWarning]:
    used = Counter((node_rank, kind) for node_rank, kind, _ in users)
    there: dict[str, dict[int, int]] = {}
    for rank, node in enumerate(topology.nodes):
        if node.num_accelerators:
            there.setdefault(node.accelerator_type, {})[rank] = node.num_accelerators
    accelerators = set(there)
    for (rank, kind), number in hardware_counts(topology).items():
        there.setdefault(kind, {})[rank] = number
    for kind, by_node in there.items():
        idle = {rank: number - used[rank, kind] for rank, number in by_node.items()}
        idle = {rank: number for rank, number in idle.items() if number > 0}
        count, total = sum(idle.values()), sum(by_node.values())
        if count:
            noun = f"{kind} accelerator" if kind in accelerators else kind
            yield PlanWarning(
                kind="idle-devices",
                is_note=False,
                text=f"{count} of {counted(total, noun)} {'is' if count == 1 else 'are'} idle: "
                + _where_idle(idle, by_node),
                components=(),
                node_ranks=tuple(sorted(idle)),
                count=count,
            )


def _where_idle(idle: Mapping[int, int], there: Mapping[int, int]) -> str:
    whole = [rank for rank, number in idle.items() if number == there[rank]]
    parts = [f"all of {node_list(whole)}"] if whole else []
    partly = [(rank, number) for rank, number in idle.items() if number < there[rank]]
    if len(partly) > 4:
        some = sum(number for _, number in partly)
        parts.append(f"{some} of {node_list([rank for rank, _ in partly])}")
    else:
        parts.extend(f"{number} of node {rank}" for rank, number in partly)
    return ", ".join(parts)


def _idle_nodes(plan: Plan, users: Mapping[DeviceKey, tuple[str, ...]]) -> Iterator[PlanWarning]:
    """Nodes without accelerators and other hardware; of the others their devices are told."""
    busy = {node_rank for node_rank, _, _ in users} | {rank for rank, _ in hardware_counts(plan.topology)}
    nodes = enumerate(plan.topology.nodes)
    idle = [rank for rank, node in nodes if not node.num_accelerators and rank not in busy]
    if idle:
        text = (
            f"nothing runs on {node_list(idle)}, which {'has' if len(idle) == 1 else 'have'} no accelerators"
        )
        yield PlanWarning("idle-nodes", True, text, (), tuple(idle), len(idle))


def _collocated(plan: Plan, users: Mapping[DeviceKey, tuple[str, ...]]) -> Iterator[PlanWarning]:
    shared: dict[tuple[str, ...], list[DeviceKey]] = {}
    for device, names in users.items():
        # Several components on a bare node are not collocated: a bare node is no device.
        if len(names) > 1 and device[1]:
            shared.setdefault(names, []).append(device)
    if len(shared) <= len(plan.components):
        for names, devices in shared.items():
            yield _sharing_warning(plan.topology, f"{name_list(names)} share", names, devices)
        return
    for name in plan.components:
        own = [(names, device) for names, devices in shared.items() if name in names for device in devices]
        if own:
            others = {other for names, _ in own for other in names} - {name}
            names = (name, *(other for other in plan.components if other in others))
            text = f"{name} shares with {name_list(names[1:])}:"
            yield _sharing_warning(plan.topology, text, names, [device for _, device in own])


def _sharing_warning(
    topology: Topology, subject: str, names: tuple[str, ...], devices: list[DeviceKey]
) -> PlanWarning:
    nodes = sorted({node_rank for node_rank, _, _ in devices})
    kinds = Counter(
        "accelerator" if kind == topology.nodes[node_rank].accelerator_type else kind
        for node_rank, kind, _ in devices
    )
    what = name_list([counted(number, noun) for noun, number in kinds.items()])
    text = f"{subject} {what} on {node_list(nodes)}"
    return PlanWarning("collocated", True, text, names, tuple(nodes), len(devices))


def _shared_devices(component: ComponentPlan) -> Iterator[PlanWarning]:
    nodes: set[int] = set()
    processes = devices = most = 0
    for run in component.runs:
        lists = run.cut.local_hardware_ranks
        if run.cut.kind.hardware_type and len(set(lists)) < len(lists):
            sharers = Counter(lists)
            nodes.add(run.node_rank)
            processes += len(lists)
            devices += sum(map(len, sharers))
            most = max(most, *sharers.values())
    if nodes:
        text = (
            f"{component.name} runs {processes} processes on {counted(devices, 'device')} of {node_list(nodes)}: "
            f"{most} share one"
        )
        yield PlanWarning("shared-device", True, text, (component.name,), tuple(sorted(nodes)), processes)


def _descending(component: ComponentPlan) -> Iterator[PlanWarning]:
    """Rank 0 is where the first segment is, which matters to who takes it for the first node."""
    written = component.resource_ranks
    if all(earlier.start < later.start for earlier, later in pairwise(written)):
        return
    first, lowest = component.runs[0], min(each.start for each in written)
    noun = first.cut.kind.noun
    has = "" if noun == "node" else f", with {noun} {written[0].start}"
    yield PlanWarning(
        kind="descending",
        is_note=True,
        text=f"rank 0 of {component.name} is on node {first.node_rank}{has}: ranks follow the order in which resources "
        f"are written, and {noun} {lowest} is not the first",
        components=(component.name,),
        node_ranks=(first.node_rank,),
        count=component.world_size,
    )
