"""Brings another process into the place of a rank that died: never beside the dead one, with a backoff and a limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from functools import partial

from ray.exceptions import RayError

from rlinf_scheduler.comm.directory import ANSWER_TIMEOUT_S
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import NodeLost, SchedulerError
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import Death
from rlinf_scheduler.wording import clock_text, seconds_text
from rlinf_scheduler.worker.deaths import Restarts
from rlinf_scheduler.worker.order import RestartLimit
from rlinf_scheduler.worker.processes import LaunchedRank

# A process that was killed has ended within it. One that has not is out of reach, and fenced all the same.
ENDED_WITHIN_S = 5.0
_log = logging.getLogger(__name__)


# Starts processes in the places of those that are gone, unless the promise is done before; as another launch, or not.
StartSuccessors = Callable[[Sequence[LaunchedRank], Promise[None], bool], list[LaunchedRank]]


@dataclass(eq=False, slots=True)
class _Attempt:
    """Processes that are brought up together.

    Attributes:
        before: those whose places they take.
        reason: why these are gone.
        count: how often these places were filled.
        anew: they are all of a group, launched anew.
        given_up: done when nobody wants them any more.
        over: done when they are there, or do not come.
    """

    before: Sequence[LaunchedRank]
    reason: str
    count: Restarts
    anew: bool
    given_up: Promise[None] = field(default_factory=Promise)
    over: Promise[None] = field(default_factory=Promise)

    @property
    def name(self) -> str:
        """Return how they are called, for messages."""
        address = self.before[0].address
        return f"'{address}'" if len(self.before) == 1 else f"all of '{address.group}'"


class Successors:
    """The processes that take the places of dead ones in a group. A thread of its own brings them up: one, or all.

    Args:
        session: of the process that launched the group.
        start: starts them.
        limit: how often.
        kill: ends the process of a rank, whatever becomes of it.
        returned: told on the I/O thread of those that are ready, and for how long their ranks were away, in seconds;
            whether they are wanted.
        given_up: told on the I/O thread which ranks do not come back, and why.
    """

    def __init__(
        self,
        session: Session,
        start: StartSuccessors,
        limit: RestartLimit,
        *,
        kill: Callable[[LaunchedRank], None],
        returned: Callable[[Sequence[LaunchedRank], float], bool],
        given_up: Callable[[Sequence[int], str], None],
    ) -> None:
        self._session = session
        self._start = start
        self._limit = limit
        self._kill = kill
        self._returned = returned
        self._given_up = given_up
        # By the ranks that come back together.
        self._counts: dict[tuple[int, ...], Restarts] = {}
        # Of each rank that is away.
        self._attempts: dict[int, _Attempt] = {}
        self._has_ended = False

    # -- the I/O thread --------------------------------------------------------------------------

    def begin(self, before: Sequence[LaunchedRank], reason: str, *, anew: bool, afresh: bool = False) -> None:
        """Bring up successors.

        Args:
            before: the processes that are gone, or are to go.
            reason: why.
            anew: they are all of the group, and it is launched anew.
            afresh: how often they died before does not count.
        """
        numbers = tuple(sorted(rank.address.rank for rank in before))
        if afresh:
            self._counts.pop(numbers, None)
        count = self._counts.setdefault(numbers, Restarts(self._limit.most, self._limit.within_s))
        attempt = _Attempt(before, reason, count, anew)
        earlier = {self._attempts[number] for number in numbers if number in self._attempts}
        for each in earlier:  # one of them comes back alone, and is to come with the others
            each.given_up.set_result(None)
        self._attempts.update(dict.fromkeys(numbers, attempt))
        if self._has_ended:
            attempt.given_up.set_result(None)
        overs = [each.over for each in earlier]
        self._session.messenger.run_beside(self._bring_back, attempt, overs)

    def give_up(self, rank: int) -> Promise[None] | None:
        """A rank that is away is not wanted; what is done when nothing of it is left, None if it is not away."""
        attempt = self._attempts.get(rank)
        if attempt is not None:
            attempt.given_up.set_result(None)
        return self.awaited(rank)

    def awaited(self, rank: int) -> Promise[None] | None:
        """What is done when a rank that is away is back or given up; None if it is not away."""
        attempt = self._attempts.get(rank)
        return None if attempt is None or attempt.over.done() else attempt.over

    def all_awaited(self) -> Promise[None] | None:
        """What is done when all ranks are back, or given up; None if they do not come back together just now."""
        over = (each.over for each in self._attempts.values() if each.anew)
        return next((each for each in over if not each.done()), None)

    def _end(self, attempt: _Attempt) -> None:
        attempt.over.set_result(None)
        for number in [number for number, each in self._attempts.items() if each is attempt]:
            del self._attempts[number]

    def _on_ready(self, attempt: _Attempt, successors: Sequence[LaunchedRank], away_s: float) -> bool:
        # When all ends, too: who ends it is to see them.
        return (self._has_ended or not attempt.given_up.done()) and self._returned(successors, away_s)

    def _on_given_up(self, attempt: _Attempt, why: str) -> None:
        if not attempt.given_up.done():
            self._given_up([rank.address.rank for rank in attempt.before], why)

    # -- other threads ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Bring up no more."""
        self._has_ended = True
        for attempt in list(self._attempts.values()):
            attempt.given_up.set_result(None)

    def wait_stopped(self, timeout_s: float) -> None:
        """After `stop`: wait until what was being brought up is gone."""
        deadline = time.monotonic() + timeout_s
        for attempt in list(self._attempts.values()):
            attempt.over.wait(max(0.0, deadline - time.monotonic()))

    def _bring_back(self, attempt: _Attempt, earlier: Sequence[Promise[None]]) -> None:
        since = time.monotonic()
        try:
            for over in earlier:
                over.wait()
            self._bury(attempt.before, attempt.reason)
            successors = self._make(attempt)
            if not self._install(attempt, successors, time.monotonic() - since):
                # Those that come instead have their names.
                self._bury(successors, f"nobody wants it any more: {attempt.reason}")
        except (SchedulerError, RayError) as error:
            self._tell_given_up(attempt, error)
        except BaseException as error:
            self._tell_given_up(attempt, error)
            raise
        finally:
            # By the I/O thread: a waiting thread sees what that was told before.
            self._session.messenger.submit(partial(self._end, attempt))

    def _bury(self, ranks: Sequence[LaunchedRank], why: str) -> None:
        """See that nothing these processes still do has an effect, wherever they are, and that they end."""
        try:
            for rank in ranks:  # first: everybody hears this reason, and not that a connection broke
                if rank.endpoint is not None:
                    reason = rank.gone.result(0) if rank.gone.done() else why
                    cause = f"{reason.partition(chr(10))[0]}, at {clock_text(time.time())}"
                    death = Death(rank.endpoint.process_id, str(rank.address), cause)
                    self._session.deaths.declare_and_wait(death)
        finally:
            for rank in ranks:
                self._kill(rank)
        deadline = time.monotonic() + ENDED_WITHIN_S
        for rank in ranks:
            try:
                # Its devices' memory and its ports are free only then.
                rank.exited.result(max(0.0, deadline - time.monotonic()))
            except FutureTimeout:
                _log.warning("'%s' cannot be seen to end; nobody takes it any more", rank.address)

    def _make(self, attempt: _Attempt) -> list[LaunchedRank]:
        problem, count = "", attempt.count
        while count.may(time.monotonic()):
            if attempt.given_up.wait(count.delay_s):
                break
            try:
                return self._start(attempt.before, attempt.given_up, attempt.anew)
            except NodeLost:  # that it is tried again does not bring the node back
                raise
            except (SchedulerError, RayError) as error:
                problem = str(error)
                _log.warning("%s does not come back yet: %s", attempt.name, problem)
        often = f"it was started again {count.most} times in {seconds_text(count.within_s)} already (max_restarts)"
        raise _GivenUp(f"{often}; {problem}" if problem else often)

    def _install(self, attempt: _Attempt, successors: Sequence[LaunchedRank], away_s: float) -> bool:
        taken: Promise[bool] = Promise()
        on_ready = partial(self._on_ready, attempt, successors, away_s)
        self._session.messenger.submit(lambda: taken.set_result(on_ready()))
        return taken.wait(ANSWER_TIMEOUT_S) and taken.result()

    def _tell_given_up(self, attempt: _Attempt, error: BaseException) -> None:
        first, newline, more = attempt.reason.partition("\n")
        name = "it is" if len(attempt.before) == 1 else f"{attempt.name} are"
        why = f"{first}; {name} not started again: {error}{newline}{more}"
        self._session.messenger.submit(partial(self._on_given_up, attempt, why))


class _GivenUp(SchedulerError):
    """A rank died too often."""
