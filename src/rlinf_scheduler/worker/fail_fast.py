"""Fate sharing, for those who want it: a call that fails ends its driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.ray_backend.ending import end_failed
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.result import GroupResult

_log = logging.getLogger("rlinf.driver")


@dataclass(frozen=True, slots=True)
class FailFast:
    """That a failed call ends this process; its session has it as a fact where `cluster.fail_fast` is true."""

    session: Session
    # Taken by the first failure: who ends already is not interrupted once more.
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def watch(
        self, result: GroupResult[object], settled: Promise[None], *, unless: Callable[[], bool]
    ) -> None:
        """End this process once a call has failed, whether or not somebody waits for it.

        Args:
            result: of the call.
            settled: done when it has ended.
            unless: whether its group is being ended: what fails by that is no failure.
        """
        settled.add_done_callback(partial(self._look_at, result, unless))

    def _look_at(self, result: GroupResult[object], unless: Callable[[], bool], _: Promise[None]) -> None:
        if not unless() and result.failure(reason_wait_s=0.0) is not None:
            run_beside_in_time(self.session.messenger.call_later, self._end_for, result)

    def _end_for(self, result: GroupResult[object]) -> None:
        if not self._turn.acquire(blocking=False):
            return
        told = "a call has failed, and ends this driver (`cluster.fail_fast: false` keeps it)"
        _log.critical("cluster.fail_fast: %s: %s", told, result.failure())
        end_failed()
