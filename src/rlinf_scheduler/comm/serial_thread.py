"""A thread for what neither users' threads nor the I/O thread may do: in turn, and never interrupted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.threads import run_beside
from rlinf_scheduler.comm.waits import IDLE, Wait, awaited

logger = Reporter(__name__)
T = TypeVar("T")


class SerialThread:
    """Runs what it is given, one after the other; it is started with the first.

    Users' threads are interrupted anywhere, and a device goes on meanwhile: memory that it still reads or writes
    would be taken for free. And the I/O thread must not wait for a device.
    """

    def __init__(self) -> None:
        # Its methods are one step each, and may be called in a signal handler while they run.
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Of the thread that runs them, for good.
        self._running = threading.Lock()
        self._pid = os.getpid()

    def put(self, step: Callable[[], None]) -> None:
        """Run `step` soon; its mistake is reported. From any thread; in a forked child, which has no device, never."""
        if os.getpid() != self._pid:
            return
        self._todo.put(step)
        # Not taken here: an interruption before there is a thread would leave it taken for ever.
        if not self._running.locked():
            with suppress(RuntimeError):  # no thread to be had now: with the next step, perhaps
                run_beside(self._run)

    def ask(self, function: Callable[[], T]) -> Promise[T]:
        """What `function` gives."""
        answer: Promise[T] = Promise()
        self.put(lambda: answer.set_from(function))
        return answer

    def stop(self) -> None:
        """End the thread, when it has done all that it was given."""
        self._todo.put(None)

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):  # two were started at once
            return
        while (step := self._next()) is not None:
            try:
                step()
            except Exception:
                logger.exception("a step of a thread failed")
            del step  # else what it refers to stays until the next one comes

    @awaited(lambda _local: Wait(IDLE, "work to do"))
    def _next(self) -> Callable[[], None] | None:
        return self._todo.get()
