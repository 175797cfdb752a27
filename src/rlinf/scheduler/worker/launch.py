"""Bringing a group up: a process for every rank, then every rank constructed, or nothing left behind."""

from __future__ import annotations

import concurrent.futures
import pickle
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray import cloudpickle

from rlinf.scheduler.cluster.engine import on_node
from rlinf.scheduler.cluster.log_lines import level_to_forward
from rlinf.scheduler.cluster.session import Session
from rlinf.scheduler.comm import Endpoint, Request
from rlinf.scheduler.errors import LaunchError, LaunchTimeout, SchedulerError
from rlinf.scheduler.events import GroupLaunched, WorkerLogged, WorkerStarted
from rlinf.scheduler.placement import Placement
from rlinf.scheduler.worker import protocol
from rlinf.scheduler.worker.environment import rank_environment
from rlinf.scheduler.worker.host import WorkerHost
from rlinf.scheduler.worker.info import WorkerAddress
from rlinf.scheduler.worker.protocol import Assignment, HostSpec, WorkerFactory

_WAITS = {
    protocol.STARTING: "waiting for its process to start",
    "hello": "its process runs and waits for the other ranks",
    protocol.IMPORTING: "importing the worker's class",
    protocol.CONSTRUCTING: "still in __init__",
}


@dataclass(eq=False)
class LaunchedRank:
    """One rank's process, as the launching process holds it.

    Attributes:
        address: the rank's name.
        placement: where it runs.
        actor: Ray's handle of its process.
        exited: done when the process is gone; its result says why.
        endpoint: how to reach it, once it has said hello.
    """

    address: WorkerAddress
    placement: Placement
    actor: Any
    exited: concurrent.futures.Future[str] = field(default_factory=concurrent.futures.Future)
    endpoint: Endpoint | None = None
    pid: int = 0
    progress: str = protocol.STARTING
    failure: str = ""
    _hello: Request | None = None

    def kill(self) -> None:
        """End the process now."""
        ray.kill(self.actor, no_restart=True)


def launch_ranks(
    session: Session,
    placements: Sequence[Placement],
    factory: WorkerFactory,
    name: str,
    *,
    max_concurrency: int,
    timeout_s: float,
    registers_itself: bool = False,
) -> list[LaunchedRank]:
    """Start a process for every placement and construct the worker in it.

    Raises:
        LaunchError: a rank failed; the text holds its traceback.
        LaunchTimeout: some ranks were not ready at the deadline; the text says what each waits for.
    """
    launch = _Launch(session, placements, factory, name, max_concurrency, timeout_s, registers_itself)
    try:
        ranks = launch.run()
    except BaseException:
        launch.undo()
        raise
    session.bus.emit(GroupLaunched(name, len(ranks), launch.elapsed_s))
    return ranks


class LaunchDesk:
    """Where hosts report and log: one a launching process, for all its launches."""

    def __init__(self, session: Session) -> None:
        self._launches: dict[str, _Launch] = {}
        session.messenger.serve(protocol.HELLO, lambda request: self._pass_on(request, _Launch.on_hello))
        session.messenger.serve(
            protocol.PROGRESS, lambda request: self._pass_on(request, _Launch.on_progress)
        )
        session.messenger.serve(protocol.LOG, lambda notice: session.bus.emit(WorkerLogged(*notice.head)))

    def open(self, launch: _Launch) -> None:
        """Pass reports of this launch on to it."""
        self._launches[launch.id] = launch

    def close(self, launch: _Launch) -> None:
        """Answer later reports of this launch with its end."""
        self._launches.pop(launch.id, None)

    def _pass_on(self, request: Request, handle: Callable[[_Launch, Request], None]) -> None:
        launch = self._launches.get(request.head[0])
        if launch is None:
            request.fail(LaunchError("", "this launch is over: it failed or passed its deadline"))
        else:
            handle(launch, request)


_desks: dict[str, LaunchDesk] = {}


def _desk_of(session: Session) -> LaunchDesk:
    key = session.messenger.endpoint.process_id
    if key not in _desks:
        _desks[key] = LaunchDesk(session)
        session.on_close(partial(_forget_desk, key))
    return _desks[key]


def _forget_desk(key: str) -> None:
    _desks.pop(key, None)


