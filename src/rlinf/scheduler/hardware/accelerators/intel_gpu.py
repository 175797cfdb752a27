"""Intel's accelerators, by RLinf's names."""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.hardware.accelerators.accelerator import AcceleratorManager, AcceleratorType


class IntelGPUManager(AcceleratorManager):
    """Intel's accelerators."""

    kind = AcceleratorType.INTEL_GPU

    @classmethod
    def get_torch_platform(cls) -> Any:
        """Return `torch.xpu`, with an `ipc_collect` that has nothing to do where it lacks one."""
        platform = super().get_torch_platform()
        if not hasattr(platform, "ipc_collect"):
            platform.ipc_collect = lambda: None
        return platform
