"""A process that gets what it has sent itself through shared memory, and pins it."""

import gc
import threading

import numpy as np

from rlinf.testing.pinned_pages import PAGE_BYTES
from rlinf_scheduler.comm.codec import encode
from rlinf_scheduler.devices.pinning import PinnedBlocks
from waits import wait_until

DEADLINE_S = 60.0


def passed(payloads, obj):
    """An object that has come through shared memory."""
    payload = payloads.pack_in_arena(encode(obj), DEADLINE_S)
    return payloads.receive([payload.descriptor.to_frame()]).load()


class Home:
    """A process that gets what it has sent itself, and whose device reads it."""

    def __init__(self, messenger, device, limit_bytes):
        self.messenger, self.device = messenger, device
        self.payloads = messenger.payloads
        self.blocks = PinnedBlocks(messenger, lambda: device, limit_bytes)

    def passed(self, size_bytes, fill):
        """An array that has come through shared memory."""
        return passed(self.payloads, np.full(size_bytes, fill, np.uint8))

    def seen(self, array):
        """Whether all of an array is pinned, and the device sees what it holds."""
        pinned = [
            (address, pages)
            for address, pages in list(self.device.pinned.items())
            if 0 <= array.ctypes.data - address < pages.size_bytes
        ]
        if not pinned:
            return False
        [(address, pages)] = pinned
        end = array.ctypes.data + array.nbytes - address
        assert end <= pages.size_bytes, "a part of it is not"
        begin = array.ctypes.data - address
        whole = [
            (at, data)
            for at, data in zip(pages.offsets, pages.read(), strict=True)
            if begin <= at and at + PAGE_BYTES <= end
        ]
        assert whole
        return all(data == array[at - begin :][:PAGE_BYTES].tobytes() for at, data in whole)

    def settled(self):
        """Return when the device thread has seen what was dropped until now."""
        gc.collect()
        blocks = self.blocks

        def look():
            blocks._tidy()
            return not blocks._is_waiting and not blocks._dropped

        wait_until(lambda: blocks._thread.ask(look).result(DEADLINE_S))

    def trim(self):
        """Give back what is free, as after half a minute."""

        def trim():
            while self.payloads.arena.trim():
                pass

        ran = threading.Event()
        self.messenger.submit(lambda: (self.payloads.release_dropped(), trim(), ran.set()))
        assert ran.wait(DEADLINE_S)
