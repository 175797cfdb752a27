"""What torch calls the device of a worker."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.hardware.vendors import vendor_named
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.worker.cpu_platform import CPU
from rlinf_scheduler.worker.environment import device_index

if TYPE_CHECKING:  # loaded by those who ask only
    import torch


def torch_type_of(accelerator_type: str) -> str:
    """What torch calls the devices of a vendor: "cuda", "npu", ...; "cpu" without any.

    Args:
        accelerator_type: the vendor; "" for a worker without accelerators.

    Raises:
        ClusterError: that vendor's name in torch is not known.

    >>> torch_type_of("AMD"), torch_type_of("")
    ('cuda', 'cpu')
    """
    if not accelerator_type:
        return "cpu"
    vendor = vendor_named(accelerator_type)
    if vendor is None or not vendor.torch_type:
        message = f"what torch calls the accelerators of '{accelerator_type}' is not known here"
        raise ClusterError(
            f"{message}: name a torch device yourself, or give the vendor's plug-in a torch_type"
        )
    return vendor.torch_type


def torch_device_of(placement: Placement, accelerator_type: str) -> torch.device:
    """The first device that a worker was given, as torch numbers what its process sees."""
    kind = torch_type_of(accelerator_type)
    numbers = () if kind == "cpu" else (device_index(placement),)
    return importlib.import_module("torch").device(kind, *numbers)


def torch_platform_of(accelerator_type: str) -> Any:
    """The part of torch that is about a vendor's devices: `torch.cuda`, `torch.npu`, ...; without any, `CPU`.

    Raises:
        ClusterError: torch has no such part; its vendor's package was not imported, perhaps.
    """
    kind = torch_type_of(accelerator_type)
    if kind == "cpu":
        return CPU
    platform = getattr(importlib.import_module("torch"), kind, None)
    if platform is None:
        raise ClusterError(
            f"torch has no torch.{kind} here: import its vendor's package (torch_{kind}) first"
        )
    return platform
