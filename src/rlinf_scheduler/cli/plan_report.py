"""A plan with all that is told about it, worked out once for every way to show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlinf_scheduler.planning import Plan, PlanWarning, Remainder, Sharing, plan_as_data, plan_warnings
from rlinf_scheduler.planning.advice import unused_nodes


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan, who shares what in it, its findings, and what it is the rest of if nodes are gone."""

    plan: Plan
    sharing: Sharing
    warnings: tuple[PlanWarning, ...]
    remainder: Remainder | None = None


def report_on(
    plan: Plan,
    tensor_parallel: Mapping[str, int],
    *,
    num_nodes_given: int = 0,
    remainder: Remainder | None = None,
) -> PlanReport:
    """The report on a plan.

    Args:
        plan: the plan.
        tensor_parallel: as of `plan_warnings`.
        num_nodes_given: how many nodes there are, of which the plan may use fewer.
        remainder: what was lost, where the plan is that of the rest.

    Raises:
        ConfigError: `tensor_parallel` names no component, or a size that does not divide its ranks.
    """
    sharing = Sharing(plan)
    found = plan_warnings(plan, tensor_parallel=tensor_parallel, sharing=sharing)
    found.extend(unused_nodes(plan.topology, num_nodes_given))
    return PlanReport(plan, sharing, tuple(found), remainder)


def report_as_data(report: PlanReport) -> dict[str, Any]:
    """The plan as data, with its findings under `warnings`, and what was lost under `without`."""
    without = {} if report.remainder is None else {"without": _remainder_as_data(report.remainder)}
    return (
        plan_as_data(report.plan, sharing=report.sharing)
        | without
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
