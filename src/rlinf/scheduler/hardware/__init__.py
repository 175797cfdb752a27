"""Accelerator vendors, and other hardware that node groups declare: what is known of them, and how to add more."""

from __future__ import annotations

from rlinf.scheduler.hardware.hardware_type import HardwareConfig, HardwareType
from rlinf.scheduler.hardware.reachability import check_reachable
from rlinf.scheduler.hardware.registry import hardware_names, hardware_type
from rlinf.scheduler.hardware.robot import Robot, RobotConfig
from rlinf.scheduler.hardware.vendor import Vendor
from rlinf.scheduler.hardware.views import Accelerator, HardwareTable, views_of

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
    "views_of",
]
