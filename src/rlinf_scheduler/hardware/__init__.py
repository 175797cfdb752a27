"""Accelerator vendors, and other hardware that node groups declare: what is known of them, and how to add more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.hardware.reachability import check_reachable
from rlinf_scheduler.hardware.registry import hardware_names, hardware_type, register_hardware
from rlinf_scheduler.hardware.vendor import Vendor
from rlinf_scheduler.hardware.views import Accelerator, HardwareTable
from rlinf_scheduler.lazy import loader

if TYPE_CHECKING:
    from rlinf_scheduler.hardware.kinds import HardwareConfig, HardwareType
    from rlinf_scheduler.hardware.robot import Robot, RobotConfig
    from rlinf_scheduler.hardware.robots import (
        Dosw1Config,
        DualFrankaConfig,
        FrankaConfig,
        GimArmConfig,
        Turtle2Config,
    )

# Which load pydantic: most workers have accelerators, and do without it.
_MODULES = {
    "HardwareConfig": "rlinf_scheduler.hardware.kinds",
    "HardwareType": "rlinf_scheduler.hardware.kinds",
    "Robot": "rlinf_scheduler.hardware.robot",
    "RobotConfig": "rlinf_scheduler.hardware.robot",
    "Dosw1Config": "rlinf_scheduler.hardware.robots",
    "DualFrankaConfig": "rlinf_scheduler.hardware.robots",
    "FrankaConfig": "rlinf_scheduler.hardware.robots",
    "GimArmConfig": "rlinf_scheduler.hardware.robots",
    "Turtle2Config": "rlinf_scheduler.hardware.robots",
}

__all__ = [
    "Accelerator",
    "Dosw1Config",
    "DualFrankaConfig",
    "FrankaConfig",
    "GimArmConfig",
    "HardwareConfig",
    "HardwareTable",
    "HardwareType",
    "Robot",
    "RobotConfig",
    "Turtle2Config",
    "Vendor",
    "check_reachable",
    "hardware_names",
    "hardware_type",
    "register_hardware",
]

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = loader(globals(), _MODULES)
