"""Accelerator vendors, and other hardware that node groups declare: what is known of them, and how to add more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.hardware.kinds import HardwareConfig, HardwareType
    from rlinf_scheduler.hardware.reachability import check_reachable
    from rlinf_scheduler.hardware.registry import hardware_names, hardware_type, register_hardware
    from rlinf_scheduler.hardware.robot import Robot, RobotConfig
    from rlinf_scheduler.hardware.robots import (
        Dosw1Config,
        DualFrankaConfig,
        FrankaConfig,
        GimArmConfig,
        Turtle2Config,
    )
    from rlinf_scheduler.hardware.vendor import Vendor
    from rlinf_scheduler.hardware.views import Accelerator, HardwareTable

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
    __getattr__ = declared(globals())
