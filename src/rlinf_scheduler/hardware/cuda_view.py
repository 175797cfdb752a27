"""A program of its own: which devices CUDA shows to a process with this environment, a UUID a line, in CUDA's order.

It asks the driver as every CUDA program does, in a process that ends at once: one that has called `cuInit` can
neither change what it sees nor fork. The calls: CUDA Driver API, "Initialization" and "Device Management".
"""

from __future__ import annotations

import ctypes
import sys
import uuid

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_UUID_BYTES = 16


def main() -> int:
    """Print them; 0, or 1 where the driver is not here or does not answer."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 1
    status = driver.cuInit(0)
    if status == _NO_DEVICE:
        return 0
    count = ctypes.c_int()
    if status or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 1
    for index in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(_UUID_BYTES)
        if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetUuid_v2(name, device):
            return 1
        sys.stdout.write(f"GPU-{uuid.UUID(bytes=name.raw)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
