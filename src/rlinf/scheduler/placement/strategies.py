"""Strategies: where the processes of a group run, decided by numbers instead of a placement's text."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from rlinf.scheduler.errors import PlacementError
from rlinf.scheduler.placement.cutting import cut_evenly, cut_one
from rlinf.scheduler.placement.node_groups import CLUSTER_GROUP, NODE_GROUP
from rlinf.scheduler.placement.plan import ComponentPlan, Cut, number_runs
from rlinf.scheduler.placement.planner import PlacementRule, plan_rule
from rlinf.scheduler.placement.record import Placement
from rlinf.scheduler.placement.resources import ResourceTable
from rlinf.scheduler.placement.topology import HasTopology, Topology, topology_of, uniform_topology


class PlacementStrategy(ABC):
    """Decides where the processes of a group run; `get_placement` says it for a cluster."""

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
        """The same as runs of processes, which is short however many there are; arguments and errors as above."""
        if isinstance(where, int):
            if where < 1:
                raise PlacementError(f"{where} accelerators per node: there must be at least one")
            return self._plan(uniform_topology(self._num_nodes_needed(where), where))
        return self._plan(topology_of(where))

    @abstractmethod
    def _plan(self, topology: Topology) -> ComponentPlan: ...

    @abstractmethod
    def _num_nodes_needed(self, accelerators_per_node: int) -> int: ...


class PackedPlacementStrategy(PlacementStrategy):
    """Processes packed onto a range of accelerators, each with neighbours or with every `stride`-th.

    With a stride the next process starts at the lowest accelerator that is still free: two accelerators each and
    stride 2 on 0-7 make [0, 2], [1, 3], [4, 6], [5, 7].

    Args:
        start_gpu_id: the first accelerator, numbered in the node group.
        end_gpu_id: the last one, included.
        num_gpus_per_process: accelerators of one process.
        stride: the distance between neighbours in one process.
        node_group: the label of a node group; None: the whole cluster.
        start_hardware_rank: another name of `start_gpu_id`.
        end_hardware_rank: another name of `end_gpu_id`.
        num_hardware_per_process: another name of `num_gpus_per_process`.
        node_group_label: another name of `node_group`.

    Raises:
        PlacementError: a number is missing or out of range, or the range's size is no multiple of
            `num_gpus_per_process * stride`.

    >>> [p.local_hardware_ranks for p in PackedPlacementStrategy(0, 3, 2, stride=2).get_placement(4)]
    [(0, 2), (1, 3)]
    """

    def __init__(
        self,
        start_gpu_id: int | None = None,
        end_gpu_id: int | None = None,
        num_gpus_per_process: int | None = None,
        stride: int = 1,
        node_group: str | None = None,
        *,
        start_hardware_rank: int | None = None,
        end_hardware_rank: int | None = None,
        num_hardware_per_process: int | None = None,
        node_group_label: str | None = None,
    ) -> None:
        start = _either("start_gpu_id", start_gpu_id, "start_hardware_rank", start_hardware_rank)
        end = _either("end_gpu_id", end_gpu_id, "end_hardware_rank", end_hardware_rank)
        width = _either(
            "num_gpus_per_process", num_gpus_per_process, "num_hardware_per_process", num_hardware_per_process
        )
        self.start = _whole_number("start_gpu_id", start, 0)
        self.end = _whole_number("end_gpu_id", end, 0)
        self.num_per_process = _whole_number("num_gpus_per_process", 1 if width is None else width, 1)
        self.stride = _whole_number("stride", stride, 1)
        self.node_group = _label(node_group, node_group_label) or CLUSTER_GROUP
        self._check_range()

    def __repr__(self) -> str:
        numbers = (
            f"{self.start}, {self.end}, num_gpus_per_process={self.num_per_process}, stride={self.stride}"
        )
        return f"PackedPlacementStrategy({numbers}, node_group={self.node_group!r})"

    def _check_range(self) -> None:
        if self.end < self.start:
            raise PlacementError(f"start_gpu_id is {self.start}, beyond end_gpu_id, which is {self.end}")
        size, block = self.end - self.start + 1, self.num_per_process * self.stride
        if size % block:
            last = self.start + size - size % block - 1
            fits = [str(end) for end in (last, last + block) if end >= self.start]
            raise PlacementError(
                f"accelerators {self.start}-{self.end} are {size}, which is no multiple of "
                f"{self.num_per_process} per process x stride {self.stride}",
                hint=f"end at {' or '.join(fits)}",
            )

    def _plan(self, topology: Topology) -> ComponentPlan:
        table = _hardware_table(topology, self.node_group, self.end)
        chosen = range(self.start, self.end + 1)
        if self.stride == 1 or self.num_per_process == 1:
            num_processes = len(chosen) // self.num_per_process
            cuts: Iterable[Cut] = cut_evenly(table, chosen, num_processes, 0, PlacementError)
        else:
            cuts = (cut_one(table, own, rank, PlacementError) for rank, own in enumerate(self._strided()))
        return _component_plan(topology, table, cuts, (chosen,))

    def _strided(self) -> list[range]:
        block = self.num_per_process * self.stride
        return [
            range(first, first + block, self.stride)
            for start in range(self.start, self.end + 1, block)
            for first in range(start, start + self.stride)
        ]

    def _num_nodes_needed(self, accelerators_per_node: int) -> int:
        return self.end // accelerators_per_node + 1


class _StrategyOrRule(PlacementStrategy):
    """A strategy that may stand for a placement's text instead of numbers of its own."""

    _rule: PlacementRule | None = None
    _planned_on: Topology | None = None

    @classmethod
    def from_rule(cls, rule: PlacementRule, topology: Topology) -> Any:
        """A strategy that places as the rule was planned on a topology.

        It brings the node groups of that topology along: `where` may be a cluster that knows none of them. Of a
        bigger cluster it uses as many nodes as the topology has.
        """
        strategy = cls.__new__(cls)
        strategy._rule = rule
        strategy._planned_on = topology
        return strategy

    def __repr__(self) -> str:
        if self._rule is None:
            return f"{type(self).__name__}({self._describe()})"
        return f"<{type(self).__name__} of '{self._rule.name}': {self._rule.text}>"

    def _plan(self, topology: Topology) -> ComponentPlan:
        if self._rule is None or self._planned_on is None:
            return self._plan_numbers(topology)
        # Its own groups count, not those of the topology.
        bare = Topology(topology.nodes).first_nodes(self._planned_on.num_nodes)
        return plan_rule(Topology(bare.nodes, self._planned_on.node_groups), self._rule)

    def _num_nodes_needed(self, accelerators_per_node: int) -> int:
        if self._planned_on is not None:
            return self._planned_on.num_nodes
        return self._num_nodes_for_numbers(accelerators_per_node)

    @abstractmethod
    def _describe(self) -> str: ...

    @abstractmethod
    def _plan_numbers(self, topology: Topology) -> ComponentPlan: ...

    @abstractmethod
    def _num_nodes_for_numbers(self, accelerators_per_node: int) -> int: ...


