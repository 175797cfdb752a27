"""The part of torch that RLinf's programs use, also where there are no accelerators."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rlinf_scheduler.worker.torch_devices import torch_platform_of, torch_type_of


def platform_of(vendor: str) -> Any:
    """`torch.cuda`, `torch.npu`, ...; without accelerators what has the same functions, and nothing to do."""
    return CPU if torch_type_of(vendor) == "cpu" else torch_platform_of(vendor)


class CpuStream:
    """A stream, or an event, where each operation is done when it returns: there is nothing to wait for."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def _nothing(self, *_args: object, **_options: object) -> None:
        """Nothing to do."""

    synchronize = wait = record = wait_stream = wait_event = _nothing

    def record_event(self, event: CpuStream | None = None) -> CpuStream:
        """The event of what was begun, which is done."""
        return CpuStream() if event is None else event

    def query(self) -> bool:
        """Whether all is done: yes."""
        return True


class CpuPlatform:
    """`torch.cpu`, with those functions of `torch.cuda` that it lacks: no memory to free, no streams to wait for.

    Programs ask by `is_available` whether there are accelerators: there are none.
    """

    Stream = Event = CpuStream

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch").cpu, name)

    def is_available(self) -> bool:
        """Whether there are accelerators: no."""
        return False

    def is_initialized(self) -> bool:
        """Whether the functions below can be used: yes."""
        return True

    def device_count(self) -> int:
        """How many there are: none."""
        return 0

    def set_device(self, device: object) -> None:
        """There is but one."""

    def current_stream(self, device: object = None) -> CpuStream:
        """Where operations are begun."""
        return CpuStream()

    def stream(self, stream: object) -> AbstractContextManager[None]:
        """A block whose operations are begun in a stream."""
        return nullcontext()

    def empty_cache(self) -> None:
        """Nothing is cached."""

    def ipc_collect(self) -> None:
        """Nothing is shared."""

    def memory_allocated(self, device: object = None) -> int:
        """Bytes of an accelerator's memory that are used: 0."""
        return 0

    memory_reserved = max_memory_allocated = memory_allocated

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Free and total bytes of an accelerator's memory: none."""
        return 0, 0


CPU = CpuPlatform()
