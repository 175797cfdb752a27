"""Another place for one process, with as much of the same kind, where its node is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import count as numbers_from
from types import MappingProxyType

from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning.record import Placement
from rlinf_scheduler.planning.resources import ResourceRow, ResourceTable
from rlinf_scheduler.planning.strategies import FlexiblePlacementStrategy, NodePlacementStrategy
from rlinf_scheduler.planning.topology import Topology
from rlinf_scheduler.wording import counted

# Unless it was told otherwise, Ray has a port for each process of a node: 10002 to 19999.
MAX_ON_NODE = 9998
# So many nodes are told of.
_MAX_TOLD = 8


def moved(
    placement: Placement,
    topology: Topology,
    gone: Collection[int],
    used: Collection[tuple[int, int]],
    crowd: Mapping[int, int] = MappingProxyType({}),
) -> Placement:
    """The placement on another node: the first that has enough in the same node group.

    Args:
        placement: where the process was.
        topology: the nodes with their groups, those that are gone among them.
        gone: the ranks of nodes on which nothing can be started.
        used: accelerators that others have: their nodes' ranks, and their indices there.
        crowd: how many processes a node has, by its rank: of those with enough, one with the fewest is taken.

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
    lacks: dict[int, str] = {}
    for row in sorted(table.rows, key=lambda row: crowd.get(row.node_rank, 0)):
        found = _free_in(row, placement, topology, gone, used)
        if isinstance(found, str):
            lacks[row.first] = f"node {row.node_rank}: {found}"
            continue
        strategy = (
            NodePlacementStrategy(found, labels) if bare else FlexiblePlacementStrategy([found], labels)
        )
        (there,) = strategy.get_placement(topology, isolate_gpu=placement.isolate_gpu)
        return replace(there, rank=placement.rank, placement_node_rank=placement.placement_node_rank)
    wanted = "a node" if bare else counted(len(placement.local_hardware_ranks), _kind(placement, topology))
    told = [lacks[first] for first in sorted(lacks)][:_MAX_TOLD]
    rest = f"; and {len(lacks) - _MAX_TOLD} more" if len(lacks) > _MAX_TOLD else ""
    raise PlacementError(f"no node has {wanted} free for it: {'; '.join(told)}{rest}")


def grown(
    beside: Sequence[Placement],
    count: int,
    topology: Topology,
    gone: Collection[int],
    used: Collection[tuple[int, int]],
) -> list[Placement]:
    """Places for further processes of a component, each with as much of the same kind as its last one has.

    Args:
        beside: where its processes are.
        count: how many more.
        topology, gone, used: as of `moved`.

    Raises:
        PlacementError: there are not so many.

    >>> from rlinf_scheduler.planning import Topology
    >>> topology = Topology.parse("2x4")
    >>> beside = FlexiblePlacementStrategy([[0, 1]]).get_placement(topology)
    >>> [(each.node_rank, each.local_hardware_ranks) for each in grown(beside, 2, topology, (), {(0, 0), (0, 1)})]
    [(1, (0, 1)), (0, (2, 3))]
    """
    if not beside[-1].has_accelerators and not beside[-1].hardware_type:
        return _grown_bare(beside, count, topology, gone)
    used, crowd, found = set(used), Counter(each.node_rank for each in beside), list[Placement]()
    for index in range(count):
        try:
            place = moved(beside[-1], topology, gone, used, crowd)
        except PlacementError as error:
            there = f"{index} of {counted(count, 'further process', 'es')} would have a place; "
            then = "as to the next, with those in place, " if index else ""
            raise PlacementError(f"{there}{then}{error}") from error
        crowd[place.node_rank] += 1
        used.update((place.node_rank, device) for device in place.local_hardware_ranks)
        found.append(place)
    return found


def _grown_bare(
    beside: Sequence[Placement], count: int, topology: Topology, gone: Collection[int]
) -> list[Placement]:
    """As `grown`, of processes without hardware: each where fewest of the component run."""
    crowd, labels = Counter(each.node_rank for each in beside), beside[-1].node_group.split(",")
    rows = ResourceTable(topology, labels, nodes_only=True).rows
    usable = {row.node_rank: row.first for row in reversed(rows) if row.node_rank not in gone}
    room = sum(max(0, MAX_ON_NODE - crowd[node]) for node in usable)
    if count > room:
        limit = (
            f"Ray has ports for {MAX_ON_NODE} processes of a node, 10002 to 19999"
            if usable
            else "none can be used"
        )
        there = f"{room} of {counted(count, 'further process', 'es')} would have a place"
        raise PlacementError(f"{there}, on {counted(len(usable), 'node')}: {limit}")
    strategy = NodePlacementStrategy(list(usable.values()), labels)
    places = strategy.get_placement(topology, isolate_gpu=beside[-1].isolate_gpu)
    line = [(crowd[place.node_rank], index) for index, place in enumerate(places)]
    heapify(line)
    found = list[Placement]()
    for _ in range(count):
        size, index = line[0]
        heapreplace(line, (size + 1, index))
        found.append(places[index])
    return found


def joined(
    placements: Sequence[Placement], numbers: Sequence[int], beside: Sequence[Placement]
) -> list[Placement]:
    """The placements of further ranks of a group, with these numbers, beside those that it has."""
    nodes = {each.node_rank: each.placement_node_rank for each in beside}
    taken = {(each.node_rank, each.local_rank) for each in beside}
    # What stands before the next one of a node is taken.
    locals_of: dict[int, Iterator[int]] = {}
    size = Counter(each.node_rank for each in (*beside, *placements))
    found: list[Placement] = []
    for number, place in zip(numbers, placements, strict=True):
        node = nodes.setdefault(place.node_rank, max(nodes.values(), default=-1) + 1)
        further = locals_of.setdefault(place.node_rank, numbers_from())
        local = next(each for each in further if (place.node_rank, each) not in taken)
        there = replace(place, rank=number, placement_node_rank=node)
        found.append(replace(there, local_rank=local, local_world_size=size[place.node_rank]))
    return found


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
        return "nothing can be started on it"
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
