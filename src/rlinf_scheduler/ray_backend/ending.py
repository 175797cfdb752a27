"""The end of a driver that was interrupted: at once, with the status of its signal, whatever threads it has left.

Python waits for every thread that is no daemon before it calls what `atexit` holds. A driver whose main thread was
interrupted would live, and hold its cluster, for as long as a thread of its waits for something.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - what it registers is to be called after what is registered here
import contextlib
import gc
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

# How long a thread that was left without its cluster may take to end.
THREADS_GRACE_S = 1.0
# How long a driver that has failed may take to end as after SIGTERM.
FAILED_GRACE_S = 20.0
# A signal is handled late that comes right before a call of the kernel's that waits: so soon it comes again.
AGAIN_S = 0.2
FAILED = 1

_closers: list[Callable[[], None]] = []
_got_sigterm = threading.Event()
_failed = threading.Event()
# That the main thread knows of it.
_failure_heard = threading.Event()
# That the main thread has ended, and this process is being left.
_leaving = threading.Event()
_registered: list[bool] = []


def close_when_interrupted(close: Callable[[], None]) -> None:
    """Have `close` called when Ctrl-C or SIGTERM has ended the main thread, before other threads are waited for."""
    _closers.append(close)
    if not _registered:
        _registered.append(True)
        atexit.register(_end_failed_at_last)  # first, and so called last
        with contextlib.suppress(RuntimeError):  # this process ends already
            # Python has no public hook before its wait for threads.
            threading._register_atexit(_on_main_thread_ended)  # type: ignore[attr-defined]


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


def end_failed() -> None:
    """End this process with status 1, from a thread of the library's own.

    As SIGTERM ends it, where that is turned into SystemExit: blocks are left, and what `atexit` holds is called. By
    force where the program handles SIGTERM itself, or has not ended in time.
    """
    _failed.set()
    main = threading.main_thread().ident
    if signal.getsignal(signal.SIGTERM) is _exit and main is not None:
        deadline = time.monotonic() + FAILED_GRACE_S
        while time.monotonic() < deadline and not _failure_heard.is_set():
            signal.pthread_kill(main, signal.SIGTERM)  # also while it waits, for whatever
            _failure_heard.wait(AGAIN_S)
        threading.Event().wait(deadline - time.monotonic())
    _end_with(FAILED)


def _end_failed_at_last() -> None:
    """Have the status of a failure that came while this process was being left, where Python's would be 0.

    What `atexit` holds from before the first cluster is not called then: nothing can come after it.
    """
    if _failed.is_set():
        _end_with(FAILED)


def _end_with(status: int) -> None:
    for close in _closers:
        with contextlib.suppress(Exception):  # it ends all the same
            close()
    _flush_streams()
    os._exit(status)


def _exit(_signal: int, _frame: FrameType | None) -> None:
    if _failed.is_set():
        known = _failure_heard.is_set()
        _failure_heard.set()
        if known or _leaving.is_set():  # what is undone now is undone to its end
            return
    _got_sigterm.set()
    sys.exit(_status(signal.SIGTERM))


def _undo(before: object) -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, before if callable(before) else signal.SIG_DFL)


def _status(number: signal.Signals) -> int:
    """As a shell has it; that of a failure, if that is what it was sent for."""
    return FAILED if _failed.is_set() else 128 + number


def _on_main_thread_ended() -> None:
    _leaving.set()
    number = _ended_by()
    if number is None:
        return
    for close in _closers:
        with contextlib.suppress(BaseException):  # a second Ctrl-C: it is raised when all is undone
            close()
    threads_left = _wait_for_threads(THREADS_GRACE_S)
    # After Ctrl-C Python's own status is 1 if anything was compiled since, and Ray does that when it is left.
    if threads_left or number is signal.SIGINT:
        _end_by(number)


def _ended_by() -> signal.Signals | None:
    """The signal that the main thread has ended with; None: it has ended otherwise."""
    if hasattr(sys, "ps1"):  # at a prompt, what was raised last was raised long ago
        return None
    raised = getattr(sys, "last_type", None)
    if raised is not None and issubclass(raised, KeyboardInterrupt):
        return signal.SIGINT
    return signal.SIGTERM if _got_sigterm.is_set() else None


def _wait_for_threads(timeout_s: float) -> bool:
    """Wait until no thread is left for which Python would wait; whether there is one at the deadline."""
    deadline = time.monotonic() + timeout_s
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                return True
    return False


def _end_by(number: signal.Signals) -> None:
    """End this process without waiting for its threads; all else is done as Python does it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit._run_exitfuncs()
    _flush_streams()
    if number is signal.SIGINT:  # as Python itself: a shell then ends its script, too
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(_status(number))


def _flush_streams() -> None:
    for stream in gc.get_objects():
        if issubclass(type(stream), io.IOBase):  # of some objects `__class__` is a property that warns
            with contextlib.suppress(Exception):  # it is closed, or its reader is gone
                stream.flush()
