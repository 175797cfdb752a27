"""What launches wait for: in a line on the terminal after a moment; without one, in the log after some seconds."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.host.progress import Reminder, TerminalLine, is_told, is_wanted
from rlinf_scheduler.session import Session

# What is quicker is over before anybody has read the line.
SHOWN_AFTER_S = 1.0
_REDRAWN_EVERY_S = 0.2
_LOOKED_AT_EVERY_S = 1.0
# How long a launch that is over waits until its part of the line is gone.
_ERASING_S = 0.5
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a launch is.

    Attributes:
        group: whose launch it is.
        num_ready: how many ranks are ready.
        num_ranks: of how many.
        slowest: the rank that has come least far; the first of several.
        state: what that one is at.
    """

    group: str
    num_ready: int
    num_ranks: int
    slowest: int
    state: str


def progress_line(launches: Sequence[tuple[Standing, float]]) -> str:
    """One line about launches, each with the seconds since it began.

    >>> progress_line([(Standing("rollout", 6, 8, 3, "still in __init__"), 12.4)])
    'starting rollout: 6 of 8 ready, rank 3 still in __init__ (12 s)'
    """
    parts = (
        f"{each.group}: {each.num_ready} of {each.num_ranks} ready, rank {each.slowest} {each.state} ({seconds:.0f} s)"
        for each, seconds in launches
    )
    return f"starting {'; '.join(parts)}"


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    look: Callable[[], Standing]
    began: float
    until: float


class ProgressLine:
    """The line of a process; a service of its session. A thread of its own writes it, and knows what is going on.

    Where nobody looks at a terminal, the log has it once in a while.

    Launches tell it by a queue: so an interrupted thread leaves nothing half done.
    """

    def __init__(self, session: Session) -> None:
        self._line = session.service(TerminalLine)
        self._told: queue.SimpleQueue[tuple[_Watched, Promise[None] | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rlinf-progress", daemon=True)
        self._watched: list[_Watched] = []
        self._reminder = Reminder()
        self._thread.start()
        session.on_close(lambda: self._told.put(None))

    @contextmanager
    def showing(self, look: Callable[[], Standing], timeout_s: float) -> Iterator[None]:
        """Show how far a launch is, until the block ends.

        Args:
            look: says it; called on the line's thread.
            timeout_s: how long it may take at most, in seconds.
        """
        now = time.monotonic()
        watched = _Watched(look, now, now + timeout_s)
        try:
            self._told.put((watched, None))
            yield
        finally:
            gone: Promise[None] = Promise()
            self._told.put((watched, gone))
            if _has_terminal():
                gone.wait(_ERASING_S)

    def _run(self) -> None:
        while self._hear():
            now = time.monotonic()
            self._watched = [each for each in self._watched if now < each.until]
            if _has_terminal():
                self._show(self._slower_than(SHOWN_AFTER_S, now))
            else:
                self._log(now)
        self._line.erase()

    def _slower_than(self, seconds: float, now: float) -> list[tuple[Standing, float]]:
        return [(each.look(), now - each.began) for each in self._watched if now - each.began >= seconds]

    def _show(self, slow: Sequence[tuple[Standing, float]]) -> None:
        if slow:
            self._line.show(progress_line(slow))
        else:
            self._line.erase()

    def _log(self, now: float) -> None:
        waited_s = max((now - each.began for each in self._watched), default=0.0)
        if self._reminder.is_due(waited_s) and is_told(os.environ):
            _log.warning("%s", progress_line(self._slower_than(SHOWN_AFTER_S, now)))

    def _hear(self) -> bool:
        """Wait for news, or until the line is to be written anew; False at the end."""
        try:
            pause_s = _REDRAWN_EVERY_S if _has_terminal() else _LOOKED_AT_EVERY_S
            told = self._told.get(timeout=pause_s if self._watched else None)
        except queue.Empty:
            return True
        if told is None:
            return False
        watched, gone = told
        if gone is None:
            self._watched.append(watched)
        else:
            self._watched = [each for each in self._watched if each is not watched]
            if not self._watched:
                self._line.erase()
            gone.set_result(None)
        return True


def _has_terminal() -> bool:
    return is_wanted(sys.stderr, os.environ)


@contextmanager
def shown_while_slow(session: Session, look: Callable[[], Standing], timeout_s: float) -> Iterator[None]:
    """Show how far a launch is, unless nobody wants to know; arguments as of `ProgressLine.showing`."""
    if not (_has_terminal() or is_told(os.environ)):
        yield
        return
    with session.service(ProgressLine).showing(look, timeout_s):
        yield
