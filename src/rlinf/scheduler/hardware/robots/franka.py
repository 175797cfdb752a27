"""Franka arms."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.scheduler.hardware.hardware import HardwareInfo
from rlinf.scheduler.hardware.robots.records import record_of, shows
from rlinf_scheduler.hardware import robots

if TYPE_CHECKING:
    from rlinf_scheduler.hardware.robots import FrankaConfig as FrankaConfig
else:
    FrankaConfig = record_of("FrankaConfig", robots.FrankaConfig, "Franka")
    FrankaConfig.__module__ = __name__


@dataclass
class FrankaHWInfo(HardwareInfo):
    """How a worker is shown one."""

    config: FrankaConfig


shows("Franka", FrankaHWInfo)
