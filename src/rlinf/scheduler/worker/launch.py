"""Bringing a group up: a process for every rank, then every rank constructed, or nothing left behind."""

from __future__ import annotations

import concurrent.futures
import pickle
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray

from rlinf.scheduler.comm import Buffer, Request, encode
from rlinf.scheduler.comm.failure import Failure, load_failure
from rlinf.scheduler.engine.engine import on_node, ray_errors
from rlinf.scheduler.errors import LaunchError, LaunchTimeout, SchedulerError
from rlinf.scheduler.events import GroupLaunched, WorkerStarted
from rlinf.scheduler.hardware.views import HardwareTable
from rlinf.scheduler.host import protocol
from rlinf.scheduler.host.host import WorkerHost
from rlinf.scheduler.host.info import WorkerAddress, job_topology
from rlinf.scheduler.host.log_lines import level_to_forward
from rlinf.scheduler.host.protocol import Assignment, HostSpec, WorkerFactory
from rlinf.scheduler.planning import Node, Placement, Topology
from rlinf.scheduler.planning.environments import EnvironmentTable
from rlinf.scheduler.session import Session
from rlinf.scheduler.worker.environment import rank_environment
from rlinf.scheduler.worker.launched_rank import LaunchedRank, explanation_of, reason_of

_WAITS = {
    protocol.STARTING: "waiting for its process to start",
    protocol.GREETED: "its process runs and waits for the other ranks",
    protocol.CHECKING: "checking that its hardware can be reached",
    protocol.IMPORTING: "importing the worker's class",
    protocol.CONSTRUCTING: "still in __init__",
    protocol.READY: "waiting for the other ranks to be ready",
}
_PHASES = {
    protocol.GREETED: "to join the job",
    protocol.CHECKING: "to reach its hardware",
    protocol.IMPORTING: "to import its class",
}


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How a group is launched.

    Attributes:
        max_concurrency: how many plain methods may run at a time on a rank.
        timeout_s: how long the launch may take, in seconds.
        topology: what the placements were made on; its node groups say what the processes start with and what
            hardware they are given. None: the bare cluster.
        registers_itself: the worker makes its name known; otherwise its host does.
    """

    max_concurrency: int = 1
    timeout_s: float = 120.0
    topology: Topology | None = None
    registers_itself: bool = False


def launch_ranks(
    session: Session,
    placements: Sequence[Placement],
    factory: WorkerFactory,
    name: str,
    options: LaunchOptions,
) -> list[LaunchedRank]:
    """Start a process for every placement and construct the worker in it.

    Raises:
        LaunchError: a rank failed; the text holds its traceback.
        LaunchTimeout: some ranks were not ready at the deadline; the text says what each waits for.
        ConfigError: two node groups want different environments for one process.
    """
    launch = _Launch(session, placements, factory, name, options)
    try:
        ranks = launch.run()
    except BaseException:
        launch.undo()
        raise
    session.bus.emit(GroupLaunched(name, len(ranks), launch.elapsed_s))
    return ranks


class _Launch:
    """One launch: hosts report to it on the messenger's thread, the caller waits in `run`."""

    def __init__(
        self,
        session: Session,
        placements: Sequence[Placement],
        factory: WorkerFactory,
        name: str,
        options: LaunchOptions,
    ) -> None:
        self._service = f"launch.{uuid.uuid4().hex}"
        self._session = session
        self._placements = placements
        self._name = name
        self._options = options
        self._bare_topology = job_topology(session)
        topology = options.topology or self._bare_topology
        self._environments = EnvironmentTable(topology.node_groups)
        self._hardware = HardwareTable(topology)
        self._started_at = time.monotonic()
        # By value where the class is defined in the user's script, by reference where it can be imported.
        encoded = encode(factory).detached()
        self._factory: list[Buffer] = [encoded.head, *encoded.buffers]
        self._host_class = ray.remote(WorkerHost)
        self._ranks: list[LaunchedRank] = []
        self._missing_hellos = len(placements)
        self._missing_ready = len(placements)
        # Every rank has a process; every rank is ready. A failure sets both.
        self._greeted = threading.Event()
        self._settled = threading.Event()
        self._error: SchedulerError | None = None
        self._master_port = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_at

    def run(self) -> list[LaunchedRank]:
        messenger = self._session.messenger
        # A host that reports when the launch is over is told that nobody serves that any more, and ends.
        messenger.serve(self._service, self._on_report, protocol.Report)
        try:
            # Whoever had these names before is gone: a look-up waits for the ranks to come.
            self._session.directory.expect([f"{self._name}:{p.rank}" for p in self._placements])
            with ray_errors(f"Ray does not start processes for group '{self._name}'"):
                self._ranks.extend(map(self._start, self._placements))
                for rank in self._ranks:
                    self._watch(rank, rank.actor.run.remote(self._spec_of(rank)))
            self._wait_for(self._greeted)
            self._assign()
            self._wait_for(self._settled)
        finally:
            messenger.unserve(self._service)
        return self._ranks

    def _wait_for(self, step: threading.Event) -> None:
        if not step.wait(max(0.0, self._options.timeout_s - self.elapsed_s)):
            problem = f"not ready after {self._options.timeout_s:.0f} s"
            raise LaunchTimeout(self._name, problem, self._describe_missing())
        if self._error is not None:
            raise self._error

    def undo(self) -> None:
        for rank in self._ranks:
            rank.kill()

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_report(self, request: Request) -> None:
        match request.head:
            case protocol.Hello() as hello:
                self._on_hello(hello, request)
            case protocol.Progress() as progress:
                self._on_progress(progress, request.frames)
                request.reply(None)

    def _on_hello(self, hello: protocol.Hello, request: Request) -> None:
        rank = self._ranks[hello.rank]
        rank.endpoint = hello.endpoint
        rank.pid = hello.pid
        rank.progress = protocol.GREETED
        rank.hello = request
        if hello.rank == 0:
            self._master_port = hello.port
        self._missing_hellos -= 1
        if self._missing_hellos == 0:
            self._greeted.set()

    def _on_progress(self, progress: protocol.Progress, frames: list[Buffer]) -> None:
        rank = self._ranks[progress.rank]
        rank.progress = progress.reached
        if progress.reached == protocol.READY:
            node_rank = rank.placement.node_rank
            event = WorkerStarted(self._name, progress.rank, node_rank, rank.pid, progress.took_s)
            self._session.bus.emit(event)
            self._missing_ready -= 1
            if self._missing_ready == 0:
                self._settled.set()
        elif progress.reached == protocol.FAILED:
            self._fail(_launch_error(self._name, progress, load_failure(frames[0])))

    def _fail(self, error: SchedulerError) -> None:
        self._error = self._error or error
        self._greeted.set()
        self._settled.set()

    def _on_exit(self, rank: LaunchedRank, error: BaseException | None) -> None:
        # Until all are ready, the end of a process is the end of the launch; afterwards its group sees to it.
        if not self._settled.is_set() and rank.progress != protocol.FAILED:
            problem = f"rank {rank.address.rank} died while {_WAITS[rank.progress]}"
            self._fail(LaunchError(self._name, problem, explanation_of(error)))

    # -- the thread that launches ----------------------------------------------------------------

    def _start(self, placement: Placement) -> LaunchedRank:
        environment = self._environments.of(placement)
        runtime_env: dict[str, Any] = {}
        # Set by Ray, not by the host: the dynamic linker and the interpreter read variables before any code runs.
        if environment.env_vars:
            runtime_env["env_vars"] = dict(environment.env_vars)
        if environment.python_interpreter_path:
            runtime_env["py_executable"] = environment.python_interpreter_path
        options = {"runtime_env": runtime_env} if runtime_env else {}
        actor = self._host_class.options(
            num_cpus=0,
            scheduling_strategy=on_node(placement.node_id),
            max_restarts=0,
            max_task_retries=0,
            **options,
        ).remote()
        return LaunchedRank(WorkerAddress(self._name, placement.rank), placement, actor)

    def _spec_of(self, rank: LaunchedRank) -> HostSpec:
        session = self._session
        return HostSpec(
            launch=self._service,
            group=self._name,
            rank=rank.address.rank,
            launcher=session.messenger.endpoint,
            home=session.home,
            secret=session.secret,
            node_ip=self._node_of(rank.placement).ip,
            crosses_machines=session.crosses_machines,
            encryption=session.messenger.encryption,
            sys_path=tuple(sys.path),
            log_level=level_to_forward(),
            timeout_s=self._options.timeout_s,
            registers_itself=self._options.registers_itself,
        )

    def _watch(self, rank: LaunchedRank, ref: Any) -> None:
        def ended(future: concurrent.futures.Future[None]) -> None:
            error = future.exception()
            rank.ended_in_order = error is None
            where = (
                f"process {rank.pid} on node {rank.placement.node_rank} ({self._node_of(rank.placement).ip})"
            )
            rank.exited.set_result(f"{where}: {reason_of(error)}" if rank.pid else reason_of(error))
            self._session.messenger.submit(partial(self._on_exit, rank, error))

        ref.future().add_done_callback(ended)

    def _assign(self) -> None:
        """Every rank has a process: tell each what it is."""
        first = self._ranks[0]
        master_address = self._node_of(first.placement).ip
        topology = pickle.dumps(self._bare_topology)
        for rank in self._ranks:
            assignment = Assignment(
                placement=rank.placement,
                world_size=len(self._ranks),
                environment=rank_environment(
                    rank.placement,
                    group=self._name,
                    world_size=len(self._ranks),
                    accelerator_type=self._node_of(rank.placement).accelerator_type,
                    master_address=master_address,
                    master_port=self._master_port,
                ),
                max_concurrency=self._options.max_concurrency,
                master_address=master_address,
                master_port=self._master_port,
                hardware=self._hardware.views_of(rank.placement),
                units=self._hardware.units_of(rank.placement),
            )
            if rank.hello is not None:
                frames = [pickle.dumps(assignment), topology, *self._factory]
                rank.hello.reply(None, frames, snapshot=False)

    def _node_of(self, placement: Placement) -> Node:
        return self._bare_topology.nodes[placement.node_rank]

    def _describe_missing(self) -> list[str]:
        return [
            f"rank {rank.address.rank} on node {rank.placement.node_rank} "
            f"({self._node_of(rank.placement).ip}): {_WAITS[rank.progress]}"
            for rank in self._ranks
            if rank.progress != protocol.READY
        ]


def _launch_error(group: str, progress: protocol.Progress, failure: Failure) -> LaunchError:
    """What a rank raised, as the launch's error; its cause is the exception itself."""
    doing = _PHASES.get(progress.failed_in, progress.failed_in)
    problem = f"rank {progress.rank} failed {doing}: {failure.text.partition(chr(10))[0]}"
    error = LaunchError(group, problem, failure.traceback.rstrip().splitlines())
    error.__cause__ = failure.load()
    return error
