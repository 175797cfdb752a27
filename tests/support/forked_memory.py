"""The memory of a process that others are forked from: what it has imported stays as it is, in all of them."""

import ctypes
import gc

HUGE_BYTES = 2 << 20
MADV_COLLAPSE = 25  # Linux 6.1 and newer; `mmap` does not name it


def keep():
    """Let no collection look at what is there, and so copy it; and put it into huge pages.

    A fork copies the entries of a process's pages, and its end drops them again: with torch imported there are 70,000,
    for 20 ms a fork, and for 5 with huge ones. Where the system has none, nothing is done.
    """
    gc.collect()
    gc.freeze()
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    with open("/proc/self/maps") as maps:
        lines = maps.read().splitlines()
    for line in lines:
        span, access, _, _, inode, *name = line.split()
        if access != "rw-p" or inode != "0" or name == ["[stack]"]:
            continue
        begin, end = (int(each, 16) for each in span.split("-"))
        begin, end = -(-begin // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES
        if begin < end:
            madvise(begin, end - begin, MADV_COLLAPSE)
