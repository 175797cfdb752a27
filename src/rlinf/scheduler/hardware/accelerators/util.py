"""What RLinf asks of accelerators of any vendor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from rlinf.scheduler.hardware.accelerators.accelerator import (
    COLLECTIVES,
    AcceleratorManager,
    AcceleratorType,
    begin_capture,
    type_of,
    vendor_of,
)
from rlinf.scheduler.hardware.accelerators.amd_gpu import AMDGPUManager
from rlinf.scheduler.hardware.accelerators.intel_gpu import IntelGPUManager
from rlinf.scheduler.hardware.accelerators.nvidia_gpu import NvidiaGPUManager
from rlinf.scheduler.hardware.accelerators.others import AscendNPUManager, KunlunXPUManager, MUSAGPUManager
from rlinf_scheduler.hardware.profilers import CAPTURE
from rlinf_scheduler.hardware.vendors import VENDORS, find_devices


class AcceleratorUtil:
    """What RLinf asks of accelerators of any vendor."""

    CCL_SUPPORT_LIST: ClassVar[list[AcceleratorType]] = [
        AcceleratorType.NV_GPU,
        AcceleratorType.AMD_GPU,
        AcceleratorType.MUSA_GPU,
    ]

    @staticmethod
    def get_accelerator_type() -> AcceleratorType:
        """Whose accelerators this machine has, as the vendors' tools tell."""
        found = (vendor.name for vendor in VENDORS if vendor.tool is not None and find_devices(vendor.name))
        return type_of(next(found, ""))

    @staticmethod
    def get_accelerator_env_var(
        accelerator_type: AcceleratorType, visible_accelerators: Sequence[str]
    ) -> dict[str, str]:
        """The variables that make a process see these and no other."""
        return manager_of(accelerator_type).get_accelerator_env_var(visible_accelerators)

    @staticmethod
    def get_visible_devices(accelerator_type: AcceleratorType) -> list[int]:
        """The numbers that this process's visibility variable names."""
        return manager_of(accelerator_type).get_visible_devices()

    @staticmethod
    def get_ccl_backend(accelerator_type: AcceleratorType) -> str | None:
        """The backend of `torch.distributed` on them; None without accelerators."""
        return COLLECTIVES.get(AcceleratorType(accelerator_type), (None, ""))[0]

    @staticmethod
    def get_ccl_socket_ifname_env_var(accelerator_type: AcceleratorType) -> str:
        """The variable that chooses the network interface of collectives."""
        return COLLECTIVES.get(AcceleratorType(accelerator_type), ("", "GLOO_SOCKET_IFNAME"))[1]

    @staticmethod
    def get_torch_platform(accelerator_type: AcceleratorType) -> Any:
        """The part of torch that is about them; None without accelerators."""
        if AcceleratorType(accelerator_type) is AcceleratorType.NO_ACCEL:
            return None
        return manager_of(accelerator_type).get_torch_platform()

    @staticmethod
    def get_device_type(accelerator_type: AcceleratorType) -> str | None:
        """What torch calls them; None without accelerators."""
        vendor = vendor_of(accelerator_type)
        return None if vendor is None else vendor.torch_type

    @staticmethod
    def start_profiling(accelerator_type: AcceleratorType, step_idx: int | None = None) -> None:
        """As of `AcceleratorManager`."""
        begin_capture(accelerator_type)

    @staticmethod
    def stop_profiling(accelerator_type: AcceleratorType) -> None:
        """As of `AcceleratorManager`."""
        CAPTURE.close()

    @staticmethod
    def profiling_range(
        accelerator_type: AcceleratorType, label: str, color: str | None = None, domain: str | None = None
    ) -> AbstractContextManager[None]:
        """As of `AcceleratorManager`."""
        return CAPTURE.range(label)


def manager_of(accelerator_type: AcceleratorType | str) -> type[AcceleratorManager]:
    """What is asked of accelerators of a type."""
    managers: tuple[type[AcceleratorManager], ...] = (
        NvidiaGPUManager,
        AMDGPUManager,
        IntelGPUManager,
        AscendNPUManager,
        MUSAGPUManager,
        KunlunXPUManager,
    )
    return next((each for each in managers if each.kind == accelerator_type), AcceleratorManager)
