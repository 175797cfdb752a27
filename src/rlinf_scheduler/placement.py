"""What the documents import: `ComponentPlacement`, a config's placements on a cluster; the strategies; `Placement`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rlinf_scheduler.config import ClusterConfig, try_read_cluster_config
from rlinf_scheduler.config.fleet_file import read_fleet
from rlinf_scheduler.errors import ConfigError, PlacementError
from rlinf_scheduler.hardware.filling_in import fill_in_groups
from rlinf_scheduler.planning import (
    ComponentPlan,
    FlexiblePlacementStrategy,
    FoundPlace,
    HasTopology,
    Node,
    NodeGroup,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Placement,
    PlacementRule,
    PlacementStrategy,
    PlacementWish,
    Plan,
    Resource,
    ResourceTable,
    ResourceTables,
    SharedDevice,
    Topology,
    find_places,
    shared_devices,
    strategy_of,
    topology_of,
    try_plan_components,
)
from rlinf_scheduler.planning.node_groups import RESERVED_LABELS
from rlinf_scheduler.wording import did_you_mean

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = [
    "ComponentPlacement",
    "FlexiblePlacementStrategy",
    "Node",
    "NodeGroup",
    "NodePlacementStrategy",
    "PackedPlacementStrategy",
    "Placement",
    "PlacementStrategy",
    "Resource",
    "ResourceTable",
    "SharedDevice",
    "Topology",
]


class ComponentPlacement:
    """Where every component of a config runs. Everything is decided, and checked, when it is made.

    Args:
        config: a whole config with a `cluster` section, or that section: a dict, a DictConfig (as of Hydra), the path
            of a YAML file, or what `read_cluster_config` made of one.
        where: the cluster, or a topology or a fleet's file (`.yaml`) to plan on without one. The config's node groups
            are laid over it; of a bigger cluster the first `num_nodes` nodes are used.

    Raises:
        ConfigError: a mistake in the section; its text says where.
        PlacementError: a placement that cannot be; its text names the component and points at the spot.
        ConfigErrors: several of these.

    >>> config = {"cluster": {"component_placement": {"actor,rollout": "0-3", "env": "4-7:0-15"}}}
    >>> placement = ComponentPlacement(config, Topology.parse("1x8"))
    >>> placement.components
    ('actor', 'rollout', 'env')
    >>> placement.get_world_size("env"), placement.placements("env")[5].local_hardware_ranks
    (16, (5,))
    """

    def __init__(
        self,
        config: Mapping[str, Any] | DictConfig | str | os.PathLike[str] | ClusterConfig,
        where: HasTopology | Topology | str | os.PathLike[str],
    ) -> None:
        checked = try_read_cluster_config(config)
        topology, misfits = _lay_over(_topology(where), checked)
        entries = _plannable(checked, misfits)
        tables = ResourceTables(topology)
        found = find_places(topology, entries, _unplaced(checked, entries), tables)
        self._plan, unplaced = try_plan_components(topology, found.rules, tables)
        errors = [*misfits, *found.errors, *unplaced]
        if not (checked.rules or checked.mistakes or errors):
            problem = "`component_placement` is missing or empty: no component has a place"
            errors.append(ConfigError(problem, path="cluster"))
        checked.raise_mistakes(errors)
        self._rules = {name: rule for rule in found.rules for name in rule.components}
        self._found = {name: place for place in found.places for name in place.wish.components}

    @property
    def plan(self) -> Plan:
        """The plans of all components, and the topology with its node groups."""
        return self._plan

    @property
    def topology(self) -> Topology:
        """What was planned on: the nodes in use, with the config's node groups."""
        return self._plan.topology

    @property
    def components(self) -> tuple[str, ...]:
        """The components' names, in the order of the config."""
        return tuple(self._plan.components)

    @property
    def rules(self) -> tuple[PlacementRule, ...]:
        """The placements in numbers, as written or as found, in the order of the config."""
        return tuple(dict.fromkeys(self._rules.values()))

    @property
    def found(self) -> Mapping[str, FoundPlace]:
        """The places that were found by properties, with their reasons, by component."""
        return self._found

    def get_strategy(self, name: str) -> PlacementStrategy:
        """The strategy that places a component as planned. It holds the plan: nothing is parsed or planned again.

        It is a `NodePlacementStrategy` where its resources are bare nodes, else a `FlexiblePlacementStrategy`.
        It needs no node groups on the cluster that it is given: it brings them along.

        Raises:
            PlacementError: there is no such component.
        """
        plan = self._component(name)
        found = self._found.get(name)
        return strategy_of(self._rules[name], plan, found.wish.properties if found else None)

    def get_world_size(self, name: str) -> int:
        """How many processes a component has.

        Raises:
            PlacementError: there is no such component.
        """
        return self._component(name).world_size

    def get_hardware_ranks(self, name: str) -> list[int]:
        """The resources that a component uses, numbered in its node groups, in the order written.

        Raises:
            PlacementError: there is no such component.
        """
        return self._component(name).hardware_ranks

    def placements(self, name: str, isolate_gpu: bool = True) -> list[Placement]:
        """Where each process of a component runs, in rank order.

        Args:
            name: the component.
            isolate_gpu: a process sees only its own accelerators; False: all of its node's.

        Raises:
            PlacementError: there is no such component.
        """
        return self._component(name).placements(isolate_gpu=isolate_gpu)

    def shares(self, name: str, other: str) -> bool:
        """Whether two components are collocated: they share at least one device.

        An accelerator or a robot is a device; two components that run on the same bare node share none.

        Raises:
            PlacementError: there is no such component.

        >>> config = {"component_placement": {"actor": "0-7", "rollout": "4-11", "env": "12-15"}}
        >>> placement = ComponentPlacement(config, Topology.parse("2x8"))
        >>> placement.shares("actor", "rollout"), placement.shares("actor", "env")
        (True, False)
        >>> [device.local_hardware_rank for device in placement.shared_devices("actor", "rollout")]
        [4, 5, 6, 7]
        """
        return bool(self.shared_devices(name, other))

    def shared_devices(self, name: str, other: str) -> tuple[SharedDevice, ...]:
        """The devices that two components share, by node.

        Raises:
            PlacementError: there is no such component.
        """
        return shared_devices(self._component(name), self._component(other))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {plan.world_size}" for name, plan in self._plan.components.items())
        return f"ComponentPlacement({sizes})"

    def _component(self, name: str) -> ComponentPlan:
        plan = self._plan.components.get(name)
        if plan is None:
            problem = f"there is no component '{name}'; there are: {', '.join(self.components)}"
            raise PlacementError(problem, hint=did_you_mean(str(name), self.components))
        return plan


