"""The home of a job that outlives its drivers, as its other processes reach it; a driver comes to it and leaves it."""

from __future__ import annotations

import logging
import os
import pickle
import platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from rlinf_scheduler.comm import Buffer, Request, RequestFuture, decode, encode
from rlinf_scheduler.comm.directory import ANSWER_TIMEOUT_S
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.config.fleet import Fleet
from rlinf_scheduler.errors import (
    ClusterError,
    CodecError,
    CommError,
    ConfigError,
    LaunchTimeout,
    SchedulerError,
)
from rlinf_scheduler.events import WorkerLogged, WorkerPrinted
from rlinf_scheduler.host.info import DetachedJob
from rlinf_scheduler.host.log_lines import bounded_lines, level_to_forward, show_log_lines
from rlinf_scheduler.host.output import LogFolder
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.own_stats import OwnStats
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.job_file import own_program
from rlinf_scheduler.wording import seconds_text
from rlinf_scheduler.worker.group import WorkerGroup, group_of
from rlinf_scheduler.worker.home_wire import (
    ATTACH,
    ENDING,
    EVENT,
    FOLLOW,
    LAUNCH,
    LEAVE,
    NEWS,
    NODES,
    STOP,
    AskNodes,
    Attach,
    FollowGroup,
    GroupRecord,
    GroupUpdate,
    JobWelcome,
    LaunchGroup,
    NodesKnown,
    StopJob,
)
from rlinf_scheduler.worker.order import GroupOrder
from rlinf_scheduler.worker.remote_group import RemoteGroup

T = TypeVar("T")

# Groups that end with a driver are given a grace period for what they run, and then killed.
LEAVE_WITHIN_S = 30.0
STOP_WITHIN_S = 60.0
_log = logging.getLogger(__name__)


