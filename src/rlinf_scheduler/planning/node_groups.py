"""Node groups: nodes under a label, with what a placement's numbers count there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from rlinf_scheduler.errors import ConfigError

CLUSTER_GROUP = "cluster"
NODE_GROUP = "node"
RESERVED_LABELS = (CLUSTER_GROUP, NODE_GROUP)

# What becomes of a list of folders that the node has already.
PathMerge: TypeAlias = Literal["prepend", "append", "replace"]


@dataclass(frozen=True, slots=True)
class HardwareUnit:
    """One declared piece of hardware, such as a robot.

    Attributes:
        type: the kind of hardware, e.g. "Robot".
        node_rank: the node that it is attached to.
        config: its settings, as the type of hardware defines them. The same settings in
            another group mean the same piece.
    """

    type: str
    node_rank: int
    config: object = None


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """What the processes on some nodes of a group start with.

    Attributes:
        node_ranks: the nodes it holds for; None: all of its group.
        env_vars: names and values, in the order written.
        python_interpreter_path: the interpreter, or "" for the node's own.
        path_variables: where the folders of a variable such as PATH go: in front of what the node has under that name
            ("prepend"), behind it ("append"), or in its place ("replace"); None: as the job says, else in front.
    """

    node_ranks: tuple[int, ...] | None
    env_vars: tuple[tuple[str, str], ...] = ()
    python_interpreter_path: str = ""
    path_variables: PathMerge | None = None


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes under a label.

    What a placement counts in it, in this order: its `hardware`; else its nodes' accelerators; else, without any or
    with `ignore_hardware`, its nodes.

    Attributes:
        label: its name in the file.
        node_ranks: its nodes, numbered in this order.
        hardware: declared hardware, numbered in this order.
        ignore_hardware: count nodes, whatever they have.
        environments: what its processes start with, by node.
        path: where it stands in the config, for errors.
        all_nodes: it has every node of the topology that it is laid over, which fills in `node_ranks`.
        hardware_type: the type of its declared hardware; also where none of it is listed, since its nodes say what
            they have.
    """

    label: str
    node_ranks: tuple[int, ...]
    hardware: tuple[HardwareUnit, ...] = ()
    ignore_hardware: bool = False
    environments: tuple[NodeEnvironment, ...] = ()
    path: str = field(default="", compare=False, repr=False)
    all_nodes: bool = False
    hardware_type: str = ""

    def __post_init__(self) -> None:
        for name in ("node_ranks", "hardware", "environments"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.hardware and not self.hardware_type:
            object.__setattr__(self, "hardware_type", self.hardware[0].type)

    def on(self, num_nodes: int) -> NodeGroup:
        """The group as it is on a cluster of so many nodes."""
        return replace(self, node_ranks=tuple(range(num_nodes))) if self.all_nodes else self

    def nodes_of(self, environment: NodeEnvironment) -> tuple[int, ...]:
        """The nodes that one of its environments holds for."""
        return self.node_ranks if environment.node_ranks is None else environment.node_ranks

    def path_of(self, key: str) -> str:
        """The path of one of its keys in the config, or "" where it comes from none."""
        return f"{self.path}.{key}" if self.path else ""


def node_group_errors(groups: Sequence[NodeGroup], num_nodes: int) -> list[ConfigError]:
    """What is wrong with groups on a cluster of `num_nodes` nodes, in their order."""
    errors: list[ConfigError] = []
    seen: set[str] = set()
    for group in groups:
        errors.extend(_label_errors(group, seen))
        errors.extend(_node_errors(group, num_nodes))
        errors.extend(_member_errors(group))
        seen.add(group.label)
    return errors


def _label_errors(group: NodeGroup, seen: set[str]) -> list[ConfigError]:
    label = group.label
    problem = ""
    if not label or label != label.strip() or "," in label:
        problem = (
            f"a node group's label must be text without commas and without blanks around it, not '{label}'"
        )
    elif label in RESERVED_LABELS:
        problem = f"'{label}' names a group that always exists; choose another label"
    elif label in seen:
        problem = f"two node groups have the label '{label}'"
    return [ConfigError(problem, path=group.path_of("label"))] if problem else []


def _node_errors(group: NodeGroup, num_nodes: int) -> list[ConfigError]:
    problem = ""
    absent = [rank for rank in group.node_ranks if not 0 <= rank < num_nodes]
    if not group.node_ranks:
        problem = f"node group '{group.label}' has no nodes"
    elif absent:
        there = "only node 0" if num_nodes == 1 else f"only nodes 0-{num_nodes - 1}"
        problem = f"node group '{group.label}' has node {absent[0]}, but there {_is(num_nodes)} {there}"
    elif len(set(group.node_ranks)) < len(group.node_ranks):
        problem = f"node group '{group.label}' names a node twice"
    return [ConfigError(problem, path=group.path_of("node_ranks"))] if problem else []


def _member_errors(group: NodeGroup) -> list[ConfigError]:
    members = set(group.node_ranks)
    errors = []
    for index, unit in enumerate(group.hardware):
        if unit.node_rank not in members:
            problem = (
                f"{unit.type} {index} is on node {unit.node_rank}, which is not in group '{group.label}'"
            )
            errors.append(ConfigError(problem, path=group.path_of(f"hardware.configs[{index}].node_rank")))
    for index, environment in enumerate(group.environments):
        outside = [rank for rank in group.nodes_of(environment) if rank not in members]
        if outside:
            problem = f"node {outside[0]} is not in group '{group.label}'"
            errors.append(ConfigError(problem, path=group.path_of(f"env_configs[{index}].node_ranks")))
    return errors


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
