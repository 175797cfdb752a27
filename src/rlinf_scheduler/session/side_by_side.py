"""Things that start side by side: what a thread begins in a block is ready when the block ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.session.session import Session


class StartingBlock:
    """What one thread has begun since its block began."""

    def __init__(self) -> None:
        self._begun: list[tuple[Promise[Any], Callable[[Promise[Any]], None] | None]] = []

    def add(self, promise: Promise[Any], undo: Callable[[Promise[Any]], None] | None = None) -> None:
        """Note that something was begun, which `promise` is the end of.

        Args:
            undo: called with the promise, when that is done, if the block fails; None: it outlives that.
        """
        self._begun.append((promise, undo))

    def wait(self) -> None:
        """Wait until everything has started; raises what the first of them failed with, in the order of the block."""
        for promise, _ in self._begun:
            promise.wait()
            promise.result(0)

    def undo(self) -> None:
        """Undo what can be undone."""
        for promise, undo in self._begun:
            if undo is not None:
                promise.add_done_callback(undo)


class SideBySide:
    """The blocks of a process's threads; a service of its session."""

    def __init__(self, session: Session) -> None:
        del session
        self._own = threading.local()

    @property
    def block(self) -> StartingBlock | None:
        """The calling thread's; None if it is in none."""
        block: StartingBlock | None = getattr(self._own, "block", None)
        return block

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block of the calling thread; at its end everything that was begun in it has started.

        Raises:
            SchedulerError: something did not start; what can be undone is undone then, as it is when the block raises.
        """
        outer, block = self.block, StartingBlock()
        self._own.block = block
        try:
            yield
            block.wait()
        except BaseException:
            block.undo()
            raise
        finally:
            self._own.block = outer
