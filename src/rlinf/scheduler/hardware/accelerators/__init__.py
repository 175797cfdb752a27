"""Accelerators, by RLinf's names."""

from rlinf.scheduler.hardware.accelerators.accelerator import (
    Accelerator,
    AcceleratorManager,
    AcceleratorType,
    AcceleratorUtil,
    ProfileConfig,
)

__all__ = ["Accelerator", "AcceleratorManager", "AcceleratorType", "AcceleratorUtil", "ProfileConfig"]
