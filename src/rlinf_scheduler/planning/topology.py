"""The nodes, accelerators and node groups that a plan is made for, as frozen data; nothing here touches a machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from rlinf_scheduler.errors import ConfigError, PlacementError, raise_config_errors
from rlinf_scheduler.planning.caret import excerpt
from rlinf_scheduler.planning.environments import environment_errors
from rlinf_scheduler.planning.node_groups import CLUSTER_GROUP, NODE_GROUP, NodeGroup, node_group_errors
from rlinf_scheduler.wording import counted, did_you_mean, list_names

MAX_NODES = 2**16
MAX_ACCELERATORS = 2**20
_SHAPE = re.compile(r"\s*(?:(?P<nodes>\d{1,9})\s*[xX]\s*)?(?P<accelerators>\d{1,9})\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. Its rank in the cluster is its index in `Topology.nodes`.

    Attributes:
        node_id: the name under which the cluster knows it; "" has the topology choose one from its rank.
        ip: its address; "" where nothing runs.
        num_accelerators: the accelerators that processes on it may use.
        accelerator_type: the vendor, e.g. "NVIDIA"; "" only without accelerators (else it becomes "GPU").
        visible: what the visibility variable holds for each accelerator, in order: the mask that the node was
            started with, e.g. ("4", "5"). None or empty: the indices from "0".
        hostname: its own name, or ""; for people.
        accelerator_model: e.g. "NVIDIA A800-SXM4-80GB", or ""; for people.
        uuids: the UUID of each accelerator, in order, "" where it is not known; empty where none is.
        variables: those of its environment that say something of the hardware that is attached to it, with values.
        egl_devices: the number of each accelerator, in order, among the devices that EGL lists, -1 where it is not
            known; empty where none is.
        memory_bytes: the memory of each accelerator, of the smallest where they differ; 0 where it is not known.
        labels: labels that the cluster has given it, by name, ascending.
        islands: for each accelerator, in order, the number of those on the node that it is joined with directly, as
            by NVLink; empty where that is not known.

    Raises:
        ConfigError: a negative count, or a mask or UUIDs of another length.
    """

    node_id: str = ""
    ip: str = ""
    num_accelerators: int = 0
    accelerator_type: str = ""
    visible: tuple[str, ...] | None = None
    hostname: str = ""
    accelerator_model: str = ""
    uuids: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    egl_devices: tuple[int, ...] = ()
    memory_bytes: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    islands: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_accelerators < 0:
            raise ConfigError(f"a node cannot have {self.num_accelerators} accelerators")
        names = tuple(map(str, self.visible or ())) or _indices(self.num_accelerators)
        if len(names) != self.num_accelerators:
            raise ConfigError(
                f"node '{self.node_id}' has {counted(self.num_accelerators, 'accelerator')}, but its mask "
                f"{','.join(names)} names {len(names)}"
            )
        if self.uuids and len(self.uuids) != self.num_accelerators:
            problem = (
                f"{counted(self.num_accelerators, 'accelerator')} and {counted(len(self.uuids), 'UUID')}"
            )
            raise ConfigError(f"node '{self.node_id}' has {problem}")
        if self.islands and len(self.islands) != self.num_accelerators:
            raise ConfigError(f"node '{self.node_id}': `islands` must name one for each accelerator, or none")
        object.__setattr__(self, "visible", names)
        if self.num_accelerators and not self.accelerator_type:
            object.__setattr__(self, "accelerator_type", "GPU")

    @property
    def accelerator_names(self) -> tuple[str, ...]:
        """What the visibility variable holds for each accelerator, in order."""
        return self.visible or ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The nodes in rank order, and the node groups laid over them.

    Attributes:
        nodes: at least one.
        node_groups: the groups that the user declared; `cluster` and `node` exist without being declared.

    Raises:
        ConfigError: no nodes, or a group that does not fit; `ConfigErrors` for several mistakes.

    >>> Topology.parse("2x8").num_accelerators
    16
    >>> [node.num_accelerators for node in Topology.parse("8,4,0").nodes]
    [8, 4, 0]
    """

    nodes: tuple[Node, ...]
    node_groups: tuple[NodeGroup, ...] = ()

    def __post_init__(self) -> None:
        named = (n if n.node_id else replace(n, node_id=f"node{rank}") for rank, n in enumerate(self.nodes))
        object.__setattr__(self, "nodes", tuple(named))
        groups = tuple(group.on(len(self.nodes)) for group in self.node_groups)
        object.__setattr__(self, "node_groups", groups)
        if not self.nodes:
            raise ConfigError("a topology must have at least one node")
        errors = node_group_errors(self.node_groups, len(self.nodes))
        for group in self.node_groups:
            errors.extend(environment_errors(group))
        if errors:
            raise_config_errors(errors)

    @classmethod
    def parse(cls, text: str) -> Topology:
        """The topology that a short text stands for.

        Args:
            text: "2x8" is two nodes of eight accelerators, "8" one node of eight, "8,4,0" three uneven nodes;
                the parts of a list may be of either form: "2x8,0".

        Raises:
            ConfigError: the text is none of these; the error points at the spot.
        """
        counts: list[int] = []
        start = total = 0
        for part in text.split(","):
            match = _SHAPE.fullmatch(part)
            if match is None:
                raise _shape_error(text, start, part, "this is not a number of nodes and accelerators")
            if match["nodes"] and int(match["nodes"]) == 0:
                raise _shape_error(text, start, part, "a topology must have at least one node")
            num_nodes, size = int(match["nodes"] or 1), int(match["accelerators"])
            total += num_nodes * size
            if len(counts) + num_nodes > MAX_NODES or total > MAX_ACCELERATORS:
                most = f"{MAX_NODES} nodes and {MAX_ACCELERATORS} accelerators"
                raise _shape_error(text, start, part, f"there can be at most {most}")
            counts.extend([size] * num_nodes)
            start += len(part) + 1
        return cls(nodes=tuple(Node(f"node{rank}", num_accelerators=n) for rank, n in enumerate(counts)))

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self.nodes)

    @property
    def num_accelerators(self) -> int:
        """How many accelerators there are on all nodes together."""
        return sum(node.num_accelerators for node in self.nodes)

    @property
    def group_labels(self) -> tuple[str, ...]:
        """The labels that a placement may name: the two that always exist first."""
        return (CLUSTER_GROUP, NODE_GROUP, *(group.label for group in self.node_groups))

    def group(self, label: str) -> NodeGroup:
        """The node group of that label.

        Raises:
            PlacementError: there is none; the text lists those that are there.
        """
        for group in self.node_groups:
            if group.label == label:
                return group
        if label in (CLUSTER_GROUP, NODE_GROUP):
            every_rank = tuple(range(len(self.nodes)))
            return NodeGroup(label, every_rank, ignore_hardware=label == NODE_GROUP)
        known = self.group_labels
        raise PlacementError(
            f"there is no node group '{label}'; there are {list_names(known)}",
            hint=did_you_mean(label, known),
        )

    def with_node_groups(self, groups: Iterable[NodeGroup]) -> Topology:
        """This topology with more groups; one with a label that is there already takes its place.

        Raises:
            ConfigError: a group does not fit these nodes; `ConfigErrors` for several mistakes.
        """
        added = tuple(groups)
        labels = {group.label for group in added}
        kept = tuple(group for group in self.node_groups if group.label not in labels)
        return replace(self, node_groups=kept + added)

    def first_nodes(self, num_nodes: int) -> Topology:
        """This topology without the nodes from rank `num_nodes` on, for a job that uses only the first.

        A group that names one of those is left out too; one of all nodes has all that are left.

        Raises:
            ConfigError: there are fewer nodes.
        """
        if num_nodes > len(self.nodes):
            there = "is only 1 node" if len(self.nodes) == 1 else f"are only {len(self.nodes)} nodes"
            raise ConfigError(f"num_nodes is {num_nodes}, but there {there}")
        if num_nodes == len(self.nodes):
            return self
        groups = tuple(
            group for group in self.node_groups if group.all_nodes or max(group.node_ranks) < num_nodes
        )
        return replace(self, nodes=self.nodes[:num_nodes], node_groups=groups)


class HasTopology(Protocol):
    """A live cluster, as far as planning is concerned."""

    @property
    def topology(self) -> Topology:
        """Its nodes and node groups."""
        ...


def topology_of(where: object) -> Topology:
    """The topology of a cluster, or the topology itself.

    Raises:
        ConfigError: it is neither.
    """
    found = where if isinstance(where, Topology) else getattr(where, "topology", None)
    if not isinstance(found, Topology):
        hint = f"Topology.parse({where!r})" if isinstance(where, str) else ""
        raise ConfigError(
            f"a Cluster or a Topology is needed to plan on, not {type(where).__name__}", hint=hint
        )
    return found


def uniform_topology(num_nodes: int, accelerators_per_node: int) -> Topology:
    """Nodes that are all alike.

    >>> uniform_topology(2, 8) == Topology.parse("2x8")
    True
    """
    return Topology(nodes=(Node(num_accelerators=accelerators_per_node),) * num_nodes)


@lru_cache(maxsize=64)
def _indices(count: int) -> tuple[str, ...]:
    """The numbers below `count` as text; nodes of a size share one tuple."""
    return tuple(map(str, range(count)))


def _shape_error(text: str, start: int, part: str, problem: str) -> ConfigError:
    left = start + len(part) - len(part.lstrip())
    span = (left, left + max(1, len(part.strip())))
    hint = "2x8 is two nodes of eight accelerators, 8 one node, 8,4,0 three uneven nodes"
    shown, spot = excerpt(text, span)
    return ConfigError(problem, text=shown, span=spot, hint=hint)
