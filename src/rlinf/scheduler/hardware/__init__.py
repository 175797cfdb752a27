"""Accelerator vendors, robots and other hardware."""

from typing import TYPE_CHECKING, Any

from rlinf_scheduler.lazy import loader, mirror

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

# Names that `rlinf_scheduler.hardware` does not have, or has otherwise. Its `HardwareConfig` stays: a type of the
# program's own that RLinf's way declares has the one of `rlinf.scheduler.hardware.hardware`.
_OWN = {
    **dict.fromkeys(
        ("AcceleratorType", "AcceleratorUtil", "ProfileConfig"),
        "rlinf.scheduler.hardware.accelerators",
    ),
    **dict.fromkeys(
        ("Hardware", "HardwareInfo", "HardwareResource", "NodeHardwareConfig"),
        "rlinf.scheduler.hardware.hardware",
    ),
    **dict.fromkeys(
        (
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
        ),
        "rlinf.scheduler.hardware.robots",
    ),
}
_own, _others = loader(globals(), _OWN), mirror(globals(), "rlinf_scheduler.hardware")


def __getattr__(name: str) -> Any:
    return _own(name) if name in _OWN else _others(name)
