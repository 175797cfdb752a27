"""How much of its devices' memory this process's PyTorch has, if it has loaded PyTorch and initialised them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.observe.process_stats import DeviceMemory

# The parts of torch that are about a vendor's devices, and have the same functions.
PLATFORMS = ("cuda", "npu", "xpu", "musa", "mlu")
_log = Reporter(__name__)


class DeviceMemories:
    """Measures beside the I/O thread: a driver, or an allocator's lock, may keep whoever asks it waiting.

    So what is told is what was found when somebody asked before.

    Args:
        call_later: the messenger's.
        submit: the messenger's.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        self._call_later = call_later
        self._submit = submit
        self._found: tuple[DeviceMemory, ...] = ()
        self._is_measuring = self._has_failed = False

    def last(self) -> tuple[DeviceMemory, ...]:
        """What was found last; has it measured anew. On the I/O thread."""
        platform = initialised_platform()
        if platform is None:
            return ()
        if not self._is_measuring:
            self._is_measuring = True
            run_beside_in_time(self._call_later, self._measure, platform)
        return self._found

    def _measure(self, platform: Any) -> None:
        found: tuple[DeviceMemory, ...] = ()
        try:
            found = measured(platform)
        except Exception:  # noqa: BLE001 - of torch, or a vendor's: whatever it is, the process has no part in it
            if not self._has_failed:  # once: it is asked for again and again
                self._has_failed = True
                _log.exception("how much device memory is used could not be found out")
        self._submit(partial(self._note, found))

    def _note(self, found: tuple[DeviceMemory, ...]) -> None:
        self._found = found
        self._is_measuring = False


def initialised_platform() -> Any:
    """The part of torch whose devices this process has initialised; None if there is none. It loads nothing."""
    torch = sys.modules.get("torch")
    platforms = (getattr(torch, name, None) for name in PLATFORMS)
    return next((each for each in platforms if each is not None and _is_initialised(each)), None)


def _is_initialised(platform: Any) -> bool:
    return bool(getattr(platform, "is_initialized", bool)())


def measured(platform: Any) -> tuple[DeviceMemory, ...]:
    """The memory of the devices of which this process has some; asked about another one it would begin to use it."""
    found = []
    for index in range(platform.device_count()):
        reserved_bytes = platform.memory_reserved(index)
        if reserved_bytes:
            free_bytes, total_bytes = platform.mem_get_info(index)
            found.append(DeviceMemory(index, reserved_bytes, total_bytes - free_bytes, total_bytes))
    return tuple(found)
