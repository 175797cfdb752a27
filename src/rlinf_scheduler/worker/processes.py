"""How the processes of ranks are started and ended: by Ray."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.errors import DeviceHeld, LaunchError
from rlinf_scheduler.host.actor_spec import (
    DetachedHostActor,
    HostActor,
    hand_over,
    withdraw,
    withdraw_all,
    withdraw_of_the_dead,
)
from rlinf_scheduler.host.force import kill_process
from rlinf_scheduler.host.info import DetachedJob, job_topology
from rlinf_scheduler.host.protocol import HostSpec
from rlinf_scheduler.planning import Node, Placement
from rlinf_scheduler.planning.environments import ProcessEnvironment
from rlinf_scheduler.ray_backend.backend import on_node, variables_lacking
from rlinf_scheduler.ray_backend.holds import DeviceHolds, NodeDevices, Taken, resource_of
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import clock_text, device_list, seconds_text
from rlinf_scheduler.worker.device_lock import DeviceLock

# Ray takes back what an ended job has, and a busy Ray answers, within it.
_MOMENT_S = 2.0
_LOOK_S, _LATEST_LOOK_S = 0.25, 5.0
# Stands for all devices while some are being reserved.
_RESERVING = "devices that are free"

_log = logging.getLogger(__name__)


class HostProcess(Protocol):
    """A process that hosts one rank."""

    def run(self, spec: HostSpec) -> Future[None]:
        """Let it host; the future is done when the process is gone, with an error unless it came to its end."""

    def kill(self) -> None:
        """End it now; nothing happens if it is gone."""


class Processes:
    """Starts the processes of the groups that a session launches; a service of it."""

    _is_detached = False

    def __init__(self, session: Session) -> None:
        self._session = session
        detached = session.fact(DetachedJob)
        self._is_detached = detached is not None
        self._host_class = ray.remote(HostActor if detached is None else DetachedHostActor)
        # Ray knows the job server's job by the driver that began it, and that may have others.
        job, holder = ("", "") if detached is None else (session.home.process_id, f"job '{detached.name}'")
        self._holds = DeviceHolds(job, holder)
        # Held while some are taken or given back: what is about to go back counts as taken still.
        self._changing = threading.Lock()
        # How many launches count on each device, whichever of them took it.
        self._relied: Counter[tuple[str, str]] = Counter()
        # What was taken by launches that count on it no more, with the devices; others do.
        self._unused: list[tuple[Sequence[PlacementGroup], set[tuple[str, str]]]] = []
        # Variables, by the node's id.
        self._lack: dict[str, Mapping[str, str]] = {}
        if session.home == session.messenger.endpoint:
            # A Ray that this process was connected to before stays; the job's devices do not stay with it.
            session.on_close_last(self._holds.release)
            # Not here, on the I/O thread: Ray's head may not answer.
            run_beside_in_time(session.messenger.call_later, withdraw_of_the_dead)
            if detached is None:
                session.on_close_last(partial(withdraw_all, ray.get_runtime_context().get_job_id()))

    @property
    def _nodes(self) -> tuple[Node, ...]:
        return job_topology(self._session).nodes  # nodes may have joined

    def reserve(
        self,
        group: str,
        devices: Mapping[int, Sequence[str]],
        wait_s: float,
        given_up: Promise[None] | None = None,
    ) -> Callable[[], None]:
        """Hold accelerators for the job until it ends; gives what gives them back before, once, from any thread.

        Args:
            group: for whom; its name is told to a launch that is refused.
            devices: as the nodes name them, by the nodes' ranks.
            wait_s: how long to wait for those that others have, in seconds.
            given_up: done when nobody wants them any more.

        Raises:
            DeviceHeld: others have some; the text says who.
            LaunchError: nobody waits for them any more.
        """
        wanted = [
            NodeDevices(
                self._nodes[rank].node_id, resource_of(self._nodes[rank].accelerator_type), tuple(names)
            )
            for rank, names in devices.items()
        ]
        relied = {(each.node_id, name) for each in wanted for name in each.names}
        with self._changing:
            self._relied.update(relied)
        try:
            taken = self._wait_for(group, [each for each in wanted if each.resource], wait_s, given_up)
        except BaseException:
            self._give_back((), relied)
            raise
        return partial(self._give_back, taken, relied)

    def held_elsewhere(self) -> set[tuple[int, int]]:
        """The accelerators that others hold: their nodes' ranks, and their indices there.

        Raises:
            ClusterError: Ray does not say.
        """
        ranks = {node.node_id: rank for rank, node in enumerate(self._nodes)}
        return {
            (ranks[hold.node_id], self._nodes[ranks[hold.node_id]].accelerator_names.index(name))
            for hold in self._holds.of_others()
            if hold.node_id in ranks
            for name in hold.devices
            if name in self._nodes[ranks[hold.node_id]].accelerator_names
        }

    def _give_back(self, taken: Sequence[PlacementGroup], relied: set[tuple[str, str]]) -> None:
        """Give back what a launch took, as soon as no other group of the job counts on it."""
        with self._changing:
            self._relied -= Counter(relied)
            if taken:
                self._unused.append((taken, relied))
            for each in list(self._unused):
                if not each[1] & self._relied.keys():
                    self._unused.remove(each)
                    self._holds.release(each[0])

    def _wait_for(
        self, group: str, wanted: Sequence[NodeDevices], wait_s: float, given_up: Promise[None] | None
    ) -> list[PlacementGroup]:
        since, told, latest = time.monotonic(), False, 0.0
        while True:
            try:
                return self._take(wanted)
            except Taken as refusal:
                details = self._describe(refusal)
                now = time.monotonic()
                waited_s = now - since
                # A job that has just ended has them for another moment, however long Ray took to say so.
                latest = latest or max(since + wait_s, now + _MOMENT_S)
                if now >= latest:
                    raise DeviceHeld(group, _refusal(wait_s), details) from None
            if not told and waited_s > _MOMENT_S:
                told = True
                _log.warning("group '%s' waits for devices: %s", group, "; ".join(details))
            # Every look that Ray has to answer stays in its tables.
            pause_s = min(_LATEST_LOOK_S, max(_LOOK_S, waited_s / 10))
            if given_up is None:
                time.sleep(pause_s)
            elif given_up.wait(pause_s):
                raise LaunchError(group, "it was ended while it waited for devices", details)

    def _take(self, wanted: Sequence[NodeDevices]) -> list[PlacementGroup]:
        if not wanted:
            return []
        # One process of the job at a time: Ray gives the first that are free, those that another one wants for it.
        with DeviceLock(self._session, (_RESERVING,)), self._changing:
            return self._holds.take(wanted)

    def _describe(self, taken: Taken) -> list[str]:
        rank = next(rank for rank, node in enumerate(self._nodes) if node.node_id == taken.node_id)
        node = self._nodes[rank]
        what = f"{node.accelerator_type} {device_list(taken.names)} of node {rank} ({node.ip})"
        if not taken.holds:
            return [
                f"{what}: given by Ray to programs that are not ours, see `ray status` and `ray list actors`"
            ]
        return [f"{what}: held by {hold.holder} since {clock_text(hold.since)}" for hold in taken.holds]

    def start(self, node_id: str, environment: ProcessEnvironment) -> HostProcess:
        """Begin to start a process on a node; returns at once. Raises what Ray does."""
        options: dict[str, Any] = {}
        # Set by Ray, not by the host: the dynamic linker and the interpreter read variables before any code runs.
        if variables := {**self._lacking(node_id), **dict(environment.env_vars)}:
            options["env_vars"] = variables
        if environment.python_interpreter_path:
            options["py_executable"] = environment.python_interpreter_path
        return RayProcess(
            self._host_class.options(
                num_cpus=0,
                scheduling_strategy=on_node(node_id),
                max_restarts=0,
                max_task_retries=0,
                # Ray starts two interpreters for one process that has any.
                **({"runtime_env": options} if options else {}),
            ).remote()
        )

    def _lacking(self, node_id: str) -> Mapping[str, str]:
        """The variables of our processes that a node's do not start with by themselves."""
        if node_id not in self._lack:
            self._lack.update(variables_lacking())
        return self._lack.get(node_id, {})

    def forget(self, processes: Sequence[HostProcess]) -> None:
        """Leave nothing behind for processes that were ended before they began."""
        ids = [process.actor_id for process in processes if isinstance(process, RayProcess)]
        withdraw(ids, detached=self._is_detached)

    def kill_there(self, node_id: str, pid: int, born: int, process_id: str) -> None:
        """Begin to end a process on another machine by force, and what it has started; see `kill_process`."""
        with contextlib.suppress(RayError, RuntimeError, ValueError):
            kill = ray.remote(num_cpus=0, max_retries=0)(kill_process)
            kill.options(scheduling_strategy=on_node(node_id)).remote(pid, born, process_id)


