"""The job's home asks processes at a level, and has those looked at from outside that do not answer."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from rlinf_scheduler.comm import Endpoint, Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.errors import CommError, CommTimeout
from rlinf_scheduler.observe.levels import Level, Levels
from rlinf_scheduler.observe.outside import STACKS_S, look_at
from rlinf_scheduler.observe.own_activity import ACTIVITY, ENLIST, LOOK_AT, LookAt, OwnActivity, silence
from rlinf_scheduler.observe.process_stats import Enlist, GoneProcess, JobActivity, Silent
from rlinf_scheduler.session import Session

# So many are asked in one turn of the I/O thread.
AT_ONCE = 64
# A process that has not answered by then is looked at from outside, at the latest.
PATIENCE_S = 0.5
# A process that was heard of less long ago, in seconds, is sent no signal: two of its heartbeats have to be missing.
# Were it only late, its threads might run while the signal's handler walks their stacks, which could end it.
SIGNAL_AFTER_S = 5.0
# Who asks while all are asked already joins in, also if that ends later than was allowed, by such a part of it.
JOIN_SLACK = 0.2
# So many that are gone are remembered.
MAX_GONE = 64


class AskActivity(msgspec.Struct, frozen=True, array_like=True):
    """A question for what processes are at.

    Attributes:
        within_s: how long that may take, in seconds; a process without an answer then is silent.
        max_age_s: an answer that another one got so long ago will do, in seconds.
        names: only these processes; all, if there are none.
        by_signal: whether a process that is silent for `SIGNAL_AFTER_S` is sent a signal to write its stacks.
    """

    within_s: float
    max_age_s: float = 0.0
    names: tuple[str, ...] = ()
    by_signal: bool = True


# A level of the job's home.
JOB_ACTIVITY = Level("job.activity", JobActivity, AskActivity, "what the job is at")


class Inquiry(NamedTuple):
    """A question to many processes.

    Attributes:
        within_s: how long all may take, in seconds.
        by_signal: whether a process that is silent for `SIGNAL_AFTER_S` is sent a signal to write its stacks.
        is_patient: whether those at which somebody has looked are waited for all the same.
    """

    level: Level
    within_s: float
    about: Any = None
    by_signal: bool = False
    is_patient: bool = False


class Answer(NamedTuple):
    """What a process has answered.

    Attributes:
        asked_at: when it was asked, on this process's monotonic clock,
        answered_at: and when the answer came.
    """

    head: Any
    endpoint: Endpoint
    asked_at: float
    answered_at: float


class Poll:
    """One time that many are asked; on the I/O thread of the job's home.

    Args:
        session: the home's.
        inquiry: what they are asked.
        asked: who: by their processes' ids, their names and how they are looked at from outside.
        everybody: all who may look at one of these.
        done: completed with this, once all have answered or are looked at, or the time is over.
        own: what the home answers itself, if it is asked, too.

    Attributes:
        answers: of the others.
        took_s: how long it took, in seconds, once it is done.
    """

    def __init__(
        self,
        session: Session,
        inquiry: Inquiry,
        asked: dict[str, tuple[str, Enlist]],
        everybody: Sequence[Enlist],
        done: Promise[Poll],
        own: tuple[Any, ...] = (),
    ) -> None:
        self._began = time.monotonic()
        self.answers: list[Answer] = []
        self.took_s = 0.0
        self._own = own
        self._session = session
        self._messenger = session.messenger
        self._inquiry = inquiry
        self._everybody = everybody
        self._missing = dict(asked)
        self._silent: dict[str, Silent] = {}
        self._failed: list[Silent] = []
        self._done: Promise[Poll] | None = done

    @property
    def silent(self) -> tuple[Silent, ...]:
        """Those that did not answer, as seen from outside, or that answered by an error."""
        return (*self._silent.values(), *self._failed)

    @property
    def heads(self) -> tuple[Any, ...]:
        """What all say."""
        return (*self._own, *(answer.head for answer in self.answers))

    def begin(self) -> None:
        """Ask."""
        self._ask(iter(tuple(self._missing.items())))
        self._messenger.call_later(min(PATIENCE_S, self._inquiry.within_s / 3), self._look)
        self._messenger.call_later(self._inquiry.within_s, self._end)
        self._end_if_known()

    def _ask(self, rest: Iterator[tuple[str, tuple[str, Enlist]]]) -> None:
        """Ask the next ones, then let other messages pass."""
        inquiry, part = self._inquiry, list(islice(rest, AT_ONCE))
        for process_id, (_, known) in part:
            answer = inquiry.level.ask(
                self._messenger, known.endpoint, inquiry.about, timeout_s=inquiry.within_s
            )
            answer.add_done_callback(partial(self._on_answer, process_id, time.monotonic()))
        if len(part) == AT_ONCE:
            self._messenger.submit(partial(self._ask, rest))

    def _on_answer(self, process_id: str, asked_at: float, answer: Promise[Reply]) -> None:
        error = answer.exception(0)
        if isinstance(error, CommTimeout):
            return  # the time of all is over, too
        said = None
        if error is None:
            try:
                said = self._inquiry.level.answer(answer.result(0))
            except CommError as unread:
                error = unread
        self._silent.pop(process_id, None)
        name, known = self._missing.pop(process_id)
        if error is None:
            self.answers.append(Answer(said, known.endpoint, asked_at, time.monotonic()))
        elif process_id in self._messenger.peers.by_id:  # else it is gone, and told of as such
            self._failed.append(silence(name, known, str(error)))
        self._end_if_known()

    def _end_if_known(self) -> None:
        if not self._missing or (len(self._silent) >= len(self._missing) and not self._inquiry.is_patient):
            self._end()

    def _look(self) -> None:
        """Have those looked at that have not answered yet."""
        if self._done is None:
            return
        here = self._messenger.endpoint.machine_id
        own = [(process_id, *about) for process_id, about in self._missing.items()]
        for process_id, name, known in own:
            if cut_off := self._messenger.peers.cut_off(process_id):
                self._note(process_id, silence(name, known, cut_off))
            elif known.endpoint.machine_id == here:
                looking = self._look_from_here, process_id, name, known, self._stacks_s(process_id)
                run_beside_in_time(self._messenger.call_later, *looking)
            else:
                self._look_from_there(process_id, name, known)

    def _stacks_s(self, process_id: str) -> float:
        """How long to wait for the stacks of a process that does not answer; 0: it is not asked for them."""
        is_silent = self._session.silent_s(process_id) >= SIGNAL_AFTER_S
        return STACKS_S if self._inquiry.by_signal and is_silent else 0.0

    def _look_from_here(self, process_id: str, name: str, known: Enlist, stacks_s: float) -> None:
        found = look_at(name, known, stacks_s)
        self._messenger.submit(partial(self._note, process_id, found))

    def _look_from_there(self, process_id: str, name: str, known: Enlist) -> None:
        """Ask another process of its machine that has answered."""
        neighbour = self._neighbour_of(known.endpoint)
        if neighbour is None:
            why = "it does not answer, and no other process of the job is on its machine"
            self._note(process_id, silence(name, known, why))
            return
        wanted = LookAt(name, known, self._stacks_s(process_id))
        asked = LOOK_AT.ask(self._messenger, neighbour, wanted, timeout_s=self._inquiry.within_s)

        def note(answer: Promise[Reply]) -> None:
            if answer.exception(0) is None:
                self._note(process_id, LOOK_AT.answer(answer.result(0)))

        asked.add_done_callback(note)

    def _neighbour_of(self, endpoint: Endpoint) -> Endpoint | None:
        others = (
            known.endpoint
            for known in self._everybody
            if known.endpoint.machine_id == endpoint.machine_id
            and known.endpoint.process_id not in self._missing
        )
        return next(others, None)

    def _note(self, process_id: str, found: Silent) -> None:
        if process_id in self._missing:
            silent_s = self._session.silent_s(process_id)
            self._silent[process_id] = replace(found, silent_s=silent_s, process_id=process_id)
            self._end_if_known()

    def _end(self) -> None:
        # What it is completed with, it is not kept by: no collector is needed for what many processes have said.
        done, self._done = self._done, None
        if done is None:
            return
        for process_id, (name, known) in self._missing.items():
            found = silence(name, known, "it does not answer")
            self._silent.setdefault(process_id, replace(found, process_id=process_id))
        self.took_s = time.monotonic() - self._began
        done.set_result(self)


class _Look(NamedTuple):
    """A look at what all processes are at: the question, when it began, and what it finds."""

    wanted: AskActivity
    began: float
    found: Promise[JobActivity]

    def serves(self, wanted: AskActivity, now: float) -> bool:
        """Whether what it finds, or has found, will do for another one who asks now."""
        if self.found.done():
            return False
        late_s = self.began + self.wanted.within_s - (now + wanted.within_s)
        return (
            now - self.began <= wanted.max_age_s
            and late_s <= JOIN_SLACK * wanted.within_s
            and (self.wanted.by_signal or not wanted.by_signal)
        )


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
        self._levels.add(JOB_ACTIVITY, self.activity)
        self._enlisted: dict[str, tuple[str, Enlist]] = {}
        self._gone: OrderedDict[str, tuple[str, str, float]] = OrderedDict()
        # What the last look at all has found and when, and the newest one that is under way.
        self._last: tuple[float, Promise[JobActivity]] | None = None
        self._present: _Look | None = None
        self.on_enlisted: list[Callable[[str, Enlist], None]] = []
        messenger.serve(ENLIST, self._on_enlist, Enlist)
        messenger.on_peer_lost(self._on_lost)

    @property
    def members(self) -> dict[str, tuple[str, Enlist]]:
        """Who takes part, but the home itself: names, and how each is looked at, by process id."""
        return dict(self._enlisted)

    @property
    def departed(self) -> dict[str, tuple[str, str]]:
        """The last ones that are gone, by process id: their names, and why."""
        return {process_id: (name, reason) for process_id, (name, reason, _) in self._gone.items()}

    @property
    def gone(self) -> tuple[GoneProcess, ...]:
        """The processes that are gone, the last ones."""
        now = time.monotonic()
        return tuple(GoneProcess(name, reason, now - at) for name, reason, at in self._gone.values())

    def ask(self, inquiry: Inquiry, names: Sequence[str] = ()) -> Promise[Poll]:
        """Ask all processes that take part, this one too, or those of these names."""
        asked = {
            process_id: known
            for process_id, known in self._enlisted.items()
            if not names or known[0] in names
        }
        everybody = [known for _, known in self._enlisted.values()]
        is_asked = not names or self._session.name in names
        own = (self._levels.now(inquiry.level, inquiry.about),) if is_asked else ()
        done: Promise[Poll] = Promise()
        Poll(self._session, inquiry, asked, everybody, done, own).begin()
        return done

    def activity(self, wanted: AskActivity) -> Promise[JobActivity]:
        """Ask what all are at, unless somebody has just done so."""
        now = time.monotonic()
        if not wanted.names:
            if self._last is not None and now - self._last[0] <= wanted.max_age_s:
                return self._last[1]
            if self._present is not None and self._present.serves(wanted, now):
                return self._present.found
        look = _Look(wanted, now, Promise())
        asked = self.ask(Inquiry(ACTIVITY, wanted.within_s, by_signal=wanted.by_signal), wanted.names)
        if not wanted.names:
            self._present = look
        asked.add_done_callback(partial(self._on_found, look))
        return look.found

    def _on_found(self, look: _Look, asked: Promise[Poll]) -> None:
        poll = asked.result(0)
        if not look.wanted.names:
            self._last = time.monotonic(), look.found
        look.found.set_result(JobActivity(poll.heads, poll.silent, self.gone, poll.took_s))

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
