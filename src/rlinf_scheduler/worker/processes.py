"""The processes of ranks: started and ended by Ray, so many at a time, and what Ray says of their ends."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.placement_group import PlacementGroup

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Endpoint, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import DeviceHeld, LaunchError
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.actor_spec import (
    DetachedHostActor,
    HostActor,
    hand_over,
    withdraw,
    withdraw_all,
    withdraw_of_the_dead,
)
from rlinf_scheduler.host.info import DetachedJob, job_topology
from rlinf_scheduler.host.postmortem import Witness
from rlinf_scheduler.host.processes import kill_process
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
# What Ray says of processes that have gone with their node.
_NODE_ENDED = "the actor's node was terminated"
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_TELLING = ("exit detail", "exit type", "error:")
# What Ray says when a process is gone and left no word; it goes on with a list of what might have been.
_WITHOUT_A_WORD = "connection error code 2"
# Each waits for Ray, too, so a core has more than one at a time; and a machine some, however little is known of it.
_OF_A_CORE = 2
MIN_AT_ONCE = 8


class HostProcess(Protocol):
    """A process that hosts one rank."""

    def run(self, spec: HostSpec) -> Future[None]:
        """Let it host; the future is done when the process is gone, with an error unless it came to its end."""

    def kill(self) -> None:
        """End it now; nothing happens if it is gone."""


class GivesBack(Protocol):
    """Gives devices back that a launch counts on."""

    def __call__(self, devices: Set[tuple[str, str]] | None = None, /) -> None:
        """Give back these, by their nodes' ids and their names, or (None) all; once, from any thread."""


@dataclass(eq=False, slots=True)
class _Reserved:
    """Devices of a launch: what Ray gave for it, all of them, and those that it counts on still."""

    taken: Sequence[PlacementGroup]
    all: frozenset[tuple[str, str]]
    relied: set[tuple[str, str]]


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
        self._unused: list[tuple[Sequence[PlacementGroup], frozenset[tuple[str, str]]]] = []
        # Variables, by the node's id.
        self._lack: dict[str, Mapping[str, str]] = {}
        if session.home == session.messenger.endpoint:
            # A Ray that this process was connected to before stays; the job's devices do not stay with it.
            session.on_close_last(self._holds.release)
            # Not here, on the I/O thread: Ray's head may not answer.
            session.messenger.run_beside(withdraw_of_the_dead)
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
    ) -> GivesBack:
        """Hold accelerators for the job until it ends; gives what gives them back before, from any thread.

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
            self._give_back(_Reserved((), frozenset(relied), relied))
            raise
        return partial(self._give_back, _Reserved(taken, frozenset(relied), relied))

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

    def _give_back(self, reserved: _Reserved, devices: Set[tuple[str, str]] | None = None) -> None:
        """Give back what a launch took, or some of it, as soon as nobody else in the job counts on what was taken."""
        with self._changing:
            given = reserved.relied & (reserved.relied if devices is None else devices)
            reserved.relied -= given
            self._relied -= Counter(given)
            if reserved.taken:
                self._unused.append((reserved.taken, reserved.all))
                reserved.taken = ()
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


def device_names(placement: Placement, nodes: Sequence[Node]) -> set[tuple[str, str]]:
    """The accelerators of one rank, by its node's id and their names."""
    ((rank, names),) = devices_of([placement], nodes).items() or [(0, [])]
    return {(nodes[rank].node_id, name) for name in names}


def _refusal(wait_s: float) -> str:
    if wait_s > 0:
        return f"its devices were not free within {seconds_text(wait_s)}"
    return "its devices are not free; `wait_s=` waits for them, `rlinf devices` shows who has what"


