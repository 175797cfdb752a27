"""Brings another process into the place of a rank that died: never beside the dead one, with a backoff and a limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from ray.exceptions import RayError

from rlinf_scheduler.comm.directory import ANSWER_TIMEOUT_S
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.errors import NodeLost, SchedulerError
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.death_register import Death
from rlinf_scheduler.wording import clock_text, seconds_text
from rlinf_scheduler.worker.launched_rank import LaunchedRank
from rlinf_scheduler.worker.restarts import MAX_RESTARTS, WITHIN_S, Restarts

# A process that was killed has ended within it. One that has not is out of reach, and fenced all the same.
ENDED_WITHIN_S = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestartLimit:
    """How often a rank comes back.

    Attributes:
        most: so many times
        within_s: in so many seconds.
    """

    most: int = MAX_RESTARTS
    within_s: float = WITHIN_S


# Starts a process in the place of one that is gone, unless the promise is done before.
StartSuccessor = Callable[[LaunchedRank, Promise[None]], LaunchedRank]


class Successors:
    """The processes that take the places of dead ones in a group. Each is brought up by a thread of its own.

    Args:
        session: of the process that launched the group.
        start: starts one.
        limit: how often.
        kill: ends the process of a rank, whatever becomes of it.
        returned: told on the I/O thread of one that is ready, and for how long its rank was away, in seconds;
            whether it is wanted.
        given_up: told on the I/O thread which rank does not come back, and why.
    """

    def __init__(
        self,
        session: Session,
        start: StartSuccessor,
        limit: RestartLimit,
        *,
        kill: Callable[[LaunchedRank], None],
        returned: Callable[[LaunchedRank, float], bool],
        given_up: Callable[[int, str], None],
    ) -> None:
        self._session = session
        self._start = start
        self._limit = limit
        self._kill = kill
        self._returned = returned
        self._given_up = given_up
        self._counts: dict[int, Restarts] = {}
        # Of each rank that is away: done when it is back, or given up.
        self._under_way: dict[int, Promise[None]] = {}
        self._over: Promise[None] = Promise()

    # -- the I/O thread --------------------------------------------------------------------------

    def begin(self, before: LaunchedRank, reason: str, *, afresh: bool = False) -> None:
        """Bring up a successor.

        Args:
            before: the rank's process that is gone, or is to go.
            reason: why.
            afresh: how often it died before does not count.
        """
        number = before.address.rank
        if afresh:
            self._counts.pop(number, None)
        count = self._counts.setdefault(number, Restarts(self._limit.most, self._limit.within_s))
        back = self._under_way[number] = Promise()
        call_later = self._session.messenger.call_later
        run_beside_in_time(call_later, self._bring_back, before, reason, count, back)

    def awaited(self, rank: int) -> Promise[None] | None:
        """What is done when a rank that is away is back or given up; None if it is not away."""
        back = self._under_way.get(rank)
        return None if back is None or back.done() else back

    # -- other threads ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Bring up no more."""
        self._over.set_result(None)

    def wait_stopped(self, timeout_s: float) -> None:
        """After `stop`: wait until what was being brought up is gone."""
        deadline = time.monotonic() + timeout_s
        for back in list(self._under_way.values()):
            back.wait(max(0.0, deadline - time.monotonic()))

    def _bring_back(self, before: LaunchedRank, reason: str, count: Restarts, back: Promise[None]) -> None:
        since = time.monotonic()
        try:
            self._bury(before, reason)
            successor = self._make(before, count)
            if not self._install(successor, time.monotonic() - since):
                self._kill(successor)
        except (SchedulerError, RayError) as error:
            self._tell_given_up(before, reason, error)
        except BaseException as error:
            self._tell_given_up(before, reason, error)
            raise
        finally:
            # By the I/O thread: a waiting thread sees what that was told before.
            self._session.messenger.submit(lambda: back.set_result(None))

    def _bury(self, before: LaunchedRank, reason: str) -> None:
        """See that nothing the dead one still does has an effect, wherever it is."""
        self._kill(before)
        if before.endpoint is not None:
            first = reason.partition("\n")[0]
            death = Death(
                before.endpoint.process_id, str(before.address), f"{first}, at {clock_text(time.time())}"
            )
            self._session.deaths.declare_and_wait(death)
        try:
            # Its devices' memory and its ports are free only then.
            before.exited.result(ENDED_WITHIN_S)
        except FutureTimeout:
            _log.warning("'%s' cannot be seen to end; nobody takes it any more", before.address)

    def _make(self, before: LaunchedRank, count: Restarts) -> LaunchedRank:
        problem = ""
        while count.may(time.monotonic()):
            if self._over.wait(count.delay_s):
                break
            try:
                return self._start(before, self._over)
            except NodeLost:  # that it is tried again does not bring the node back
                raise
            except (SchedulerError, RayError) as error:
                problem = str(error)
                _log.warning("'%s' does not come back yet: %s", before.address, problem)
        often = f"it was started again {count.most} times in {seconds_text(count.within_s)} already (max_restarts)"
        raise _GivenUp(f"{often}; {problem}" if problem else often)

    def _install(self, successor: LaunchedRank, away_s: float) -> bool:
        taken: Promise[bool] = Promise()
        self._session.messenger.submit(lambda: taken.set_result(self._returned(successor, away_s)))
        return taken.wait(ANSWER_TIMEOUT_S) and taken.result()

    def _tell_given_up(self, before: LaunchedRank, reason: str, error: BaseException) -> None:
        if self._over.done():
            return
        first, newline, more = reason.partition("\n")
        why = f"{first}; it is not started again: {error}{newline}{more}"
        self._session.messenger.submit(lambda: self._given_up(before.address.rank, why))


class _GivenUp(SchedulerError):
    """A rank died too often."""
