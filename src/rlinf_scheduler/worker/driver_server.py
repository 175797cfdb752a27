"""The job server's side of the drivers of a job: who takes part, what they are told, and the job's end."""

from __future__ import annotations

import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Endpoint, Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.config.fleet import Fleet
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.events import Event, JobLost, WorkerLogged, WorkerPrinted
from rlinf_scheduler.host.bounded_lines import left_out_lines
from rlinf_scheduler.host.output import LogFolder
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.detached_trace import TraceMaker
from rlinf_scheduler.worker.driver_wire import (
    ATTACH,
    DESCRIBE,
    ENDING,
    EVENT,
    LEAVE,
    NODES,
    STOP,
    AskNodes,
    Attach,
    JobDescription,
    JobDriver,
    JobGroup,
    StopJob,
)
from rlinf_scheduler.worker.group_server import GroupServer
from rlinf_scheduler.worker.node_watch import NodeWatch
from rlinf_scheduler.worker.supervision import groups_of, stop_groups

# So much a driver is sent that it has not taken: it may be stopped. Lines of workers have half of it.
MAX_UNTAKEN_BYTES = 32 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobWelcome:
    """What a driver has to know of the job that it comes to."""

    fleet: Fleet
    log_folder: LogFolder


@dataclass(frozen=True, slots=True)
class NodesKnown:
    """What the job server knows of the nodes; see `Cluster.fleet` and `lost_nodes`."""

    fleet: Fleet
    lost: dict[int, str]


@dataclass(slots=True, eq=False)
class _Driver:
    """A driver, and what it has not taken; and how many lines it was not sent for that, by group and rank."""

    about: JobDriver
    untaken_bytes: int = 0
    num_left_out: Counter[tuple[str, int]] = field(default_factory=Counter)


