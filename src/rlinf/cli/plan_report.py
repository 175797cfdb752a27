"""A plan with all that is told about it, worked out once for every way to show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlinf.scheduler.planning import Plan, PlanWarning, Sharing, plan_as_data, plan_warnings


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan, who shares what in it, and its findings."""

    plan: Plan
    sharing: Sharing
    warnings: tuple[PlanWarning, ...]


def report_on(plan: Plan, tensor_parallel: Mapping[str, int]) -> PlanReport:
    """The report on a plan.

    Raises:
        ConfigError: `tensor_parallel` names no component, or a size that does not divide its ranks.
    """
    sharing = Sharing(plan)
    found = plan_warnings(plan, tensor_parallel=tensor_parallel, sharing=sharing)
    return PlanReport(plan, sharing, tuple(found))


def report_as_data(report: PlanReport) -> dict[str, Any]:
    """The plan as data, with its findings under `warnings`."""
    return plan_as_data(report.plan, sharing=report.sharing) | {
        "warnings": [
            asdict(warning) | {"components": list(warning.components), "node_ranks": list(warning.node_ranks)}
            for warning in report.warnings
        ]
    }