class _Launch:
    """One launch: hosts report to it on the messenger's thread, the caller waits in `run`."""

    def __init__(
        self,
        session: Session,
        placements: Sequence[Placement],
        factory: WorkerFactory,
        name: str,
        max_concurrency: int,
        timeout_s: float,
        registers_itself: bool,
    ) -> None:
        self.id = uuid.uuid4().hex
        self._session = session
        self._placements = placements
        self._name = name
        self._max_concurrency = max_concurrency
        self._timeout_s = timeout_s
        self._registers_itself = registers_itself
        self._started_at = time.monotonic()
        # By value where the class is defined in the user's script, by reference where it can be imported.
        self._factory_bytes = cloudpickle.dumps(factory)
        self._ranks: list[LaunchedRank] = []
        self._lock = threading.Lock()
        self._missing_hellos = len(placements)
        self._missing_ready = len(placements)
        self._settled = threading.Event()
        self._error: SchedulerError | None = None
        self._master_port = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_at

    def run(self) -> list[LaunchedRank]:
        desk = _desk_of(self._session)
        desk.open(self)
        try:
            self._ranks = [self._start(placement) for placement in self._placements]
            for rank in self._ranks:
                self._watch(rank, rank.actor.run.remote(self._spec_of(rank)))
            if not self._settled.wait(max(0.0, self._timeout_s - self.elapsed_s)):
                raise LaunchTimeout(
                    self._name, f"not ready after {self._timeout_s:.0f} s", self._describe_missing()
                )
            if self._error is not None:
                raise self._error
        finally:
            desk.close(self)
        return self._ranks

    def undo(self) -> None:
        for rank in self._ranks:
            rank.kill()

    def on_hello(self, request: Request) -> None:
        _, number, pid, _hostname, port = request.head
        rank = self._ranks[number]
        with self._lock:
            rank.endpoint = pickle.loads(request.frames[0])
            rank.pid = pid
            rank.progress = "hello"
            rank._hello = request
            if number == 0:
                self._master_port = port
            self._missing_hellos -= 1
            complete = self._missing_hellos == 0
        if complete:
            self._assign()

    def on_progress(self, request: Request) -> None:
        _, number, progress, *details = request.head
        rank = self._ranks[number]
        rank.progress = progress
        if progress == protocol.READY:
            placement = rank.placement
            event = WorkerStarted(self._name, number, placement.node_rank, rank.pid, float(details[0]))
            self._session.bus.emit(event)
            with self._lock:
                self._missing_ready -= 1
                complete = self._missing_ready == 0
            if complete:
                self._settled.set()
        elif progress == protocol.FAILED:
            phase, text = details
            problem = f"rank {number} failed {_phase_words(phase)}"
            self._fail(LaunchError(self._name, problem, text.rstrip().splitlines()))
        request.reply(None)

    def _start(self, placement: Placement) -> LaunchedRank:
        address = WorkerAddress(self._name, placement.rank)
        actor = (
            ray.remote(WorkerHost)
            .options(
                num_cpus=0,
                scheduling_strategy=on_node(placement.node_id),
                max_restarts=0,
                max_task_retries=0,
            )
            .remote()
        )
        return LaunchedRank(address, placement, actor)

    def _spec_of(self, rank: LaunchedRank) -> HostSpec:
        session = self._session
        return HostSpec(
            launch_id=self.id,
            group=self._name,
            rank=rank.address.rank,
            launcher=session.messenger.endpoint,
            directory=session.directory_endpoint,
            secret=session.secret,
            node_ip=self._node_of(rank.placement).ip,
            crosses_machines=session.crosses_machines,
            sys_path=tuple(sys.path),
            log_level=level_to_forward(),
            timeout_s=self._timeout_s,
            registers_itself=self._registers_itself,
        )

    def _watch(self, rank: LaunchedRank, ref: Any) -> None:
        def ended(future: concurrent.futures.Future[None]) -> None:
            error = future.exception()
            rank.exited.set_result(_reason(error))
            # Before it was ready, the end of its process is the end of the launch; afterwards its group sees to it.
            if rank.progress not in (protocol.READY, protocol.FAILED):
                problem = f"rank {rank.address.rank} died while {_WAITS[rank.progress]}"
                self._fail(LaunchError(self._name, problem, [_reason(error)]))

        ref.future().add_done_callback(ended)

    def _assign(self) -> None:
        """Every rank has a process: tell each what it is."""
        first = self._ranks[0]
        master_address = self._node_of(first.placement).ip
        for rank in self._ranks:
            assignment = Assignment(
                placement=rank.placement,
                world_size=len(self._ranks),
                topology=self._session.topology,
                environment=rank_environment(
                    rank.placement,
                    group=self._name,
                    world_size=len(self._ranks),
                    accelerator_type=self._node_of(rank.placement).accelerator_type,
                    master_address=master_address,
                    master_port=self._master_port,
                ),
                max_concurrency=self._max_concurrency,
                master_address=master_address,
                master_port=self._master_port,
            )
            hello = rank._hello
            if hello is not None:
                hello.reply(None, [pickle.dumps(assignment), self._factory_bytes])

    def _node_of(self, placement: Placement) -> Any:
        return self._session.topology.nodes[placement.node_rank]

    def _fail(self, error: SchedulerError) -> None:
        with self._lock:
            self._error = self._error or error
        self._settled.set()

    def _describe_missing(self) -> list[str]:
        return [
            f"rank {rank.address.rank} on node {rank.placement.node_rank} "
            f"({self._node_of(rank.placement).ip}): {_WAITS[rank.progress]}"
            for rank in self._ranks
            if rank.progress != protocol.READY
        ]


def _phase_words(phase: str) -> str:
    return "to import its class" if phase == protocol.IMPORTING else "in __init__"


def _reason(error: BaseException | None) -> str:
    """Why a process ended, in one line of what Ray says."""
    if error is None:
        return "its process ended"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    detail = next(
        (line for line in lines if "exit detail" in line.lower() or "exit type" in line.lower()), ""
    )
    return detail or (lines[0] if lines else type(error).__name__)
