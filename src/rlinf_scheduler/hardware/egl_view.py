"""A program of its own: what EGL knows of each of its devices in a process with this environment, one a line.

A line is EGL's number, CUDA's number, the UUID and the kernel's file, `-` for what EGL does not say. CUDA numbers what
its mask shows, EGL all that its drivers know, in an order of its own. It asks in a process that ends at once, since
both libraries keep what they have found. The calls: EGL_EXT_device_enumeration, EGL_EXT_device_query,
EGL_NV_device_cuda, EGL_EXT_device_persistent_id, EGL_EXT_device_drm.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

_EXTENSIONS, _DRM_FILE, _CUDA_DEVICE, _DEVICE_UUID = 0x3055, 0x3233, 0x323A, 0x335C
_UUID_BYTES = 16
_MOST = 256
_Device = ctypes.c_void_p


def main() -> int:
    """Print the devices; 0, or 1 where EGL is not here or does not answer."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return 1
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    count = ctypes.c_int()
    devices = (_Device * _MOST)()
    query = _function(egl, "eglQueryDevicesEXT", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    if not query(_MOST, devices, ctypes.byref(count)):
        return 1
    for number in range(count.value):
        about = _about(egl, _Device(devices[number]))
        sys.stdout.write(f"{number} {about}\n")
    return 0


def _about(egl: Any, device: Any) -> str:
    text = _function(egl, "eglQueryDeviceStringEXT", _Device, ctypes.c_int, returns=ctypes.c_char_p)
    known = (text(device, _EXTENSIONS) or b"").split()
    cuda, uuid, size = ctypes.c_ssize_t(-1), ctypes.create_string_buffer(_UUID_BYTES), ctypes.c_int()
    attribute = _function(egl, "eglQueryDeviceAttribEXT", _Device, ctypes.c_int, ctypes.c_void_p)
    binary = _function(
        egl,
        "eglQueryDeviceBinaryEXT",
        _Device,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
    )
    has_cuda = attribute(device, _CUDA_DEVICE, ctypes.byref(cuda))
    has_uuid = b"EGL_EXT_device_persistent_id" in known and binary(
        device, _DEVICE_UUID, _UUID_BYTES, uuid, ctypes.byref(size)
    )
    file = text(device, _DRM_FILE) if b"EGL_EXT_device_drm" in known else b""
    told = (
        str(cuda.value) if has_cuda and cuda.value >= 0 else "",
        uuid.raw.hex() if has_uuid and size.value == _UUID_BYTES else "",
        (file or b"").decode("ascii", errors="replace"),
    )
    return " ".join(each or "-" for each in told)


def _function(egl: Any, name: str, *takes: Any, returns: Any = ctypes.c_uint) -> Callable[..., Any]:
    address = egl.eglGetProcAddress(name.encode())
    if not address:
        return lambda *_: None
    found: Callable[..., Any] = ctypes.CFUNCTYPE(returns, *takes)(address)
    return found


if __name__ == "__main__":
    sys.exit(main())
