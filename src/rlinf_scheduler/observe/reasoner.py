"""Says in the job's home why a process waits, to whoever asks at the end of a wait."""

from __future__ import annotations

from functools import partial

from rlinf_scheduler.comm import Request
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.observe.process_stats import JobActivity
from rlinf_scheduler.observe.reasons import REASON, AskReason
from rlinf_scheduler.observe.survey import AskActivity, Survey
from rlinf_scheduler.observe.why import Conclusions
from rlinf_scheduler.session import Session

# What another one was told so long ago will do, in seconds.
MAX_AGE_S = 1.0


class Reasoner:
    """Says why a process waits; a service of the job's home.

    Args:
        session: the home's.
    """

    def __init__(self, session: Session) -> None:
        self._survey = session.service(Survey)
        self._conclusions = session.service(Conclusions)
        self._call_later = session.messenger.call_later
        session.messenger.serve(REASON, self._on_ask, AskReason)

    def _on_ask(self, request: Request) -> None:
        asked: AskReason = request.head
        # What is asked has to be back before the one who asked gives up; and nobody is disturbed for it.
        wanted = AskActivity(0.8 * asked.within_s, MAX_AGE_S, by_signal=False)
        self._survey.call(wanted, partial(run_beside_in_time, self._call_later, self._answer, request))

    def _answer(self, request: Request, look: JobActivity) -> None:
        # On a thread of its own: of a thousand ranks it takes a while.
        asked: AskReason = request.head
        request.reply(self._conclusions.of(look).about(asked.process, asked.thread, asked.waited_s))
