"""What a placement's numbers count: the resources of one node group, or of several in the order written."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning.declared_hardware import numbers_of
from rlinf_scheduler.planning.neighbours import neighbours
from rlinf_scheduler.planning.node_groups import CLUSTER_GROUP, NODE_GROUP, NodeGroup
from rlinf_scheduler.planning.topology import Topology
from rlinf_scheduler.wording import node_list


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """What sort of resource.

    Attributes:
        hardware_type: the accelerator's vendor or the hardware's type; "" for bare nodes.
        accelerators: whether a visibility variable applies to it.
    """

    hardware_type: str = ""
    accelerators: bool = False

    @property
    def noun(self) -> str:
        """One of them, in an error text."""
        return "accelerator" if self.accelerators else self.hardware_type or "node"


BARE_NODE = ResourceKind()


class ResourceRow(NamedTuple):
    """Consecutive resources of one group on one node.

    Attributes:
        first: the number of its first resource in the table.
        size: how many.
        node_rank: the node.
        kind: what they are; one bare node is a row of its own.
        first_on_node: the index of the first on its node.
        group: the label of the node group.
        first_in_group: the number of the first in its own group.
    """

    first: int
    size: int
    node_rank: int
    kind: ResourceKind
    first_on_node: int
    group: str
    first_in_group: int

    @property
    def end(self) -> int:
        """The number after its last resource."""
        return self.first + self.size


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource: an accelerator, a robot, or a node.

    Attributes:
        number: its number in the table.
        node_rank: the node that it is on, or is.
        hardware_type: the accelerator's vendor or the hardware's type; "" for a bare node.
        local_rank: its index among those of its type on the node.
        node_group: the label of the node group that it belongs to.
    """

    number: int
    node_rank: int
    hardware_type: str
    local_rank: int
    node_group: str


class ResourceTable:
    """The resources that a component may name, numbered from 0: what a strategy's `assign` chooses from.

    Args:
        topology: the nodes, and the groups laid over them.
        labels: the node groups, in the order written.
        nodes_only: count nodes whatever hardware the groups have.

    Attributes:
        topology: as given.
        labels: as given.
        rows: the resources in their order, by node; short where there are many.

    Raises:
        PlacementError: there is no such group, or one is listed twice.

    >>> table = ResourceTable(Topology.parse("2x4"), ["cluster"])
    >>> len(table), table[5].node_rank, table[5].local_rank, table.by_node()
    (8, 1, 1, {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)})
    """

    def __init__(self, topology: Topology, labels: Sequence[str], *, nodes_only: bool = False) -> None:
        self.topology = topology
        self.labels = tuple(labels)
        twice = next((label for label, count in Counter(self.labels).items() if count > 1), None)
        if twice is not None:
            raise PlacementError(f"node group '{twice}' is listed twice")
        self.rows: list[ResourceRow] = []
        for label in labels:
            group = topology.group(label)
            base = len(self)
            rows = _node_rows(group) if nodes_only else _group_rows(topology, group)
            for first, count, node_rank, kind, on_node in rows:
                self.rows.append(ResourceRow(base + first, count, node_rank, kind, on_node, label, first))
        self._starts = [row.first for row in self.rows]

    def __len__(self) -> int:
        return self.rows[-1].end if self.rows else 0

    def __getitem__(self, number: int) -> Resource:
        if not 0 <= number < len(self):
            raise IndexError(f"{self.noun} {number} is not there; {self.describe()}")
        row = self.rows[self.index_at(number)]
        index = number - row.first + row.first_on_node
        return Resource(number, row.node_rank, row.kind.hardware_type, index, row.group)

    def by_node(self) -> dict[int, tuple[int, ...]]:
        """The numbers of the resources on each node, by the node's rank, in the order of the groups."""
        numbers: dict[int, tuple[int, ...]] = {}
        for row in self.rows:
            numbers[row.node_rank] = numbers.get(row.node_rank, ()) + tuple(range(row.first, row.end))
        return numbers

    @property
    def has_hardware(self) -> bool:
        """Whether any resource is more than a bare node."""
        return any(row.kind is not BARE_NODE for row in self.rows)

    def index_at(self, resource: int) -> int:
        """The index in `rows` of the row that holds a resource."""
        return bisect_right(self._starts, resource) - 1

    @property
    def noun(self) -> str:
        """What it counts, in an error text."""
        nouns = {row.kind.noun for row in self.rows}
        return nouns.pop() if len(nouns) == 1 else "resource"

    def describe(self) -> str:
        """What there is, for an error text: "'a800' has accelerators 0-15 on nodes 0-1"."""
        name = "the cluster" if self.labels == (CLUSTER_GROUP,) else f"'{','.join(self.labels)}'"
        if not self.rows:
            return f"{name} has none: no piece is listed, and no variable of its nodes that is seen here names any"
        numbers = f"{self.noun} 0" if len(self) == 1 else f"{self.noun}s 0-{len(self) - 1}"
        if self.noun == BARE_NODE.noun:
            # The user may have meant accelerators: say why nodes were counted.
            why = "" if self.labels == (NODE_GROUP,) else " no accelerators to count, so it counts nodes:"
            plain = [row.node_rank for row in self.rows] == list(range(len(self)))
            return f"{name} has{why} {numbers}" + ("" if plain else f" on {self._nodes()}")
        return f"{name} has {numbers} on {self._nodes()}"

    def taken_twice(self, taken: Iterable[range]) -> tuple[int, str] | None:
        """Where two numbers stand for one device, which may be where node groups overlap.

        Args:
            taken: the numbers that a component uses, no number twice.

        Returns:
            The index in `taken` of the second number's range, and a sentence; None where all devices are different.
        """
        if len(self.labels) == 1:
            return None
        used: dict[tuple[int, str, int], str] = {}
        for position, numbers in enumerate(taken):
            for node_rank, noun, index, group in self._devices(numbers):
                other = used.setdefault((node_rank, noun, index), group)
                if other != group:
                    device = f"node {node_rank}" if noun == "node" else f"{noun} {index} of node {node_rank}"
                    return position, f"{device} is used twice, as part of '{other}' and of '{group}'"
        return None

    def _devices(self, numbers: range) -> Iterator[tuple[int, str, int, str]]:
        for row in self.rows[self.index_at(numbers[0]) : self.index_at(numbers[-1]) + 1]:
            for number in range(max(row.first, numbers.start), min(row.end, numbers.stop)):
                yield (
                    row.node_rank,
                    row.kind.noun,
                    number - row.first + row.first_on_node,
                    row.group,
                )

    def _nodes(self) -> str:
        return node_list(dict.fromkeys(row.node_rank for row in self.rows), as_given=True)


