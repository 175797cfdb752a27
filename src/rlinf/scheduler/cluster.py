"""`Cluster`: what users open first; every process of a job sees the same one."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from rlinf.scheduler.channel import (
    SAVE_TIMEOUT_S,
    Channel,
    ChannelSpec,
    Checkpoint,
    Lease,
    Starter,
    channels_of,
    load_job,
    save_job,
)
from rlinf.scheduler.comm import ClusterSecret, local_machine_id
from rlinf.scheduler.comm.link_probe import LinkSpeed
from rlinf.scheduler.config import ClusterConfig, read_cluster_config
from rlinf.scheduler.config.fleet import Fleet
from rlinf.scheduler.engine.ending import close_when_interrupted, exit_on_sigterm
from rlinf.scheduler.engine.engine import (
    RayEngine,
    join_or_start,
    own_address,
    probe_nodes,
    ray_address,
    simulate_nodes,
    wait_for_nodes,
)
from rlinf.scheduler.engine.lost_nodes import NodeLooks, check_patience, num_lost_nodes
from rlinf.scheduler.engine.nodes import fleet_after, fleet_of, order_nodes
from rlinf.scheduler.engine.probe import NodeReport
from rlinf.scheduler.errors import ClusterError, ConfigError, raise_config_errors
from rlinf.scheduler.events import Listener, NodeJoined
from rlinf.scheduler.host.info import job_topology
from rlinf.scheduler.host.log_lines import receive_log_lines
from rlinf.scheduler.host.output import LogFolder
from rlinf.scheduler.keywords import explains_arguments
from rlinf.scheduler.observe.reasons import Reasoner
from rlinf.scheduler.observe.stalls import StallDesk
from rlinf.scheduler.observe.status import JobStatus
from rlinf.scheduler.observe.status_desk import StatusDesk, begin_status, received
from rlinf.scheduler.observe.why import WITHIN_S, Why, why
from rlinf.scheduler.placement import ComponentPlacement
from rlinf.scheduler.planning import Topology
from rlinf.scheduler.session import Session, SideBySide, current_or_none, set_current
from rlinf.scheduler.session.job_file import announce
from rlinf.scheduler.session.links import LinkWatch
from rlinf.scheduler.session.session import INTERRUPTED, why_left
from rlinf.scheduler.weights import PublishedWeights, published_weights
from rlinf.scheduler.worker.channel_starter import ChannelStarter
from rlinf.scheduler.worker.device_lock import DeviceDesk
from rlinf.scheduler.worker.node_watch import NodeWatch
from rlinf.scheduler.worker.supervision import GroupEntry, groups_in

SIMULATE_VARIABLE = "RLINF_SIMULATE"
DRIVER_NAME = "driver"


class Cluster:
    """The nodes and accelerators that a job runs on.

    The first `Cluster(...)` of a driver starts or joins Ray; any later one in that process, and `Cluster()` in a
    worker, is a view of the same cluster. It is a context manager; leaving it, or the end of the
    process, takes down what was started here.

    Args:
        cluster_cfg: the `cluster` section of a config, or a config that has one: dict, DictConfig or path.
        num_nodes: how many nodes there must be; the config's `num_nodes` when None.
        simulate: instead of a real cluster, start Ray nodes with pretend accelerators on this machine: "2x8" is two
            nodes of eight; a `Topology` may have masks. Else the config's `simulate`, else the variable RLINF_SIMULATE.
        address: a Ray address to join; else Ray's own rule (RAY_ADDRESS, a Ray that runs on this machine, a new one).
        start_timeout_s: how long to wait for a Ray that answers, for its nodes and for what they say, in seconds.

    Raises:
        ConfigError: the section has a mistake, or asks for what this process's cluster is not.
        PlacementError: nodes are simulated, and a component of the section has no place on them.
        ClusterTimeout: too few nodes at the deadline; the text lists those that are there.
        ClusterError: Ray cannot be started or joined.

        with Cluster(simulate="1x2") as cluster:
            cluster.num_nodes, cluster.num_accelerators      # (1, 2)
    """

    @explains_arguments
    def __init__(
        self,
        cluster_cfg: Any = None,
        num_nodes: int | None = None,
        *,
        simulate: str | Topology | None = None,
        address: str | None = None,
        start_timeout_s: float = 120,
    ) -> None:
        config = read_cluster_config(cluster_cfg) if cluster_cfg is not None else None
        wanted_nodes = num_nodes if num_nodes is not None else (config.num_nodes if config else None)
        existing = current_or_none()
        shape = _simulated_shape(simulate, config, opening=existing is None)
        self._owner = existing is None
        if existing is None:
            if shape is not None:
                _check_config(shape, config)  # its mistakes are found before Ray is started
            existing = _open_session(shape, wanted_nodes, address, start_timeout_s, config or ClusterConfig())
        elif shape is not None:
            _check_shape(job_topology(existing), shape)
        self._session = existing
        try:
            topology = job_topology(existing)
            _check_node_count(topology, wanted_nodes)
            self._topology = _with_groups(topology, config)
        except BaseException:
            self.close()
            raise

    @property
    def session(self) -> Session:
        """This process's membership in the job.

        Raises:
            ClusterError: the cluster was closed.
        """
        if self._session.closed:
            raise ClusterError(self._session.failure or "this cluster was closed")
        return self._session

    @property
    def topology(self) -> Topology:
        """The nodes in rank order, with the node groups of the config that this view was opened with."""
        return self._topology

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self._topology.nodes)

    @property
    def num_accelerators(self) -> int:
        """How many accelerators there are on all nodes together."""
        return self._topology.num_accelerators

    @property
    def fleet(self) -> Fleet:
        """What each node said about itself when it was probed: devices, memory, interpreter, interfaces.

        Raises:
            ClusterError: this process is a worker; the driver has it.
        """
        fleet = self.session.fact(Fleet)
        if fleet is None:
            raise ClusterError("only the driver keeps what the nodes said about themselves")
        return fleet

    @property
    def groups(self) -> dict[str, GroupEntry]:
        """The worker groups of the job, whoever launched them, by name; one that is being launched too."""
        return groups_in(self.session)

    @property
    def channels(self) -> dict[str, ChannelSpec]:
        """The channels of the job, whoever created them, by name."""
        return channels_of(self.session)

    @property
    def weights(self) -> dict[str, PublishedWeights]:
        """The weights that living processes publish, with their present versions, by name."""
        return published_weights(self.session)

    @property
    def log_folder(self) -> str:
        """Where each rank has a file of what it printed and logged, on its own node; "" where Ray has all of it."""
        folder = self.session.fact(LogFolder)
        return folder.path if folder is not None else ""

    @property
    def links(self) -> dict[tuple[int, int], LinkSpeed]:
        """What was measured of the network, by the ranks of two nodes, the lower first; the driver knows.

        Each pair of nodes is probed once, in the background, after a first group was launched on both.
        """
        return dict(self.session.service(LinkWatch).speeds)

    def starting(self) -> AbstractContextManager[None]:
        """A block in which groups and channels start side by side; at its end all of them are ready.

        `launch` and `Channel.create` return at once in it, and what is done with a group or a channel that is not ready
        yet waits until it is.

        Raises:
            LaunchError: at the end of the block, if a launch failed; the block's other groups are ended then, its
                channels are not.
            ChannelError: at the end of the block, if a channel could not be had; likewise.

            with cluster.starting():
                actor = Actor.create_group().launch(cluster, name="actor")
                rollout = Rollout.create_group().launch(cluster, name="rollout")
        """
        return self.session.service(SideBySide).together()

    @property
    def lost_nodes(self) -> dict[int, str]:
        """The nodes that are gone, by rank, each with why and since when; the driver knows.

        They keep their ranks in `topology`; nothing can be launched on them.
        """
        return dict(self.session.service(NodeWatch).states.lost)

    def refresh(self, timeout_s: float = 120) -> Topology:
        """Ask Ray anew which nodes there are; gives the topology of now.

        Nodes that have joined come last, or take the place of one that is gone if they were started with its
        `RLINF_NODE_RANK`. All others keep their ranks. Workers that run keep the topology that they started with.

        Args:
            timeout_s: how long the nodes may take to answer, in seconds.

        Raises:
            ClusterTimeout: a node does not answer.
            ClusterError: this process is a worker; or a node that joined is another machine, and the job uses one.
        """
        session, before = self.session, self.fleet
        records = wait_for_nodes(None, timeout_s)
        reports = probe_nodes(records, timeout_s)
        _check_reachable(session, reports)
        fleet = fleet_after(before, reports)
        alive = {report.node_id for report in reports}
        known = {node.node_id for node in before.nodes}
        session.provide(Fleet, fleet)
        session.provide(Topology, fleet.topology)
        session.service(NodeWatch).renew(fleet.topology.nodes, alive)
        self._topology = replace(self._topology, nodes=fleet.topology.nodes)
        for rank, node in enumerate(fleet.topology.nodes):
            if node.node_id not in known:
                session.bus.emit(NodeJoined(rank, node.node_id, node.ip, node.num_accelerators))
        return self._topology

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        channels: Iterable[Channel] = (),
        extra: Any = None,
        acknowledge: Lease | Iterable[Lease] = (),
        timeout_s: float | None = SAVE_TIMEOUT_S,
    ) -> None:
        """Save channels and a state of the caller's in one cut, while everybody goes on; `Cluster.load` reads it.

        Everything that was in one of the channels is in the checkpoint, or what was made of it and put into another
        one, or both. What was acknowledged before, or is in `acknowledge`, is not. So who leases, trains, and saves its
        step with the lease in `acknowledge`, or after its block, trains on no item twice and on each one, whenever the
        whole job is killed:

            with tasks.lease() as lease:
                step = train(lease.item)
                cluster.save("checkpoint", channels=[tasks], extra={"step": step}, acknowledge=lease)

        Nobody ever sees a checkpoint that is not whole: the one before stays until then, and goes then.

        Args:
            path: a folder, which is made. Each channel's process writes a file into it; where they run on several
                nodes, all of them see it.
            channels: the channels.
            extra: anything that can be pickled: a step, a position in the data, weights.
            acknowledge: leases of this process that are done with in the checkpoint; they are acknowledged once it is
                there.
            timeout_s: how long each channel may take, in seconds; None: as long as it takes.

        Raises:
            CheckpointError: it cannot be written, or somebody else writes there now; or more than 1 GiB, and more than
                `max_bytes`, was put into a channel while others were slow to begin. The one before is there as it was.
            CodecError: `extra` cannot be pickled.
            LeaseExpired: a lease to be acknowledged is over; then there is no new checkpoint, or there is one in which
                its items are done with.
            ChannelUnanswered: a channel took longer.
        """
        self.session.messenger.check_process()
        save_job(path, channels, extra, acknowledge, timeout_s)

    @staticmethod
    def load(path: str | os.PathLike[str], *, missing_ok: bool = False) -> Checkpoint:
        """Read what `save` has written: `.extra`, and what to restore channels from.

            saved = Cluster.load("checkpoint", missing_ok=True)
            tasks = Channel.create("tasks", restore=saved)        # empty the first time
            step = saved.extra["step"] if saved else 0

        It unpickles `extra`, which may run anything: load what you have saved.

        Args:
            path: the folder.
            missing_ok: return a checkpoint that is false, and has nothing in it, where there is none.

        Raises:
            CheckpointError: there is none; or it is corrupt, cut off, no checkpoint, or of a newer version.
        """
        return load_job(path, missing_ok=missing_ok)

    def why(self, within_s: float = WITHIN_S) -> Why:
        """Who waits for whom, for how long and why, the most probable culprit first, with the stacks of who waits.

        Every process answers from its I/O thread, also if its main thread is blocked; one that does not is looked at
        from outside, and has to write its stacks if it is silent for five seconds. It moves no item, and stops nobody
        who answers.

            print(cluster.why())

        Args:
            within_s: how long the processes may take to answer, in seconds.

        Raises:
            ClusterError: the job's driver does not answer.
        """
        return why(self.session, within_s)

    def status(self) -> JobStatus:
        """What the job does: its nodes, ranks, channels, weights and last events, with rates, as data.

        Every process answers from its I/O thread, in well under a millisecond and without moving an item. Who asks
        within a second of somebody else gets the same answer.

            for rank in cluster.status().ranks:
                print(rank.address, rank.state, rank.method, rank.cpu_percent)

        Raises:
            ClusterError: the job's driver does not answer.
        """
        return received(begin_status(self.session))

    def subscribe(self, listener: Listener) -> None:
        """Have `listener` called with every event of the job that this process hears of, on a thread of its own."""
        self.session.bus.subscribe(listener)

    def close(self) -> None:
        """End what this object started: workers, channels, Ray. On a view of another's cluster it does nothing."""
        if self._owner:
            self._session.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if self._owner:
            self._session.close(why_left(raised))

    def __repr__(self) -> str:
        state = ", closed" if self._session.closed else ""
        return f"Cluster({self.num_nodes} nodes, {self.num_accelerators} accelerators{state})"