class RayProcess:
    """A process that hosts one rank, as Ray's actor.

    Attributes:
        actor_id: Ray's, hexadecimal.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.actor_id: str = actor._actor_id.hex()

    def run(self, spec: HostSpec) -> Future[None]:
        """As `HostProcess.run`; the error is Ray's."""
        hand_over(self.actor_id, spec)
        ended: Future[None] = self._actor.run.remote().future()
        return ended

    def kill(self) -> None:
        """As `HostProcess.kill`."""
        with contextlib.suppress(RayError, RuntimeError, ValueError):
            ray.kill(self._actor, no_restart=True)


def devices_of(placements: Sequence[Placement], nodes: Sequence[Node]) -> dict[int, list[str]]:
    """The accelerators that ranks are placed on, as their nodes name them, by the nodes' ranks."""
    used: dict[int, set[int]] = {}
    for placement in placements:
        if placement.has_accelerators:
            used.setdefault(placement.node_rank, set()).update(placement.local_hardware_ranks)
    return {rank: [nodes[rank].accelerator_names[i] for i in sorted(used[rank])] for rank in sorted(used)}


def _refusal(wait_s: float) -> str:
    if wait_s > 0:
        return f"its devices were not free within {seconds_text(wait_s)}"
    return "its devices are not free; `wait_s=` waits for them, `rlinf devices` shows who has what"
