"""The job's home says why somebody waits: at the end of a wait, and as an event, of what takes too long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.events import Stalled
from rlinf_scheduler.observe.levels import Levels
from rlinf_scheduler.observe.process_stats import JobActivity
from rlinf_scheduler.observe.reasons import REASON, AskReason
from rlinf_scheduler.observe.stalls import STALL, Stall
from rlinf_scheduler.observe.survey import AskActivity, Survey
from rlinf_scheduler.observe.why import WITHIN_S, Why, why_of
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import seconds_text

# What another one was told so long ago will do, in seconds: who stalls together is explained by one look.
MAX_AGE_S = 1.0
# Of the ranks of a call, so many are told of one by one.
MAX_TOLD = 4
_log = Reporter(__name__)


class WhyService:
    """Says why a process waits, and tells of stalls as events; a service of the job's home.

    Args:
        session: the home's.
    """

    def __init__(self, session: Session) -> None:
        self._bus = session.bus
        self._call_later = session.messenger.call_later
        self._survey = session.service(Survey)
        # The last look, and what there is to say of it: that is found out once, however many ask.
        self._lock = threading.Lock()
        self._last: tuple[JobActivity, Why] | None = None
        levels = session.service(Levels)
        levels.add(REASON, self._reason)
        levels.add(STALL, self._tell_stall)

    def _reason(self, asked: AskReason) -> Promise[str]:
        # What is asked has to be back before the one who asked gives up.
        return self._look(
            0.8 * asked.within_s, lambda why: why.about(asked.process, asked.thread, asked.waited_s)
        )

    def _tell_stall(self, stall: Stall) -> None:
        told = self._look(WITHIN_S, partial(self._emit, stall))
        told.add_done_callback(lambda done: done.result(0))  # what fails is logged

    def _emit(self, stall: Stall, found: Why) -> None:
        short = "\n".join(found.about(process) for process in stall.processes[:MAX_TOLD])
        what, since = stall.channel or stall.group, seconds_text(stall.waited_s)
        _log.warning("'%s': %s takes %s already: %s", what, stall.operation, since, short)
        told = stall.group, stall.channel, stall.operation, stall.processes, stall.waited_s
        self._bus.emit(Stalled(*told, f"{short}\n{found}"))

    def _look(self, within_s: float, say: Callable[[Why], Any]) -> Promise[Any]:
        """Look at all processes, which disturbs none, and promise what is to be said of it."""
        said: Promise[Any] = Promise()

        def conclude(looked: Promise[JobActivity]) -> None:
            # On a thread of its own: of a thousand ranks it takes a while.
            look = looked.result(0)
            run_beside_in_time(self._call_later, said.set_from, lambda: say(self._why_of(look)))

        self._survey.activity(AskActivity(within_s, MAX_AGE_S, by_signal=False)).add_done_callback(conclude)
        return said

    def _why_of(self, look: JobActivity) -> Why:
        with self._lock:
            if self._last is None or self._last[0] is not look:
                self._last = look, why_of(look)
            return self._last[1]