class RemoteHome:
    """The job server as the home of the groups that this process launches and calls; a service of its session.

    It launches each group as it would its own, and tells this process what becomes of it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = session.messenger
        # By their numbers; on the I/O thread.
        self._groups: dict[int, RemoteGroup] = {}
        self._messenger.serve(NEWS, self._on_update, GroupUpdate)
        session.on_close(self._close)

    def __contains__(self, name: object) -> bool:
        """Whether this process calls a group of that name; from any thread."""
        return any(group.name == name for group in list(self._groups.values()))

    def launcher(self, order: GroupOrder, *, detached: bool) -> Callable[[str], RemoteGroup]:
        """What has a group launched whose name this process has taken.

        Raises:
            ConfigError: `on_failure` is a function of this process's.
        """
        if callable(order.options.on_failure):
            problem = "on_failure is a function of this program, and the groups of this job belong to its job server"
            raise ConfigError(problem, hint="one of 'fail', 'restart', 'ignore'")
        options = replace(order.options, sys_path=tuple(sys.path), log_level=level_to_forward())
        of_class = encode(order.worker_class).snapshot()
        sent = replace(order, factory=(), options=options, worker_class=None)
        frames = [pickle.dumps(sent), *of_class, *order.factory]
        # The job server has the deadline, and says who is missing; its word may take a moment.
        limit_s = options.timeout_s + options.wait_s + ANSWER_TIMEOUT_S

        def launch(name: str) -> RemoteGroup:
            head = LaunchGroup(name, detached, len(of_class))
            asked = _RecordAsked(self._session, self.take)
            late = f"the job server has not answered for {seconds_text(limit_s)}"
            try:
                asked.begin(LAUNCH, head, frames)
                return asked.wait(limit_s, LaunchTimeout(name, late, ["all ranks"]))[0]
            except BaseException:
                asked.give_up()
                raise

        return launch

    def attach(self, name: str, worker_class: type[T] | None) -> WorkerGroup[T]:
        """A group of the job's.

        Args:
            name: the group's.
            worker_class: the class of its ranks; None: as it was launched.

        Raises:
            ClusterError: there is no such group, or its class cannot be imported here.
            CommError: the job server does not answer.
        """
        late = f"attach({name!r}): the job server has not answered for {ANSWER_TIMEOUT_S:g} s"
        asked = _RecordAsked(self._session, self.take)
        asked.begin(FOLLOW, FollowGroup(name))
        group, frames = asked.wait(ANSWER_TIMEOUT_S, ClusterError(late))
        if worker_class is not None:
            return group_of(group, worker_class)
        try:
            found: type[T] = decode(frames[0], frames[1:])
        except CodecError as error:
            problem = f"the class of its workers cannot be imported here: {error.__cause__ or error}"
            raise ClusterError(f"attach({name!r}): {problem}; attach(..., worker_class=) names it") from error
        return group_of(group, found)

    def nodes(self, refresh_s: float | None = None) -> NodesKnown:
        """What the job server knows of the nodes; from now on this process has it, too.

        Args:
            refresh_s: how long the nodes may take to be probed anew, in seconds; None: they are not.

        Raises:
            CommError: the job server does not answer.
            ClusterTimeout, ClusterError: as of `Cluster.refresh`.
        """
        limit_s = ANSWER_TIMEOUT_S + (refresh_s or 0.0)
        asked = self._messenger.request(
            self._session.home, NODES, AskNodes(refresh_s), timeout_s=limit_s, reply_type=None
        )
        known: NodesKnown = pickle.loads(asked.result().frames[0])
        self._session.provide(Fleet, known.fleet)
        self._session.provide(Topology, known.fleet.topology)
        return known

    def take(self, record: GroupRecord) -> RemoteGroup:
        """The group of a record that the job server has just sent; on the I/O thread."""
        if record.number not in self._groups:
            self._groups[record.number] = RemoteGroup(self._session, record)
        return self._groups[record.number]

    def _on_update(self, notice: Request) -> None:
        news: GroupUpdate = notice.head
        group = self._groups.get(news.number)
        if group is not None and notice.peer_id == self._session.home.process_id:
            group.on_update(news)
            if news.ended:
                del self._groups[news.number]

    def _close(self) -> None:
        """Tell those who wait why this process leaves, before the messenger ends what they wait for."""
        if not self._session.failure or self._messenger.why_closed:
            return
        told: Promise[None] = Promise()
        self._messenger.submit(lambda: self._on_left(told))
        if not self._messenger.on_io_thread():
            told.wait(ANSWER_TIMEOUT_S)

    def _on_left(self, told: Promise[None]) -> None:
        for group in self._groups.values():
            group.on_left()
        told.set_result(None)


class _RecordAsked:
    """A question to the job server that a group's record answers. All on the I/O thread.

    No news of the group is missed.
    """

    def __init__(self, session: Session, take: Callable[[GroupRecord], RemoteGroup]) -> None:
        self.answer: Promise[tuple[RemoteGroup, list[Buffer]]] = Promise(self._cancel)
        self._session = session
        self._take = take
        self._request: RequestFuture | None = None

    def begin(self, service: str, head: Any, frames: Sequence[Buffer] = ()) -> None:
        """Ask; from any thread."""
        ask = partial(self._begin, service, head, frames)
        self._session.messenger.submit(ending(ask, self.answer.set_exception))

    def wait(self, limit_s: float, late: SchedulerError) -> tuple[RemoteGroup, list[Buffer]]:
        """Return the group, and the frames of its worker's class; raise `late` after so many seconds."""
        if self.answer.wait(limit_s):
            return self.answer.result(0)
        raise late

    def give_up(self) -> None:
        """Nobody wants it any more; from any thread."""
        if not self.answer.cancel() and self.answer.exception(0) is None:
            self.answer.result(0)[0].stop_beside()  # it came at the last moment

    def _begin(self, service: str, head: Any, frames: Sequence[Buffer]) -> None:
        if not self.answer.done():
            messenger = self._session.messenger
            self._request = messenger.request(
                self._session.home, service, head, frames, reply_type=GroupRecord
            )
            self._request.add_done_callback(self._on_reply)

    def _cancel(self) -> None:
        self._session.messenger.submit(self._withdraw)

    def _withdraw(self) -> None:
        if self._request is not None:
            self._request.cancel()

    def _on_reply(self, reply: RequestFuture) -> None:
        if reply.cancelled():
            return
        error = reply.exception(0)
        if error is not None:
            self.answer.set_exception(error)
        else:
            found = reply.result(0)
            group = self._take(found.head)
            self.answer.set_result((group, found.frames))
            if self.answer.cancelled():  # it came before that was known here
                group.stop_beside()


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
        session.service(RemoteHome)
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
