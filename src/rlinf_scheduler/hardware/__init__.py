"""Accelerator vendors, and other hardware that node groups declare: what is known of them, and how to add more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.hardware.reachability import check_reachable
from rlinf_scheduler.hardware.registry import hardware_names, hardware_type
from rlinf_scheduler.hardware.vendor import Vendor
from rlinf_scheduler.hardware.views import Accelerator, HardwareTable
from rlinf_scheduler.lazy import loader

if TYPE_CHECKING:
    from rlinf_scheduler.hardware.kinds import HardwareConfig, HardwareType
    from rlinf_scheduler.hardware.robot import Robot, RobotConfig

# Which load pydantic: most workers have accelerators, and do without it.
_MODULES = {
    "HardwareConfig": "rlinf_scheduler.hardware.kinds",
    "HardwareType": "rlinf_scheduler.hardware.kinds",
    "Robot": "rlinf_scheduler.hardware.robot",
    "RobotConfig": "rlinf_scheduler.hardware.robot",
}

__all__ = [
    "Accelerator",
    "HardwareConfig",
    "HardwareTable",
    "HardwareType",
    "Robot",
    "RobotConfig",
    "Vendor",
    "check_reachable",
    "hardware_names",
    "hardware_type",
]


__getattr__ = loader(globals(), _MODULES)
