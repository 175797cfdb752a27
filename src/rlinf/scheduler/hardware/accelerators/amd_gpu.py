"""AMD's accelerators and their profiler, by RLinf's names."""

from __future__ import annotations

import shlex

from rlinf.scheduler.hardware.accelerators.accelerator import (
    AcceleratorManager,
    AcceleratorType,
    ProfileConfig,
    texts,
)


class AMDGPUManager(AcceleratorManager):
    """AMD's accelerators."""

    kind = AcceleratorType.AMD_GPU


class RocprofSysConfig(ProfileConfig):
    """`profiling:` with the ROCm Systems Profiler."""

    BACKEND_TYPE = "rocprof_sys"

    @property
    def args(self) -> dict[str, str] | None:
        """Options of `rocprof-sys-python`, by name."""
        return texts(self.core.options)

    @property
    def env(self) -> dict[str, str] | None:
        """Variables of the ranks that are profiled."""
        return texts(self.core.env)

    def to_cli_tokens(self) -> list[str]:
        """Return the command, up to the interpreter."""
        return shlex.split(self.core.command(self.core.program, "python", ""))[:-1]
