"""The job's home asks every process what it is at, and has those looked at from outside that do not answer."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from rlinf_scheduler.comm import Request
from rlinf_scheduler.observe.answering import DOING, ENLIST, Doings
from rlinf_scheduler.observe.asking_all import AskingAll, Inquiry
from rlinf_scheduler.observe.notes import Doing, Enlist, JobLook
from rlinf_scheduler.observe.status import GoneProcess
from rlinf_scheduler.session import Session

# A service of the job's home.
ROLL_CALL = "job.roll_call"
# Who asks while all are asked already joins in, also if that ends later than was allowed, by such a part of it.
JOIN_SLACK = 0.2
# So many that are gone are remembered.
MAX_GONE = 64


class CallRoll(msgspec.Struct, frozen=True, array_like=True):
    """Ask what all processes are at -> `JobLook`.

    Attributes:
        within_s: how long that may take, in seconds; who has not answered then is told of as silent.
        max_age_s: an answer that another one got so long ago will do, in seconds.
        names: only these processes; all, if there are none.
        by_signal: whether a process that is silent for `SIGNAL_AFTER_S` is sent a signal to write its stacks.
    """

    within_s: float
    max_age_s: float = 0.0
    names: tuple[str, ...] = ()
    by_signal: bool = True


class RollCall:
    """Who takes part in the job, and what each is at; a service of the job's home. On the I/O thread.

    Args:
        session: the home's.

    Attributes:
        on_enlisted: called with the name of each process that takes part from now on, and how it is looked at.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = messenger = session.messenger
        self._doings = session.service(Doings)
        self._enlisted: dict[str, tuple[str, Enlist]] = {}
        self._gone: OrderedDict[str, tuple[str, str, float]] = OrderedDict()
        self._last: tuple[float, JobLook] | None = None
        self.on_enlisted: list[Callable[[str, Enlist], None]] = []
        # The newest look at all that is under way.
        self._present: _Present | None = None
        messenger.serve(ENLIST, self._on_enlist, Enlist)
        messenger.serve(ROLL_CALL, self._on_call, CallRoll)
        messenger.on_peer_lost(self._on_lost)

    @property
    def members(self) -> dict[str, tuple[str, Enlist]]:
        """Who takes part, but the home itself: names, and how each is looked at, by process id."""
        return dict(self._enlisted)

    @property
    def departed(self) -> dict[str, tuple[str, str]]:
        """The last ones that are gone, by process id: their names, and why."""
        return {process_id: (name, reason) for process_id, (name, reason, _) in self._gone.items()}

    def ask(
        self,
        inquiry: Inquiry,
        done: Callable[[AskingAll], None],
        names: Sequence[str] = (),
        own: tuple[Any, ...] = (),
    ) -> None:
        """Ask all other processes that take part, or those of these names, and have `done` called at the end.

        Args:
            inquiry: what they are asked.
            done: called once.
            names: the processes' names; all, if there are none.
            own: what this process says itself.
        """
        asked = {
            process_id: known
            for process_id, known in self._enlisted.items()
            if not names or known[0] in names
        }
        everybody = [known for _, known in self._enlisted.values()]
        AskingAll(self._session, inquiry, asked, everybody, done, own).begin()

    @property
    def gone(self) -> tuple[GoneProcess, ...]:
        """The processes that are gone, the last ones."""
        now = time.monotonic()
        return tuple(GoneProcess(name, reason, now - at) for name, reason, at in self._gone.values())

    def call(self, wanted: CallRoll, done: Callable[[JobLook], None]) -> None:
        """Ask what all are at, and have `done` called with what was found."""
        now = time.monotonic()
        if self._last is not None and not wanted.names and now - self._last[0] <= wanted.max_age_s:
            done(self._last[1])
            return
        if self._present is not None and self._present.serves(wanted, now):
            self._present.waiters.append(done)
            return
        present = _Present(wanted, now, [done])
        if not wanted.names:
            self._present = present
        inquiry = Inquiry(DOING, Doing, wanted.within_s, wanted.by_signal)
        is_asked = not wanted.names or self._session.name in wanted.names
        own = (self._doings.now(),) if is_asked else ()
        self.ask(inquiry, partial(self._on_found, present), wanted.names, own)

    def _on_found(self, present: _Present, found: AskingAll) -> None:
        if self._present is present:
            self._present = None
        look = JobLook(found.heads, found.silent, self.gone, found.took_s)
        if not present.wanted.names:
            self._last = time.monotonic(), look
        for done in present.waiters:
            done(look)

    def _on_call(self, request: Request) -> None:
        self.call(request.head, lambda look: _reply(request, look))

    def _on_enlist(self, notice: Request) -> None:
        if notice.peer_id != self._messenger.endpoint.process_id:
            self._enlisted[notice.peer_id] = notice.peer_name, notice.head
            for tell in self.on_enlisted:
                tell(notice.peer_name, notice.head)

    def _on_lost(self, process_id: str) -> None:
        name, _ = self._enlisted.pop(process_id, ("", None))
        if name:
            self._gone[process_id] = name, self._messenger.peers.why_lost(process_id), time.monotonic()
            while len(self._gone) > MAX_GONE:
                self._gone.popitem(last=False)


def _reply(request: Request, look: JobLook) -> None:
    request.reply(look)


@dataclass(slots=True, eq=False)
class _Present:
    """A look at what all are at that is under way: who began it, when, and who is told what was found."""

    wanted: CallRoll
    began: float
    waiters: list[Callable[[JobLook], None]]

    def serves(self, wanted: CallRoll, now: float) -> bool:
        """Whether what it finds will do for another one who asks now."""
        late_s = self.began + self.wanted.within_s - (now + wanted.within_s)
        return (
            not wanted.names
            and now - self.began <= wanted.max_age_s
            and late_s <= JOIN_SLACK * wanted.within_s
            and (self.wanted.by_signal or not wanted.by_signal)
        )
