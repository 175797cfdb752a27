"""What launches wait for, said in one line on the terminal while they take longer than a moment."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.host.terminal_line import TerminalLine, is_wanted
from rlinf_scheduler.session import Session

# What is quicker is over before anybody has read the line.
SHOWN_AFTER_S = 1.0
_REDRAWN_EVERY_S = 0.2
# How long a launch that is over waits until its part of the line is gone.
_ERASING_S = 0.5


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

    Launches tell it by a queue: so whoever is interrupted leaves nothing half done.
    """

    def __init__(self, session: Session) -> None:
        self._line = session.service(TerminalLine)
        self._told: queue.SimpleQueue[tuple[_Watched, Promise[None] | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rlinf-progress", daemon=True)
        self._watched: list[_Watched] = []
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
            gone.wait(_ERASING_S)

    def _run(self) -> None:
        while self._hear():
            now = time.monotonic()
            self._watched = [each for each in self._watched if now < each.until]
            shown = [
                (each.look(), now - each.began) for each in self._watched if now - each.began >= SHOWN_AFTER_S
            ]
            if shown:
                self._line.show(progress_line(shown))
            else:
                self._line.erase()
        self._line.erase()

    def _hear(self) -> bool:
        """Wait for news, or until the line is to be written anew; False at the end."""
        try:
            told = self._told.get(timeout=_REDRAWN_EVERY_S if self._watched else None)
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


@contextmanager
def shown_on_terminal(session: Session, look: Callable[[], Standing], timeout_s: float) -> Iterator[None]:
    """Show how far a launch is where somebody can see it; arguments as of `ProgressLine.showing`."""
    if not is_wanted(sys.stderr, os.environ):
        yield
        return
    with session.service(ProgressLine).showing(look, timeout_s):
        yield
