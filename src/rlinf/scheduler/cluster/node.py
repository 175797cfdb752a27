"""Nodes and node groups as RLinf's programs see them; made from our topology, or a topology from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rlinf.scheduler.hardware.accelerators.accelerator import AcceleratorType, vendor_of
from rlinf.scheduler.hardware.hardware import HardwareResource
from rlinf.scheduler.hardware.infos import accelerator_info, info_of
from rlinf_scheduler.hardware.filling_in import found_on
from rlinf_scheduler.hardware.registry import KNOWN_ROBOTS, hardware_type
from rlinf_scheduler.planning import HardwareUnit, Node, NodeEnvironment, NodeGroup, Topology

_ACCELERATOR = "Accelerator"


@dataclass
class NodeInfo:
    """A node of the cluster."""

    node_labels: list[str]
    node_rank: int
    ray_id: str
    node_ip: str
    num_cpus: int
    python_interpreter_path: str
    default_env_vars: dict[str, str]
    env_vars: dict[str, str]
    hardware_resources: list[HardwareResource] = field(default_factory=list)

    @property
    def num_accelerators(self) -> int:
        """How many accelerators it has."""
        return self.get_hw_resource_count(_ACCELERATOR)

    @property
    def accelerator_type(self) -> str:
        """Whose they are."""
        return self.accelerator_model.partition(":")[0] or AcceleratorType.NO_ACCEL.value

    @property
    def accelerator_model(self) -> str:
        """Whose and which they are; "" without any."""
        found = (each for each in self.hardware_resources if each.type == _ACCELERATOR and each.infos)
        return next((each.infos[0].model for each in found), "")

    def get_hw_resource_count(self, hw_type: str | None) -> int:
        """Return how many pieces of a type it has."""
        return sum(each.count for each in self.hardware_resources if each.type == hw_type)


@dataclass
class NodeGroupEnvConfig:
    """The environment of the processes on some nodes of a group."""

    node_ranks: list[int]
    env_vars: list[dict[str, str]] | None = None
    python_interpreter_path: str | None = None


@dataclass
class NodeGroupInfo:
    """A node group: its nodes, and the hardware that placements count there."""

    label: str
    nodes: list[NodeInfo]
    hardware_type: str | None = None
    ignore_hardware: bool = False
    env_configs: list[NodeGroupEnvConfig] | None = None

    DEFAULT_GROUP_LABEL: ClassVar[str] = "cluster"
    NODE_PLACEMENT_GROUP_LABEL: ClassVar[str] = "node"
    RESERVED_LABELS: ClassVar[list[str]] = ["cluster", "node"]

    def __post_init__(self) -> None:
        if (
            self.hardware_type is None
            and not self.ignore_hardware
            and any(n.num_accelerators for n in self.nodes)
        ):
            self.hardware_type = _ACCELERATOR

    @property
    def node_ranks(self) -> list[int]:
        """Its nodes' ranks in the cluster."""
        return [node.node_rank for node in self.nodes]

    @property
    def local_hardware_ranks(self) -> list[list[int]]:
        """The numbers in the group of what each node has."""
        ranks: list[list[int]] = []
        first = 0
        for node in self.nodes:
            count = node.get_hw_resource_count(self.hardware_type)
            ranks.append(list(range(first, first + count)))
            first += count
        return ranks

    def get_node_by_hardware_rank(self, hardware_rank: int) -> NodeInfo | None:
        """Return the node that has a piece; None where there is no such piece."""
        ranks = zip(self.nodes, self.local_hardware_ranks, strict=True)
        return next((node for node, numbers in ranks if hardware_rank in numbers), None)

    def get_local_hardware_rank(self, hardware_rank: int) -> int | None:
        """Return the index on its node of a piece; None where there is no such piece."""
        ranks = self.local_hardware_ranks
        return next((numbers.index(hardware_rank) for numbers in ranks if hardware_rank in numbers), None)

    def get_node_env_vars(self, node_rank: int) -> dict[str, str]:
        """Return the variables that it sets on a node."""
        return {
            name: value
            for each in self._environments(node_rank)
            for entry in each.env_vars or ()
            for name, value in entry.items()
        }

    def get_node_python_interpreter_path(self, node_rank: int) -> str | None:
        """Return the interpreter that it sets on a node; None: the node's own."""
        found = (each.python_interpreter_path for each in self._environments(node_rank))
        return next(filter(None, found), None)

    def _environments(self, node_rank: int) -> Iterable[NodeGroupEnvConfig]:
        return (each for each in self.env_configs or () if node_rank in each.node_ranks)


