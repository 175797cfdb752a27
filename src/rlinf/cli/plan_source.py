"""What `rlinf plan` plans on: a shape, a fleet's file, or what the config itself says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlinf.scheduler.component_placement import ComponentPlacement
from rlinf.scheduler.config import try_read_cluster_config
from rlinf.scheduler.errors import ConfigError, raise_config_errors
from rlinf.scheduler.placement import Plan, Topology


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
    return ComponentPlacement(config, _topology(config, where)).plan


def _topology(config: Path, where: Where) -> Topology:
    if where.shape is not None:
        return Topology.parse(where.shape)
    if where.fleet is not None:
        # Its checks take a while to load, and only this needs them.
        from rlinf.scheduler.config.fleet_file import read_fleet  # noqa: PLC0415

        return read_fleet(where.fleet).topology
    return _shape_in_file(config)


def _shape_in_file(file: Path) -> Topology:
    """The pretend cluster that the file itself names; without one, every mistake of the file is told with it."""
    checked, errors = try_read_cluster_config(file)
    if checked.simulate is not None:
        return Topology.parse(checked.simulate)
    if "simulate" not in checked.source.section:
        count = checked.num_nodes or 2
        errors.append(
            ConfigError(
                "how many accelerators do the nodes have? The file does not say",
                path="cluster",
                hint=f"add `--nodes {count}x8`, or `simulate: {count}x8` under `cluster:`",
            )
        )
    raise_config_errors(checked.source.in_order(errors))
    raise ConfigError("`simulate` is empty", path="cluster.simulate", file=str(file))
