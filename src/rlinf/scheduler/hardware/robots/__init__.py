"""The robots of RLinf's programs: their settings, and how a worker is shown them."""

from rlinf.scheduler.hardware.robots.dosw1 import DOSW1HWConfig, DOSW1HWInfo
from rlinf.scheduler.hardware.robots.dual_franka import DualFrankaConfig, DualFrankaHWInfo
from rlinf.scheduler.hardware.robots.franka import FrankaConfig, FrankaHWInfo
from rlinf.scheduler.hardware.robots.gim_arm import GimArmConfig, GimArmHWInfo
from rlinf.scheduler.hardware.robots.xsquare import Turtle2Config, Turtle2HWInfo

__all__ = [
    "DOSW1HWConfig",
    "DOSW1HWInfo",
    "DualFrankaConfig",
    "DualFrankaHWInfo",
    "FrankaConfig",
    "FrankaHWInfo",
    "GimArmConfig",
    "GimArmHWInfo",
    "Turtle2Config",
    "Turtle2HWInfo",
]