def _simulated_shape(
    simulate: str | Topology | None, config: ClusterConfig | None, *, opening: bool
) -> Topology | None:
    if isinstance(simulate, Topology):
        return simulate
    text = simulate or (config.simulate if config else None)
    if (
        not text and opening
    ):  # a view takes what there is: the variable is for programs that would need a cluster
        text = os.environ.get(SIMULATE_VARIABLE)
    return Topology.parse(text) if text else None


def _check_node_count(topology: Topology, wanted: int | None) -> None:
    if wanted is not None and wanted > len(topology.nodes):
        raise ConfigError(
            f"num_nodes is {wanted}, but this cluster has {len(topology.nodes)} nodes",
            path="cluster.num_nodes",
        )


def _check_shape(topology: Topology, wanted: Topology) -> None:
    there, asked = ([node.num_accelerators for node in t.nodes] for t in (topology, wanted))
    if there != asked:
        raise ConfigError(
            f"nodes of {asked} accelerators are to be simulated, but this process has a cluster of {there} already",
            path="cluster.simulate",
            hint="close that one first",
        )


def _check_reachable(session: Session, reports: Sequence[NodeReport]) -> None:
    if session.crosses_machines:
        return
    for report in reports:
        if report.machine_id != local_machine_id():
            raise ClusterError(
                f"{report.describe()} is another machine, and this job was opened on one alone: its processes do not "
                "listen to others; close the cluster and open it again"
            )


