"""`PlacementStrategy`: what every strategy does, and the one method that a strategy of your own overrides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeAlias

from rlinf_scheduler.checks import is_text_or_number, whole_number
from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning.cutting import cut_one
from rlinf_scheduler.planning.node_groups import CLUSTER_GROUP, NODE_GROUP
from rlinf_scheduler.planning.plan import ComponentPlan, Cut, number_runs
from rlinf_scheduler.planning.record import Placement
from rlinf_scheduler.planning.resources import ResourceTable
from rlinf_scheduler.planning.topology import HasTopology, Topology, topology_of, uniform_topology

# One label, several with commas between them, or a list of labels. A label may be a number, as in a config.
NodeGroups: TypeAlias = str | int | Sequence[str | int]


class PlacementStrategy(ABC):
    """Decides where the processes of a group run; `get_placement` says it for a cluster.

    A strategy of your own overrides `assign`. A strategy keeps the plan that it made last, so its answer must depend on
    its arguments and the resources only: set everything in `__init__` and change nothing afterwards.

    Args:
        node_group: the node groups whose resources it numbers, in this order: a label, several with commas between
            them, or a list. None: the whole cluster.
        node_group_label: another name of `node_group`.

    Attributes:
        counts_nodes: a class sets it to count nodes, whatever hardware they have.

    Raises:
        PlacementError: `node_group` is no label, or a label is listed twice.
    """

    counts_nodes: ClassVar[bool] = False

    _node_groups: tuple[str, ...] | None = None
    _kept: ComponentPlan | None = None

    def __init__(
        self, node_group: NodeGroups | None = None, *, node_group_label: NodeGroups | None = None
    ) -> None:
        written = either("node_group", node_group, "node_group_label", node_group_label)
        self._node_groups = None if written is None else _labels(written)

    @abstractmethod
    def assign(self, resources: ResourceTable) -> Iterable[Sequence[int]]:
        """What every process is given.

        Args:
            resources: all that the node groups have, numbered from 0.

        Returns:
            For every process, in rank order, the numbers of its resources: all on one node and of one kind. Processes
            may share.
        """

    def num_nodes_needed(self, accelerators_per_node: int) -> int:
        """How many nodes of that size are needed: asked where `get_placement` is given a number. One by default."""
        del accelerators_per_node
        return 1

    @property
    def node_groups(self) -> tuple[str, ...]:
        """The labels of its node groups, in the order in which their resources are numbered."""
        return self._node_groups or (NODE_GROUP if self.counts_nodes else CLUSTER_GROUP,)

    def get_placement(
        self,
        where: HasTopology | Topology | int,
        isolate_gpu: bool = True,
        *,
        isolate_accelerator: bool | None = None,
    ) -> list[Placement]:
        """The placement of every process, in rank order.

        Args:
            where: a cluster, a topology, or a number of accelerators per node: then there are as many such nodes as
                it takes.
            isolate_gpu: a process sees only its own accelerators (if any); False: all of its node's.
            isolate_accelerator: another name of `isolate_gpu`.

        Raises:
            PlacementError: the strategy does not fit: resources that are not there, a process that would span nodes.
            ConfigError: `where` is none of these.
        """
        return self.plan(where).placements(
            isolate_gpu=isolate_gpu if isolate_accelerator is None else isolate_accelerator
        )

    def plan(self, where: HasTopology | Topology | int) -> ComponentPlan:
        """The placements as runs of processes: short, however many processes there are.

        Arguments and errors are those of `get_placement`. The last plan is kept: on the same topology it is
        not made again.
        """
        topology = self._topology(where)
        if self._kept is None or self._kept.topology != topology:
            self._kept = self._plan(topology)
        return self._kept

    def _topology(self, where: HasTopology | Topology | int) -> Topology:
        if not isinstance(where, int):
            return topology_of(where)
        if where < 1:
            raise PlacementError(f"{where} accelerators per node: there must be at least one")
        return uniform_topology(self.num_nodes_needed(where), where)

    def _plan(self, topology: Topology) -> ComponentPlan:
        table = ResourceTable(topology, self.node_groups, nodes_only=self.counts_nodes)
        cuts, resource_ranks = self._cut(table)
        return ComponentPlan(
            "", topology, table.labels, number_runs(cuts), resource_ranks, table.has_hardware
        )

    def _cut(self, table: ResourceTable) -> tuple[Iterable[Cut], tuple[range, ...]]:
        """The processes, and the resources that they use."""
        own = [self._checked(rank, numbers, table) for rank, numbers in enumerate(self.assign(table))]
        if not own:
            raise PlacementError(f"{type(self).__name__} assigns nothing: there must be at least one process")
        cuts = (cut_one(table, numbers, rank, PlacementError) for rank, numbers in enumerate(own))
        used = dict.fromkeys(number for numbers in own for number in numbers)
        return cuts, tuple(range(number, number + 1) for number in used)

    def _checked(self, rank: int, numbers: Any, table: ResourceTable) -> tuple[int, ...]:
        own = ascending(f"process {rank} of {type(self).__name__}", numbers)
        check_there(table, own[-1])
        return own


def check_there(table: ResourceTable, highest: int) -> None:
    """Refuse a number beyond the resources that there are.

    Raises:
        PlacementError: there is no such resource.
    """
    if highest >= len(table):
        raise PlacementError(f"{table.noun} {highest} is not there; {table.describe()}")


def ascending(name: str, numbers: Any) -> tuple[int, ...]:
    """The resources of a process in ascending order.

    Raises:
        PlacementError: there are none, one stands there twice, or one is no whole number from 0.
    """
    own = sorted(number_of(name, number) for number in items_of(name, numbers))
    if not own:
        raise PlacementError(f"{name} is empty: a process needs at least one resource")
    if len(set(own)) < len(own):
        raise PlacementError(f"{name} names a rank twice: {own}")
    return tuple(own)


def number_of(name: str, value: Any, lowest: int = 0) -> int:
    """An argument that is a whole number.

    Raises:
        PlacementError: it is missing, no whole number, or below the lowest.
    """
    number = whole_number(value, lowest=lowest)
    if number is None:
        shown = "is missing" if value is None else f"is {value!r}"
        raise PlacementError(f"{name} {shown}: it must be a whole number from {lowest}")
    return number


def items_of(name: str, value: Any, wanted: str = "a list of ranks") -> Iterable[Any]:
    """An argument that is a list.

    Raises:
        PlacementError: it is none.
    """
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return value
    raise PlacementError(f"{name} is {value!r}: it must be {wanted}")


def either(name: str, value: Any, newer_name: str, newer_value: Any) -> Any:
    """The value of an option that has two names.

    Raises:
        PlacementError: both are given.
    """
    if value is not None and newer_value is not None:
        raise PlacementError(f"{name} and {newer_name} are two names of one option: give one of them")
    return newer_value if value is None else value


def _labels(written: NodeGroups) -> tuple[str, ...]:
    parts = written if isinstance(written, Iterable) and not isinstance(written, str) else [written]
    labels: list[str] = []
    for part in parts:
        if not is_text_or_number(part):
            raise PlacementError(
                f"node_group is {written!r}: it must be a label, or a list of labels of node groups"
            )
        labels.extend(label.strip() for label in str(part).split(","))
    if not labels or not all(labels):
        raise PlacementError(f"node_group is {written!r}: a node group's label is missing in it")
    return tuple(labels)
