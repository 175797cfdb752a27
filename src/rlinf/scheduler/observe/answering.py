"""Says what this process is at, from its I/O thread: so also when its main thread is blocked, or computes."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from rlinf.scheduler.comm import Request
from rlinf.scheduler.comm.reports import Reporter
from rlinf.scheduler.comm.threads import run_beside_in_time
from rlinf.scheduler.observe.notes import Doing, Enlist, Silent
from rlinf.scheduler.observe.outside import birth_of, look_at
from rlinf.scheduler.observe.stack_file import offer_stacks
from rlinf.scheduler.observe.stacks import Threads
from rlinf.scheduler.observe.time_sheets import TimeSheets
from rlinf.scheduler.observe.tracing import Tracer
from rlinf.scheduler.session import Session

# Services of every process of a job.
DOING = "job.doing"
LOOK_AT = "job.look_at"
# Of its home.
ENLIST = "job.enlist"
# So often a process notes where its threads are.
LOOK_S = 2.0
_log = Reporter(__name__)


class LookAt(msgspec.Struct, frozen=True, array_like=True):
    """Look from outside at a process of the same machine, of this name, and wait so long for its stacks -> `Silent`."""

    process: str
    known: Enlist
    stacks_s: float


# What the parts of a process add to what it says.
Addition: TypeAlias = Callable[[Doing], Doing]


class Doings:
    """What this process says of itself; a service of its session. On the I/O thread but for its making.

    Args:
        session: this process's.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = messenger = session.messenger
        self._threads = Threads()
        self._additions: dict[int, Addition] = {}
        self._numbers = itertools.count()
        session.service(TimeSheets)
        session.service(Tracer)
        messenger.serve(DOING, self._on_ask, None)
        messenger.serve(LOOK_AT, self._on_look_at, LookAt)
        number = offer_stacks(messenger.run_directory)
        pid = os.getpid()
        self.enlisted = Enlist(messenger.endpoint, pid, birth_of(pid), number)
        messenger.submit(self._begin)

    def add(self, addition: Addition) -> Callable[[], None]:
        """Let a part of this process add to what it says; returns what undoes that, once or again."""
        self._additions[number := next(self._numbers)] = addition

        def forget() -> None:
            self._additions.pop(number, None)

        return forget

    def now(self) -> Doing:
        """What this process is at."""
        doing = Doing(self._session.name, os.getpid(), platform.node(), stacks=tuple(self._threads.stacks()))
        for addition in tuple(self._additions.values()):
            try:
                doing = addition(doing)
            except Exception:  # noqa: BLE001 - of one part: the others have something to say
                _log.exception("what a part of this process is at could not be told")
        return doing

    def _begin(self) -> None:
        if not self._messenger.why_closed:
            self._messenger.notify(self._session.home, ENLIST, self.enlisted)
            self._look()

    def _look(self) -> None:
        if not self._messenger.why_closed:
            self._messenger.call_later(LOOK_S, self._look)
            self._threads.look()

    def _on_ask(self, request: Request) -> None:
        request.reply(self.now())

    def _on_look_at(self, request: Request) -> None:
        # Not here: it waits for what the other process writes.
        run_beside_in_time(self._messenger.call_later, _answer_look, request)


def _answer_look(request: Request) -> None:
    question: LookAt = request.head
    request.reply(look_at(question.process, question.known, question.stacks_s))


def silence(process: str, known: Enlist | None, detail: str) -> Silent:
    """What is left to say of a process at which nobody could look."""
    return Silent(process, 0 if known is None else known.pid, "unknown", detail)
