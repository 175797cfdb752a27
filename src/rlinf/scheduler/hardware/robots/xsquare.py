"""Turtle2."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.scheduler.hardware.hardware import HardwareInfo
from rlinf.scheduler.hardware.robots.records import record_of, shows
from rlinf_scheduler.hardware import robots

if TYPE_CHECKING:
    from rlinf_scheduler.hardware.robots import Turtle2Config as Turtle2Config
else:
    Turtle2Config = record_of("Turtle2Config", robots.Turtle2Config, "Turtle2")
    Turtle2Config.__module__ = __name__


@dataclass
class Turtle2HWInfo(HardwareInfo):
    """How a worker is shown one."""

    config: Turtle2Config


shows("Turtle2", Turtle2HWInfo)
