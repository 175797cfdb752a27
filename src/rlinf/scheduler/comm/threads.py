"""Threads that may be started anywhere, on the I/O thread too."""

from __future__ import annotations

import _thread
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

# A thread that cannot be had is asked for again after so long.
ASK_AGAIN_S = 0.5
_log = logging.getLogger(__name__)


def run_beside(function: Callable[..., object], *args: Any) -> None:
    """Run `function(*args)` in a thread of its own, which the end of the process does not wait for.

    Not by `threading`, whose own locks a user's thread may hold while a signal handler of its waits for the I/O thread.
    """
    _thread.start_new_thread(function, args)


def run_beside_in_time(
    call_later: Callable[[float, Callable[[], None]], object], function: Callable[..., object], *args: Any
) -> None:
    """`run_beside`, on the I/O thread: now, or once there is a thread to be had.

    Args:
        call_later: the messenger's.
        function: what is to be run,
        args: and with what.
    """
    try:
        run_beside(function, *args)
    except RuntimeError:  # "can't start new thread"
        _log.warning("this process can start no thread; it tries again")
        call_later(ASK_AGAIN_S, partial(run_beside_in_time, call_later, function, *args))
