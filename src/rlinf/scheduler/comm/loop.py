"""The one I/O thread of a process: readiness of descriptors, callbacks, timers."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
FINISHED = select.EPOLLHUP | select.EPOLLERR

# Cancelled timers stay in the heap until they are this many and the majority.
MAX_CANCELLED = 256


class Timer:
    """A callback that waits for its time; `cancel()` from any thread, any number of times."""

    __slots__ = ("_loop", "callback")

    def __init__(self, loop: IoLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Make sure that the callback does not run, unless it has begun."""
        if self.callback is not None:
            self.callback = None
            self._loop.note_cancelled()


class IoLoop:
    """Runs callbacks on one thread: when a descriptor is ready, when a time has come, when somebody asks.

    Args:
        name: the thread's name.

    Attributes:
        batching: whether the thread is at work on several messages, so that sending at once would not pay.
    """

    def __init__(self, name: str) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._ready: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._timers_lock = threading.Lock()
        self._cancelled = 0
        self._order = itertools.count()
        self.batching = False
        self._sleeping = False
        self._closing = False
        self._finally: list[Callable[[], None]] = []
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.register(self._wake_fd, READABLE, self._drain_wake)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ident = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_current(self) -> bool:
        """Whether the caller runs on this loop's thread."""
        return threading.get_ident() == self._ident

    def stop(self) -> None:
        """Let the thread end after what was submitted so far."""
        self._closing = True
        self._wake()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, for at most `timeout_s` seconds."""
        self._thread.join(timeout_s)

    def at_end(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the thread as its last act."""
        self._finally.append(callback)

    def register(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call `handler(events)` on the thread whenever `fd` is ready (level-triggered)."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        """Change what `fd` is watched for; from any thread."""
        with contextlib.suppress(FileNotFoundError, ValueError, OSError):
            self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Stop watching `fd`; call it before closing the descriptor."""
        self._handlers.pop(fd, None)
        with contextlib.suppress(FileNotFoundError, ValueError, OSError):
            self._epoll.unregister(fd)

    def submit(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the thread soon; from any thread, in order."""
        self._ready.append(callback)
        # Reading this flag after the append is enough: the thread sets it before it looks at the queue a
        # last time.
        if self._sleeping:
            self._wake()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` on the thread after `delay_s` seconds; from any thread."""
        timer = Timer(self, callback)
        when = time.monotonic() + delay_s
        with self._timers_lock:
            heapq.heappush(self._timers, (when, next(self._order), timer))
            earliest = self._timers[0][2] is timer
        if earliest and self._sleeping:
            self._wake()
        return timer

    def note_cancelled(self) -> None:
        """Count a cancelled timer; the heap is swept when most of it is cancelled."""
        self._cancelled += 1
        if self._cancelled > MAX_CANCELLED and self._cancelled * 2 > len(self._timers):
            with self._timers_lock:
                timers = [entry for entry in self._timers if entry[2].callback is not None]
                heapq.heapify(timers)
                # Only whole heaps: the thread looks at the first entry without the lock.
                self._timers = timers
                self._cancelled = 0

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)

    def _drain_wake(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    def _run(self) -> None:
        self._ident = threading.get_ident()
        try:
            while not (self._closing and not self._ready):
                self._run_once()
        finally:
            for callback in self._finally:
                self._guarded(callback)
            self.dispose()

    def dispose(self) -> None:
        """Give the descriptors back: the thread's last act, or its maker's if it was never started."""
        self._epoll.close()
        wake_fd, self._wake_fd = self._wake_fd, -1
        os.close(wake_fd)

    def abandon(self) -> None:
        """Close the descriptors in a forked child, without a word to what they stand for."""
        self._sleeping = False
        self._ready.clear()
        self._handlers.clear()
        self._timers, self._timers_lock = [], threading.Lock()
        wake_fd, self._wake_fd = self._wake_fd, -1
        # Not unregistered first: the set of watched descriptors is shared with the parent.
        self._epoll.close()
        if wake_fd >= 0:
            os.close(wake_fd)

    def _run_once(self) -> None:
        self._sleeping = True
        timeout_s = 0.0 if self._ready or self._closing else self._until_next_timer()
        ready = self._epoll.poll(timeout_s, 256)
        self._sleeping = False
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is not None:
                try:
                    handler(events)
                except Exception:
                    logger.exception("a handler on the I/O thread failed")
        self._run_timers()
        # Callbacks that callbacks submit wait for the next round, so that descriptors get their turn.
        for _ in range(len(self._ready)):
            self._guarded(self._ready.popleft())

    def _until_next_timer(self) -> float | None:
        timers = self._timers
        # Other threads add entries and never take one out.
        return max(0.0, timers[0][0] - time.monotonic()) if timers else None

    def _run_timers(self) -> None:
        timers = self._timers
        if not timers or timers[0][0] > (now := time.monotonic()):
            return
        due: list[Timer] = []
        with self._timers_lock:
            while self._timers and self._timers[0][0] <= now:
                due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            callback, timer.callback = timer.callback, None
            if callback is None:
                self._cancelled = max(0, self._cancelled - 1)
            else:
                self._guarded(callback)

    def _guarded(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("a callback on the I/O thread failed")
