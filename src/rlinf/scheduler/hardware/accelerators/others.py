"""What RLinf asks of the accelerators of vendors that need nothing special."""

from __future__ import annotations

from rlinf.scheduler.hardware.accelerators.accelerator import AcceleratorManager, AcceleratorType


class AscendNPUManager(AcceleratorManager):
    """Of Ascend's."""

    kind = AcceleratorType.NPU


class MUSAGPUManager(AcceleratorManager):
    """Of Moore Threads'."""

    kind = AcceleratorType.MUSA_GPU


class KunlunXPUManager(AcceleratorManager):
    """Of Kunlun's."""

    kind = AcceleratorType.KUNLUN_XPU
