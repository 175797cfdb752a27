"""`Cluster`: what users open first; every process of a job sees the same one."""

from __future__ import annotations

import atexit
import os
from types import TracebackType
from typing import Any

from rlinf.scheduler.channel import ChannelSpec, Starter, channels_of
from rlinf.scheduler.comm import ClusterSecret, local_machine_id
from rlinf.scheduler.config import ClusterConfig, read_cluster_config
from rlinf.scheduler.config.fleet import Fleet
from rlinf.scheduler.engine.engine import (
    RayEngine,
    join_or_start,
    own_address,
    probe_nodes,
    simulate_nodes,
    wait_for_nodes,
)
from rlinf.scheduler.engine.nodes import fleet_of, order_nodes
from rlinf.scheduler.engine.probe import NodeReport
from rlinf.scheduler.engine.signals import exit_on_sigterm
from rlinf.scheduler.errors import ClusterError, ConfigError, raise_config_errors
from rlinf.scheduler.events import Listener, NodeJoined
from rlinf.scheduler.host.info import job_topology
from rlinf.scheduler.host.log_lines import receive_log_lines
from rlinf.scheduler.planning import Topology
from rlinf.scheduler.session import Session, current_or_none, set_current
from rlinf.scheduler.weights import PublishedWeights, published_weights
from rlinf.scheduler.worker.channel_starter import ChannelStarter
from rlinf.scheduler.worker.device_lock import DeviceDesk
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
        start_timeout_s: how long to wait for the nodes, in seconds.

    Raises:
        ConfigError: the section has a mistake, or asks for what this process's cluster is not.
        ClusterTimeout: too few nodes at the deadline; the text lists those that are there.
        ClusterError: Ray cannot be started or joined.

        with Cluster(simulate="1x2") as cluster:
            cluster.num_nodes, cluster.num_accelerators      # (1, 2)
    """

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
                _with_groups(shape, config)  # a mistake in the groups is found before Ray is started
            encryption = config.encryption if config else True
            existing = _open_session(shape, wanted_nodes, address, start_timeout_s, encryption=encryption)
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

    def subscribe(self, listener: Listener) -> None:
        """Have `listener` called with every event of the job that this process hears of, on a thread of its own."""
        self.session.bus.subscribe(listener)

    def close(self) -> None:
        """End what this object started: workers, channels, Ray. On a view of another's cluster it does nothing."""
        if self._owner:
            self._session.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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


def _with_groups(topology: Topology, config: ClusterConfig | None) -> Topology:
    if config is None or not config.node_groups:
        return topology
    try:
        return topology.with_node_groups(config.node_groups)
    except ConfigError as error:
        raise_config_errors(config.source.in_order(error.each()))
        raise


def _open_session(
    shape: Topology | None, num_nodes: int | None, address: str | None, timeout_s: float, *, encryption: bool
) -> Session:
    if shape is not None:
        _check_node_count(shape, num_nodes)
        engine = simulate_nodes(shape.nodes)
        num_nodes = len(shape.nodes)
    else:
        engine = join_or_start(address, num_nodes, timeout_s)
    try:
        reports = order_nodes(probe_nodes(wait_for_nodes(num_nodes, timeout_s), timeout_s))[:num_nodes]
        return _join_as_driver(engine, reports, encryption=encryption)
    except BaseException:
        engine.stop()
        raise


def _join_as_driver(engine: RayEngine, reports: list[NodeReport], *, encryption: bool) -> Session:
    crosses_machines = any(report.machine_id != local_machine_id() for report in reports)
    session = Session(
        ClusterSecret.generate(), DRIVER_NAME, host=own_address(), tcp=crosses_machines, encryption=encryption
    )
    # Last of all, when what it started has ended.
    session.on_close_last(engine.stop)
    try:
        session.on_close_last(exit_on_sigterm())
        fleet = fleet_of(reports)
        session.provide(Fleet, fleet)
        session.provide(Topology, fleet.topology)
        receive_log_lines(session)
        session.provide(Starter, session.service(ChannelStarter))
        session.service(DeviceDesk)
        set_current(session)
    except BaseException:
        session.close()
        raise
    atexit.register(session.close)
    for rank, report in enumerate(reports):
        session.bus.emit(NodeJoined(rank, report.node_id, report.ip, report.num_accelerators))
    return session
