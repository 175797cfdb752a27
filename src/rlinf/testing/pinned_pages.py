"""Pages of memory as a device sees them that was told of them once: those that were there then, whatever is there now.

A pipe keeps pages in the same way (vmsplice(2)): it refers to them, and not to addresses.
"""

from __future__ import annotations

import ctypes
import os

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# A pipe has room for so many.
_MAX_PAGES = 16
_libc = ctypes.CDLL(None, use_errno=True)


class _Part(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc.vmsplice.argtypes = (ctypes.c_int, ctypes.POINTER(_Part), ctypes.c_size_t, ctypes.c_uint)
_libc.vmsplice.restype = ctypes.c_ssize_t
_libc.tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)
_libc.tee.restype = ctypes.c_ssize_t


class PinnedPages:
    """Some pages of memory, evenly spread over it, the first and the last among them.

    Args:
        address: of the memory, at a page's beginning.
        size_bytes: how long it is, in whole pages.

    Attributes:
        size_bytes: see above.
        offsets: where the pages begin in it.

    Raises:
        OSError: the system has no room for them.
    """

    def __init__(self, address: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        last = size_bytes // PAGE_BYTES - 1
        count = min(_MAX_PAGES, last + 1)
        self.offsets = [last * number // max(count - 1, 1) * PAGE_BYTES for number in range(count)]
        self._ends = os.pipe()
        parts = (_Part * count)(*[_Part(address + offset, PAGE_BYTES) for offset in self.offsets])
        _checked(_libc.vmsplice(self._ends[1], parts, count, 0))

    def read(self) -> list[bytes]:
        """What a device reads there now."""
        ends = os.pipe()
        try:
            size_bytes = _checked(_libc.tee(self._ends[0], ends[1], len(self.offsets) * PAGE_BYTES, 0))
            data = os.read(ends[0], size_bytes)
        finally:
            for end in ends:
                os.close(end)
        return [data[begin : begin + PAGE_BYTES] for begin in range(0, len(data), PAGE_BYTES)]

    def close(self) -> None:
        """Let go of them."""
        for end in self._ends:
            os.close(end)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