class FlexiblePlacementStrategy(_StrategyOrRule):
    """A list of hardware for every process. Processes may share.

    Devices ascend within a process, and processes are numbered by their first device.

    Args:
        hardware_ranks_list: for every process its hardware, numbered in the node group.
        node_group: the label of a node group; None: the whole cluster.
        node_group_label: another name of `node_group`.

    Raises:
        PlacementError: no process, a process without hardware, or with the same piece twice.

    >>> [p.local_hardware_ranks for p in FlexiblePlacementStrategy([[3, 2], [0]]).get_placement(4)]
    [(0,), (2, 3)]
    """

    def __init__(
        self,
        hardware_ranks_list: Sequence[Sequence[int]],
        node_group: str | None = None,
        *,
        node_group_label: str | None = None,
    ) -> None:
        lists = [
            _ascending(index, ranks)
            for index, ranks in enumerate(_items("hardware_ranks_list", hardware_ranks_list))
        ]
        if not lists:
            raise PlacementError("hardware_ranks_list is empty: there must be at least one process")
        self._lists = sorted(lists, key=operator.itemgetter(0))
        self._node_group = _label(node_group, node_group_label) or CLUSTER_GROUP

    def _describe(self) -> str:
        return f"{[list(own) for own in self._lists]}, node_group={self._node_group!r}"

    def _plan_numbers(self, topology: Topology) -> ComponentPlan:
        table = _hardware_table(topology, self._node_group, max(own[-1] for own in self._lists))
        cuts = (cut_one(table, own, rank, PlacementError) for rank, own in enumerate(self._lists))
        return _component_plan(
            topology, table, cuts, _single_ranges(rank for own in self._lists for rank in own)
        )

    def _num_nodes_for_numbers(self, accelerators_per_node: int) -> int:
        return max(own[-1] for own in self._lists) // accelerators_per_node + 1


