"""Ray: started, joined or simulated; asked for its nodes; stopped. The only module that starts or stops it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.cluster_utils import Cluster as RayTestCluster
from ray.exceptions import GetTimeoutError
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlinf.scheduler.engine.addresses import LOCAL, find_address, unannounced
from rlinf.scheduler.engine.probe import NodeReport, probe_this_node, simulated_environment
from rlinf.scheduler.engine.token import use_fresh_token
from rlinf.scheduler.errors import ClusterError, ClusterTimeout, SchedulerError
from rlinf.scheduler.hardware.vendors import VENDORS
from rlinf.scheduler.planning import Node

NAMESPACE = "rlinf"
# Ray would set the vendor's mask from the GPUs that an actor asks of Ray; ours are decided by the placement.
PROCESS_ENVIRONMENT = {
    f"RAY_EXPERIMENTAL_NOSET_{name}": "1" for vendor in VENDORS for name in vendor.variables
}
_SIMULATED_STORE_BYTES = 100 * 1024 * 1024
# Many ranks start at once on a node of one CPU: that is what a simulation is for, and no cause for a warning.
_SIMULATED_RAY_SETTINGS = {"RAY_worker_maximum_startup_concurrency": "256"}
_HEAD_RESOURCE = "node:__internal_head__"


@dataclass
class RayEngine:
    """A connection to Ray, and what of it has to be taken down again."""

    started_here: bool
    simulated: RayTestCluster | None = None
    restore_token: Callable[[], None] | None = None

    def stop(self) -> None:
        """Leave Ray; stop it too where this process started it."""
        simulated, self.simulated = self.simulated, None
        restore_token, self.restore_token = self.restore_token, None
        try:
            if self.started_here:
                ray.shutdown()
        finally:
            try:
                if simulated is not None:
                    simulated.shutdown()
            finally:
                if restore_token is not None:
                    restore_token()


def simulate_nodes(nodes: Sequence[Node]) -> RayEngine:
    """Real Ray nodes on this machine, with pretend accelerators like those of `nodes`.

    Raises:
        ClusterError: this process uses a Ray already, or Ray did not start.
    """
    if ray.is_initialized():
        raise ClusterError("cannot simulate nodes: this process is connected to a Ray cluster already")
    engine = RayEngine(started_here=True)
    try:
        with _QuietRay(), unannounced(), ray_errors(f"Ray did not start {len(nodes)} simulated nodes"):
            engine.restore_token = use_fresh_token()
            engine.simulated = RayTestCluster()
            for rank, node in enumerate(nodes):
                engine.simulated.add_node(
                    wait=False,
                    num_cpus=1,
                    object_store_memory=_SIMULATED_STORE_BYTES,
                    include_dashboard=False,
                    env_vars={**_SIMULATED_RAY_SETTINGS, **simulated_environment(rank, node)},
                )
            _connect(address=engine.simulated.address)
    except BaseException:  # an interruption too: nothing that was started stays
        engine.stop()
        raise
    return engine


def join_or_start(address: str | None, num_nodes: int | None, timeout_s: float) -> RayEngine:
    """A connection to a Ray cluster: the one this process has, `address`, one found here, or a new one.

    A cluster of several nodes is never started here: it is joined.

    Raises:
        ClusterTimeout: nothing answers at `address` before the deadline.
        ClusterError: there is nothing to join, or Ray did not start.
    """
    if ray.is_initialized():
        return RayEngine(started_here=False)
    wanted = find_address(address, num_nodes, timeout_s)
    try:
        with _QuietRay(), ray_errors(f"Ray did not start or join ({wanted})"):
            _connect(address=wanted)
    except BaseException:
        ray.shutdown()  # what it had begun; nothing where it had not
        raise
    return RayEngine(started_here=True)


@contextmanager
def ray_errors(what: str) -> Iterator[None]:
    """Say what could not be done where Ray raises anything of its own.

    Raises:
        ClusterError: Ray could not do it; its error is the cause.
    """
    try:
        yield
    except SchedulerError:
        raise
    except Exception as error:
        # What a process on a node raised is the cause of what Ray raises.
        raise ClusterError(f"{what}: {getattr(error, 'cause', None) or error}") from error


def own_address() -> str:
    """Which of this machine's addresses the other nodes can reach, as Ray has found out."""
    return str(get_node_ip_address())


def wait_for_nodes(num_nodes: int | None, timeout_s: float) -> list[dict[str, Any]]:
    """Ray's records of the nodes that are alive, once there are at least `num_nodes`.

    Raises:
        ClusterTimeout: too few at the deadline; the text lists those that are there.
    """
    deadline = time.monotonic() + timeout_s
    wanted = num_nodes or 1
    while True:
        with ray_errors("Ray does not say which nodes there are"):
            alive = [node for node in ray.nodes() if node["Alive"]]
        if len(alive) >= wanted:
            return alive
        if time.monotonic() >= deadline:
            there = "".join(f"\n  {n['NodeManagerAddress']} ({n['NodeManagerHostname']})" for n in alive)
            raise ClusterTimeout(
                f"{wanted} nodes were asked for and {len(alive)} are there after {timeout_s:.0f} s:{there}"
            )
        # Ray offers no notice of a joining node to a driver; joining takes seconds, so four looks a second do.
        time.sleep(min(0.25, max(0.0, deadline - time.monotonic())))


def probe_nodes(nodes: Sequence[Mapping[str, Any]], timeout_s: float) -> list[NodeReport]:
    """Every node's report of itself, made by a process on that node.

    Raises:
        ClusterTimeout: some node did not answer; the text names it.
        ClusterError: a probe failed there.
    """
    with ray_errors("probing the nodes failed"):
        probe = ray.remote(num_cpus=0, max_retries=0)(probe_this_node)
        pending = {
            probe.options(scheduling_strategy=on_node(node["NodeID"])).remote(
                node["NodeID"],
                node["NodeManagerAddress"],
                _HEAD_RESOURCE in node["Resources"],
                dict(node["Resources"]),
            ): node
            for node in nodes
        }
        try:
            return list(ray.get(list(pending), timeout=timeout_s))
        except GetTimeoutError as error:
            _, late = ray.wait(list(pending), num_returns=len(pending), timeout=0)
            names = ", ".join(pending[ref]["NodeManagerAddress"] for ref in late)
            problem = f"no answer from {names} after {timeout_s:.0f} s: no process starts there"
            raise ClusterTimeout(problem) from error


def on_node(node_id: str) -> NodeAffinitySchedulingStrategy:
    """Ray's way to say: on this node and no other."""
    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def _connect(address: str) -> None:
    ray.init(
        address=address,
        namespace=NAMESPACE,
        include_dashboard=False if address == LOCAL else None,
        log_to_driver=True,
        logging_level=logging.WARNING,
        configure_logging=False,
        runtime_env={"env_vars": PROCESS_ENVIRONMENT},
    )


class _QuietRay:
    """Ray's notes on how to join or watch it are for people who started it by hand: keep them off."""

    def __enter__(self) -> None:
        self._logger = logging.getLogger("ray")
        self._level = self._logger.level
        self._logger.setLevel(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        self._logger.setLevel(self._level)