def _topology(where: HasTopology | Topology | str | os.PathLike[str]) -> Topology:
    if isinstance(where, (str, os.PathLike)) and os.fspath(where).endswith((".yaml", ".yml")):
        return read_fleet(where).topology
    return topology_of(where)


def _lay_over(topology: Topology, config: ClusterConfig) -> tuple[Topology, list[ConfigError]]:
    """The nodes in use with those of the config's node groups that are right; and what does not fit."""
    errors: list[ConfigError] = []
    if config.num_nodes is not None:
        try:
            topology = topology.first_nodes(config.num_nodes)
        except ConfigError as error:
            errors += (each.at(path="cluster.num_nodes") for each in error.each())
    groups: list[NodeGroup] = list(config.node_groups)
    try:
        groups = fill_in_groups(groups, topology.nodes)
        topology.with_node_groups(groups)
    except ConfigError as error:
        errors += error.each()
    wrong = _paths_of_wrong_groups(config, errors)
    right = [group for group in groups if group.path not in wrong]
    try:
        return topology.with_node_groups(right), errors
    except ConfigError:
        # Groups made by a program have no paths that would tell the right ones from the wrong ones.
        return topology, errors


def _paths_of_wrong_groups(config: ClusterConfig, misfits: Iterable[ConfigError]) -> set[str]:
    paths = [error.path for error in (*config.mistakes, *misfits)]
    return {
        group.path
        for group in config.node_groups
        if any(path == group.path or path.startswith((f"{group.path}.", f"{group.path}[")) for path in paths)
    }


def _unplaced(config: ClusterConfig, plannable: Iterable[PlacementRule | PlacementWish]) -> set[str]:
    """The components whose entries have a mistake, or name what has one."""
    keys = [error.component for error in config.mistakes]
    named = {name.strip() for key in keys for name in key.split(",")}
    named.update(name for rule in config.rules for name in rule.components)
    return named.difference([""], *(entry.components for entry in plannable))


def _plannable(config: ClusterConfig, misfits: list[ConfigError]) -> list[PlacementRule | PlacementWish]:
    """The rules that can be planned; others may only seem wrong because of a mistake elsewhere."""
    if any(error.path == "cluster.num_nodes" for error in misfits):
        return []
    rules = list(config.rules)
    paths = [error.path for error in (*config.mistakes, *misfits)]
    if "cluster.num_nodes" in paths:
        # It is not known how many nodes `all` stands for.
        written = [rule for rule in rules if isinstance(rule, PlacementRule)]
        rules = [rule for rule in written if all(segment.resources is not None for segment in rule.segments)]
    if any(path.startswith("cluster.node_groups") for path in paths):
        wrong = _paths_of_wrong_groups(config, misfits)
        right = {group.label for group in config.node_groups if group.path not in wrong}
        rules = [rule for rule in rules if right.union(RESERVED_LABELS).issuperset(rule.node_groups)]
    return rules
