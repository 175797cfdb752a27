"""RLinf's words for vendors of accelerators."""

from enum import Enum


class AcceleratorType(str, Enum):  # noqa: UP042 - `str` of one has its class, as in RLinf
    """Whose accelerators a node has."""

    NV_GPU = "NV_GPU"
    AMD_GPU = "AMD_GPU"
    INTEL_GPU = "INTEL_GPU"
    NPU = "NPU"
    NO_ACCEL = "NO_ACCEL"
    MUSA_GPU = "MUSA_GPU"
    KUNLUN_XPU = "KUNLUN_XPU"


_TYPE_OF = {
    "NVIDIA": AcceleratorType.NV_GPU,
    "AMD": AcceleratorType.AMD_GPU,
    "Intel": AcceleratorType.INTEL_GPU,
    "Ascend": AcceleratorType.NPU,
    "Moore Threads": AcceleratorType.MUSA_GPU,
    "Kunlun": AcceleratorType.KUNLUN_XPU,
}


def type_of(vendor: str) -> AcceleratorType:
    """RLinf's word for a vendor's accelerators; of simulated ones, and of vendors that it does not know, `NO_ACCEL`."""
    return _TYPE_OF.get(vendor, AcceleratorType.NO_ACCEL)
