"""Log lines of the I/O thread, written by a thread that nobody waits for.

A log handler has a lock. If a user's thread is interrupted in the middle of a log line, and the signal handler waits
for something that only the I/O thread can bring, the I/O thread must not stand before that lock. So it hands its lines
over, waits a moment, so that lines and effects keep their order, and goes on.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from contextlib import suppress
from typing import Any

from rlinf_scheduler.comm.forking import on_fork_in_child
from rlinf_scheduler.comm.threads import run_beside

# A line is written within a fraction of a millisecond, unless the lock is held.
WRITING_S = 0.1
_log = logging.getLogger(__name__)


class _Writer:
    """The thread that writes, started with the first line."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a forked child: it has none of its parent's threads, and its own may have their numbers."""
        self.io_threads: set[int] = set()
        self._lines: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._is_running = False

    def write(
        self, logger: logging.Logger, level: int, text: str, args: tuple[Any, ...], exc_info: Any
    ) -> None:
        """Have a line written; on an I/O thread."""
        if not self._is_running:
            try:
                run_beside(self._run, self._lines)
            except RuntimeError:  # no thread to be had: a line less is no reason to end the I/O thread
                return
            self._is_running = True
        written = threading.Lock()
        written.acquire()
        self._lines.put((logger, level, text, args, exc_info, written))
        written.acquire(timeout=WRITING_S)

    def _run(self, lines: queue.SimpleQueue[tuple[Any, ...]]) -> None:
        while True:
            logger, level, text, args, exc_info, written = lines.get()
            try:
                logger.log(level, text, *args, exc_info=exc_info)
            except Exception as error:  # noqa: BLE001 - of somebody's handler: it costs this line, and no later one
                with suppress(Exception):
                    _log.warning("a log handler failed: %r", error)
            written.release()


_writer = _Writer()
on_fork_in_child(_writer.forget)


def note_io_thread(ident: int) -> None:
    """The calling thread is an I/O thread from now on: it must not wait for locks of others."""
    _writer.io_threads.add(ident)


def forget_io_thread(ident: int) -> None:
    """Undo `note_io_thread`."""
    _writer.io_threads.discard(ident)


def on_io_thread() -> bool:
    """Whether the caller is an I/O thread, which must do nothing that may take long."""
    return threading.get_ident() in _writer.io_threads


class Reporter:
    """A logger that may be used on the I/O thread.

    Args:
        name: of the module.
    """

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        # Not with the first line, on whatever thread: programs go through the table of loggers and take no lock for it.
        self._logger = logging.getLogger(name)

    def debug(self, text: str, *args: Any) -> None:
        """Log at level DEBUG, as `logging.Logger` does."""
        self._log(logging.DEBUG, text, args)

    def info(self, text: str, *args: Any) -> None:
        """Log at level INFO, as `logging.Logger` does."""
        self._log(logging.INFO, text, args)

    def warning(self, text: str, *args: Any) -> None:
        """Log at level WARNING, as `logging.Logger` does."""
        self._log(logging.WARNING, text, args)

    def critical(self, text: str, *args: Any, exc_info: BaseException | None = None) -> None:
        """Log at level CRITICAL, as `logging.Logger` does."""
        self._log(logging.CRITICAL, text, args, exc_info)

    def exception(self, text: str, *args: Any) -> None:
        """Log an error with the exception that is being handled."""
        self._log(logging.ERROR, text, args, sys.exc_info()[1])

    def _log(self, level: int, text: str, args: tuple[Any, ...], exc_info: Any = None) -> None:
        if on_io_thread():
            _writer.write(self._logger, level, text, args, exc_info)
        else:
            self._logger.log(level, text, *args, exc_info=exc_info)
