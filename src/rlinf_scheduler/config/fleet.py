"""A fleet: the nodes of a cluster as they were found, or as somebody means to buy them, to plan on without it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rlinf_scheduler.errors import ConfigError, raise_config_errors
from rlinf_scheduler.planning import Node, Topology

FLEET_VERSION = 1


@dataclass(frozen=True, slots=True)
class FleetAccelerator:
    """One accelerator of a node. Its index is its place in the node's list.

    Attributes:
        type: the vendor, e.g. "NVIDIA": what a placement counts, and what chooses the visibility variable.
        visible: what the visibility variable holds for it, e.g. "4" or "GPU-3f2a..."; "" stands for its index.
        model: e.g. "NVIDIA A800-SXM4-80GB"; "" where it is not known.
        uuid: the vendor's id of the device, or "".
        memory_bytes: its memory, or None.
        numa_node: the NUMA node that it hangs on, or None.
        island: the number of those on the node that it is joined with directly, as by NVLink, or None.
    """

    type: str
    visible: str = ""
    model: str = ""
    uuid: str = ""
    memory_bytes: int | None = None
    numa_node: int | None = None
    island: int | None = None


@dataclass(frozen=True, slots=True)
class FleetInterface:
    """One address of a node's network interfaces."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class FleetNode:
    """One node. Its rank is its place in the fleet's list.

    Attributes:
        node_id: the cluster's name of it; "" has the topology choose one from its rank.
        ip: its address in the cluster, or "".
        hostname: its own name, or "".
        accelerators: in the order of their indices; all of one type.
        python: the interpreter that runs workers there, or "".
        interfaces: its network addresses.
        labels: labels that the cluster has given it, by name, ascending.
        variables, egl_devices: as of `Node`; they are not saved in a fleet's file.
    """

    node_id: str = ""
    ip: str = ""
    hostname: str = ""
    accelerators: tuple[FleetAccelerator, ...] = ()
    python: str = ""
    interfaces: tuple[FleetInterface, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    path: str = field(default="", compare=False, repr=False)
    variables: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    egl_devices: tuple[int, ...] = field(default=(), compare=False)

    def as_node(self) -> Node:
        """The node as the planner sees it."""
        types = {accelerator.type for accelerator in self.accelerators}
        # A part of a device (MIG) has a UUID of its own, which the vendor's list of devices does not tell.
        uuids = tuple("" if a.visible.startswith("MIG-") else a.uuid for a in self.accelerators)
        sizes = [accelerator.memory_bytes for accelerator in self.accelerators]
        islands = [accelerator.island for accelerator in self.accelerators]
        return Node(
            node_id=self.node_id,
            ip=self.ip,
            num_accelerators=len(self.accelerators),
            accelerator_type=types.pop() if types else "",
            visible=tuple(a.visible or str(index) for index, a in enumerate(self.accelerators)),
            hostname=self.hostname,
            accelerator_model=", ".join(dict.fromkeys(a.model for a in self.accelerators if a.model)),
            uuids=uuids if any(uuids) else (),
            variables=self.variables,
            egl_devices=self.egl_devices,
            memory_bytes=min((size or 0 for size in sizes), default=0),
            labels=self.labels,
            islands=() if None in islands else tuple(island for island in islands if island is not None),
        )


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes in rank order.

    Raises:
        ConfigError: no nodes, two nodes of one id, or a node whose accelerators are of two types or say the same;
            `ConfigErrors` for several mistakes.
    """

    nodes: tuple[FleetNode, ...]

    def __post_init__(self) -> None:
        raise_config_errors(list(_mistakes(self.nodes)))

    @property
    def topology(self) -> Topology:
        """The fleet as something to plan on."""
        return Topology(tuple(node.as_node() for node in self.nodes))


def _mistakes(nodes: tuple[FleetNode, ...]) -> Iterable[ConfigError]:
    if not nodes:
        yield ConfigError("there must be at least one node", path="nodes")
    rank_of: dict[str, int] = {}
    for rank, node in enumerate(nodes):
        path = node.path or f"nodes[{rank}]"
        if node.node_id and rank_of.setdefault(node.node_id, rank) != rank:
            problem = f"nodes {rank_of[node.node_id]} and {rank} have the same id '{node.node_id}'"
            yield ConfigError(problem, path=f"{path}.node_id")
        yield from _accelerator_mistakes(node, rank, f"{path}.accelerators")


def _accelerator_mistakes(node: FleetNode, rank: int, path: str) -> Iterable[ConfigError]:
    types = list(dict.fromkeys(accelerator.type for accelerator in node.accelerators))
    if len(types) > 1:
        problem = f"node {rank} has accelerators of the types {' and '.join(types)}; a node has one type"
        yield ConfigError(problem, path=path)
    for key in ("visible", "uuid"):
        index_of: dict[str, int] = {}
        for index, accelerator in enumerate(node.accelerators):
            value = getattr(accelerator, key)
            first = index_of.setdefault(value, index) if value else index
            if first != index:
                problem = f"accelerators {first} and {index} of node {rank} both say '{value}'"
                yield ConfigError(problem, path=f"{path}[{index}].{key}")
