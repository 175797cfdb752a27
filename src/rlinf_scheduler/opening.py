"""Opening a job: Ray started or joined, its nodes probed, and the process that is the job's home made ready."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from ray.exceptions import RayError

from rlinf_scheduler.channel import Starter
from rlinf_scheduler.comm import ClusterSecret, local_machine_id
from rlinf_scheduler.config import ClusterConfig
from rlinf_scheduler.config.fleet import Fleet
from rlinf_scheduler.config.net_emulation import NetEmulation
from rlinf_scheduler.config.nodes import NodeLimits
from rlinf_scheduler.errors import ClusterError, ConfigError, SchedulerError
from rlinf_scheduler.events import NodeJoined
from rlinf_scheduler.host.info import DetachedJob, JobSettings
from rlinf_scheduler.host.log_lines import receive_log_lines
from rlinf_scheduler.host.output import LogFolder
from rlinf_scheduler.host.progress import SlowStep
from rlinf_scheduler.observe.job_trace import wanted_trace
from rlinf_scheduler.observe.reasons import offer_reasons
from rlinf_scheduler.observe.status_service import StatusService
from rlinf_scheduler.observe.time_service import TimeService
from rlinf_scheduler.observe.why import WhyService
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.ray_backend.backend import (
    RayBackend,
    join_or_start,
    own_address,
    probe_nodes,
    ray_address,
    simulate_nodes,
    wait_for_nodes,
)
from rlinf_scheduler.ray_backend.ending import close_when_interrupted, exit_on_sigterm
from rlinf_scheduler.ray_backend.lost_nodes import NodeLooks, check_patience, draining_nodes, num_lost_nodes
from rlinf_scheduler.ray_backend.nodes import fleet_after, fleet_of, order_nodes
from rlinf_scheduler.ray_backend.probe import NodeReport
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import Session, current_or_none, set_current
from rlinf_scheduler.session.job_file import RunningJob, announce
from rlinf_scheduler.session.session import INTERRUPTED
from rlinf_scheduler.weights.index_service import open_index_when_needed
from rlinf_scheduler.wording import counted
from rlinf_scheduler.worker.channel_starter import ChannelStarter
from rlinf_scheduler.worker.device_lock import DeviceLockServer
from rlinf_scheduler.worker.leaving_nodes import LeavingNodes
from rlinf_scheduler.worker.node_watch import Fallbacks, NodeWatch

DRIVER_NAME = "driver"
# How long nodes that come may take to say what they have, in seconds.
_TAKEN_WITHIN_S = 120.0
# Those that were not taken are asked again after so long.
_AGAIN_S = 30.0
_log = logging.getLogger(__name__)


def open_session(
    shape: Topology | None,
    num_nodes: int | None,
    address: str | None,
    timeout_s: float,
    config: ClusterConfig,
    log_folder: str = "",
) -> Session:
    """The session of a driver that is the home of its job.

    Args:
        shape: the nodes to simulate; None: Ray's are taken.
        num_nodes: how many there must be.
        address: of the Ray to join.
        timeout_s: how long all of it may take, in seconds.
        config: what the job is told.
        log_folder: as of `open_home`.

    Raises:
        ConfigError, ClusterTimeout, ClusterError: as of `Cluster`.
    """
    if shape is not None:
        check_node_count(shape, num_nodes)
    step = SlowStep("opening the cluster", _first_wait(shape, address))
    with step.told():
        begun = time.monotonic()
        if shape is not None:
            engine = simulate_nodes(shape.nodes, timeout_s)
            num_nodes = len(shape.nodes)
            begun = time.monotonic()  # what is started here has a deadline for each step
        else:
            engine = join_or_start(address, num_nodes, timeout_s)
        restore = exit_on_sigterm()
        try:
            who = "its nodes" if num_nodes is None else counted(num_nodes, "node")
            step.waits_for = f"{who} to be there, and to say what they have"
            reports = look_at_nodes(num_nodes, timeout_s, begun, config.nodes)
            return _join_as_driver(engine, restore, reports, config, log_folder)
        except BaseException:
            engine.stop()
            restore()
            raise


def _first_wait(shape: Topology | None, address: str | None) -> str:
    if shape is not None:
        return f"{counted(len(shape.nodes), 'simulated node')} of Ray to start"
    return f"the Ray at {address} to answer" if address else "a Ray to be found, or to start"


def look_at_nodes(
    num_nodes: int | None, timeout_s: float, begun: float, limits: NodeLimits | None = None
) -> list[NodeReport]:
    """What the nodes say of themselves, in rank order; see `wait_for_nodes` and `probe_nodes`.

    Args:
        limits: how many are waited for, and how many taken, where they come and go.
    """
    least, most = (num_nodes, num_nodes) if limits is None else (limits.least, limits.most)
    nodes = wait_for_nodes(least, timeout_s, begun)
    return order_nodes(probe_nodes(nodes, timeout_s, begun), num_lost_nodes(nodes))[:most]


def check_node_count(topology: Topology, wanted: int | None) -> None:
    """Make sure that there are so many nodes.

    Raises:
        ConfigError: there are fewer.
    """
    if wanted is not None and wanted > len(topology.nodes):
        raise ConfigError(
            f"num_nodes is {wanted}, but this cluster has {counted(len(topology.nodes), 'node')}",
            path="cluster.num_nodes",
        )


def _join_as_driver(
    engine: RayBackend,
    restore_signals: Callable[[], None],
    reports: list[NodeReport],
    config: ClusterConfig,
    log_folder: str,
) -> Session:
    # The Ray is stopped last of all, when what it started has ended.
    at_last = (engine.stop, restore_signals)
    session = open_home(DRIVER_NAME, reports, config, at_last=at_last, log_folder=log_folder)
    session.provide(RayBackend, engine)
    leave_when_interrupted(session)
    tell_nodes(session, reports)
    return session


def leave_when_interrupted(session: Session) -> None:
    """Have a driver's session closed at the program's end, and at Ctrl-C before threads are waited for."""
    atexit.register(session.close)
    close_when_interrupted(partial(session.close, INTERRUPTED))


def tell_nodes(session: Session, reports: Sequence[NodeReport]) -> None:
    """Tell of the nodes that there are."""
    for rank, report in enumerate(reports):
        session.bus.emit(NodeJoined(rank, report.node_id, report.ip, report.num_accelerators))


def open_home(
    name: str,
    reports: Sequence[NodeReport],
    config: ClusterConfig,
    *,
    at_last: Sequence[Callable[[], None]] = (),
    detached: DetachedJob | None = None,
    program: str = "",
    log_folder: str = "",
) -> Session:
    """Make this process the home of a job: its directory, its watch over processes and nodes, its channels.

    Args:
        name: what this process is called in the job.
        reports: the nodes, in rank order.
        config: what the job is told.
        at_last: called when the session is closed, in this order, after all else; also if it cannot be opened.
        detached: the job outlives its drivers: nobody looks at this process's output.
        program: what the job file says that runs here; "" for this program.
        log_folder: where ranks have files of what they print; "": a folder of the job's own.
    """
    crosses_machines = any(report.machine_id != local_machine_id() for report in reports)
    if crosses_machines:
        check_patience(config.unreachable_after_s)
    session = Session(
        ClusterSecret.generate(),
        name,
        host=own_address(),
        tcp=crosses_machines,
        encryption=config.network.encryption,
        ports=config.network.ports,
        unreachable_after_s=config.unreachable_after_s,
    )
    for step in at_last:
        session.on_close_last(step)
    try:
        if detached is not None:
            session.provide(DetachedJob, detached)
        fleet = fleet_of(list(reports))
        session.provide(Fleet, fleet)
        session.provide(Topology, fleet.topology)
        session.provide(JobSettings, JobSettings(profiling=config.profiling))
        session.provide(LogFolder, LogFolder(log_folder) if log_folder else LogFolder.fresh())
        receive_log_lines(session, shows=detached is None)
        session.service(WhyService)
        offer_reasons(session)
        session.service(TimeService)
        session.service(StatusService)
        starts_channels = partial(ChannelStarter, shares=config.channel_process == "shared")
        session.provide(Starter, session.service(starts_channels))
        session.service(DeviceLockServer)
        open_index_when_needed(session)
        session.service(Fallbacks)  # the first rank may say so before its launch hears that it runs
        if config.net_emulation is not None:
            config.check_emulated_nodes(fleet.topology)
            session.provide(NetEmulation, config.net_emulation)
            session.service(of_room("emulation.network:EmulatedNetwork"))
        if config.metrics is not None:
            of_room("metrics.collecting:write_metrics")(session, config.metrics)
        watch = session.service(NodeWatch)
        session.service(LeavingNodes)
        if config.nodes is not None:
            session.provide(NodeLimits, config.nodes)
            watch.on_others = _TakingNodes(session, config.nodes).on_others
        watch.follow(NodeLooks(ray_address()))
        job = announce(
            session,
            encryption=config.network.encryption,
            program=program,
            detached="" if detached is None else detached.name,
        )
        session.provide(RunningJob, job)
        set_current(session)
        if detached is None and (wanted_trace() or config.trace_file):
            of_room("tracing.service:trace_whole_job")(session, config.trace_file)
    except BaseException:
        session.close()
        raise
    return session


def session_with_ray() -> Session | None:
    """The session of this process; one whose Ray the program has shut down itself is closed, and counts as none."""
    session = current_or_none()
    engine = session.fact(RayBackend) if session is not None else None
    if session is not None and engine is not None and not engine.is_connected:
        session.close("the program has shut Ray down")
        return None
    return session


def refresh_nodes(session: Session, timeout_s: float) -> Topology:
    """Ask Ray anew which nodes there are, in the job's home; see `Cluster.refresh`."""
    if session.fact(Fleet) is None:
        raise ClusterError("only the driver keeps what the nodes said about themselves")
    with session.service(_Refreshing).lock:
        return _refresh_nodes(session, timeout_s)


