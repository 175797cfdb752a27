"""The one I/O thread of a process: readiness of descriptors, callbacks, timers.

Nothing here is locked. The thread alone changes what belongs to it; another thread appends a callback to a deque,
which Python cannot interrupt, and wakes the thread if that sleeps. If it is interrupted in between, its callback waits
for the next wake-up; no later one is lost.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from rlinf_scheduler.comm.reports import Reporter, forget_io_thread, note_io_thread

logger = Reporter(__name__)

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
FINISHED = select.EPOLLHUP | select.EPOLLERR

# epoll takes at most 2**31 ms; an hour is seldom enough.
MAX_SLEEP_S = 3600.0
# Cancelled timers stay in the heap until it has doubled, from this size on.
MIN_SWEEP = 64


def run_guarded(callback: Callable[..., None], *args: object) -> None:
    """Run a callback; report what it raises, which ends nothing else."""
    try:
        callback(*args)
    except Exception:
        logger.exception("a callback on the I/O thread failed")


def ending(step: Callable[[], None], fail: Callable[[Exception], object]) -> Callable[[], None]:
    """Return `step`, to be handed over to the I/O thread; if it raises, `fail` ends what waits for it."""

    def run() -> None:
        try:
            step()
        except Exception as error:
            logger.exception("a step on the I/O thread failed")
            fail(error)

    return run


class Timer:
    """A callback that waits for its time; `cancel()` from any thread, any number of times."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Make sure that the callback does not run, unless it has begun."""
        self.callback = None


class Clock(Protocol):
    """Time and timers: of an I/O thread, of a durable channel, or of a simulated process."""

    def now(self) -> float:
        """Return the time, in seconds since some moment."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` after so many seconds, unless what is returned is cancelled."""


