"""A driver of a job that outlives it: comes to the job server, hears of what happens there, and leaves."""

from __future__ import annotations

import logging
import os
import pickle
import platform
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress

from rlinf_scheduler.comm import Request
from rlinf_scheduler.comm.directory import ANSWER_TIMEOUT_S
from rlinf_scheduler.config.fleet import Fleet
from rlinf_scheduler.errors import CommError
from rlinf_scheduler.events import WorkerLogged, WorkerPrinted
from rlinf_scheduler.host.info import DetachedJob
from rlinf_scheduler.host.log_lines import bounded_lines, show_log_lines
from rlinf_scheduler.host.output import LogFolder
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.own_stats import OwnStats
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.job_file import own_program
from rlinf_scheduler.worker.driver_server import JobWelcome, NodesKnown
from rlinf_scheduler.worker.driver_wire import (
    ATTACH,
    ENDING,
    EVENT,
    LEAVE,
    NODES,
    STOP,
    AskNodes,
    Attach,
    StopJob,
)
from rlinf_scheduler.worker.remote_group import RemoteGroups

# Groups that end with this driver are given a grace period for what they run, and then killed.
LEAVE_WITHIN_S = 30.0
STOP_WITHIN_S = 60.0
_log = logging.getLogger(__name__)


class AttachedDriver:
    """This process's part in a detached job; a service of its session.

    Args:
        session: of this process, whose home is the job server.

    Raises:
        CommError: the job server does not answer.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._messenger = session.messenger
        self.name = name
        self._is_stopping = False
        session.provide(DetachedJob, DetachedJob(name))
        session.service(OwnActivity)
        session.service(OwnStats)
        session.service(RemoteGroups)
        self._tell = bounded_lines(session)
        self._messenger.serve(EVENT, self._on_event, None)
        self._messenger.serve(ENDING, self._on_ending, str)
        self._messenger.on_peer_lost(self._on_peer_lost)
        about = Attach(platform.node(), os.getpid(), own_program())
        asked = self._messenger.request(
            session.home, ATTACH, about, timeout_s=ANSWER_TIMEOUT_S, reply_type=None
        )
        facts: JobWelcome = pickle.loads(asked.result().frames[0])
        session.provide(Fleet, facts.fleet)
        session.provide(Topology, facts.fleet.topology)
        session.provide(LogFolder, facts.log_folder)
        show_log_lines(session)
        session.on_close(self._leave)

    def stop_job(self, who: str) -> None:
        """End all of the job; returns when its groups have ended.

        Raises:
            CommError: the job server does not answer.
        """
        self._is_stopping = True  # that the job server is gone is no news then
        try:
            self._messenger.request(
                self._session.home, STOP, StopJob(who), timeout_s=STOP_WITHIN_S, reply_type=None
            ).result()
        except BaseException:
            self._is_stopping = False
            raise

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_event(self, request: Request) -> None:
        event = pickle.loads(request.frames[0])
        if isinstance(event, (WorkerLogged, WorkerPrinted)):
            self._tell(event)
        else:
            self._session.bus.emit(event)
        request.reply(None)

    def _on_ending(self, notice: Request) -> None:
        self._leave_ended(notice.head)

    def _on_peer_lost(self, process_id: str) -> None:
        if process_id == self._session.home.process_id:
            self._leave_ended(f"its job server is gone: {self._messenger.peers.why_lost(process_id)}")

    def _leave_ended(self, why: str) -> None:
        if not (self._session.closed or self._session.failure or self._is_stopping):
            self._session.leave(f"job '{self.name}' has ended: {why}")

    # -- the thread that closes the session ------------------------------------------------------

    def _leave(self) -> None:
        if self._session.failure or self._is_stopping:
            return
        left = self._messenger.request(
            self._session.home, LEAVE, None, timeout_s=LEAVE_WITHIN_S, reply_type=None
        )
        with suppress(CommError, FutureTimeout):
            left.result(LEAVE_WITHIN_S)
            return
        _log.warning(
            "the job server of job '%s' has not said that this driver's groups have ended", self.name
        )


def ask_nodes(session: Session, refresh_s: float | None = None) -> NodesKnown:
    """What the job server of a process's job knows of the nodes; from now on this process has it, too.

    Args:
        session: of the process.
        refresh_s: how long the nodes may take to be probed anew, in seconds; None: they are not.

    Raises:
        CommError: the job server does not answer.
        ClusterTimeout, ClusterError: as of `Cluster.refresh`.
    """
    limit_s = ANSWER_TIMEOUT_S + (refresh_s or 0.0)
    asked = session.messenger.request(
        session.home, NODES, AskNodes(refresh_s), timeout_s=limit_s, reply_type=None
    )
    known: NodesKnown = pickle.loads(asked.result().frames[0])
    session.provide(Fleet, known.fleet)
    session.provide(Topology, known.fleet.topology)
    return known
