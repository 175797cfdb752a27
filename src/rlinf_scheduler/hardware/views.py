"""What a process was given: its pieces of declared hardware, and the hardware views of them in `self.hardware`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware.registry import hardware_type
from rlinf_scheduler.planning import HardwareUnit, Placement, Topology
from rlinf_scheduler.planning.declared_hardware import number_hardware


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator that a process was given.

    Attributes:
        type: the vendor, e.g. "NVIDIA".
        index: its index among the accelerators that processes on the node may use.
        name: its entry in the visibility variable: an index or a UUID.
        HW_TYPE: what RLinf's records call all of them.
    """

    HW_TYPE: ClassVar[str] = "Accelerator"

    type: str
    index: int
    name: str


class HardwareTable:
    """The pieces of hardware on a topology, by node.

    Args:
        topology: the nodes and node groups.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def units_of(self, placement: Placement) -> tuple[HardwareUnit, ...]:
        """The declared pieces that a process was given; nothing where it was given accelerators or a bare node.

        Raises:
            ConfigError: it was placed on another topology: this one has no such piece.
        """
        if placement.has_accelerators or not placement.hardware_type:
            return ()
        return tuple(self._unit(placement, index) for index in placement.local_hardware_ranks)

    def views_of(self, placement: Placement) -> tuple[object, ...]:
        """What a process finds in `self.hardware`.

        Args:
            placement: where it runs and what it was given.

        Returns:
            In the order of `placement.local_hardware_ranks`: an `Accelerator` each, or what the hardware's type makes
            of the piece's settings; nothing for a process on a bare node.

        Raises:
            ConfigError: a hardware type is not known here, or its package cannot be loaded.
        """
        if placement.has_accelerators:
            names = self._topology.nodes[placement.node_rank].accelerator_names
            kind = placement.hardware_type
            return tuple(Accelerator(kind, index, names[index]) for index in placement.local_hardware_ranks)
        return tuple(hardware_type(unit.type).view(unit.config) for unit in self.units_of(placement))

    @cached_property
    def _units(self) -> dict[tuple[int, str, int], HardwareUnit]:
        numbers = number_hardware(self._topology)
        return {
            (unit.node_rank, unit.type, index): unit
            for group in self._topology.node_groups
            for unit, index in zip(group.hardware, numbers[group.label], strict=True)
        }

    def _unit(self, placement: Placement, index: int) -> HardwareUnit:
        unit = self._units.get((placement.node_rank, placement.hardware_type, index))
        if unit is None:
            raise ConfigError(
                f"process {placement.rank} was given {placement.hardware_type} {index} of node {placement.node_rank}, "
                "which no node group of this topology declares"
            )
        return unit
