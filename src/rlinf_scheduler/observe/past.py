"""In which states processes were in the last minutes: each notes its own, so that a page that is opened shows them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec

from rlinf_scheduler.observe.levels import Level, Levels
from rlinf_scheduler.observe.stacks import Threads
from rlinf_scheduler.observe.status import RUNNING, WAITING
from rlinf_scheduler.session import Session

# So often a process notes its state, in seconds, and so many of them are kept: of five minutes.
NOTE_S, MAX_STATES = 2.0, 150


class PastOf(msgspec.Struct, frozen=True, array_like=True):
    """The last states of a process, one every `NOTE_S` seconds, the newest last; "" where it noted none."""

    process: str
    states: tuple[str, ...]


class JobPast(msgspec.Struct, frozen=True, array_like=True):
    """The last states of all processes.

    Attributes:
        at_s: when they were asked, in seconds since 1970.
        every_s: so many seconds lie between two states.
        states: of each process that answered, by its name, the newest last.
    """

    at_s: float
    every_s: float
    states: dict[str, tuple[str, ...]]


# A level of every process, and one of the job's home.
STATES, JOB_PAST = Level("states", PastOf), Level("job.past", JobPast, what="what the job did")


class PastStates:
    """The last states of this process; a service of its session. On the I/O thread.

    Args:
        session: this process's.

    Attributes:
        state: says which it is in now, as of `RankStatus`.
    """

    def __init__(self, session: Session) -> None:
        threads = session.service(Threads)
        self.state: Callable[[], str] = lambda: RUNNING if threads.longest_wait() is None else WAITING
        self._name = session.name
        self._states: deque[str] = deque(maxlen=MAX_STATES)
        self._noted_at = time.monotonic()
        session.service(Levels).add(STATES, lambda _about: self.all())

    def note(self) -> None:
        """Note the present one; every `NOTE_S` seconds, unless this process was stopped, say."""
        now = time.monotonic()
        num_missed = round((now - self._noted_at) / NOTE_S) - 1
        self._states.extend([""] * min(num_missed, MAX_STATES))
        self._states.append(self.state())
        self._noted_at = now

    def all(self) -> PastOf:
        """Return what was noted."""
        return PastOf(self._name, tuple(self._states))
