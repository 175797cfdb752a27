"""The job's home says what the job does: it asks all processes for their stats, and remembers what has happened."""

from __future__ import annotations

import math
import os
import time
from functools import partial

from rlinf_scheduler.comm import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.events import Event, WorkerLogged, WorkerPrinted
from rlinf_scheduler.observe.graph import only_looks
from rlinf_scheduler.observe.levels import Level, Levels
from rlinf_scheduler.observe.own_stats import JOB_PAST, NOTE_S, STATES, STATS, JobPast, OwnStats, PastStates
from rlinf_scheduler.observe.process_stats import ProcessStats
from rlinf_scheduler.observe.status import JobStatus
from rlinf_scheduler.observe.summing_up import EventLog, JobFacts, JobStats, status_of
from rlinf_scheduler.observe.survey import Inquiry, Poll, Survey
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.job_file import RunningJob, own_program

# A level of the job's home, asked with how old an answer may be, in seconds.
JOB_STATUS = Level("job.status", JobStatus, float, "what the job does")
# How long all processes together may take to answer.
WITHIN_S = 1.5
# Who asks within so long of somebody else gets the same answer.
MAX_AGE_S = 1.0
# Rates need two looks: the first one is followed by another after so long,
FIRST_SPAN_S = 0.3
# and so is one that nobody has looked before for so long.
BASE_AGE_S = 120.0
# Who asks gives the home so long.
TIMEOUT_S = 2 * WITHIN_S + FIRST_SPAN_S + 1.0
# A rank that was lost is told of for so long.
LOST_SHOWN_S = 600.0


class StatusService:
    """Says what the job does; a service of the job's home. On the I/O thread, but for the sums.

    Args:
        session: the home's.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = session.messenger
        self._survey = session.service(Survey)
        for answers in (OwnStats, PastStates):
            session.service(answers)
        self._log = EventLog()
        # What rates are from, and when that was on the monotonic clock: the other one may jump.
        self._base: tuple[JobStats, float] | None = None
        self._earlier: dict[str, tuple[ProcessStats, float]] = {}
        # The last answer, or the one that is on its way; and when that was asked for.
        self._present: Promise[JobStatus] | None = None
        self._asked_at = 0.0
        session.bus.tap(self._on_event)
        levels = session.service(Levels)
        levels.add(JOB_STATUS, self.ask)
        levels.add(JOB_PAST, self._past)

    def ask(self, max_age_s: float = MAX_AGE_S) -> Promise[JobStatus]:
        """What the job does, as of so many seconds ago at most; on the I/O thread."""
        now = time.monotonic()
        present, age_s = self._present, now - self._asked_at
        # One that is on its way for longer than anybody waits does not come: a look has failed.
        if present is None or age_s > (max_age_s if present.done() else TIMEOUT_S):
            present = self._present = Promise()
            self._asked_at = now
            self._look(present)
        return present

    def _past(self, _about: None) -> Promise[JobPast]:
        """Ask all for their last states."""
        past: Promise[JobPast] = Promise()

        def tell(asked: Promise[Poll]) -> None:
            heads = asked.result(0).heads
            states = {each.process: each.states for each in heads if not only_looks(each.process)}
            past.set_result(JobPast(time.time(), NOTE_S, states))

        self._survey.ask(Inquiry(STATES, WITHIN_S)).add_done_callback(tell)
        return past

    def _look(self, wanted: Promise[JobStatus]) -> None:
        self._survey.ask(Inquiry(STATS, WITHIN_S)).add_done_callback(partial(self._on_found, wanted))

    def _on_found(self, wanted: Promise[JobStatus], asked: Promise[Poll]) -> None:
        at_s, found = time.time(), asked.result(0)
        stats: dict[str, ProcessStats] = {each.process: each for each in found.heads}
        look = JobStats(at_s, stats, found.silent, self._survey.gone, found.took_s)
        now = time.monotonic()
        before, base_at = self._base or (look, -math.inf)
        if now - base_at >= FIRST_SPAN_S:
            self._base = look, now  # else rates would be of a moment
        if now - base_at > BASE_AGE_S:
            self._messenger.call_later(FIRST_SPAN_S, partial(self._look, wanted))
            return
        self._remember(look)
        # Not here: of a thousand ranks it takes a while.
        facts = self._facts(dict(self._earlier))
        sum_up = partial(status_of, look, before, facts)
        run_beside_in_time(self._messenger.call_later, wanted.set_from, sum_up)

    def _remember(self, look: JobStats) -> None:
        """What processes say is kept for a while: they may be lost, which is known only later, or answer no more."""
        before_s = look.at_s - LOST_SHOWN_S
        self._log.forget_lost(before_s)
        silent = {each.process for each in look.silent}
        kept = {
            name: known for name, known in self._earlier.items() if known[1] >= before_s or name in silent
        }
        self._earlier = {**kept, **{name: (each, look.at_s) for name, each in look.stats.items()}}

    def _facts(self, earlier: dict[str, tuple[ProcessStats, float]]) -> JobFacts:
        topology, job = self._session.fact(Topology), self._session.fact(RunningJob)
        return JobFacts(
            job.program if job is not None else own_program(),
            os.getpid(),
            self._session.name,
            () if topology is None else topology.nodes,
            dict(self._log.nodes),
            dict(self._log.lost),
            self._log.records(),
            dict(self._log.counts),
            earlier,
        )

    def _on_event(self, event: Event) -> None:
        """Something has happened; on any thread."""
        if not isinstance(event, WorkerLogged | WorkerPrinted):
            self._messenger.submit(partial(self._log.note, event, time.time()))


def begin_status(session: Session, max_age_s: float = MAX_AGE_S) -> Promise[Reply]:
    """Ask what a job does; `received` has the answer.

    Args:
        session: this process's.
        max_age_s: an answer that another one got so long ago will do, in seconds.
    """
    return JOB_STATUS.ask(session.messenger, session.home, max_age_s, timeout_s=TIMEOUT_S)


def received(asked: Promise[Reply]) -> JobStatus:
    """What was answered; waits for it.

    Raises:
        ClusterError: the process that keeps the job's directory does not answer.
        CommError: it is gone.
    """
    status: JobStatus = JOB_STATUS.answer_of_home(asked)
    return status


def ask_past(session: Session) -> JobPast:
    """Ask in which states the processes of a job were in the last minutes.

    Raises:
        ClusterError: the process that keeps the job's directory does not answer.
        CommError: it is gone.
    """
    asked = JOB_PAST.ask(session.messenger, session.home, timeout_s=TIMEOUT_S)
    past: JobPast = JOB_PAST.answer_of_home(asked)
    return past
