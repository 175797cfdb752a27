"""Another place for one process, with as much of the same kind, where its node is gone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning.record import Placement
from rlinf_scheduler.planning.resources import ResourceRow, ResourceTable
from rlinf_scheduler.planning.strategies import FlexiblePlacementStrategy, NodePlacementStrategy
from rlinf_scheduler.planning.topology import Topology
from rlinf_scheduler.wording import counted

# So many nodes are told of.
_MAX_TOLD = 8


def moved(
    placement: Placement, topology: Topology, gone: Collection[int], used: Collection[tuple[int, int]]
) -> Placement:
    """The placement on another node: the first that has enough in the same node group.

    Args:
        placement: where the process was.
        topology: the nodes with their groups, those that are gone among them.
        gone: the ranks of nodes on which nothing can be started.
        used: accelerators that others have: their nodes' ranks, and their indices there.

    Raises:
        PlacementError: there is no such node; the text says what each lacks.

    >>> from rlinf_scheduler.planning import Topology
    >>> topology = Topology.parse("2x4")
    >>> before = FlexiblePlacementStrategy([[0, 1]]).get_placement(topology)[0]
    >>> after = moved(before, topology, gone={0}, used={(1, 0)})
    >>> after.node_rank, after.local_hardware_ranks, after.hardware_ranks
    (1, (1, 2), (5, 6))
    """
    labels = placement.node_group.split(",")
    if placement.hardware_type and not placement.has_accelerators:
        raise PlacementError(f"a {placement.hardware_type} is on one node only: nothing takes its place")
    bare = not placement.has_accelerators
    table = ResourceTable(topology, labels, nodes_only=bare)
    lacks: list[str] = []
    for row in table.rows:
        found = _free_in(row, placement, topology, gone, used)
        if isinstance(found, str):
            lacks.append(f"node {row.node_rank}: {found}")
            continue
        strategy = (
            NodePlacementStrategy(found, labels) if bare else FlexiblePlacementStrategy([found], labels)
        )
        (there,) = strategy.get_placement(topology, isolate_gpu=placement.isolate_gpu)
        return replace(there, rank=placement.rank, placement_node_rank=placement.placement_node_rank)
    wanted = "a node" if bare else counted(len(placement.local_hardware_ranks), _kind(placement, topology))
    rest = f"; and {len(lacks) - _MAX_TOLD} more" if len(lacks) > _MAX_TOLD else ""
    raise PlacementError(f"no node has {wanted} free for it: {'; '.join(lacks[:_MAX_TOLD])}{rest}")


def _free_in(
    row: ResourceRow,
    placement: Placement,
    topology: Topology,
    gone: Collection[int],
    used: Collection[tuple[int, int]],
) -> list[int] | str:
    """The numbers in the table that a process can have of a row; or why it cannot."""
    node = topology.nodes[row.node_rank]
    if row.node_rank in gone:
        return "it is gone"
    if not placement.has_accelerators:
        return [row.first]
    if (node.accelerator_type, node.accelerator_model) != _type_of(placement, topology):
        return f"its accelerators are {node.accelerator_model or node.accelerator_type}"
    indices = range(row.first_on_node, row.first_on_node + row.size)
    free = [index for index in indices if (row.node_rank, index) not in used]
    if len(free) < len(placement.local_hardware_ranks):
        return f"{len(free)} of {row.size} are free"
    return list(_numbers(row, free[: len(placement.local_hardware_ranks)]))


def _numbers(row: ResourceRow, indices: Collection[int]) -> Iterator[int]:
    return (row.first + index - row.first_on_node for index in indices)


def _type_of(placement: Placement, topology: Topology) -> tuple[str, str]:
    node = topology.nodes[placement.node_rank]
    return node.accelerator_type, node.accelerator_model


def _kind(placement: Placement, topology: Topology) -> str:
    kind, model = _type_of(placement, topology)
    return f"{model or kind} accelerator"
