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
from rlinf.scheduler.comm.threads import run_beside
from rlinf.scheduler.observe.answering import DOING, ENLIST, LOOK_AT, Doings, LookAt, silence
from rlinf.scheduler.observe.notes import Doing, Enlist, Gone, JobLook, Silent
from rlinf.scheduler.observe.outside import STACKS_S, look_at
from rlinf.scheduler.session import Session

# A service of the job's home.
ROLL_CALL = "job.roll_call"
# Who has not answered by then is looked at from outside, at the latest.
PATIENCE_S = 0.5
# So many that are gone are remembered.
MAX_GONE = 64


class CallRoll(msgspec.Struct, frozen=True, array_like=True):
    """Ask what all processes are at -> `JobLook`.

    Attributes:
        within_s: how long that may take, in seconds; who has not answered then is told of as silent.
        max_age_s: an answer that another one got so long ago will do, in seconds.
        names: only these processes; all, if there are none.
        by_signal: whether a process that does not answer is sent a signal to write its stacks.
    """

    within_s: float
    max_age_s: float = 0.0
    names: tuple[str, ...] = ()
    by_signal: bool = True


class RollCall:
    """Who takes part in the job, and what each is at; a service of the job's home. On the I/O thread.

    Args:
        session: the home's.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = messenger = session.messenger
        self._doings = session.service(Doings)
        self._enlisted: dict[str, tuple[str, Enlist]] = {}
        self._gone: OrderedDict[str, tuple[str, str, float]] = OrderedDict()
        self._last: tuple[float, JobLook] | None = None
        messenger.serve(ENLIST, self._on_enlist, Enlist)
        messenger.serve(ROLL_CALL, self._on_call, CallRoll)
        messenger.on_peer_lost(self._on_lost)

    def call(self, wanted: CallRoll, done: Callable[[JobLook], None]) -> None:
        """Ask, and have `done` called with what was found."""
        now = time.monotonic()
        if self._last is not None and not wanted.names and now - self._last[0] <= wanted.max_age_s:
            done(self._last[1])
            return
        asked = {
            process_id: known
            for process_id, known in self._enlisted.items()
            if not wanted.names or known[0] in wanted.names
        }
        everybody = [known for _, known in self._enlisted.values()]
        found = partial(self._on_found, wanted, done)
        asking = _Asking(self._session, asked, everybody, wanted, found)
        if not wanted.names or self._session.name in wanted.names:
            asking.doing.append(self._doings.now())
        asking.begin()

    def _on_found(self, wanted: CallRoll, done: Callable[[JobLook], None], look: JobLook) -> None:
        now = time.monotonic()
        gone = tuple(Gone(name, reason, now - at) for name, reason, at in self._gone.values())
        look = replace(look, gone=gone, home=self._session.name)
        if not wanted.names:
            self._last = now, look
        done(look)

    def _on_call(self, request: Request) -> None:
        self.call(request.head, lambda look: _reply(request, look))

    def _on_enlist(self, notice: Request) -> None:
        if notice.peer_id != self._messenger.endpoint.process_id:
            self._enlisted[notice.peer_id] = notice.peer_name, notice.head

    def _on_lost(self, process_id: str) -> None:
        name, _ = self._enlisted.pop(process_id, ("", None))
        if name:
            self._gone[process_id] = name, self._messenger.peers.why_lost(process_id), time.monotonic()
            while len(self._gone) > MAX_GONE:
                self._gone.popitem(last=False)


def _reply(request: Request, look: JobLook) -> None:
    request.reply(look)


class _Asking:
    """One time that all are asked."""

    def __init__(
        self,
        session: Session,
        asked: dict[str, tuple[str, Enlist]],
        everybody: Sequence[Enlist],
        wanted: CallRoll,
        done: Callable[[JobLook], None],
    ) -> None:
        self.doing: list[Doing] = []
        self._session = session
        self._messenger = session.messenger
        self._began = time.monotonic()
        self._within_s = wanted.within_s
        self._stacks_s = STACKS_S if wanted.by_signal else 0.0
        self._everybody = everybody
        self._missing = dict(asked)
        self._silent: dict[str, Silent] = {}
        self._looked = False
        self._done: Callable[[JobLook], None] | None = done

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
                run_beside(self._look_from_here, process_id, name, known)
            else:
                self._look_from_there(process_id, name, known)

    def _look_from_here(self, process_id: str, name: str, known: Enlist) -> None:
        found = look_at(name, known, self._stacks_s)
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
            LookAt(name, known, self._stacks_s),
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
        done(JobLook(tuple(self.doing), tuple(self._silent.values()), took_s=took_s))