class ResourceTables(dict[tuple[str, ...], ResourceTable]):
    """The tables of a topology by the labels of their node groups, each made when it is first looked up.

    Args:
        topology: as of `ResourceTable`; a look-up raises what that does.
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self._topology = topology

    def __missing__(self, labels: tuple[str, ...]) -> ResourceTable:
        table = self[labels] = ResourceTable(self._topology, labels)
        return table


# A group's rows without their place in the table: first number, count, node, kind, first index on the node.
_GroupRow = tuple[int, int, int, ResourceKind, int]


def _group_rows(topology: Topology, group: NodeGroup) -> Iterator[_GroupRow]:
    if group.hardware_type and not group.ignore_hardware:
        return _hardware_rows(topology, group)
    if group.ignore_hardware or not any(topology.nodes[rank].num_accelerators for rank in group.node_ranks):
        return _node_rows(group)
    return _accelerator_rows(topology, group)


def _node_rows(group: NodeGroup) -> Iterator[_GroupRow]:
    for index, node_rank in enumerate(group.node_ranks):
        yield index, 1, node_rank, BARE_NODE, 0


def _accelerator_rows(topology: Topology, group: NodeGroup) -> Iterator[_GroupRow]:
    kinds: dict[str, ResourceKind] = {}
    first = 0
    for node_rank in group.node_ranks:
        node = topology.nodes[node_rank]
        if node.num_accelerators:
            kind = kinds.get(node.accelerator_type)
            if kind is None:
                kind = ResourceKind(node.accelerator_type, accelerators=True)
                kinds[node.accelerator_type] = kind
            yield first, node.num_accelerators, node_rank, kind, 0
            first += node.num_accelerators


def _hardware_rows(topology: Topology, group: NodeGroup) -> Iterator[_GroupRow]:
    """Neighbours in the list that are neighbours on their node make one row."""
    kinds: dict[str, ResourceKind] = {}
    units = zip(group.hardware, numbers_of(topology)[group.label], strict=True)
    rows: Iterator[_GroupRow] = (
        (number, 1, unit.node_rank, kinds.setdefault(unit.type, ResourceKind(unit.type)), on_node)
        for number, (unit, on_node) in enumerate(units)
    )
    for together in neighbours(rows, _are_side_by_side):
        first, _, node_rank, kind, on_node = together[0]
        yield first, len(together), node_rank, kind, on_node


def _are_side_by_side(row: _GroupRow, following: _GroupRow) -> bool:
    return row[2:4] == following[2:4] and row[4] + 1 == following[4]