@dataclass(eq=False)
class LaunchedRank:
    """One rank's process.

    Attributes:
        address: the rank's name.
        placement: where it runs.
        process: its process.
        num_restarts: how many processes had its place before.
        exited: done when the process is gone; its result says why.
        gone: done when it counts as gone, with why; its process may live on somewhere.
        endpoint: how to reach it, once it runs.
        pid: its process id, once it runs.
        born: when its process began, see `birth_of`.
        progress: how far its launch has come.
        report: its word that it runs, to be answered with its assignment.
        ended_by: what ended its process by force, since it had not ended in time; "" otherwise.
        came_to_its_end: its process has ended in order.
        witness: who sees its process end; None where that is on another machine.
    """

    address: WorkerAddress
    placement: Placement
    process: HostProcess
    num_restarts: int = 0
    exited: concurrent.futures.Future[str] = field(default_factory=concurrent.futures.Future)
    gone: Promise[str] = field(default_factory=Promise)
    endpoint: Endpoint | None = None
    pid: int = 0
    born: int = 0
    progress: str = protocol.STARTING
    report: Request | None = None
    witness: Witness | None = None
    ended_by: str = ""
    came_to_its_end: bool = False

    def release_witness(self) -> None:
        """See its end no more; the I/O thread's, as making the witness is."""
        witness, self.witness = self.witness, None
        if witness is not None:
            witness.close()


def is_the_end(error: BaseException | None) -> bool:
    """Whether what Ray says means that a process is gone, and not only that Ray does not reach it now."""
    return not isinstance(error, ActorUnavailableError)


def end_of_node(error: BaseException | None) -> str:
    """Why the node of a process that is gone is gone too, if Ray says that it is; else ""."""
    if _NODE_ENDED not in str(error):
        return ""
    if "health check" in str(error):
        return "its raylet stopped answering"
    return "its raylet ended"


def most_telling(lines: Sequence[str]) -> str:
    """The one line of an explanation that says most."""
    return next((line for key in _TELLING for line in reversed(lines) if key in line.lower()), lines[-1])


def explanation_of(error: BaseException | None, witness: Witness | None) -> list[str]:
    """All that Ray says about the end of a process, without its colours and blank lines; or the witness, who knows."""
    if error is None:
        return ["its process ended"]
    if _WITHOUT_A_WORD in str(error):
        cause = "" if witness is None else witness.cause()
        return [cause or "its process is gone without a word: killed, crashed, or out of memory"]
    lines = [_COLOURS.sub("", line).rstrip() for line in str(error).splitlines()]
    return [line for line in lines if line.strip()] or [type(error).__name__]


class StartTurns:
    """Which processes are starting; a service of a session, shared by all launches.

    It has no lock, which a signal handler could meet: two launches that look at once may start one process too many.

    Attributes:
        changed: done when there is more room than when it was read.
    """

    def __init__(self, _session: Session | None = None) -> None:
        self.changed: Promise[None] = Promise()
        self._starting: dict[str, dict[object, None]] = {}

    def begin(self, machine: str, process: object) -> None:
        """A process begins to start on a machine."""
        self._starting.setdefault(machine, {})[process] = None

    def end(self, machine: str, process: object) -> None:
        """It is up, or gone; on the I/O thread."""
        self._starting.get(machine, {}).pop(process, None)
        self.wake()

    def wake(self) -> None:
        """Let all launches look again; on the I/O thread."""
        before, self.changed = self.changed, Promise()
        before.set_result(None)

    def room(self, machine: str, limit: int) -> int:
        """How many more may start there."""
        return limit - len(self._starting.get(machine, ()))


def limits_of(machines: Sequence[str], num_cores: Mapping[str, float]) -> dict[str, int]:
    """How many processes may start at a time on each machine.

    Args:
        machines: their addresses.
        num_cores: of those where that is known; others are taken to have as many as this one.
    """
    here = os.cpu_count() or 1
    cores = {machine: max(here, num_cores.get(machine, 0)) for machine in machines}
    return {machine: max(MIN_AT_ONCE, int(_OF_A_CORE * each)) for machine, each in cores.items()}


def in_turn(
    machines: Sequence[str], limits: Mapping[str, int], turns: StartTurns
) -> Iterator[int | Promise[None]]:
    """The places of processes in the order in which they may start; a promise: nothing may until it is done.

    Args:
        machines: on which machine each process is to start; the first of a machine starts first.
        limits: how many may start at a time on each machine.
        turns: the launches that are starting; one that gets a place begins there before the next one.
    """
    left: dict[str, list[int]] = {}
    for place in reversed(range(len(machines))):
        left.setdefault(machines[place], []).append(place)
    while left:
        changed = turns.changed
        free = [machine for machine in left if turns.room(machine, limits[machine]) > 0]
        if not free:
            yield changed
        for machine in free:
            yield left[machine].pop()
            if not left[machine]:
                del left[machine]