class NodePlacementStrategy(_StrategyOrRule):
    """A node for every process, without hardware: a node that is listed twice gets two processes.

    Args:
        node_ranks: a node for every process, numbered in the node group; processes are numbered by node.
        node_group: the label of a node group; None: every node of the cluster.
        node_group_label: another name of `node_group`.

    Raises:
        PlacementError: no process, or a rank below 0.

    >>> [p.node_rank for p in NodePlacementStrategy([1, 0, 0]).get_placement(8)]
    [0, 0, 1]
    """

    def __init__(
        self,
        node_ranks: Sequence[int],
        node_group: str | None = None,
        *,
        node_group_label: str | None = None,
    ) -> None:
        self._node_ranks = sorted(
            _whole_number("node_ranks", rank, 0) for rank in _items("node_ranks", node_ranks)
        )
        if not self._node_ranks:
            raise PlacementError("node_ranks is empty: there must be at least one process")
        self._node_group = _label(node_group, node_group_label) or NODE_GROUP

    def _describe(self) -> str:
        return f"{self._node_ranks}, node_group={self._node_group!r}"

    def _plan_numbers(self, topology: Topology) -> ComponentPlan:
        table = ResourceTable(topology, (self._node_group,), nodes_only=True)
        _check_there(table, self._node_ranks[-1])
        cuts = (cut_one(table, (node,), rank, PlacementError) for rank, node in enumerate(self._node_ranks))
        return _component_plan(topology, table, cuts, _single_ranges(self._node_ranks))

    def _num_nodes_for_numbers(self, accelerators_per_node: int) -> int:
        return self._node_ranks[-1] + 1


def strategy_of(rule: PlacementRule, plan: ComponentPlan) -> PlacementStrategy:
    """The strategy that places a component as it was planned, on hardware or on bare nodes."""
    kind = FlexiblePlacementStrategy if plan.has_hardware else NodePlacementStrategy
    strategy: PlacementStrategy = kind.from_rule(rule, plan.topology)
    return strategy


def _component_plan(
    topology: Topology, table: ResourceTable, cuts: Iterable[Cut], resource_ranks: tuple[range, ...]
) -> ComponentPlan:
    return ComponentPlan(
        name="",
        topology=topology,
        node_groups=table.labels,
        runs=number_runs(cuts),
        resource_ranks=resource_ranks,
        has_hardware=table.has_hardware,
    )


def _hardware_table(topology: Topology, label: str, highest: int) -> ResourceTable:
    table = ResourceTable(topology, (label,))
    if not table.has_hardware:
        name = "this cluster" if label == CLUSTER_GROUP else f"node group '{label}'"
        raise PlacementError(
            f"{name} has no accelerators and no other hardware",
            hint="NodePlacementStrategy places processes on nodes",
        )
    _check_there(table, highest)
    return table


def _check_there(table: ResourceTable, highest: int) -> None:
    if highest >= len(table):
        raise PlacementError(f"{table.noun} {highest} is not there; {table.describe()}")


def _single_ranges(ranks: Iterable[int]) -> tuple[range, ...]:
    return tuple(range(rank, rank + 1) for rank in dict.fromkeys(ranks))


def _ascending(index: int, ranks: Sequence[int]) -> tuple[int, ...]:
    name = f"entry {index} of hardware_ranks_list"
    own = sorted(_whole_number(name, rank, 0) for rank in _items(name, ranks))
    if not own:
        raise PlacementError(f"{name} is empty: a process has resources")
    if len(set(own)) < len(own):
        raise PlacementError(f"{name} names a rank twice: {own}")
    return tuple(own)


def _items(name: str, value: object) -> Iterable[Any]:
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return value
    wanted = (
        "a list with a list of ranks for every process"
        if name == "hardware_ranks_list"
        else "a list of ranks"
    )
    raise PlacementError(f"{name} is {value!r}: it must be {wanted}")


def _either(name: str, value: Any, newer_name: str, newer_value: Any) -> Any:
    if value is not None and newer_value is not None:
        raise PlacementError(f"{name} and {newer_name} are two names of one option: give one of them")
    return newer_value if value is None else value


def _label(node_group: str | None, node_group_label: str | None) -> str | None:
    label = _either("node_group", node_group, "node_group_label", node_group_label)
    return None if label is None else str(label)


def _whole_number(name: str, value: Any, lowest: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = lowest - 1
    if isinstance(value, bool) or number < lowest:
        shown = "is missing" if value is None else f"is {value!r}"
        raise PlacementError(f"{name} {shown}: it must be a whole number from {lowest}")
    return number