class DriverServer:
    """The drivers of a detached job; a service of its job server. On the I/O thread.

    Args:
        session: of the job server.
        refresh: probes the nodes anew, within so many seconds.
    """

    def __init__(self, session: Session, *, refresh: Callable[[Session, float], object]) -> None:
        self._session = session
        self._messenger = session.messenger
        self._refresh = refresh
        self._groups = session.service(GroupServer)
        session.service(TraceMaker)
        self._drivers: dict[str, _Driver] = {}
        self._why_ending = ""
        self._messenger.serve(ATTACH, self._on_attach, Attach)
        self._messenger.serve(LEAVE, self._on_leave, None)
        self._messenger.serve(DESCRIBE, self._on_describe, None)
        self._messenger.serve(NODES, self._on_ask_nodes, AskNodes)
        self._messenger.serve(STOP, self._on_stop, StopJob)
        self._messenger.on_peer_lost(self._on_peer_lost)
        session.bus.subscribe(self._tell)
        session.on_close_first(lambda: self._say_ending(session.failure or "its job server has left it"))

    def _say_ending(self, why: str) -> None:
        """Tell all drivers, before they see what ends with the job; from any thread."""
        if not self._why_ending:
            self._why_ending = why
            for process_id in list(self._drivers):
                self._messenger.notify(Endpoint(process_id, "", "", ""), ENDING, why)

    def _on_attach(self, request: Request) -> None:
        if self._why_ending:
            raise ClusterError(f"the job ends: {self._why_ending}")
        wanted: Attach = request.head
        about = JobDriver(wanted.host, wanted.pid, wanted.program, time.time())
        self._drivers[request.peer_id] = _Driver(about)
        facts = JobWelcome(_fleet(self._session), self._session.fact(LogFolder) or LogFolder(""))
        _log.info("'%s' takes part: %s", request.peer_name, wanted.program)
        request.reply(None, [pickle.dumps(facts)])

    def _on_leave(self, request: Request) -> None:
        self._beside(self._end_with, request)

    def _on_peer_lost(self, process_id: str) -> None:
        driver = self._drivers.pop(process_id, None)
        if driver is not None:
            _log.info("driver %d on %s is gone", driver.about.pid, driver.about.host)

    def _on_describe(self, request: Request) -> None:
        groups = [
            JobGroup(
                served.supervision.name, len(served.supervision.ranks), served.owner and served.owner_name
            )
            for served in self._groups.groups.values()
        ]
        drivers = [driver.about for driver in self._drivers.values()]
        request.reply(JobDescription(drivers, sorted(groups, key=lambda group: group.name)))

    def _on_ask_nodes(self, request: Request) -> None:
        self._beside(self._say_nodes, request)

    def _on_stop(self, request: Request) -> None:
        self._beside(self._stop, request)

    def _beside(self, function: Callable[..., object], *args: Any) -> None:
        run_beside_in_time(self._messenger.call_later, function, *args)

    # -- threads of their own --------------------------------------------------------------------

    def _end_with(self, request: Request) -> None:
        self._groups.end_groups_of(request.peer_id)
        request.reply(None)

    def _say_nodes(self, request: Request) -> None:
        wanted: AskNodes = request.head
        try:
            if wanted.refresh_s is not None:
                self._refresh(self._session, wanted.refresh_s)
            fleet = _fleet(self._session)
            lost = dict(self._session.service(NodeWatch).states.lost)
            known = NodesKnown(fleet, lost)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            request.fail(error)
        else:
            request.reply(None, [pickle.dumps(known)])

    def _stop(self, request: Request) -> None:
        wanted: StopJob = request.head
        why = f"the job was stopped by {wanted.who}"
        self._say_ending(why)
        stop_groups(list(groups_of(self._session)), f"stop_job() of {wanted.who}")

        def close(_: bool) -> None:
            self._beside(self._session.close, why)

        if not request.reply(None, on_confirmed=close):
            self._session.close(why)

    # -- the bus's thread ------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        if isinstance(
            event, JobLost
        ):  # of the job server itself: drivers hear that the job ends, and lose it then
            return
        listeners = (
            self._groups.listeners(event.group) if isinstance(event, (WorkerLogged, WorkerPrinted)) else None
        )
        drivers = list(self._drivers.items())
        chosen = [
            (process_id, driver)
            for process_id, driver in drivers
            if listeners is None or process_id in listeners
        ]
        if not chosen:
            return
        frame = pickle.dumps(event)
        for process_id, driver in chosen:
            self._messenger.submit(partial(self._send, process_id, driver, event, frame))

    # -- the I/O thread --------------------------------------------------------------------------

    def _send(self, process_id: str, driver: _Driver, event: Event, frame: bytes) -> None:
        """Send an event to a driver, or count its lines."""
        if process_id not in self._drivers or driver.untaken_bytes > MAX_UNTAKEN_BYTES:
            return
        if isinstance(event, (WorkerPrinted, WorkerLogged)) and (
            driver.num_left_out or driver.untaken_bytes > MAX_UNTAKEN_BYTES // 2
        ):
            driver.num_left_out[event.group, event.rank] += _num_lines(event)
            return
        driver.untaken_bytes += len(frame)

        def taken(_: Promise[Reply]) -> None:
            driver.untaken_bytes -= len(frame)
            if driver.num_left_out and driver.untaken_bytes < MAX_UNTAKEN_BYTES // 4:
                self._tell_left_out(process_id, driver)

        to = Endpoint(process_id, "", "", "")
        self._messenger.request(to, EVENT, None, [frame], reply_type=None).add_done_callback(taken)

    def _tell_left_out(self, process_id: str, driver: _Driver) -> None:
        left_out, driver.num_left_out = driver.num_left_out, Counter()
        folder = self._session.fact(LogFolder) or LogFolder("")
        for rank, number in left_out.items():
            event = left_out_lines(rank, number, folder.file_of(WorkerAddress(*rank)))
            self._send(process_id, driver, event, pickle.dumps(event))


def _num_lines(event: WorkerPrinted | WorkerLogged) -> int:
    return len(event.lines) if isinstance(event, WorkerPrinted) else 1


def _fleet(session: Session) -> Fleet:
    fleet = session.fact(Fleet)
    if fleet is None:
        raise ClusterError(f"'{session.name}' knows of no nodes")
    return fleet
