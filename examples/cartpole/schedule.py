"""The mode, read off the placement: what may go on at the same time, because it does not share a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlinf_scheduler.planning import Placement

COMPONENTS = ("env", "rollout", "actor")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which of the three components may work at the same time.

    Args:
        pipelined_inference: simulation and inference share no device, so while the policy decides for one half of
            a worker's environments, the other half is stepped.
        pipelined_learning: learning shares a device with neither, so the next collection goes on during an
            update, with weights that are one version old.
    """

    pipelined_inference: bool
    pipelined_learning: bool

    @property
    def stages(self) -> int:
        """Into how many parts, stepped in turn, a worker divides its environments."""
        return 2 if self.pipelined_inference else 1

    @property
    def max_lag(self) -> int:
        """How many versions the weights that collect may be behind those that are being made."""
        return 1 if self.pipelined_learning else 0

    @property
    def mode(self) -> str:
        """What such a placement is called."""
        if self.pipelined_learning:
            return "disaggregated"
        return "hybrid" if self.pipelined_inference else "collocated"

    def describe(self) -> str:
        """One sentence a property, for people."""
        inference = (
            "simulation and inference overlap, half of the environments each"
            if self.pipelined_inference
            else "simulation and inference take turns"
        )
        learning = (
            "learning goes on beside them, one version ahead"
            if self.pipelined_learning
            else "learning waits for the collection, and the collection for new weights"
        )
        return f"{self.mode}: {inference}; {learning}"


def schedule_of(placements: Mapping[str, Iterable[Placement]]) -> Schedule:
    """Derive the schedule from where `env`, `rollout` and `actor` run.

    Processes that were given whole nodes hold no device, and so share none.
    """
    env, rollout, actor = (_devices(placements[name]) for name in COMPONENTS)
    return Schedule(
        pipelined_inference=env.isdisjoint(rollout),
        pipelined_learning=actor.isdisjoint(env | rollout),
    )


def _devices(placements: Iterable[Placement]) -> frozenset[tuple[int, str, int]]:
    return frozenset(
        (placement.node_rank, placement.hardware_type, device)
        for placement in placements
        for device in placement.local_hardware_ranks
    )
