"""`Placement` with RLinf's types beside ours, and RLinf's own records of a cluster as something to plan on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import rlinf_scheduler.planning as core

if TYPE_CHECKING:
    from rlinf.scheduler.hardware.accelerators.accelerator import AcceleratorType


class Listed(tuple[Any, ...]):
    """A tuple that equals a list of the same items: RLinf's records have lists."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


def _listed(name: str) -> property:
    """Return a field of ours, read as `Listed`."""
    slot: Any = vars(core.Placement)[name]
    return property(lambda placement: Listed(slot.__get__(placement)), slot.__set__)


class Placement(core.Placement):
    """Where one process runs and what it sees; sent to another process, it is ours."""

    __slots__ = ()

    if not TYPE_CHECKING:
        visible_accelerators = _listed("visible_accelerators")
        local_hardware_ranks = _listed("local_hardware_ranks")

    @property
    def local_accelerator_rank(self) -> int:
        """The index on the node of its first accelerator; -1 where it was given none."""
        first = self.local_gpu_id
        return -1 if first is None else first

    @property
    def accelerator_type(self) -> AcceleratorType:
        """Whose accelerators it was given."""
        # Most programs never ask.
        from rlinf.scheduler.hardware.accelerators.accelerator import type_of  # noqa: PLC0415

        return type_of(self.hardware_type if self.has_accelerators else "")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, core.Placement):
            return NotImplemented
        return _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash(_values(self))

    def __reduce__(self) -> Any:
        return core.Placement, _values(self)


_FIELDS = tuple(core.Placement.__dataclass_fields__)


def _values(placement: core.Placement) -> tuple[Any, ...]:
    return tuple(vars(core.Placement)[name].__get__(placement) for name in _FIELDS)


def in_rlinfs_types(placements: Iterable[core.Placement]) -> list[Placement]:
    """Return the placements, which nobody else has, as RLinf's programs read them."""
    made: list[Any] = list(placements)
    for each in made:
        object.__setattr__(each, "__class__", Placement)  # it has the same slots
    return made


class InRlinfsTypes(core.PlacementStrategy):
    """A strategy whose placements have RLinf's types; all else is of the class beside it."""

    def get_placement(  # type: ignore[override]  # a list that nobody else has
        self, where: Any, isolate_gpu: bool = True, *, isolate_accelerator: bool | None = None
    ) -> list[Placement]:
        """Return the placement of every process, in rank order; see `rlinf_scheduler.PlacementStrategy`."""
        isolate = isolate_gpu if isolate_accelerator is None else isolate_accelerator
        return in_rlinfs_types(super().get_placement(to_plan_on(where), isolate))


def to_plan_on(where: Any) -> Any:
    """Return a cluster, a topology, or the topology that RLinf's records of a cluster describe."""
    if isinstance(where, (int, core.Topology)) or hasattr(where, "topology"):
        return where
    nodes = getattr(where, "_nodes", None)
    if not nodes:
        return where
    # Not needed with a cluster of ours.
    from rlinf.scheduler.cluster.node import topology_of_infos  # noqa: PLC0415

    return topology_of_infos(nodes, getattr(where, "_node_groups", ()))
