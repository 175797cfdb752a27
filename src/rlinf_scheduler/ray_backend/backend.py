"""Ray: started, joined or simulated; asked for its nodes; stopped. The only module that starts or stops it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray._private import ray_constants
from ray._private import utils as ray_utils
from ray.cluster_utils import Cluster as RayTestCluster
from ray.exceptions import GetTimeoutError, RayError
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlinf_scheduler.errors import ClusterError, ClusterTimeout, SchedulerError
from rlinf_scheduler.face.finder import is_ray_environment, ray_environment
from rlinf_scheduler.hardware.vendors import MASKS
from rlinf_scheduler.planning import Node
from rlinf_scheduler.ray_backend import variables
from rlinf_scheduler.ray_backend.addresses import LOCAL, find_address, unannounced
from rlinf_scheduler.ray_backend.authentication import (
    Access,
    authentication_at,
    host_and_port,
    wait_for_answer,
)
from rlinf_scheduler.ray_backend.fewest_processes import fewest_processes
from rlinf_scheduler.ray_backend.folders import TMPDIR_VARIABLE, prune_sessions, ray_folder
from rlinf_scheduler.ray_backend.guard import Guard
from rlinf_scheduler.ray_backend.interfaces import LOOPBACK
from rlinf_scheduler.ray_backend.leaving import (
    check_left,
    end_ray_by_own_callback,
    leave_ray,
    leave_to_parent_in_child,
    show_errors_at_once,
    start_none_by_accident,
)
from rlinf_scheduler.ray_backend.lost_nodes import answering_nodes, draining_nodes, what_is_gone
from rlinf_scheduler.ray_backend.patches import (
    check_loopback,
    ended_within,
    keep_off_terminal,
    replaced,
    unhurried,
    use_access,
    use_fresh_token,
    use_own_token,
)
from rlinf_scheduler.ray_backend.probe import NodeReport, probe_this_node, simulated_environment
from rlinf_scheduler.ray_backend.raylets import node_ip_here, nodes_like_here, wait_for_raylet

NAMESPACE = "rlinf"
_SIMULATED_STORE_BYTES = 100 * 1024 * 1024
# Many ranks start at once on a node of one CPU: that is what a simulation is for, and no cause for a warning.
# Ray's own 15 lets a rank have a thirtieth of a core beside any other program.
_SIMULATED_RAY_SETTINGS = {"RAY_worker_maximum_startup_concurrency": "256", "RAY_worker_niceness": "0"}
HEAD_RESOURCE = "node:__internal_head__"


@dataclass
class RayBackend:
    """A connection to Ray, and what of it has to be taken down again."""

    started_here: bool
    simulated: RayTestCluster | None = None
    restore_token: Callable[[], None] | None = None
    restore_messages: Callable[[], None] | None = None
    guard: Guard | None = None

    @property
    def is_connected(self) -> bool:
        """Whether this process still has Ray: a program may have shut it down itself."""
        return bool(ray.is_initialized())

    def stop(self) -> None:
        """Leave Ray; stop it too where this process started it."""
        guard, self.guard = self.guard, None
        try:
            self._stop_ray(is_own=guard is not None)
        finally:
            if guard is not None:
                guard.stop()

    def _stop_ray(self, *, is_own: bool) -> None:
        simulated, self.simulated = self.simulated, None
        restore_token, self.restore_token = self.restore_token, None
        restore_messages, self.restore_messages = self.restore_messages, None
        try:
            if is_own:
                ray.shutdown()
            elif self.started_here:
                leave_ray()
        finally:
            try:
                if simulated is not None:
                    with unannounced():
                        simulated.shutdown()
            finally:
                for restore in (restore_token, restore_messages):
                    if restore is not None:
                        restore()


def simulate_nodes(nodes: Sequence[Node], timeout_s: float = 120.0) -> RayBackend:
    """Real Ray nodes on this machine, with pretend accelerators like those of `nodes`.

    Args:
        timeout_s: how long each of them may take, and to join them, in seconds.

    Raises:
        ClusterTimeout: one of them is not there at its deadline.
        ClusterError: this process uses a Ray already, or has not left one that does not answer; or Ray did not start.
    """
    check_left()
    if ray.is_initialized():
        raise ClusterError("cannot simulate nodes: this process is connected to a Ray cluster already")
    check_loopback()
    start_none_by_accident()
    engine = RayBackend(started_here=True, restore_messages=keep_off_terminal())
    try:
        what = f"Ray did not start {len(nodes)} simulated nodes"
        engine.guard = Guard()
        with (
            _QuietRay(),
            ray_errors(what),
            _private_folder(),
            unannounced(),
            fewest_processes(),
            variables.set_meanwhile(
                dict.fromkeys(MASKS)
            ),  # those of real devices: Ray counts no more than they show
            engine.guard.marking(),
        ):
            engine.restore_token = use_fresh_token()
            # Of other threads' nodes the guard ends what is left: Ray's own hooks are the main thread's, and would end
            # the nodes together with the thread that started them.
            engine.simulated = RayTestCluster(shutdown_at_exit=_is_main_thread())
            for rank, node in enumerate(nodes):
                with ended_within(timeout_s):
                    _add_simulated(engine.simulated, rank, node)
            with ended_within(timeout_s):
                _connect(address=engine.simulated.address)
    except BaseException:  # an interruption too: nothing that was started stays
        engine.stop()
        raise
    return engine


def _add_simulated(simulated: RayTestCluster, rank: int, node: Node) -> None:
    simulated.add_node(
        wait=False,
        num_cpus=1,
        num_gpus=node.num_accelerators,
        object_store_memory=_SIMULATED_STORE_BYTES,
        include_dashboard=False,
        node_ip_address=LOOPBACK[0],  # where Ray listens then, and nowhere else
        env_vars={
            **_SIMULATED_RAY_SETTINGS,
            **variables.of_a_node(os.environ),
            **simulated_environment(rank, node),
        },
        labels=variables.LABELS,
    )


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def join_or_start(address: str | None, num_nodes: int | None, timeout_s: float) -> RayBackend:
    """A connection to a Ray cluster: the one this process has, `address`, one found here, or a new one.

    A cluster of several nodes is never started here: it is joined.

    Raises:
        ClusterTimeout: nothing answers at `address` before the deadline, or none of its nodes is this machine.
        ClusterError: there is nothing to join, it refuses this process, or Ray did not start; or this process has not
            left another Ray, whose head does not answer.
    """
    check_left()
    if ray.is_initialized():
        return RayBackend(started_here=False)
    deadline = time.monotonic() + timeout_s
    wanted = find_address(address, num_nodes, timeout_s)
    access = Access()
    if wanted == LOCAL:
        check_loopback()
    else:
        access = _authentication(wanted, deadline - time.monotonic(), was_found=address is None)
        wait_for_raylet(wanted, deadline - time.monotonic())
    start_none_by_accident()
    engine = RayBackend(started_here=True, restore_messages=keep_off_terminal())
    try:
        with ExitStack() as stack:
            stack.enter_context(_QuietRay())
            stack.enter_context(ray_errors(f"Ray did not start or join ({wanted})"))
            if wanted == LOCAL:
                stack.enter_context(_private_folder())
                stack.enter_context(fewest_processes())
                stack.enter_context(variables.set_meanwhile(variables.of_a_node(os.environ)))
                engine.guard = Guard()
                stack.enter_context(engine.guard.marking())
                if not _is_main_thread():  # else Ray would end together with the thread that has started it
                    stack.enter_context(replaced(ray_utils, detect_fate_sharing_support=lambda: False))
            engine.restore_token = use_own_token() if wanted == LOCAL else use_access(access)
            stack.enter_context(ended_within(max(1.0, deadline - time.monotonic())))
            # What is started here begins with this process's variables.
            _connect(address=wanted, runtime_env=None if wanted == LOCAL else ray_environment())
    except BaseException:
        engine.stop()  # what it had begun; nothing where it had not
        raise
    return engine


def _authentication(address: str, timeout_s: float, *, was_found: bool) -> Access:
    try:
        return authentication_at(address, os.environ, max(timeout_s, 0.0))
    except ClusterTimeout:
        raise
    except ClusterError as error:
        if not was_found:
            raise
        raise ClusterError(f"{error}; address='local' starts a Ray of this program's own") from error


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


def ray_address() -> str:
    """Where the Ray is that this process is connected to, HOST:PORT."""
    return str(ray.get_runtime_context().gcs_address)


def wait_for_nodes(
    num_nodes: int | None, timeout_s: float, begun: float | None = None
) -> list[dict[str, Any]]:
    """Ray's records of the nodes that are alive, and answer, once there are at least `num_nodes`.

    For a minute Ray takes a machine for alive that is not there any more. Those that are to be given back do not count:
    Ray starts nothing on them.

    Args:
        num_nodes: how many are wanted; None: one.
        timeout_s: how long to wait for them, in seconds.
        begun: when that time began, on the monotonic clock; None: now.

    Raises:
        ClusterTimeout: too few at the deadline; the text lists those that are there.
    """
    deadline = (time.monotonic() if begun is None else begun) + timeout_s
    wanted = num_nodes or 1
    address = ray_address()
    while True:
        # Ray asks its own service for a minute, whatever the deadline is.
        wait_for_answer(address, os.environ, deadline - time.monotonic())
        with ray_errors("Ray does not say which nodes there are"):
            draining = draining_nodes()
            alive = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in draining]
        answering = answering_nodes(alive)
        there = [node for node in alive if node["NodeID"] in answering]
        if len(there) >= wanted:
            return there
        if time.monotonic() >= deadline:
            listed = "".join(_describe(node, silent=node not in there) for node in alive)
            are = "is" if len(there) == 1 else "are"
            raise ClusterTimeout(
                f"{wanted} nodes were asked for and {len(there)} {are} there after {timeout_s:.0f} s:{listed}"
            )
        # Ray offers no notice of a joining node to a driver; joining takes seconds, so four looks a second do.
        time.sleep(min(0.25, max(0.0, deadline - time.monotonic())))


def _describe(node: Mapping[str, Any], *, silent: bool) -> str:
    state = ": does not answer" if silent else ""
    return f"\n  {node['NodeManagerAddress']} ({node['NodeManagerHostname']}){state}"


def probe_nodes(
    nodes: Sequence[Mapping[str, Any]], timeout_s: float, begun: float | None = None
) -> list[NodeReport]:
    """Every node's report of itself, made by a process on that node, or by this one where it sees the same.

    Args:
        timeout_s: how long they may take, in seconds.
        begun: when that time began, on the monotonic clock; None: now.

    Raises:
        ClusterTimeout: some node did not answer; the text names it.
        ClusterError: a probe failed there.
    """
    with ray_errors("probing the nodes failed"):
        near = _reports_from_here(nodes)
        probe = ray.remote(num_cpus=0, max_retries=0)(probe_this_node)
        pending = {
            probe.options(scheduling_strategy=on_node(node["NodeID"])).remote(*_known(node)): node
            for node in nodes
            if node["NodeID"] not in near
        }
        try:
            left_s = timeout_s if begun is None else begun + timeout_s - time.monotonic()
            told = {report.node_id: report for report in ray.get(list(pending), timeout=max(left_s, 0.0))}
        except GetTimeoutError as error:
            _, late = ray.wait(list(pending), num_returns=len(pending), timeout=0)
            names = ", ".join(pending[ref]["NodeManagerAddress"] for ref in late)
            problem = f"no answer from {names} after {timeout_s:.0f} s: no process starts there"
            raise ClusterTimeout(problem) from error
        except RayError as error:
            problem = what_is_gone(nodes, ray.nodes())
            if not problem:
                raise
            raise ClusterError(problem) from error
    return [replace((near | told)[node["NodeID"]], labels=_labels_of(node)) for node in nodes]


def _reports_from_here(nodes: Sequence[Mapping[str, Any]]) -> dict[str, NodeReport]:
    """What this process can say for nodes, by their ids: to start one of theirs takes a second of a core."""
    runtime_env = ray.get_runtime_context().get_runtime_env_string()
    if runtime_env not in ("", "{}") and not is_ray_environment(runtime_env):
        return {}  # theirs would have another interpreter, perhaps, or other packages
    like_here = nodes_like_here([node["NodeID"] for node in nodes])
    return {
        node["NodeID"]: probe_this_node(*_known(node), like_here[node["NodeID"]])
        for node in nodes
        if node["NodeID"] in like_here
    }


def _labels_of(node: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the labels that tell nodes apart by what they are: not the one that repeats the node's id."""
    return tuple(sorted((name, value) for name, value in node["Labels"].items() if value != node["NodeID"]))