def _check_config(topology: Topology, config: ClusterConfig | None) -> None:
    _with_groups(topology, config)
    if config is not None and config.rules:
        ComponentPlacement(config, topology)


def _with_groups(topology: Topology, config: ClusterConfig | None) -> Topology:
    if config is None or not config.node_groups:
        return topology
    try:
        return topology.with_node_groups(config.node_groups)
    except ConfigError as error:
        raise_config_errors(config.source.in_order(error.each()))
        raise


def _open_session(
    shape: Topology | None,
    num_nodes: int | None,
    address: str | None,
    timeout_s: float,
    config: ClusterConfig,
) -> Session:
    begun = time.monotonic()
    if shape is not None:
        _check_node_count(shape, num_nodes)
        engine = simulate_nodes(shape.nodes)
        num_nodes = len(shape.nodes)
        begun = time.monotonic()  # what is started here is waited for in any case
    else:
        engine = join_or_start(address, num_nodes, timeout_s)
    restore = exit_on_sigterm()
    try:
        nodes = wait_for_nodes(num_nodes, timeout_s, begun)
        reports = order_nodes(probe_nodes(nodes, timeout_s, begun), num_lost_nodes(nodes))[:num_nodes]
        return _join_as_driver(engine, restore, reports, config)
    except BaseException:
        engine.stop()
        restore()
        raise


