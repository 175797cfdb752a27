"""The job's home asks every process what it is at, and has those looked at from outside that do not answer."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from rlinf.scheduler.comm import Endpoint, Reply, Request
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.threads import run_beside_in_time
from rlinf.scheduler.observe.answering import DOING, ENLIST, LOOK_AT, Doings, LookAt, silence
from rlinf.scheduler.observe.notes import Doing, Enlist, Gone, JobLook, Silent
from rlinf.scheduler.observe.outside import STACKS_S, look_at
from rlinf.scheduler.session import Session

# A service of the job's home.
ROLL_CALL = "job.roll_call"
# Who has not answered by then is looked at from outside, at the latest.
PATIENCE_S = 0.5
# Who asks while all are asked already joins in, also if that ends later than was allowed, by such a part of it.
JOIN_SLACK = 0.2
# A process that was heard of less long ago, in seconds, is sent no signal: two of its heartbeats have to be missing.
# Were it only late, its threads might run while the signal's handler walks their stacks, which could end it.
SIGNAL_AFTER_S = 5.0
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
        self._present: _Asking | None = None
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

    def call(self, wanted: CallRoll, done: Callable[[JobLook], None]) -> None:
        """Ask, and have `done` called with what was found."""
        now = time.monotonic()
        if self._last is not None and not wanted.names and now - self._last[0] <= wanted.max_age_s:
            done(self._last[1])
            return
        if self._present is not None and self._present.serves(wanted, now):
            self._present.waiters.append(done)
            return
        asked = {
            process_id: known
            for process_id, known in self._enlisted.items()
            if not wanted.names or known[0] in wanted.names
        }
        everybody = [known for _, known in self._enlisted.values()]
        asking = _Asking(self._session, asked, everybody, wanted, self._on_found)
        asking.waiters.append(done)
        if not wanted.names:
            self._present = asking
        if not wanted.names or self._session.name in wanted.names:
            asking.doing.append(self._doings.now())
        asking.begin()

    def _on_found(self, asking: _Asking, look: JobLook) -> None:
        now = time.monotonic()
        if self._present is asking:
            self._present = None
        gone = tuple(Gone(name, reason, now - at) for name, reason, at in self._gone.values())
        look = replace(look, gone=gone, home=self._session.name)
        if not asking.wanted.names:
            self._last = now, look
        for done in asking.waiters:
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


class _Asking:
    """One time that all are asked.

    Attributes:
        wanted: by whom it was begun,
        waiters: and who is told what was found.
    """

    def __init__(
        self,
        session: Session,
        asked: dict[str, tuple[str, Enlist]],
        everybody: Sequence[Enlist],
        wanted: CallRoll,
        done: Callable[[_Asking, JobLook], None],
    ) -> None:
        self.wanted = wanted
        self.waiters: list[Callable[[JobLook], None]] = []
        self.doing: list[Doing] = []
        self._session = session
        self._messenger = session.messenger
        self._began = time.monotonic()
        self._within_s = wanted.within_s
        self._everybody = everybody
        self._missing = dict(asked)
        self._silent: dict[str, Silent] = {}
        self._looked = False
        self._done: Callable[[_Asking, JobLook], None] | None = done

    def serves(self, wanted: CallRoll, now: float) -> bool:
        """Whether what it finds will do for another one who asks now."""
        late_s = self._began + self._within_s - (now + wanted.within_s)
        return (
            not wanted.names
            and now - self._began <= wanted.max_age_s
            and late_s <= JOIN_SLACK * wanted.within_s
            and (self.wanted.by_signal or not wanted.by_signal)
        )

    def begin(self) -> None:
        for process_id, (_, known) in list(self._missing.items()):
            answer = self._messenger.request(
                known.endpoint, DOING, None, timeout_s=self._within_s, reply_type=Doing
            )
            answer.add_done_callback(partial(self._on_answer, process_id))
        self._messenger.call_later(min(PATIENCE_S, self._within_s / 3), self._look)
        self._messenger.call_later(self._within_s, self._end)
        self._end_if_known()

    def _on_answer(self, process_id: str, answer: Promise[Reply]) -> None:
        error = answer.exception(0)
        if error is None:
            self._silent.pop(process_id, None)
            self._missing.pop(process_id, None)
            self.doing.append(answer.result(0).head)
        elif process_id not in self._messenger.peers.by_id:
            self._missing.pop(process_id, None)  # it is gone, and told of as such
        self._end_if_known()

    def _end_if_known(self) -> None:
        if len(self._silent) >= len(self._missing):
            self._end()

    def _look(self) -> None:
        """Have those looked at that have not answered yet."""
        if self._done is None:
            return
        here = self._messenger.endpoint.machine_id
        own = [(process_id, *about) for process_id, about in self._missing.items()]
        for process_id, name, known in own:
            if cut_off := self._messenger.cut_off(process_id):
                self._note(process_id, silence(name, known, cut_off))
            elif known.endpoint.machine_id == here:
                looking = self._look_from_here, process_id, name, known, self._stacks_s(process_id)
                run_beside_in_time(self._messenger.call_later, *looking)
            else:
                self._look_from_there(process_id, name, known)

    def _stacks_s(self, process_id: str) -> float:
        """How long to wait for the stacks of a process that does not answer; 0: it is not asked for them."""
        is_silent = self._session.silent_s(process_id) >= SIGNAL_AFTER_S
        return STACKS_S if self.wanted.by_signal and is_silent else 0.0

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
        asked = self._messenger.request(
            neighbour,
            LOOK_AT,
            LookAt(name, known, self._stacks_s(process_id)),
            timeout_s=self._within_s,
            reply_type=Silent,
        )

        def note(answer: Promise[Reply]) -> None:
            if answer.exception(0) is None:
                self._note(process_id, answer.result(0).head)

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
            self._silent[process_id] = replace(found, silent_s=self._session.silent_s(process_id))
            self._end_if_known()

    def _end(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        for process_id, (name, known) in self._missing.items():
            self._silent.setdefault(process_id, silence(name, known, "it does not answer"))
        took_s = time.monotonic() - self._began
        done(self, JobLook(tuple(self.doing), tuple(self._silent.values()), took_s=took_s))