class _Refreshing:
    """Held while one thread asks for the nodes anew; a service."""

    def __init__(self, _session: Session) -> None:
        self.lock = threading.Lock()


def _refresh_nodes(session: Session, timeout_s: float) -> Topology:
    before = session.fact(Fleet) or Fleet(())
    reports = probe_nodes(wait_for_nodes(None, timeout_s), timeout_s)
    _check_reachable(session, reports)
    draining = draining_nodes()
    known = {node.node_id for node in before.nodes}
    alive = {report.node_id for report in reports} | (known & draining.keys())
    limits, num_kept = session.fact(NodeLimits), len(known & alive - draining.keys())
    fleet = fleet_after(before, reports, draining, None if limits is None else limits.room(num_kept))
    session.provide(Fleet, fleet)
    session.provide(Topology, fleet.topology)
    session.service(NodeWatch).renew(fleet.topology.nodes, alive)
    for rank, node in enumerate(fleet.topology.nodes):
        if node.node_id not in known:
            session.bus.emit(NodeJoined(rank, node.node_id, node.ip, node.num_accelerators))
    return fleet.topology


class NewNodes:
    """When nodes that came while the job runs are asked what they have.

    At once if there are others than the last time, or others of the job's own, and so perhaps room; else now and then:
    one that could not be taken may be another time.

    Args:
        limits: how many nodes the job may have.

    >>> new = NewNodes(NodeLimits(1, 2))
    >>> new.wants({"b", "c"}, {"a"}, now=0.0), new.wants({"b", "c"}, {"a"}, now=2.0)
    (True, False)
    >>> new.wants({"c"}, {"a", "b"}, now=4.0), new.wants({"c"}, {"a"}, now=6.0)
    (False, True)
    """

    def __init__(self, limits: NodeLimits) -> None:
        self._limits = limits
        self._asked: tuple[Collection[str], Collection[str]] = (), ()
        self._asked_at = 0.0

    def wants(self, others: Collection[str], there: Collection[str], now: float) -> bool:
        """Whether they are to be asked now.

        Args:
            others: the ids of nodes that live, and are none of the job's.
            there: those of the job's own.
            now: in seconds of a monotonic clock.
        """
        if self._limits.room(len(there)) == 0:
            self._asked = (), ()
            return False
        before, there_before = self._asked
        if set(others) <= set(before) and set(there) == set(there_before) and now < self._asked_at + _AGAIN_S:
            return False
        self._asked, self._asked_at = (others, there), now
        return True


class _TakingNodes:
    """Takes nodes that come while the job runs, as far as it has room for them; on the I/O thread."""

    def __init__(self, session: Session, limits: NodeLimits) -> None:
        self._session = session
        self._new = NewNodes(limits)
        self._is_asking = False

    def on_others(self, others: Collection[str]) -> None:
        """Nodes live that are none of the job's."""
        states = self._session.service(NodeWatch).states
        if not self._is_asking and self._new.wants(others, states.usable(), time.monotonic()):
            self._is_asking = True
            self._session.messenger.run_beside(self._ask)

    def _ask(self) -> None:
        try:
            refresh_nodes(self._session, _TAKEN_WITHIN_S)
        except (SchedulerError, RayError) as error:
            _log.warning("nodes have come, and are not taken: %s", error)
        finally:
            self._session.messenger.submit(self._on_asked)

    def _on_asked(self) -> None:
        self._is_asking = False


def _check_reachable(session: Session, reports: Sequence[NodeReport]) -> None:
    if session.crosses_machines:
        return
    for report in reports:
        if report.machine_id != local_machine_id():
            raise ClusterError(
                f"{report.describe()} is another machine, and this job was opened on one alone: its processes do not "
                "listen to others; close the cluster and open it again"
            )
