"""Accelerators of any vendor, by RLinf's names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from rlinf.scheduler.hardware.accelerators import amd_gpu, intel_gpu, nvidia_gpu  # noqa: F401 - their managers
from rlinf.scheduler.hardware.accelerators.accelerator import (
    AcceleratorManager,
    AcceleratorType,
    begin_capture,
)
from rlinf_scheduler.hardware.profilers import CAPTURE


class AcceleratorUtil:
    """Questions that RLinf has about accelerators of any vendor."""

    @staticmethod
    def get_accelerator_env_var(
        accelerator_type: AcceleratorType, visible_accelerators: Sequence[str]
    ) -> dict[str, str]:
        """Return the variables that make a process see these and no other."""
        return _manager_of(accelerator_type).get_accelerator_env_var(visible_accelerators)

    @staticmethod
    def start_profiling(accelerator_type: AcceleratorType, step_idx: int | None = None) -> None:
        """Open a window in which a profiler that waits for it records this process."""
        begin_capture(accelerator_type)

    @staticmethod
    def stop_profiling(accelerator_type: AcceleratorType) -> None:
        """Close that window."""
        CAPTURE.close()

    @staticmethod
    def profiling_range(
        accelerator_type: AcceleratorType, label: str, color: str | None = None, domain: str | None = None
    ) -> AbstractContextManager[None]:
        """Make a block that has a name in the profiler's report."""
        return CAPTURE.range(label)


def _manager_of(kind: AcceleratorType) -> type[AcceleratorManager]:
    """Return the manager of a vendor's accelerators; of most it has nothing special."""
    vendors = AcceleratorType(kind)
    known = AcceleratorManager.manager_register.get(vendors)
    return known or type(f"{vendors.value}Manager", (AcceleratorManager,), {"kind": vendors})