def _join_as_driver(
    engine: RayEngine, restore_signals: Callable[[], None], reports: list[NodeReport], config: ClusterConfig
) -> Session:
    crosses_machines = any(report.machine_id != local_machine_id() for report in reports)
    if crosses_machines:
        check_patience(config.unreachable_after_s)
    session = Session(
        ClusterSecret.generate(),
        DRIVER_NAME,
        host=own_address(),
        tcp=crosses_machines,
        encryption=config.network.encryption,
        ports=config.network.ports,
        unreachable_after_s=config.unreachable_after_s,
    )
    # Last of all, when what it started has ended.
    session.on_close_last(engine.stop)
    try:
        session.on_close_last(restore_signals)
        fleet = fleet_of(reports)
        session.provide(Fleet, fleet)
        session.provide(Topology, fleet.topology)
        session.provide(LogFolder, LogFolder.fresh())
        receive_log_lines(session)
        session.service(Reasoner)
        session.service(StallDesk)
        session.service(StatusDesk)
        starts_channels = partial(ChannelStarter, shares=config.channel_process == "shared")
        session.provide(Starter, session.service(starts_channels))
        session.service(DeviceDesk)
        session.service(NodeWatch).follow(NodeLooks(ray_address()))
        announce(session, encryption=config.network.encryption)
        set_current(session)
    except BaseException:
        session.close()
        raise
    atexit.register(session.close)
    close_when_interrupted(partial(session.close, INTERRUPTED))
    for rank, report in enumerate(reports):
        session.bus.emit(NodeJoined(rank, report.node_id, report.ip, report.num_accelerators))
    return session
