"""Accelerator vendors, robots and other hardware."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:
    from rlinf.scheduler.hardware.accelerators import AcceleratorType as AcceleratorType
    from rlinf.scheduler.hardware.accelerators import AcceleratorUtil as AcceleratorUtil
    from rlinf.scheduler.hardware.accelerators import ProfileConfig as ProfileConfig
    from rlinf.scheduler.hardware.hardware import Hardware as Hardware
    from rlinf.scheduler.hardware.hardware import HardwareInfo as HardwareInfo
    from rlinf.scheduler.hardware.hardware import HardwareResource as HardwareResource
    from rlinf.scheduler.hardware.hardware import NodeHardwareConfig as NodeHardwareConfig
    from rlinf.scheduler.hardware.robots import DOSW1HWConfig as DOSW1HWConfig
    from rlinf.scheduler.hardware.robots import DOSW1HWInfo as DOSW1HWInfo
    from rlinf.scheduler.hardware.robots import DualFrankaConfig as DualFrankaConfig
    from rlinf.scheduler.hardware.robots import DualFrankaHWInfo as DualFrankaHWInfo
    from rlinf.scheduler.hardware.robots import FrankaConfig as FrankaConfig
    from rlinf.scheduler.hardware.robots import FrankaHWInfo as FrankaHWInfo
    from rlinf.scheduler.hardware.robots import GimArmConfig as GimArmConfig
    from rlinf.scheduler.hardware.robots import GimArmHWInfo as GimArmHWInfo
    from rlinf.scheduler.hardware.robots import Turtle2Config as Turtle2Config
    from rlinf.scheduler.hardware.robots import Turtle2HWInfo as Turtle2HWInfo
    from rlinf_scheduler.hardware import *  # noqa: F403
else:
    # Its `HardwareConfig` is ours: a type that RLinf's way declares has the one of `rlinf.scheduler.hardware.hardware`.
    __getattr__ = declared(globals(), "rlinf_scheduler.hardware")
