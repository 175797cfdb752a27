"""Vendors of accelerators by RLinf's words, which our vendors stand behind."""

from __future__ import annotations

import importlib
import os
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware.profilers import CAPTURE, Backend, ProfilingConfig
from rlinf_scheduler.hardware.vendor import Vendor
from rlinf_scheduler.hardware.vendors import VENDORS
from rlinf_scheduler.hardware.views import Accelerator as Accelerator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class AcceleratorType(str, Enum):  # noqa: UP042 - `str` of one has its class, as in RLinf
    """Whose accelerators a node has."""

    NV_GPU = "NV_GPU"
    AMD_GPU = "AMD_GPU"
    INTEL_GPU = "INTEL_GPU"
    NPU = "NPU"
    NO_ACCEL = "NO_ACCEL"
    MUSA_GPU = "MUSA_GPU"
    KUNLUN_XPU = "KUNLUN_XPU"


_VENDOR_OF = {
    AcceleratorType.NV_GPU: "NVIDIA",
    AcceleratorType.AMD_GPU: "AMD",
    AcceleratorType.INTEL_GPU: "Intel",
    AcceleratorType.NPU: "Ascend",
    AcceleratorType.MUSA_GPU: "Moore Threads",
    AcceleratorType.KUNLUN_XPU: "Kunlun",
}
_TYPE_OF = {vendor: kind for kind, vendor in _VENDOR_OF.items()}


def type_of(vendor: str) -> AcceleratorType:
    """Return RLinf's word for a vendor's accelerators; of simulated ones, and of other vendors, `NO_ACCEL`."""
    return _TYPE_OF.get(vendor, AcceleratorType.NO_ACCEL)


def vendor_of(kind: AcceleratorType | str) -> Vendor | None:
    """Return the vendor of accelerators of a type; None of those that are none, or of a type that nobody knows."""
    name = next((vendor for known, vendor in _VENDOR_OF.items() if known == kind), "")
    return next((vendor for vendor in VENDORS if vendor.name == name), None)


def begin_capture(kind: AcceleratorType | str) -> None:
    """Open a window in which a profiler that waits for it records this process; nothing where torch has no `cuda`."""
    if kind in (AcceleratorType.NV_GPU, AcceleratorType.AMD_GPU):
        CAPTURE.open()


class AcceleratorManager:
    """One vendor's accelerators, by RLinf's names; a subclass names the vendor."""

    kind: ClassVar[AcceleratorType] = AcceleratorType.NO_ACCEL
    manager_register: ClassVar[dict[AcceleratorType, type[AcceleratorManager]]] = {}

    def __init_subclass__(cls) -> None:
        AcceleratorManager.manager_register[cls.kind] = cls

    @classmethod
    def get_accelerator_env_var(cls, visible_accelerators: Sequence[str]) -> dict[str, str]:
        """Return the variables that make a process see these and no other."""
        vendor = vendor_of(cls.kind)
        return vendor.mask_settings(visible_accelerators) if vendor is not None else {}

    @classmethod
    def get_visible_devices(cls) -> list[int]:
        """Return the numbers that this process's visibility variable names; empty where all are visible."""
        vendor = vendor_of(cls.kind)
        names = vendor.read_mask(os.environ) if vendor is not None else None
        return [int(name) for name in names or () if name.isdecimal()]

    @classmethod
    def get_torch_platform(cls) -> Any:
        """Return the part of torch that is about them."""
        vendor = vendor_of(cls.kind)
        return getattr(importlib.import_module("torch"), vendor.torch_type if vendor is not None else "cpu")

    @classmethod
    def start_profiling(cls, step_idx: int | None = None) -> None:
        """Open a window in which a profiler that waits for it records this process, as `begin_capture`."""
        begin_capture(cls.kind)

    @staticmethod
    def stop_profiling() -> None:
        """Close that window."""
        CAPTURE.close()

    @staticmethod
    def is_profiling_active() -> bool:
        """Return whether one is open."""
        return CAPTURE.is_open

    @staticmethod
    def profiling_range(
        label: str, color: str | None = None, domain: str | None = None
    ) -> AbstractContextManager[None]:
        """Make a block that has a name in the profiler's report."""
        return CAPTURE.range(label)


class ProfileConfig:
    """The `profiling:` of a cluster's config by RLinf's names; a subclass names the profiler.

    Attributes:
        core: the same, checked.
        steps: at which steps a runner opens a window; None: at every one.
    """

    BACKEND_TYPE: ClassVar[Backend]

    def __init__(self, backend: str = "", **section: Any) -> None:
        # Loads pydantic: only where ranks are profiled.
        from rlinf_scheduler.config.profiling import read_profiling  # noqa: PLC0415

        given = {name: _plain(value) for name, value in section.items() if value is not None}
        checked = read_profiling({"backend": backend or self.BACKEND_TYPE, **given})
        if checked is None:
            raise ConfigError("nothing is said of a profiler", path="cluster.profiling")
        self._take(checked)

    @classmethod
    def of(cls, checked: ProfilingConfig) -> Self:
        """Return a section that was checked before, by RLinf's names."""
        made = cls.__new__(cls)
        made._take(checked)
        return made

    def _take(self, checked: ProfilingConfig) -> None:
        self.core: ProfilingConfig = checked
        self.backend: str = checked.backend
        self.enabled: bool = checked.enabled
        self.worker_groups: list[str] | None = list(checked.worker_groups) or None
        self.steps: list[int] | None = None if checked.steps is None else list(checked.steps)
        self.output_dir: str | None = checked.output_dir or None

    def profiles_worker_group(self, worker_group_name: str) -> bool:
        """Return whether a group is profiled."""
        return self.core.profiles(worker_group_name)

    def should_profile_step(self, step_idx: int) -> bool:
        """Return whether a runner opens a window at a step."""
        return self.core.captures(step_idx)

    def check(self) -> bool:
        """Return whether the profiler's program is on this machine."""
        import shutil  # noqa: PLC0415 - few ask

        return shutil.which(self.core.program) is not None


def _plain(value: Any) -> Any:
    """Return a value of OmegaConf's as plain data."""
    if hasattr(value, "_metadata"):
        from omegaconf import OmegaConf  # noqa: PLC0415 - the value is of it

        return OmegaConf.to_container(value, resolve=True)
    return value


def texts(pairs: Sequence[tuple[str, str]]) -> dict[str, str] | None:
    """Return names and values as RLinf has them: None for none."""
    found: Mapping[str, str] = dict(pairs)
    return dict(found) or None
