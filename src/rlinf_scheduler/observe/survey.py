"""The job's home asks every process what it is at, and has those looked at from outside that do not answer."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from rlinf_scheduler.comm import Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import IDLE, Wait, awaited
from rlinf_scheduler.errors import ClusterError, CommTimeout
from rlinf_scheduler.observe.levels import SURVEY, Level, LevelRequest, Levels
from rlinf_scheduler.observe.own_activity import ACTIVITY, ENLIST, OwnActivity
from rlinf_scheduler.observe.poll import Inquiry, Poll
from rlinf_scheduler.observe.process_stats import Enlist, JobActivity
from rlinf_scheduler.observe.status import GoneProcess
from rlinf_scheduler.session import Session

# A service of the job's home.
ALL_ACTIVITY = "job.all_activity"
# Who asks while all are asked already joins in, also if that ends later than was allowed, by such a part of it.
JOIN_SLACK = 0.2
# So many that are gone are remembered.
MAX_GONE = 64


class AskActivity(msgspec.Struct, frozen=True, array_like=True):
    """Ask what all processes are at -> `JobActivity`.

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


class Survey:
    """Who takes part in the job, and what each is at; a service of the job's home. On the I/O thread.

    Args:
        session: the home's.

    Attributes:
        on_enlisted: called with the name of each process that takes part from now on, and how it is looked at.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = messenger = session.messenger
        session.service(OwnActivity)
        self._levels = session.service(Levels)
        self._enlisted: dict[str, tuple[str, Enlist]] = {}
        self._gone: OrderedDict[str, tuple[str, str, float]] = OrderedDict()
        self._last: tuple[float, JobActivity] | None = None
        self.on_enlisted: list[Callable[[str, Enlist], None]] = []
        # The newest look at all that is under way.
        self._present: _Present | None = None
        messenger.serve(ENLIST, self._on_enlist, Enlist)
        messenger.serve(ALL_ACTIVITY, self._on_call, AskActivity)
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
        level: Level,
        within_s: float,
        done: Callable[[Poll], None],
        *,
        about: Any = None,
        names: Sequence[str] = (),
        by_signal: bool = False,
        is_patient: bool = False,
    ) -> None:
        """Ask all processes that take part, this one too, or those of these names; `done` is called once, at the end.

        Args:
            level: at which.
            within_s: how long all may take, in seconds.
            done: called with their answers.
            about: the question.
            names: the processes' names; all, if there are none.
            by_signal: as of `Inquiry`.
            is_patient: likewise.
        """
        asked = {
            process_id: known
            for process_id, known in self._enlisted.items()
            if not names or known[0] in names
        }
        everybody = [known for _, known in self._enlisted.values()]
        is_asked = not names or self._session.name in names
        own = (self._levels.now(level, about),) if is_asked else ()
        question = LevelRequest.at(level, about)
        inquiry = Inquiry(SURVEY, level.reply, within_s, by_signal, question, is_patient)
        Poll(self._session, inquiry, asked, everybody, done, own).begin()

    @property
    def gone(self) -> tuple[GoneProcess, ...]:
        """The processes that are gone, the last ones."""
        now = time.monotonic()
        return tuple(GoneProcess(name, reason, now - at) for name, reason, at in self._gone.values())

    def call(self, wanted: AskActivity, done: Callable[[JobActivity], None]) -> None:
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
        found = partial(self._on_found, present)
        self.ask(ACTIVITY, wanted.within_s, found, names=wanted.names, by_signal=wanted.by_signal)

    def _on_found(self, present: _Present, found: Poll) -> None:
        if self._present is present:
            self._present = None
        look = JobActivity(found.heads, found.silent, self.gone, found.took_s)
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


def _reply(request: Request, look: JobActivity) -> None:
    request.reply(look)


@dataclass(slots=True, eq=False)
class _Present:
    """A look at what all are at that is under way: who began it, when, and who is told what was found."""

    wanted: AskActivity
    began: float
    waiters: list[Callable[[JobActivity], None]]

    def serves(self, wanted: AskActivity, now: float) -> bool:
        """Whether what it finds will do for another one who asks now."""
        late_s = self.began + self.wanted.within_s - (now + wanted.within_s)
        return (
            not wanted.names
            and now - self.began <= wanted.max_age_s
            and late_s <= JOIN_SLACK * wanted.within_s
            and (self.wanted.by_signal or not wanted.by_signal)
        )


@awaited(lambda local: Wait(IDLE, local["what"]))
def reply_of_home(asked: Promise[Reply], what: str) -> Reply:
    """What the home answers.

    Args:
        asked: the question.
        what: it asks for, in words.

    Raises:
        ClusterError: the home does not answer.
        CommError: it is gone.
    """
    try:
        return asked.result()
    except CommTimeout as error:
        raise ClusterError(f"the job's driver does not answer: {error}") from error
