"""DOS-W1, a robot with two arms."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.scheduler.hardware.hardware import HardwareInfo
from rlinf.scheduler.hardware.robots.records import record_of, shows
from rlinf_scheduler.hardware import robots

if TYPE_CHECKING:
    DOSW1HWConfig = robots.Dosw1Config
else:
    DOSW1HWConfig = record_of("DOSW1HWConfig", robots.Dosw1Config, "DOSW1")
    DOSW1HWConfig.__module__ = __name__


@dataclass
class DOSW1HWInfo(HardwareInfo):
    """How a worker is shown one."""

    config: DOSW1HWConfig


shows("DOSW1", DOSW1HWInfo)
