"""The three strategies that come along: processes packed onto a range, listed one by one, or put on nodes."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning.cutting import cut_evenly
from rlinf_scheduler.planning.node_groups import CLUSTER_GROUP
from rlinf_scheduler.planning.plan import ComponentPlan, Cut
from rlinf_scheduler.planning.planner import PlacementRule, plan_rule, resources_of_processes
from rlinf_scheduler.planning.resources import ResourceTable
from rlinf_scheduler.planning.strategy import (
    NodeGroups,
    PlacementStrategy,
    ascending,
    check_there,
    either,
    items_of,
    number_of,
)
from rlinf_scheduler.planning.topology import HasTopology, Topology
from rlinf_scheduler.planning.wishes import Properties


class ComponentStrategy(PlacementStrategy):
    """A strategy that has numbers of its own, or stands for a component of a config."""

    _rule: PlacementRule | None = None
    _properties: Properties | None = None
    _planned_on: Topology | None = None

    @classmethod
    def of_component(
        cls, rule: PlacementRule, plan: ComponentPlan, properties: Properties | None = None
    ) -> Self:
        """The strategy that places a component as it was planned. Only for other nodes is the plan made anew.

        These must have the properties by which it was placed.

        It brings the node groups of the plan along: the cluster that it is given may know none of them. Of a bigger
        cluster it uses as many nodes as the plan has.
        """
        strategy = cls.__new__(cls)
        strategy._rule, strategy._planned_on, strategy._kept = rule, plan.topology, plan
        strategy._node_groups, strategy._properties = plan.node_groups, properties
        return strategy

    def __repr__(self) -> str:
        if self._rule is None or self._kept is None:
            return f"{type(self).__name__}({self._numbers()}, node_group={','.join(self.node_groups)!r})"
        return f"<{type(self).__name__} of '{self._kept.name}': {self._rule.text}>"

    def assign(self, resources: ResourceTable) -> Iterable[Sequence[int]]:
        """What every process is given, in rank order."""
        if self._rule is not None:
            return resources_of_processes(self._rule, resources)
        return self._assign_numbers(resources)

    def num_nodes_needed(self, accelerators_per_node: int) -> int:
        """Enough for the highest number; for a component as many as it was planned on."""
        if self._planned_on is not None:
            return self._planned_on.num_nodes
        return self._nodes_for_numbers(accelerators_per_node)

    def _topology(self, where: HasTopology | Topology | int) -> Topology:
        given, planned = super()._topology(where), self._planned_on
        if planned is None:
            return given
        # The node groups of the plan are used, not those of the cluster.
        nodes = given.first_nodes(planned.num_nodes).nodes
        return planned if nodes == planned.nodes else Topology(nodes, planned.node_groups)

    def _plan(self, topology: Topology) -> ComponentPlan:
        if self._rule is None or self._kept is None:
            return super()._plan(topology)
        plan = plan_rule(topology, self._rule).named(self._kept.name)
        if self._properties:
            _check_nodes(plan, topology, self._properties)
        return plan

    @abstractmethod
    def _numbers(self) -> str: ...

    @abstractmethod
    def _assign_numbers(self, resources: ResourceTable) -> Iterable[Sequence[int]]: ...

    @abstractmethod
    def _nodes_for_numbers(self, accelerators_per_node: int) -> int: ...


class PackedPlacementStrategy(PlacementStrategy):
    """Processes packed onto a range of accelerators, each with neighbours or with every `stride`-th.

    With a stride the next process starts at the lowest accelerator that is still free: two accelerators each and
    stride 2 on 0-7 make [0, 2], [1, 3], [4, 6], [5, 7].

    Args:
        start_gpu_id: the first accelerator, numbered in the node groups.
        end_gpu_id: the last one, included.
        num_gpus_per_process: accelerators of one process.
        stride: the distance between neighbours in one process.
        node_group: the label of a node group, or of several, numbered in this order; None: the whole cluster.
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
        node_group: NodeGroups | None = None,
        *,
        start_hardware_rank: int | None = None,
        end_hardware_rank: int | None = None,
        num_hardware_per_process: int | None = None,
        node_group_label: NodeGroups | None = None,
    ) -> None:
        super().__init__(node_group, node_group_label=node_group_label)
        start = either("start_gpu_id", start_gpu_id, "start_hardware_rank", start_hardware_rank)
        end = either("end_gpu_id", end_gpu_id, "end_hardware_rank", end_hardware_rank)
        width = either(
            "num_gpus_per_process", num_gpus_per_process, "num_hardware_per_process", num_hardware_per_process
        )
        self._start = number_of("start_gpu_id", start)
        self._end = number_of("end_gpu_id", end)
        self._width = number_of("num_gpus_per_process", 1 if width is None else width, lowest=1)
        self._stride = number_of("stride", stride, lowest=1)
        self._check_range()

    def __repr__(self) -> str:
        numbers = f"{self._start}, {self._end}, num_gpus_per_process={self._width}, stride={self._stride}"
        return f"PackedPlacementStrategy({numbers}, node_group={','.join(self.node_groups)!r})"

    def assign(self, resources: ResourceTable) -> Iterable[Sequence[int]]:
        """The accelerators of every process, in rank order."""
        _check_hardware(resources, self._end)
        block = self._width * self._stride
        return [
            range(first, first + block, self._stride)
            for start in range(self._start, self._end + 1, block)
            for first in range(start, start + self._stride)
        ]

    def num_nodes_needed(self, accelerators_per_node: int) -> int:
        """Enough for the last accelerator."""
        return self._end // accelerators_per_node + 1

    def _cut(self, table: ResourceTable) -> tuple[Iterable[Cut], tuple[range, ...]]:
        _check_hardware(table, self._end)
        chosen = range(self._start, self._end + 1)
        if found := table.taken_twice([chosen]):
            raise PlacementError(found[1])
        if self._stride == 1 or self._width == 1:
            # This takes a step a node, not a step a process.
            return cut_evenly(table, chosen, len(chosen) // self._width, 0, PlacementError), (chosen,)
        cuts, _ = super()._cut(table)
        return cuts, (chosen,)

    def _check_range(self) -> None:
        if self._end < self._start:
            raise PlacementError(f"start_gpu_id is {self._start}, beyond end_gpu_id, which is {self._end}")
        size, block = self._end - self._start + 1, self._width * self._stride
        if size % block:
            last = self._start + size - size % block - 1
            fits = [str(end) for end in (last, last + block) if end >= self._start]
            raise PlacementError(
                f"accelerators {self._start}-{self._end} are {size}, which is no multiple of "
                f"{self._width} per process x stride {self._stride}",
                hint=f"end at {' or '.join(fits)}",
            )


class FlexiblePlacementStrategy(ComponentStrategy):
    """A list of hardware for every process. Processes may share.

    Devices ascend within a process, and processes are numbered by their first device.

    Args:
        hardware_ranks_list: for every process its hardware, numbered in the node groups.
        node_group: the label of a node group, or of several, numbered in this order; None: the whole cluster.
        node_group_label: another name of `node_group`.

    Raises:
        PlacementError: no process, a process without hardware, or with the same piece twice.

    >>> [p.local_hardware_ranks for p in FlexiblePlacementStrategy([[3, 2], [0]]).get_placement(4)]
    [(0,), (2, 3)]
    """

    def __init__(
        self,
        hardware_ranks_list: Sequence[Sequence[int]],
        node_group: NodeGroups | None = None,
        *,
        node_group_label: NodeGroups | None = None,
    ) -> None:
        super().__init__(node_group, node_group_label=node_group_label)
        wanted = "a list with a list of ranks for every process"
        lists = [
            ascending(f"entry {index} of hardware_ranks_list", ranks)
            for index, ranks in enumerate(items_of("hardware_ranks_list", hardware_ranks_list, wanted))
        ]
        if not lists:
            raise PlacementError("hardware_ranks_list is empty: there must be at least one process")
        self._lists = sorted(lists, key=operator.itemgetter(0))

    def _numbers(self) -> str:
        return str([list(own) for own in self._lists])

    def _assign_numbers(self, resources: ResourceTable) -> list[tuple[int, ...]]:
        _check_hardware(resources, max(own[-1] for own in self._lists))
        return self._lists

    def _nodes_for_numbers(self, accelerators_per_node: int) -> int:
        return max(own[-1] for own in self._lists) // accelerators_per_node + 1


class NodePlacementStrategy(ComponentStrategy):
    """A node for every process, without hardware: a node that is listed twice gets two processes.

    Args:
        node_ranks: a node for every process, numbered in the node groups; processes are numbered by node.
        node_group: the label of a node group, or of several, numbered in this order; None: every node of the cluster.
        node_group_label: another name of `node_group`.

    Raises:
        PlacementError: no process, or a rank below 0.

    >>> [p.node_rank for p in NodePlacementStrategy([1, 0, 0]).get_placement(8)]
    [0, 0, 1]
    """

    counts_nodes: ClassVar[bool] = True

    def __init__(
        self,
        node_ranks: Sequence[int],
        node_group: NodeGroups | None = None,
        *,
        node_group_label: NodeGroups | None = None,
    ) -> None:
        super().__init__(node_group, node_group_label=node_group_label)
        self._node_ranks = sorted(
            number_of("node_ranks", rank) for rank in items_of("node_ranks", node_ranks)
        )
        if not self._node_ranks:
            raise PlacementError("node_ranks is empty: there must be at least one process")

    def _numbers(self) -> str:
        return str(self._node_ranks)

    def _assign_numbers(self, resources: ResourceTable) -> list[tuple[int, ...]]:
        check_there(resources, self._node_ranks[-1])
        return [(rank,) for rank in self._node_ranks]

    def _nodes_for_numbers(self, accelerators_per_node: int) -> int:
        del accelerators_per_node
        return self._node_ranks[-1] + 1


def strategy_of(
    rule: PlacementRule, plan: ComponentPlan, properties: Properties | None = None
) -> PlacementStrategy:
    """The strategy that places a component as it was planned, on hardware or on bare nodes; it holds the plan.

    Args:
        rule: what the config says, or what was found.
        plan: of that.
        properties: by which it was found.
    """
    kind = FlexiblePlacementStrategy if plan.has_hardware else NodePlacementStrategy
    return kind.of_component(rule, plan, properties)


def _check_hardware(table: ResourceTable, highest: int) -> None:
    if not table.has_hardware:
        groups = f"node group{'s' if len(table.labels) > 1 else ''} '{','.join(table.labels)}'"
        name = "this cluster" if table.labels == (CLUSTER_GROUP,) else groups
        have = "have" if len(table.labels) > 1 else "has"
        raise PlacementError(
            f"{name} {have} no accelerators and no other hardware",
            hint="NodePlacementStrategy places processes on nodes",
        )
    check_there(table, highest)


def _check_nodes(plan: ComponentPlan, topology: Topology, properties: Properties) -> None:
    for rank in dict.fromkeys(run.node_rank for run in plan.runs):
        misfits = properties.misfits(topology.nodes[rank])
        if misfits:
            problem = (
                f"these are not the nodes that its place was found on, and node {rank} has not {properties}"
            )
            raise PlacementError(
                f"{problem}: {', '.join(misfits)}",
                component=plan.name,
                hint="ComponentPlacement(config, cluster) finds a place on them",
            )
