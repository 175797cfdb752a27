"""`torch.cpu` with the functions of `torch.cuda`: programs need not ask whether there are accelerators."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def _nothing(*_args: object, **_options: object) -> None:
    """Nothing to do."""


class CpuStream:
    """A stream, or an event, where each operation is done when it returns: there is nothing to wait for."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    synchronize = wait = record = wait_stream = wait_event = _nothing

    def record_event(self, event: CpuStream | None = None) -> CpuStream:
        """Return the event of what was begun, which is done."""
        return CpuStream() if event is None else event

    def query(self) -> bool:
        """Return whether all is done: it is."""
        return True


class CpuPlatform:
    """`torch.cpu`, with those functions of `torch.cuda` that it lacks: no memory to free, no streams to wait for.

    Programs ask by `is_available` whether there are accelerators: there are none.
    """

    Stream = Event = CpuStream
    set_device = empty_cache = ipc_collect = staticmethod(_nothing)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch").cpu, name)

    def is_available(self) -> bool:
        """Return whether there are accelerators: there are none."""
        return False

    def is_initialized(self) -> bool:
        """Return whether the functions here can be used: they can."""
        return True

    def device_count(self) -> int:
        """Return how many accelerators there are: none."""
        return 0

    def current_stream(self, device: object = None) -> CpuStream:
        """Return where operations are begun."""
        return CpuStream()

    def stream(self, stream: object) -> AbstractContextManager[None]:
        """Make a block whose operations are begun in a stream."""
        return nullcontext()

    def memory_allocated(self, device: object = None) -> int:
        """Return the bytes of an accelerator's memory that are used: 0."""
        return 0

    memory_reserved = max_memory_allocated = memory_allocated

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Return the free and the total bytes of an accelerator's memory: none."""
        return 0, 0


CPU = CpuPlatform()