class IoLoop:
    """Runs callbacks on one thread: when a descriptor is ready, when a time has come, when somebody asks.

    Args:
        name: the thread's name.
        on_failed: called on the thread with what ended it, if it was not `stop`.

    Attributes:
        now: the clock of its timers, in seconds.
        failure: what ended the thread unexpectedly; None if nothing did.
    """

    def __init__(self, name: str, on_failed: Callable[[BaseException], None] | None = None) -> None:
        self.now: Callable[[], float] = time.monotonic
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._ready: deque[Callable[[], None]] = deque()
        self._after_round: list[Callable[[], None]] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._sweep_at = MIN_SWEEP
        self._order = itertools.count()
        self._sleeping = False
        self._num_sleeps = 0
        self._woken = 0
        self._closing = False
        self._ended = False
        self._finally: list[Callable[[], None]] = []
        self._on_failed = on_failed
        self.failure: BaseException | None = None
        self._ident = 0
        self._open(name)

    def _open(self, name: str) -> None:
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Each write is an event of its own, so nobody has to read the descriptor.
        self.register(self._wake_fd, READABLE | select.EPOLLET, _ignore)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_current(self) -> bool:
        """Whether the caller runs on this loop's thread."""
        return threading.get_ident() == self._ident

    def stop(self) -> None:
        """Let the thread end after what was submitted so far."""
        self.submit(self._stop)

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, for at most `timeout_s` seconds."""
        self._thread.join(timeout_s)

    def at_end(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the thread as its last act, however it ends."""
        self._finally.append(callback)

    def off_end(self, callback: Callable[[], None]) -> None:
        """Undo `at_end`; on the thread."""
        if callback in self._finally:
            self._finally.remove(callback)

    def after_round(self, callback: Callable[[], None]) -> None:
        """Run `callback` at the end of this round of work; on the thread."""
        self._after_round.append(callback)

    def register(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call `handler(events)` on the thread whenever `fd` is ready (level-triggered)."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        """Change what `fd` is watched for."""
        with contextlib.suppress(ValueError, OSError):
            self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Stop watching `fd`; call it before closing the descriptor."""
        self._handlers.pop(fd, None)
        with contextlib.suppress(ValueError, OSError):
            self._epoll.unregister(fd)

    def ready_now(self, descriptors: Iterable[int], events: int) -> set[int]:
        """Return those of some descriptors that are ready, or broken, by one question to the kernel."""
        asked = select.poll()
        for descriptor in descriptors:
            asked.register(descriptor, events)
        return {descriptor for descriptor, _ in asked.poll(0)}

    def submit(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the thread soon; from any thread, in order.

        Once the thread has ended, the caller runs it: what it belongs to is closed then, and says so.
        """
        self._ready.append(callback)
        # Reading this flag after the append is enough: the thread sets it before it looks at the queue a
        # last time, and nobody else changes it.
        if self._sleeping:
            self._wake()
        elif self._ended:
            self._run_ready()

    def submit_once(self, callback: Callable[[], None]) -> None:
        """`submit` what does everything that is there to be done: not again if it is the last in line anyhow."""
        ready = self._ready
        try:
            if ready[-1] is not callback:
                ready.append(callback)
        except IndexError:
            ready.append(callback)
        if self._sleeping:
            self._wake()
        elif self._ended:
            self._run_ready()

    def run_soon(self, callback: Callable[[], None]) -> None:
        """Run `callback` now on the thread itself, if nothing submitted waits before it; else `submit` it."""
        if self._ready or threading.get_ident() != self._ident:
            self.submit(callback)
        else:
            callback()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` on the thread after `delay_s` seconds; from any thread."""
        return self._call_at(self.now() + delay_s, callback)

    def call_at_tick(self, tick_s: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` on the thread within `tick_s` seconds, with what else is for that tick; from any thread.

        Who asks for it again and again for each of many peers wakes the thread once a tick, not once a peer.
        """
        return self._call_at(next_tick(self.now(), tick_s), callback)

    def _call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        if self.is_current():
            self._add_timer(when, timer)
        else:
            self.submit(lambda: self._add_timer(when, timer))
        return timer

    def _add_timer(self, when: float, timer: Timer) -> None:
        if timer.callback is None:
            return
        heapq.heappush(self._timers, (when, next(self._order), timer))
        if len(self._timers) >= self._sweep_at:
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._sweep_at = max(MIN_SWEEP, 2 * len(self._timers))

    def _stop(self) -> None:
        self._closing = True

    def _wake(self) -> None:
        # Once for each sleep: a thread that hands much over would give the interpreter away each time. Noted after
        # the act: whoever is interrupted in between leaves only a needless one behind.
        number = self._num_sleeps
        if self._woken != number:
            try:
                os.eventfd_write(self._wake_fd, 1)
            except OSError:  # it is being closed
                return
            self._woken = number

    def _run(self) -> None:
        self._ident = threading.get_ident()
        note_io_thread(self._ident)
        try:
            while not (self._closing and not self._ready):
                self._run_once()
        except BaseException as error:  # whatever it was: nobody else can tell of it
            self.failure = error
            logger.critical("the I/O thread '%s' ended: %r", self._thread.name, error, exc_info=error)
        finally:
            self._sleeping = False
            for callback in list(self._finally):
                run_guarded(callback)
            self._ended = True
            self._run_ready()
            self.dispose()
            if self.failure is not None and self._on_failed is not None:
                self._on_failed(self.failure)
            forget_io_thread(self._ident)

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
        self._timers = []
        wake_fd, self._wake_fd = self._wake_fd, -1
        # Not unregistered first: the set of watched descriptors is shared with the parent.
        self._epoll.close()
        if wake_fd >= 0:
            os.close(wake_fd)

    def _run_once(self) -> None:
        self._num_sleeps += 1
        self._sleeping = True
        timeout_s = 0.0 if self._ready or self._closing else self._until_next_timer()
        ready = self._epoll.poll(timeout_s, 256)
        self._sleeping = False
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is not None:
                run_guarded(handler, events)
        if self._timers:
            self._run_timers()
        # Callbacks that callbacks submit wait for the next round, so that descriptors get their turn.
        for _ in range(len(self._ready)):
            run_guarded(self._ready.popleft())
        while self._after_round:
            run_guarded(self._after_round.pop())

    def _until_next_timer(self) -> float:
        if not self._timers:
            return MAX_SLEEP_S
        return min(MAX_SLEEP_S, max(0.0, self._timers[0][0] - self.now()))

    def _run_timers(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                run_guarded(callback)

    def _run_ready(self) -> None:
        while self._ready:
            try:
                callback = self._ready.popleft()
            except IndexError:  # another thread took it
                return
            run_guarded(callback)


def next_tick(now: float, tick_s: float) -> float:
    """The next multiple of `tick_s` after `now`, both in seconds.

    >>> next_tick(10.0, 0.25), next_tick(10.2, 0.25), next_tick(10.25, 0.25)
    (10.25, 10.25, 10.5)
    """
    return (now // tick_s + 1) * tick_s


def _ignore(_events: int) -> None:
    """The thread was woken; what for, it sees by itself."""
