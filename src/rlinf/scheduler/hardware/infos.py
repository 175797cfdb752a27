"""The hardware of a worker, and of a node, as RLinf shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlinf.scheduler.hardware.accelerators.accelerator import type_of
from rlinf.scheduler.hardware.hardware import INFO_CLASSES, AnyInfo, HardwareInfo, config_of
from rlinf.scheduler.hardware.robots import FrankaHWInfo as _  # noqa: F401 - the robots' records are known then
from rlinf_scheduler.hardware.views import Accelerator as AcceleratorView


def info_of(type_name: str, settings: Any) -> HardwareInfo:
    """Return a declared piece as RLinf shows it to a worker."""
    if isinstance(settings, HardwareInfo):
        return settings
    config = config_of(type_name, settings)
    record = INFO_CLASSES.get(type_name, AnyInfo)
    variant = getattr(settings, "arm_variant", "")
    info: HardwareInfo = record(type_name, f"{type_name}_{variant}" if variant else type_name, config)
    return info


def infos_of(hardware: Iterable[Any], hardware_type: str, accelerator_model: str = "") -> list[HardwareInfo]:
    """Return the `hardware_infos` of a worker, of its `hardware`, which is of one type, and its node's accelerators."""
    return [
        accelerator_info(each.type, accelerator_model)
        if isinstance(each, AcceleratorView)
        else info_of(hardware_type, each)
        for each in hardware
    ]


def accelerator_info(vendor: str, model: str) -> HardwareInfo:
    """Return an accelerator as RLinf shows it: its vendor and model are one word."""
    return HardwareInfo("Accelerator", f"{type_of(vendor).value}:{model or 'UNKNOWN'}")