def _known(node: Mapping[str, Any]) -> tuple[str, str, bool, dict[str, float]]:
    """What Ray says of a node, as `probe_this_node` takes it."""
    is_head = HEAD_RESOURCE in node["Resources"]
    return node["NodeID"], node["NodeManagerAddress"], is_head, dict(node["Resources"])


def variables_lacking() -> dict[str, Mapping[str, str]]:
    """What our processes have to be given, since the node's own do not start with it; by Ray's id of the node."""
    labels = {node["NodeID"]: node["Labels"].items() for node in ray.nodes()}
    return {
        node: {} if variables.LABELS.items() <= those else variables.OF_A_PROCESS
        for node, those in labels.items()
    }


def cores_of_machines() -> dict[str, float]:
    """How many cores Ray was told that each machine has, by its address."""
    cores: dict[str, float] = {}
    for node in ray.nodes():
        if node["Alive"]:
            address = node["NodeManagerAddress"]
            cores[address] = cores.get(address, 0.0) + node["Resources"].get("CPU", 0.0)
    return cores


def on_node(node_id: str) -> NodeAffinitySchedulingStrategy:
    """Ray's way to say: on this node and no other."""
    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def _connect(address: str, runtime_env: Mapping[str, object] | None = None) -> None:
    started: dict[str, Any] = {"runtime_env": dict(runtime_env)} if runtime_env else {}
    if address != LOCAL and (own_ip := node_ip_here(address)):
        started["_node_ip_address"] = own_ip
    elif address == LOCAL:
        started = {
            "include_dashboard": False,
            "labels": variables.LABELS,
            "_node_ip_address": LOOPBACK[0],
        }
    is_here = address == LOCAL or host_and_port(address)[0] in LOOPBACK
    with unhurried(), _loopback_is_an_address() if is_here else nullcontext():
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=True,
            logging_level=logging.WARNING,
            configure_logging=False,
            **started,
        )
    show_errors_at_once()
    end_ray_by_own_callback()
    leave_to_parent_in_child()


def _loopback_is_an_address() -> AbstractContextManager[None]:
    """Have Ray take 127.0.0.1 as it is told: elsewhere than on a laptop it takes another address instead."""
    return replaced(ray_constants, ENABLE_RAY_CLUSTER=False)


@contextmanager
def _private_folder() -> Iterator[None]:
    """Have a Ray that is started inside make its folders, into which it lets everybody write, in a private one."""
    folder = ray_folder(os.environ)
    prune_sessions(folder / "ray")
    (folder / "ray").mkdir(exist_ok=True)  # where Ray's announcement goes before anything else of it is there
    with variables.set_meanwhile({TMPDIR_VARIABLE: str(folder)}):
        yield


class _QuietRay:
    """Ray's notes on how to join or watch it are for people who started it by hand: keep them off."""

    def __enter__(self) -> None:
        self._logger = logging.getLogger("ray")
        self._level = self._logger.level
        self._logger.setLevel(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        self._logger.setLevel(self._level)
