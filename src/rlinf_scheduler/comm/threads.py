"""Threads that may be started anywhere, on the I/O thread too."""

from __future__ import annotations

import _thread
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_scheduler.comm.forking import on_fork_in_child

# A thread that cannot be had is asked for again after so long.
ASK_AGAIN_S = 0.5
_log = logging.getLogger(__name__)


# The threads that `run_beside` has started, by their numbers: what they wait for is no user's wait.
OWN_THREADS: set[int] = set()
on_fork_in_child(OWN_THREADS.clear)


def run_beside(function: Callable[..., object], *args: Any) -> None:
    """Run `function(*args)` in a thread of its own, which the end of the process does not wait for.

    Not by `threading`, whose own locks a user's thread may hold while a signal handler of its waits for the I/O thread.
    """
    _thread.start_new_thread(_run_own, (function, *args))


def _run_own(function: Callable[..., object], *args: Any) -> None:
    ident = _thread.get_ident()
    OWN_THREADS.add(ident)
    try:
        function(*args)
    finally:
        OWN_THREADS.discard(ident)


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
