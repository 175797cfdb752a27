"""What `rlinf plan` plans on: a shape, a fleet's file, or what the config itself says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlinf.scheduler.config import ClusterConfig, try_read_cluster_config
from rlinf.scheduler.errors import ConfigError
from rlinf.scheduler.placement import ComponentPlacement
from rlinf.scheduler.planning import Plan, Topology


@dataclass(frozen=True, slots=True)
class Where:
    """The cluster to plan on: a shape such as "2x8", a fleet's file, or neither: the config says it."""

    shape: str | None = None
    fleet: Path | None = None


def planned(config: Path, where: Where) -> Plan:
    """The plan of a config.

    Raises:
        ConfigError: a mistake in the config, the shape or the fleet; `ConfigErrors` for several.
    """
    checked = try_read_cluster_config(config)
    return ComponentPlacement(checked, _topology(checked, where)).plan


def _topology(config: ClusterConfig, where: Where) -> Topology:
    if where.shape is not None:
        return Topology.parse(where.shape)
    if where.fleet is not None:
        # Its checks take a while to load, and only this needs them.
        from rlinf.scheduler.config.fleet_file import read_fleet  # noqa: PLC0415

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
