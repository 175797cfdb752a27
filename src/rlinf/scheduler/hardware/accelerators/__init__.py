"""Accelerators, by RLinf's names."""

from rlinf.scheduler.hardware.accelerators.accelerator import (
    Accelerator,
    AcceleratorManager,
    AcceleratorType,
    ProfileConfig,
)
from rlinf.scheduler.hardware.accelerators.util import AcceleratorUtil

__all__ = ["Accelerator", "AcceleratorManager", "AcceleratorType", "AcceleratorUtil", "ProfileConfig"]
