"""Two Franka arms as one robot."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.scheduler.hardware.hardware import HardwareInfo
from rlinf.scheduler.hardware.robots.records import record_of, shows
from rlinf_scheduler.hardware import robots

if TYPE_CHECKING:
    from rlinf_scheduler.hardware.robots import DualFrankaConfig as DualFrankaConfig
else:
    DualFrankaConfig = record_of("DualFrankaConfig", robots.DualFrankaConfig, "DualFranka")
    DualFrankaConfig.__module__ = __name__


@dataclass
class DualFrankaHWInfo(HardwareInfo):
    """How a worker is shown one."""

    config: DualFrankaConfig


shows("DualFranka", DualFrankaHWInfo)
