"""What `rlinf plan` plans on: a shape, a fleet's file, or what the config itself says; all of it, or what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning import Plan, Remainder, Topology, find_node, without_nodes

if TYPE_CHECKING:
    from rlinf_scheduler.config import ClusterConfig


@dataclass(frozen=True, slots=True)
class Where:
    """The cluster to plan on: a shape such as "2x8", a fleet's file, or neither: the config says it."""

    shape: str | None = None
    fleet: Path | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A config's plan.

    Attributes:
        plan: who runs where.
        num_nodes_given: how many nodes there were to plan on; a config's `num_nodes` may use fewer.
        remainder: what remains without some nodes, where that was asked; `plan` is that of the rest then.
    """

    plan: Plan
    num_nodes_given: int
    remainder: Remainder | None = None


def planned(config: Path, where: Where, without: Sequence[str] = ()) -> Planned:
    """The plan of a config.

    Args:
        config: its file.
        where: the cluster to plan on.
        without: nodes of it that are gone, by rank, address or name.

    Raises:
        ConfigError: a mistake in the config, the shape or the fleet; `ConfigErrors` for several.
    """
    # Its checks take longer to load than all else of the command line, and of its commands few read a config.
    from rlinf_scheduler.config import try_read_cluster_config  # noqa: PLC0415
    from rlinf_scheduler.placement import ComponentPlacement  # noqa: PLC0415

    checked = try_read_cluster_config(config)
    given = _topology(checked, where)
    plan = ComponentPlacement(checked, given).plan
    if not without:
        return Planned(plan, given.num_nodes)
    lost = {find_node(given, name) for name in without}
    num_used = plan.topology.num_nodes
    spares = [node for rank, node in enumerate(given.nodes) if rank >= num_used and rank not in lost]
    remainder = without_nodes(plan.topology, checked.rules, lost, spares)
    return Planned(remainder.plan, given.num_nodes - len(lost), remainder)


def _topology(config: ClusterConfig, where: Where) -> Topology:
    if where.shape is not None:
        return Topology.parse(where.shape)
    if where.fleet is not None:
        from rlinf_scheduler.config.fleet_file import read_fleet  # noqa: PLC0415

        return read_fleet(where.fleet).topology
    return _shape_in_config(config)


def _shape_in_config(config: ClusterConfig) -> Topology:
    """The pretend cluster that the config itself names; without one, every mistake of the config is told with it."""
    if config.simulate is not None:
        return Topology.parse(config.simulate)
    if "simulate" in config.source.section:
        config.raise_mistakes()
        missing = ConfigError("`simulate` is empty", path="cluster.simulate")
    else:
        count = config.num_nodes or 2
        missing = ConfigError(
            "how many accelerators do the nodes have? The file does not say",
            path="cluster",
            hint=f"add `--nodes {count}x8`, or `simulate: {count}x8` under `cluster:`",
        )
    config.raise_mistakes([missing])
    raise missing
