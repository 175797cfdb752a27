"""GimArm."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.scheduler.hardware.hardware import HardwareInfo
from rlinf.scheduler.hardware.robots.records import record_of, shows
from rlinf_scheduler.hardware import robots

if TYPE_CHECKING:
    from rlinf_scheduler.hardware.robots import GimArmConfig as GimArmConfig
else:
    GimArmConfig = record_of("GimArmConfig", robots.GimArmConfig, "GimArm")
    GimArmConfig.__module__ = __name__


@dataclass
class GimArmHWInfo(HardwareInfo):
    """How a worker is shown one."""

    config: GimArmConfig


shows("GimArm", GimArmHWInfo)
