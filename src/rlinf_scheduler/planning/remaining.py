"""What of a plan remains when nodes are gone: the processes that keep their resources, and how that is written."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning.grammar import format_segments, segments_of
from rlinf_scheduler.planning.node_groups import NodeGroup
from rlinf_scheduler.planning.plan import Plan
from rlinf_scheduler.planning.planner import PlacementRule, plan_components, resources_of_processes
from rlinf_scheduler.planning.resources import ResourceTable
from rlinf_scheduler.planning.topology import Node, Topology
from rlinf_scheduler.wording import did_you_mean, list_names


@dataclass(frozen=True, slots=True)
class RemainingComponent:
    """What of one component remains.

    Attributes:
        name: the component.
        world_size_before: how many processes it has on all nodes.
        lost_ranks: those of them whose resources are gone, ascending.
        placement: where the others are, as the config would say it for the nodes that are left; "" if none is left.
    """

    name: str
    world_size_before: int
    lost_ranks: tuple[int, ...]
    placement: str

    @property
    def world_size(self) -> int:
        """How many processes still fit where they were."""
        return self.world_size_before - len(self.lost_ranks)


@dataclass(frozen=True, slots=True)
class Remainder:
    """What of a plan remains.

    Attributes:
        lost_nodes: the ranks of the nodes that are gone, in the whole cluster, ascending.
        components: all components, in the order of the config.
        plan: where the rest runs, on the nodes that are left: their ranks, and the numbers of resources, are closed up.
    """

    lost_nodes: tuple[int, ...]
    components: tuple[RemainingComponent, ...]
    plan: Plan

    @property
    def is_whole(self) -> bool:
        """Whether no component has lost a process."""
        return not any(component.lost_ranks for component in self.components)


def find_node(topology: Topology, name: str) -> int:
    """The rank of the node that a user names: by its rank ("3", "node3"), address, own name or id.

    Raises:
        ConfigError: there is none, or several have that name.
    """
    known = [_names(rank, node) for rank, node in enumerate(topology.nodes)]
    found = [rank for rank, names in enumerate(known) if name in names]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"several nodes are called '{name}': {', '.join(f'node{rank}' for rank in found)}")
    every = [each for names in known for each in names if not each.isdecimal()]
    raise ConfigError(
        f"there is no node '{name}'; there are {list_names(f'node{rank}' for rank in range(len(known)))}",
        hint=did_you_mean(name, every),
    )


def _names(rank: int, node: Node) -> tuple[str, ...]:
    names = dict.fromkeys((str(rank), f"node{rank}", node.ip, node.hostname, node.node_id))
    return tuple(name for name in names if name)


def without_nodes(
    topology: Topology, rules: Sequence[PlacementRule], lost: Collection[int], spares: Sequence[Node] = ()
) -> Remainder:
    """What remains of a plan when some nodes are gone.

    What is numbered is closed up, as it is in a cluster that is started without these nodes. Where spare nodes fill all
    places, all of the plan is made anew; else a process goes on if all of its resources are on other nodes.

    Args:
        topology: the nodes that the plan uses, with their node groups.
        rules: what the config says; they can be planned on it.
        lost: the ranks of the nodes that are gone.
        spares: living nodes that the plan does not use, in rank order.

    Raises:
        ConfigError: no node would be left; or a spare node has not what the plan needs in its place.

    >>> rules = [PlacementRule(("actor",), "0-7"), PlacementRule(("rollout",), "4-11:0-3")]
    >>> remainder = without_nodes(Topology.parse("3x4"), rules, {1})
    >>> [(each.name, each.lost_ranks, each.placement) for each in remainder.components]
    [('actor', (4, 5, 6, 7), '0-3'), ('rollout', (0, 1), '4-7:0-1')]
    """
    kept = [rank for rank in range(len(topology.nodes)) if rank not in lost]
    if not kept:
        raise ConfigError("no node would be left")
    nodes = (*(topology.nodes[rank] for rank in kept), *spares)
    if len(nodes) >= topology.num_nodes:
        return _filled_up(replace(topology, nodes=nodes[: topology.num_nodes]), rules, lost)
    nodes = nodes[: len(kept)]  # spares too few to fill all places stay spare
    new_ranks = {rank: index for index, rank in enumerate(kept)}
    groups = [_shrunk(group, new_ranks) for group in topology.node_groups]
    left = Topology(nodes, tuple(group for group in groups if group.node_ranks))
    components: list[RemainingComponent] = []
    left_rules: list[PlacementRule] = []
    for rule in rules:
        table = ResourceTable(topology, rule.node_groups)
        given = list(resources_of_processes(rule, table))
        numbers = _new_numbers(table, new_ranks)
        lost_ranks = tuple(rank for rank, own in enumerate(given) if own[0] not in numbers)
        starts = [range(numbers[own[0]], numbers[own[-1]] + 1) for own in given if own[0] in numbers]
        placement = format_segments(segments_of(starts))
        components += (
            RemainingComponent(name, len(given), lost_ranks, placement) for name in rule.components
        )
        if placement:
            # A group whose resources are all gone would count the nodes that it has left.
            labels = dict.fromkeys(row.group for row in table.rows if row.node_rank in new_ranks)
            left_rules.append(replace(rule, text=placement, node_groups=tuple(labels)))
    return Remainder(tuple(sorted(lost)), tuple(components), plan_components(left, left_rules))


def _filled_up(topology: Topology, rules: Sequence[PlacementRule], lost: Collection[int]) -> Remainder:
    plan = plan_components(topology, rules)
    texts = {name: rule.text for rule in rules for name in rule.components}
    components = [
        RemainingComponent(name, each.world_size, (), texts[name]) for name, each in plan.components.items()
    ]
    return Remainder(tuple(sorted(lost)), tuple(components), plan)


def _shrunk(group: NodeGroup, new_ranks: dict[int, int]) -> NodeGroup:
    def closed_up(ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(new_ranks[rank] for rank in ranks if rank in new_ranks)

    return replace(
        group,
        node_ranks=closed_up(group.node_ranks),
        hardware=tuple(
            replace(unit, node_rank=new_ranks[unit.node_rank])
            for unit in group.hardware
            if unit.node_rank in new_ranks
        ),
        environments=tuple(
            each if each.node_ranks is None else replace(each, node_ranks=closed_up(each.node_ranks))
            for each in group.environments
            if closed_up(group.nodes_of(each))
        ),
    )


def _new_numbers(table: ResourceTable, new_ranks: dict[int, int]) -> dict[int, int]:
    """The numbers of the resources that are left, by what they were."""
    left = (n for row in table.rows if row.node_rank in new_ranks for n in range(row.first, row.end))
    return {number: index for index, number in enumerate(left)}
