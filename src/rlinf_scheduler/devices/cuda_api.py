"""The few calls of the CUDA driver that buckets need, in any process that has the driver; no package is needed.

The driver's interface is stable, each function by the name of its version, and comes with the kernel module, while the
runtime library comes with every build of torch in another place and version. Calls: CUDA Driver API, "Memory
Management", "Primary Context Management", "Stream Management" and "Device Management". For one thread, but for `uuids`.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlinf_scheduler.devices.driver import DeviceUnusable

HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
_UUID_BYTES = 16
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_FOR_ALL_CONTEXTS = 1  # CU_MEMHOSTREGISTER_PORTABLE
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_BESIDE_THE_DEFAULT_STREAM = 1  # CU_STREAM_NON_BLOCKING


class _IpcHandle(ctypes.Structure):
    """`CUipcMemHandle`, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class OutOfDeviceMemory(DeviceUnusable):
    """The device has no room."""


class CudaApi:
    """The driver's library.

    Raises:
        DeviceUnusable: it is not here, or too old.
    """

    def __init__(self) -> None:
        try:
            self._library = library = ctypes.CDLL("libcuda.so.1")
            self._check("cuInit", library.cuInit(0))
            pointer, size = ctypes.c_uint64, ctypes.c_size_t
            library.cuMemAlloc_v2.argtypes = (ctypes.POINTER(pointer), size)
            library.cuMemFree_v2.argtypes = (pointer,)
            library.cuIpcGetMemHandle.argtypes = (ctypes.POINTER(_IpcHandle), pointer)
            library.cuIpcOpenMemHandle_v2.argtypes = (ctypes.POINTER(pointer), _IpcHandle, ctypes.c_uint)
            library.cuIpcCloseMemHandle.argtypes = (pointer,)
            library.cuMemHostRegister_v2.argtypes = (ctypes.c_void_p, size, ctypes.c_uint)
            library.cuMemHostUnregister.argtypes = (ctypes.c_void_p,)
            library.cuStreamCreate.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint)
            library.cuCtxPushCurrent_v2.argtypes = (ctypes.c_void_p,)
        except (OSError, AttributeError) as error:
            raise DeviceUnusable(f"the CUDA driver cannot be called: {error}") from error
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def uuids(self, index: int) -> tuple[str, str]:
        """The UUID of a device, and of the whole one that it may be a part of (MIG)."""
        device = self._device(index)
        own, whole = ctypes.create_string_buffer(_UUID_BYTES), ctypes.create_string_buffer(_UUID_BYTES)
        self._check("cuDeviceGetUuid_v2", self._library.cuDeviceGetUuid_v2(own, device))
        # Of drivers that no longer have the older call there is nothing to compare.
        older = getattr(self._library, "cuDeviceGetUuid", self._library.cuDeviceGetUuid_v2)
        self._check("cuDeviceGetUuid", older(whole, device))
        return f"GPU-{uuid.UUID(bytes=own.raw)}", f"GPU-{uuid.UUID(bytes=whole.raw)}"

    def memory(self, index: int) -> tuple[int, int]:
        """How many bytes a device has free, and in all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self._on(index):
            status = self._library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
            self._check("cuMemGetInfo", status)
        return free.value, total.value

    def allocate(self, index: int, size_bytes: int) -> int:
        """The address of new memory.

        Raises:
            OutOfDeviceMemory: there is none.
        """
        pointer = ctypes.c_uint64()
        with self._on(index):
            self._check("cuMemAlloc", self._library.cuMemAlloc_v2(ctypes.byref(pointer), size_bytes))
        return pointer.value

    def free(self, index: int, address: int) -> None:
        """Undo `allocate`."""
        with self._on(index):
            self._check("cuMemFree", self._library.cuMemFree_v2(address))

    def handle(self, index: int, address: int) -> bytes:
        """What other processes open memory by."""
        handle = _IpcHandle()
        with self._on(index):
            self._check("cuIpcGetMemHandle", self._library.cuIpcGetMemHandle(ctypes.byref(handle), address))
        return bytes(handle.reserved)

    def open(self, index: int, handle: bytes) -> int:
        """The address of another process's memory."""
        pointer, own = ctypes.c_uint64(), _IpcHandle.from_buffer_copy(handle)
        with self._on(index):
            status = self._library.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), own, _LAZY_PEER_ACCESS)
            self._check("cuIpcOpenMemHandle", status)
        return pointer.value

    def close(self, index: int, address: int) -> None:
        """Undo `open`."""
        with self._on(index):
            self._check("cuIpcCloseMemHandle", self._library.cuIpcCloseMemHandle(address))

    def register(self, index: int, address: int, size_bytes: int) -> None:
        """Pin host memory, for all devices."""
        with self._on(index):
            status = self._library.cuMemHostRegister_v2(address, size_bytes, _FOR_ALL_CONTEXTS)
            self._check("cuMemHostRegister", status)

    def unregister(self, index: int, address: int) -> None:
        """Undo `register`."""
        with self._on(index):
            self._check("cuMemHostUnregister", self._library.cuMemHostUnregister(address))

    def stream(self, index: int) -> int:
        """The address of a new stream, which does not wait for the default stream and lasts as long as the process."""
        stream = ctypes.c_void_p()
        with self._on(index):
            status = self._library.cuStreamCreate(ctypes.byref(stream), _BESIDE_THE_DEFAULT_STREAM)
            self._check("cuStreamCreate", status)
        return stream.value or 0

    def is_in_use(self, index: int) -> bool:
        """Whether this process has a context on a device."""
        flags, active = ctypes.c_uint(), ctypes.c_int()
        status = self._library.cuDevicePrimaryCtxGetState(
            self._device(index), ctypes.byref(flags), ctypes.byref(active)
        )
        self._check("cuDevicePrimaryCtxGetState", status)
        return bool(active.value)

    def synchronize(self, index: int) -> None:
        """Return when a device has done all that this process has asked of it."""
        with self._on(index):
            self._check("cuCtxSynchronize", self._library.cuCtxSynchronize())

    @contextmanager
    def _on(self, index: int) -> Iterator[None]:
        """In the context of a device that torch uses too."""
        context = self._contexts.get(index)
        if context is None:
            context = ctypes.c_void_p()
            status = self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), self._device(index))
            self._check("cuDevicePrimaryCtxRetain", status)
            self._contexts[index] = context
        self._check("cuCtxPushCurrent", self._library.cuCtxPushCurrent_v2(context))
        try:
            yield
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def _device(self, index: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._check("cuDeviceGet", self._library.cuDeviceGet(ctypes.byref(device), index))
        return device

    def _check(self, what: str, status: int) -> None:
        if not status:
            return
        name: Any = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(name))
        text = (name.value or b"an error without a name").decode()
        kind = OutOfDeviceMemory if status == _OUT_OF_MEMORY else DeviceUnusable
        raise kind(f"{what} says {text} ({status})")
