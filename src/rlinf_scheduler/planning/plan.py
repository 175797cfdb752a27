"""What a planner decides: runs of processes; a `Placement` a process is made from them on demand.

A run is short to keep and quick to make: planning takes a step a node, not a step a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, repeat
from typing import NamedTuple

from rlinf_scheduler.planning.neighbours import neighbours
from rlinf_scheduler.planning.record import Placement, PlacementDraft
from rlinf_scheduler.planning.resources import ResourceKind
from rlinf_scheduler.planning.topology import Topology

# The devices of each process of a run, process by process.
DeviceLists = tuple[tuple[int, ...], ...]


class Cut(NamedTuple):
    """Consecutive processes on one node, before they are numbered.

    Attributes:
        node_rank: the node.
        kind: what they are given.
        node_group: the group that it belongs to.
        shift: what makes an index on the node a number in the group.
        local_hardware_ranks: what each process is given, as indices on the node; empty tuples on bare nodes.
        hardware_ranks: the same, numbered in the group, where the shift differs from device to device.
    """

    node_rank: int
    kind: ResourceKind
    node_group: str
    shift: int
    local_hardware_ranks: DeviceLists
    hardware_ranks: DeviceLists | None = None

    @property
    def ranks_in_group(self) -> DeviceLists:
        """What each process is given, numbered in the group."""
        if self.hardware_ranks is not None:
            return self.hardware_ranks
        return _shifted(self.local_hardware_ranks, self.shift) if self.shift else self.local_hardware_ranks


class Run(NamedTuple):
    """Consecutive ranks of a component on one node, with resources of one group and kind.

    Attributes:
        first_rank: the rank of its first process.
        placement_node_rank: the node's index among the nodes that the component uses.
        first_local_rank: the local rank of its first process.
        local_world_size: all of the component's processes on the node.
        cut: the processes.
    """

    first_rank: int
    placement_node_rank: int
    first_local_rank: int
    local_world_size: int
    cut: Cut

    @property
    def node_rank(self) -> int:
        """The node's rank in the cluster."""
        return self.cut.node_rank

    @property
    def ranks(self) -> range:
        """The process ranks."""
        return range(self.first_rank, self.first_rank + len(self.cut.local_hardware_ranks))


@dataclass(frozen=True, slots=True)
class ComponentPlan:
    """Where every process of a component runs.

    Attributes:
        name: the component's name.
        topology: what it was planned on.
        node_groups: the labels that it was written for.
        runs: its processes, in rank order.
        resource_ranks: the resources it uses, numbered as in the file and in the order written there.
        has_hardware: whether its groups count accelerators or other hardware, not bare nodes.
    """

    name: str
    topology: Topology
    node_groups: tuple[str, ...]
    runs: tuple[Run, ...]
    resource_ranks: tuple[range, ...]
    has_hardware: bool

    @property
    def world_size(self) -> int:
        """How many processes it has."""
        return self.runs[-1].ranks.stop if self.runs else 0

    @property
    def hardware_ranks(self) -> list[int]:
        """The numbers in `resource_ranks`, one by one."""
        return list(chain.from_iterable(self.resource_ranks))

    def placements(self, *, isolate_gpu: bool = True) -> list[Placement]:
        """The placement of every process, in rank order.

        Args:
            isolate_gpu: a process sees only its own accelerators (if any); False: all of its node's.
        """
        return list(chain.from_iterable(self._of_run(run, isolate_gpu) for run in self.runs))

    def named(self, name: str) -> ComponentPlan:
        """The same plan for another component."""
        return replace(self, name=name)

    def _of_run(self, run: Run, isolate_gpu: bool) -> Iterable[Placement]:
        node_rank, kind, node_group, _, local_hardware_ranks, _ = run.cut
        node = self.topology.nodes[node_rank]
        drafts = map(
            PlacementDraft,
            run.ranks,
            repeat(node.node_id),
            repeat(node_rank),
            repeat(run.placement_node_rank),
            range(run.first_local_rank, run.local_world_size),
            repeat(run.local_world_size),
            repeat(kind.hardware_type),
            run.cut.ranks_in_group,
            local_hardware_ranks,
            _visible(node.accelerator_names, local_hardware_ranks, kind.accelerators, isolate_gpu),
            repeat(isolate_gpu),
            repeat(node_group),
            repeat(kind.accelerators),
        )
        return map(PlacementDraft.finished, drafts)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every process of every component runs.

    Attributes:
        topology: what it was planned on.
        components: the components' plans by name, in the order of the file.
    """

    topology: Topology
    components: Mapping[str, ComponentPlan]


def number_runs(cuts: Iterable[Cut]) -> tuple[Run, ...]:
    """Number processes in their order: ranks, and local ranks a node."""
    merged = [_joined(together) for together in neighbours(cuts, _are_alike)]
    per_node: dict[int, int] = {}
    for cut in merged:
        per_node[cut.node_rank] = per_node.get(cut.node_rank, 0) + len(cut.local_hardware_ranks)
    # Rank 0's node is the first of the component's nodes, whatever its rank in the cluster.
    node_index = {node_rank: index for index, node_rank in enumerate(per_node)}
    placed = dict.fromkeys(per_node, 0)
    runs = []
    rank = 0
    for cut in merged:
        node_rank, count = cut.node_rank, len(cut.local_hardware_ranks)
        runs.append(Run(rank, node_index[node_rank], placed[node_rank], per_node[node_rank], cut))
        placed[node_rank] += count
        rank += count
    return tuple(runs)


def _are_alike(cut: Cut, following: Cut) -> bool:
    # The node is compared first: it tells most neighbours apart. A cut whose numbers in the group are listed one by
    # one is not joined with others.
    return (
        cut.node_rank == following.node_rank
        and cut[1:4] == following[1:4]
        and cut.hardware_ranks is None
        and following.hardware_ranks is None
    )


def _joined(cuts: list[Cut]) -> Cut:
    if len(cuts) == 1:
        return cuts[0]
    lists = chain.from_iterable(cut.local_hardware_ranks for cut in cuts)
    return cuts[0]._replace(local_hardware_ranks=tuple(lists))


def _shifted(lists: DeviceLists, shift: int) -> DeviceLists:
    return tuple(tuple(map(shift.__add__, own)) for own in lists)


def _visible(
    names: tuple[str, ...], devices: DeviceLists, accelerators: bool, isolate_gpu: bool
) -> Iterable[tuple[str, ...]]:
    if not isolate_gpu:
        return repeat(names)
    return _masks(names, devices) if accelerators else repeat(())


@lru_cache(maxsize=1024)
def _masks(names: tuple[str, ...], devices: DeviceLists) -> tuple[tuple[str, ...], ...]:
    """What each process sees when it sees its own accelerators only. Nodes of a kind share the answer."""
    return tuple(tuple(names[index] for index in own) for own in devices)
