"""Says what this process is at, from its I/O thread: so also when its main thread is blocked, or computes."""

from __future__ import annotations

import os
import platform

import msgspec

from rlinf_scheduler.observe.levels import Additions, Level, Levels
from rlinf_scheduler.observe.outside import look_at, offer_stacks
from rlinf_scheduler.observe.own_stats import NOTE_S, OwnStats, PastStates
from rlinf_scheduler.observe.process_stats import Activity, Enlist, Silent
from rlinf_scheduler.observe.stacks import Threads
from rlinf_scheduler.observe.time_sheets import TimeSheets
from rlinf_scheduler.proc import birth_of
from rlinf_scheduler.rooms import has_room, of_room
from rlinf_scheduler.session import Session

# A service of the job's home.
ENLIST = "job.enlist"


class LookAt(msgspec.Struct, frozen=True, array_like=True):
    """Look from outside at a process of the same machine, of this name, and wait so long for its stacks -> `Silent`."""

    process: str
    known: Enlist
    stacks_s: float


# Levels of every process.
ACTIVITY, LOOK_AT = Level("activity", Activity), Level("look at", Silent, LookAt)


class OwnActivity(Additions[Activity]):
    """What this process says of itself; a service of its session. On the I/O thread but for its making."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._messenger = messenger = session.messenger
        self._threads = session.service(Threads)
        self._past = session.service(PastStates)
        session.service(TimeSheets)
        if has_room("tracing"):
            session.service(of_room("tracing.tracer:Tracer"))
        # Who can be asked what it is at can be asked for these, too.
        session.service(OwnStats)
        levels = session.service(Levels)
        levels.add(ACTIVITY, lambda _about: self.now())
        # It waits for what the other process writes.
        levels.add(LOOK_AT, lambda of: look_at(of.process, of.known, of.stacks_s), beside=True)
        number = offer_stacks(messenger.run_directory)
        pid = os.getpid()
        self.enlisted = Enlist(messenger.endpoint, pid, birth_of(pid), number)
        messenger.submit(self._begin)

    def now(self) -> Activity:
        """What this process is at."""
        stacks = tuple(self._threads.stacks())
        return self.applied(Activity(self._session.name, os.getpid(), platform.node(), stacks=stacks))

    def _begin(self) -> None:
        if not self._messenger.why_closed:
            self._messenger.notify(self._session.home, ENLIST, self.enlisted)
            self._look()

    def _look(self) -> None:
        if not self._messenger.why_closed:
            self._messenger.call_later(NOTE_S, self._look)
            self._threads.look()
            self._past.note()


def silence(process: str, known: Enlist | None, detail: str) -> Silent:
    """What is left to say of a process at which nobody could look."""
    return Silent(process, 0 if known is None else known.pid, "unknown", detail)