def node_info(topology: Topology, rank: int) -> NodeInfo:
    """Return a node of a topology, with all that is declared on it or that its variables tell of."""
    node = topology.nodes[rank]
    groups = [topology.group(label) for label in topology.group_labels[2:]]
    return NodeInfo(
        node_labels=[group.label for group in groups if rank in group.node_ranks],
        node_rank=rank,
        ray_id=node.node_id,
        node_ip=node.ip,
        num_cpus=0,
        python_interpreter_path="",
        default_env_vars={},
        env_vars=dict(node.variables),
        hardware_resources=list(_resources(topology, node, rank)),
    )


def group_info(topology: Topology, group: NodeGroup) -> NodeGroupInfo:
    """Return a node group of a topology."""
    has_accelerators = any(topology.nodes[rank].num_accelerators for rank in group.node_ranks)
    kind = group.hardware_type or (_ACCELERATOR if has_accelerators else None)
    return NodeGroupInfo(
        label=group.label,
        nodes=[node_info(topology, rank) for rank in group.node_ranks],
        hardware_type=None if group.ignore_hardware else kind,
        ignore_hardware=group.ignore_hardware,
        env_configs=environment_configs(group) or None,
    )


def environment_configs(group: NodeGroup) -> list[NodeGroupEnvConfig]:
    """Return the environments of a group's processes."""
    return [
        NodeGroupEnvConfig(
            list(group.nodes_of(each)),
            [{name: value} for name, value in each.env_vars] or None,
            each.python_interpreter_path or None,
        )
        for each in group.environments
    ]


def _resources(topology: Topology, node: Node, rank: int) -> Iterable[HardwareResource]:
    if node.num_accelerators:
        info = accelerator_info(node.accelerator_type, node.accelerator_model)
        yield HardwareResource(_ACCELERATOR, [info] * node.num_accelerators)
    units: dict[str, list[HardwareUnit]] = {}
    for group in topology.node_groups:
        for unit in group.hardware:
            known = units.setdefault(unit.type, [])
            if unit.node_rank == rank and unit not in known:
                known.append(unit)
    for name in KNOWN_ROBOTS if node.variables else ():
        if not units.get(name):
            units[name] = found_on(node, rank, hardware_type(name))
    for name, found in units.items():
        if found:
            yield HardwareResource(name, [info_of(name, unit.config) for unit in found])


def topology_of_infos(
    nodes: Sequence[NodeInfo], groups: Mapping[str, NodeGroupInfo] | Iterable[NodeGroupInfo]
) -> Topology:
    """Return the topology that RLinf's records of a cluster describe."""
    declared = list(groups.values() if isinstance(groups, Mapping) else groups)
    return Topology(
        tuple(
            Node(
                info.ray_id,
                info.node_ip,
                info.num_accelerators,
                vendor.name if (vendor := vendor_of(info.accelerator_type)) is not None else "",
            )
            for info in nodes
        ),
        tuple(_group_of(each) for each in declared if each.label not in NodeGroupInfo.RESERVED_LABELS),
    )


def _group_of(info: NodeGroupInfo) -> NodeGroup:
    kind = "" if info.hardware_type in (None, _ACCELERATOR) else str(info.hardware_type)
    units = [
        HardwareUnit(kind, node.node_rank, index)
        for node in info.nodes
        for index in range(node.get_hw_resource_count(kind) if kind else 0)
    ]
    environments = [
        NodeEnvironment(
            tuple(each.node_ranks),
            tuple(pair for entry in each.env_vars or () for pair in entry.items()),
            each.python_interpreter_path or "",
        )
        for each in info.env_configs or ()
    ]
    return NodeGroup(
        info.label,
        tuple(info.node_ranks),
        tuple(units),
        info.ignore_hardware or info.hardware_type is None,
        tuple(environments),
        hardware_type=kind,
    )
