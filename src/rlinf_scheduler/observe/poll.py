"""Many processes are asked at once; those that do not answer are looked at from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from rlinf_scheduler.comm import Endpoint, Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.errors import CommTimeout
from rlinf_scheduler.observe.outside import STACKS_S, look_at
from rlinf_scheduler.observe.own_activity import LOOK_AT, LookAt, silence
from rlinf_scheduler.observe.process_stats import Enlist, Silent
from rlinf_scheduler.session import Session

# So many are asked in one turn of the I/O thread.
AT_ONCE = 64
# Who has not answered by then is looked at from outside, at the latest.
PATIENCE_S = 0.5
# A process that was heard of less long ago, in seconds, is sent no signal: two of its heartbeats have to be missing.
# Were it only late, its threads might run while the signal's handler walks their stacks, which could end it.
SIGNAL_AFTER_S = 5.0


class Inquiry(NamedTuple):
    """What many are asked.

    Attributes:
        service: of each.
        reply_type: of what each answers.
        within_s: how long all may take, in seconds.
        by_signal: whether a process that is silent for `SIGNAL_AFTER_S` is sent a signal to write its stacks.
        head: the question.
        is_patient: whether those at which somebody has looked are waited for all the same.
    """

    service: str
    reply_type: Any
    within_s: float
    by_signal: bool = False
    head: Any = None
    is_patient: bool = False


class Answer(NamedTuple):
    """What a process has answered.

    Attributes:
        head: it.
        endpoint: how the process is reached.
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
        done: called once, when all have answered or are looked at, or the time is over.
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
        done: Callable[[Poll], None],
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
        self._done: Callable[[Poll], None] | None = done

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
            answer = self._messenger.request(
                known.endpoint,
                inquiry.service,
                inquiry.head,
                timeout_s=inquiry.within_s,
                reply_type=inquiry.reply_type,
            )
            answer.add_done_callback(partial(self._on_answer, process_id, time.monotonic()))
        if len(part) == AT_ONCE:
            self._messenger.submit(partial(self._ask, rest))

    def _on_answer(self, process_id: str, asked_at: float, answer: Promise[Reply]) -> None:
        error = answer.exception(0)
        if isinstance(error, CommTimeout):
            return  # the time of all is over, too
        self._silent.pop(process_id, None)
        name, known = self._missing.pop(process_id)
        if error is None:
            now = time.monotonic()
            self.answers.append(Answer(answer.result(0).head, known.endpoint, asked_at, now))
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
        asked = self._messenger.request(
            neighbour,
            LOOK_AT,
            LookAt(name, known, self._stacks_s(process_id)),
            timeout_s=self._inquiry.within_s,
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
            silent_s = self._session.silent_s(process_id)
            self._silent[process_id] = replace(found, silent_s=silent_s, process_id=process_id)
            self._end_if_known()

    def _end(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        for process_id, (name, known) in self._missing.items():
            found = silence(name, known, "it does not answer")
            self._silent.setdefault(process_id, replace(found, process_id=process_id))
        self.took_s = time.monotonic() - self._began
        done(self)
