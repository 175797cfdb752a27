"""A config planned for `rlinf plan`: on a shape, a fleet or what the config says; with all that is told of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning import (
    FoundPlace,
    Plan,
    PlanWarning,
    Remainder,
    Sharing,
    Topology,
    find_node,
    plan_as_data,
    plan_warnings,
    without_nodes,
)
from rlinf_scheduler.planning.advice import unused_nodes

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
        num_nodes_given: how many nodes there were to plan on; a config's `num_nodes` may use fewer.
        remainder: what remains without some nodes, where that was asked; `plan` is that of the rest then.
        found: the places that were found by properties, by component.
    """

    plan: Plan
    num_nodes_given: int = 0
    remainder: Remainder | None = None
    found: Mapping[str, FoundPlace] = field(default_factory=dict)


def planned(config: Path, where: Where, without: Sequence[str] = ()) -> Planned:
    """Plan a config, without some nodes where those are named by rank, address or name.

    Raises:
        ConfigError: a mistake in the config, the shape or the fleet; `ConfigErrors` for several.
    """
    # Its checks take longer to load than all else of the command line, and of its commands few read a config.
    from rlinf_scheduler.config import try_read_cluster_config  # noqa: PLC0415
    from rlinf_scheduler.placement import ComponentPlacement  # noqa: PLC0415

    checked = try_read_cluster_config(config)
    given = _topology(checked, where)
    placement = ComponentPlacement(checked, given)
    plan = placement.plan
    if not without:
        return Planned(plan, given.num_nodes, found=placement.found)
    lost = {find_node(given, name) for name in without}
    num_used = plan.topology.num_nodes
    spares = [node for rank, node in enumerate(given.nodes) if rank >= num_used and rank not in lost]
    remainder = without_nodes(plan.topology, placement.rules, lost, spares)
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
        count = config.num_nodes or (config.nodes.most if config.nodes else None) or 2
        missing = ConfigError(
            "how many accelerators do the nodes have? The file does not say",
            path="cluster",
            hint=f"add `--nodes {count}x8`, or `simulate: {count}x8` under `cluster:`",
        )
    config.raise_mistakes([missing])
    raise missing


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan, who shares what in it, its findings, what it is the rest of if nodes are gone, and what was found."""

    plan: Plan
    sharing: Sharing
    warnings: tuple[PlanWarning, ...]
    remainder: Remainder | None = None
    found: Mapping[str, FoundPlace] = field(default_factory=dict)


def report_on(found: Planned, tensor_parallel: Mapping[str, int]) -> PlanReport:
    """Report on a plan, with the sizes of its tensor-parallel groups by component.

    Raises:
        ConfigError: `tensor_parallel` names no component, or a size that does not divide its ranks.
    """
    plan = found.plan
    sharing = Sharing(plan)
    warnings = plan_warnings(plan, tensor_parallel=tensor_parallel, sharing=sharing)
    warnings.extend(unused_nodes(plan.topology, found.num_nodes_given))
    return PlanReport(plan, sharing, tuple(warnings), found.remainder, found.found)


def report_as_data(report: PlanReport) -> dict[str, Any]:
    """The plan as data: its findings under `warnings`, what was lost under `without`, what was found under `found`."""
    places = {
        name: {
            "placement": place.rule.text,
            "node_groups": list(place.rule.node_groups),
            "reasons": list(place.reasons),
        }
        for name, place in report.found.items()
    }
    without = {} if report.remainder is None else {"without": _remainder_as_data(report.remainder)}
    return (
        plan_as_data(report.plan, sharing=report.sharing)
        | without
        | ({"found": places} if places else {})
        | {
            "warnings": [
                asdict(warning)
                | {"components": list(warning.components), "node_ranks": list(warning.node_ranks)}
                for warning in report.warnings
            ]
        }
    )


def _remainder_as_data(remainder: Remainder) -> dict[str, Any]:
    return {
        "lost_nodes": list(remainder.lost_nodes),
        "is_whole": remainder.is_whole,
        "components": {
            each.name: {
                "world_size_before": each.world_size_before,
                "world_size": each.world_size,
                "lost_ranks": list(each.lost_ranks),
                "placement": each.placement,
            }
            for each in remainder.components
        },
    }
