"""A device for tests of what changes places: its memory is apart from the rest, and it counts what is used of it."""

import weakref

import torch

from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.kernel import map_array


class SmallDevice:
    """Memory apart from the rest, of which a process has so much; it is gone when no tensor lies in it any more."""

    def __init__(self, total_bytes=1 << 20):
        self.free_bytes = total_bytes
        self._there = {}

    def is_there(self, tensor):
        return tensor.untyped_storage().data_ptr() in self._there

    def is_in_host(self, tensor):
        return not self.is_there(tensor)

    def allocate(self, size_bytes):
        if size_bytes > self.free_bytes:
            raise MemoryError(f"{size_bytes} bytes of {self.free_bytes}")
        array = map_array(kernel.create(max(size_bytes, 1)), max(size_bytes, 1))
        tensor = torch.from_numpy(array)[:size_bytes]
        self.free_bytes -= size_bytes
        self._there[tensor.data_ptr()] = size_bytes
        weakref.finalize(array.base, self._freed, tensor.data_ptr())
        return tensor

    def _freed(self, address):
        self.free_bytes += self._there.pop(address)

    def allocate_in_host(self, size_bytes):
        return torch.empty(size_bytes, dtype=torch.uint8)

    def settle(self):
        pass

    def trim(self):
        pass
