"""SIGTERM ends a driver as `sys.exit` does, so that what it started is taken down."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

_EXIT_STATUS = 128 + signal.SIGTERM


def exit_on_sigterm() -> Callable[[], None]:
    """Turn SIGTERM into SystemExit(143), unless the program handles it itself; returns what undoes it.

    Ray's own handler prints a stack of machine addresses and aborts, and the simulated nodes of an aborted driver
    would be found only when they notice that it is gone.
    """
    before = signal.getsignal(signal.SIGTERM)
    owner = getattr(before, "__module__", "") or ""
    is_users_own = callable(before) and not owner.startswith("ray.")
    if threading.current_thread() is not threading.main_thread() or is_users_own:
        return lambda: None
    signal.signal(signal.SIGTERM, _exit)
    return lambda: _undo(before)


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(_EXIT_STATUS)


def _undo(before: object) -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, before if callable(before) else signal.SIG_DFL)
