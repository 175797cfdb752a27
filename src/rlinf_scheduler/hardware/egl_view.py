"""A program of its own: which EGL device is which CUDA device of a process with this environment, a pair a line.

CUDA numbers what its mask shows, EGL all that the driver knows, in an order of its own. It asks in a process that ends
at once, since both libraries keep what they have found. The calls: EGL_EXT_device_enumeration, EGL_EXT_device_query,
EGL_NV_device_cuda.
"""

from __future__ import annotations

import ctypes
import sys

_EGL_CUDA_DEVICE_NV = 0x323A
_MOST = 256


def main() -> int:
    """Print CUDA's number and EGL's; 0, or 1 where EGL is not here or does not answer."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return 1
    find = egl.eglGetProcAddress
    find.restype = ctypes.c_void_p
    query_devices, query_attribute = find(b"eglQueryDevicesEXT"), find(b"eglQueryDeviceAttribEXT")
    if not query_devices or not query_attribute:
        return 1
    pointer = ctypes.POINTER
    devices, count = (ctypes.c_void_p * _MOST)(), ctypes.c_int()
    list_devices = ctypes.CFUNCTYPE(
        ctypes.c_uint, ctypes.c_int, pointer(ctypes.c_void_p), pointer(ctypes.c_int)
    )(query_devices)
    if not list_devices(_MOST, devices, ctypes.byref(count)):
        return 1
    attribute_of = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, pointer(ctypes.c_ssize_t))(
        query_attribute
    )
    for index in range(count.value):
        ordinal = ctypes.c_ssize_t(-1)
        if attribute_of(devices[index], _EGL_CUDA_DEVICE_NV, ctypes.byref(ordinal)) and ordinal.value >= 0:
            sys.stdout.write(f"{ordinal.value} {index}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
