"""Bringing a group up: a process for every rank, then every rank constructed, or nothing left behind."""

from __future__ import annotations

import concurrent.futures
import os
import pickle
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Buffer, Request
from rlinf_scheduler.comm.failure import Failure, load_failure, read_error
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.comm.waits import LAUNCH, Wait, awaited
from rlinf_scheduler.config.net_emulation import NetEmulation
from rlinf_scheduler.errors import LaunchError, LaunchTimeout, SchedulerError
from rlinf_scheduler.events import WorkerStarted
from rlinf_scheduler.extension import extension_named
from rlinf_scheduler.face.finder import is_wanted as face_is_wanted
from rlinf_scheduler.hardware.views import HardwareTable
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.info import (
    DetachedJob,
    DrawnSeed,
    JobSettings,
    job_settings,
    job_topology,
    packed_topology,
    rank_seed,
)
from rlinf_scheduler.host.log_lines import level_to_forward
from rlinf_scheduler.host.output import LogFolder
from rlinf_scheduler.host.postmortem import Witnesses
from rlinf_scheduler.host.protocol import Assignment, HostSpec
from rlinf_scheduler.planning import Node, Placement, Topology
from rlinf_scheduler.planning.environments import EnvironmentTable, ProcessEnvironment, path_merge_of
from rlinf_scheduler.ray_backend.backend import cores_of_machines, ray_errors
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import Death, GroupMembers
from rlinf_scheduler.wording import clock_text, seconds_text
from rlinf_scheduler.worker.environment import rank_environment
from rlinf_scheduler.worker.node_watch import Fallbacks, NodeWatch
from rlinf_scheduler.worker.order import LaunchOptions
from rlinf_scheduler.worker.processes import (
    MIN_AT_ONCE,
    LaunchedRank,
    Processes,
    StartTurns,
    end_of_node,
    explanation_of,
    in_turn,
    is_the_end,
    limits_of,
    most_telling,
)
from rlinf_scheduler.worker.progress import Standing, shown_while_slow
from rlinf_scheduler.worker.supervision import LaunchedGroups

# What a launch ends with that nobody wants any more.
GIVEN_UP = "it was ended, or the process that launches it leaves the job"
_WAITING = "waiting"
_WAITS = {
    _WAITING: "waiting for its turn to start, as others start on its machine",
    protocol.STARTING: "waiting for its process to start",
    protocol.RUNNING: "its process runs and waits for the other ranks",
    protocol.CHECKING: "checking that its hardware can be reached",
    protocol.IMPORTING: "importing the worker's class",
    protocol.LOOKING: "looking which devices it sees",
    protocol.CONSTRUCTING: "still in __init__",
    protocol.CATCHING_UP: "still in what ready_when names",
    protocol.READY: "waiting for the other ranks to be ready",
}
# Of ranks that are missing, so many are told of one by one.
_MAX_TOLD = 6
_ORDER = (*_WAITS, protocol.FAILED)
_PHASES = {
    protocol.RUNNING: "to join the job",
    protocol.CHECKING: "to reach its hardware",
    protocol.IMPORTING: "to import its class",
    protocol.LOOKING: "to see its devices",
    protocol.CATCHING_UP: "in what ready_when names",
}


class Recipe:
    """What the processes of a group are made from; kept, so that a rank that died is made as it was.

    Args:
        session: of the process that launches.
        name: the group's name.
        factory: the worker's class and its arguments, encoded: by value where the class is defined in the user's
            script, by reference where it can be imported.
        options: of the launch.
        ranks: the numbers of its ranks.

    Attributes:
        name, factory, options: see above.
        members: its ranks as they are now; where they meet, once they have been started.
        seed: what its ranks' seeds are derived from.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        factory: tuple[Buffer, ...],
        options: LaunchOptions,
        ranks: Sequence[int],
    ) -> None:
        self.name = name
        self.options = options
        self.members = GroupMembers(name, tuple(ranks), launched_ns=time.time_ns())
        self.factory = factory
        self.seed = session.service(DrawnSeed).value if options.seed is None else options.seed
        topology = options.topology or job_topology(session)
        self.environments = EnvironmentTable(topology.node_groups, path_merge_of(os.environ))
        self.hardware = HardwareTable(topology)

    @property
    def launched_ns(self) -> int:
        """When it was launched."""
        return self.members.launched_ns

    def meets_at(self, address: str, port: int) -> None:
        """Let the ranks meet there; "" and 0: where the first of them is started next."""
        self.members = structs.replace(self.members, master_address=address, master_port=port)

    def joined_by(
        self, members: GroupMembers, topology: Topology, timeout_s: float, ready_when: str
    ) -> Recipe:
        """The same for ranks that join: when they are there these are the members.

        Args:
            members: see above.
            topology: what they are placed on; nodes may have come since the launch.
            timeout_s: how long the start may take, in seconds.
            ready_when: as of `LaunchOptions`; "": as the group was launched.
        """
        recipe = copy(self)
        recipe.members = members
        recipe.hardware = HardwareTable(topology)
        recipe.options = replace(
            self.options, timeout_s=timeout_s, ready_when=ready_when or self.options.ready_when
        )
        return recipe

    def seed_of(self, rank: int) -> int:
        """The seed of a rank, and of its successor."""
        return rank_seed(self.seed, self.name, rank)


def start_ranks(
    session: Session,
    placements: Sequence[Placement],
    recipe: Recipe,
    given_up: Promise[None] | None = None,
    num_restarts: int = 0,
    on_assigned: Callable[[GroupMembers], None] = lambda _: None,
) -> list[LaunchedRank]:
    """Start a process for every placement and construct the worker in it.

    Args:
        session: of the process that launches.
        placements: where the ranks are to be.
        recipe: of the group.
        given_up: done when nobody wants it any more; then this raises LaunchError.
        num_restarts: how many processes had their places before.
        on_assigned: called when all processes run, and have been told who they are, with the members that they know.

    Raises:
        LaunchError: a rank failed; the text holds its traceback.
        LaunchTimeout: some ranks were not ready at the deadline; the text says what each waits for.
        ConfigError: two node groups want different environments for one process.
    """
    launch = _Launch(session, placements, recipe, num_restarts, on_assigned)
    try:
        return launch.run(given_up)
    except BaseException:
        launch.undo()
        launch.declare_dead()  # before others have their names
        raise


def _awaits(local: dict[str, Any]) -> Wait:
    launch: _Launch = local["self"]
    return launch.awaits()


class _Launch:
    """One launch: hosts report to it on the messenger's thread, the caller waits in `run`."""

    def __init__(
        self,
        session: Session,
        placements: Sequence[Placement],
        recipe: Recipe,
        num_restarts: int = 0,
        on_assigned: Callable[[GroupMembers], None] = lambda _: None,
    ) -> None:
        self._on_assigned = on_assigned
        self._service = f"launch.{uuid.uuid4().hex}"
        self._session = session
        self._placements = placements
        self._recipe = recipe
        self._name = recipe.name
        self._options = recipe.options
        self._num_restarts = num_restarts
        self._bare_topology = job_topology(session)
        self._started_at = time.monotonic()
        self._processes = session.service(Processes)
        self._turns = session.service(StartTurns)
        self._ranks: list[LaunchedRank] = []
        # What those start with that are profiled.
        self._profiled: Mapping[int, ProcessEnvironment] = {}
        self._by_number: dict[int, LaunchedRank] = {}
        self._not_started = len(placements)
        self._missing_ready = len(placements)
        # Every rank has a process; every rank is ready. A failure sets both. No events of `threading`: the I/O thread
        # would wait for their locks, which a thread may hold whose signal handler waits for the I/O thread.
        self._all_run: Promise[None] = Promise()
        self._settled: Promise[None] = Promise()
        self._error: SchedulerError | None = None
        folder = session.fact(LogFolder)
        self._log_folder = folder.path if folder is not None else ""
        detached = session.fact(DetachedJob)
        self._detached_job = detached.name if detached is not None else ""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_at

    def run(self, given_up: Promise[None] | None) -> list[LaunchedRank]:
        messenger = self._session.messenger

        def on_given_up(_: Promise[None]) -> None:
            messenger.submit(self.abort)

        if given_up is not None:
            given_up.add_done_callback(on_given_up)
        # A host that reports when the launch is over is told that nobody serves that any more, and ends.
        messenger.serve(self._service, self._on_report, protocol.HostReport)
        messenger.on_peer_lost(self._on_peer_lost)
        watch = self._session.service(NodeWatch)
        watch.on_lost.append(self._on_node_lost)
        try:
            launched = self._session.service(LaunchedGroups)
            shown = shown_while_slow(self._session, self._standing, self._options.timeout_s)
            with launched.launching(self.abort), shown:
                self._bring_up()
        finally:
            if (
                given_up is not None
            ):  # it may outlive this launch by far, as that of a group whose ranks restart
                given_up.remove_done_callback(on_given_up)
            messenger.unserve(self._service)
            messenger.off_peer_lost(self._on_peer_lost)
            watch.on_lost.remove(self._on_node_lost)
        return self._ranks

    def _bring_up(self) -> None:
        profiling = job_settings(self._session).profiling
        if profiling is not None:
            self._profiled = of_room("profiling.starting:profiled_environments")(
                profiling,
                self._name,
                self._placements,
                self._bare_topology.nodes,
                self._recipe.environments,
                max(0.0, self._options.timeout_s - self.elapsed_s),
            )
        # The processes that had these names before are gone: a look-up waits for the ranks to come.
        self._session.directory.expect([f"{self._name}:{p.rank}" for p in self._placements])
        with ray_errors(f"Ray does not start processes for group '{self._name}'"):
            self._start_in_turn()
        self._wait_for(self._all_run)
        self._ranks = sorted(self._ranks, key=lambda rank: rank.address.rank)
        self._assign()
        self._on_assigned(self._recipe.members)
        self._wait_for(self._settled)

    def _start_in_turn(self) -> None:
        machines = [self._node_of(placement).ip for placement in self._placements]
        are_few = len(machines) <= MIN_AT_ONCE
        limits = limits_of(machines, {} if are_few else cores_of_machines())
        for place in in_turn(machines, limits, self._turns):
            if isinstance(place, Promise):
                self._wait_for(place)
                continue
            rank = self._start(self._placements[place])
            self._ranks.append(rank)
            self._by_number[rank.address.rank] = rank
            self._turns.begin(machines[place], rank)
            self._watch(rank, rank.process.run(self._spec_of(rank)))
            if self._error is not None:
                raise read_error(self._error)

    def _end_turns(self) -> None:
        for rank in self._ranks:
            self._turns.end(self._node_of(rank.placement).ip, rank)

    def _reached(self) -> list[tuple[int, str]]:
        """How far each rank has come; from any thread."""
        ranks = self._by_number
        return [
            (place.rank, ranks[place.rank].progress if place.rank in ranks else _WAITING)
            for place in self._placements
        ]

    def _standing(self) -> Standing:
        """How far the launch is; from any thread."""
        reached = self._reached()
        slowest, state = min(reached, key=lambda each: _ORDER.index(each[1]))
        ready = sum(each == protocol.READY for _, each in reached)
        return Standing(self._name, ready, len(reached), slowest, _WAITS.get(state, "failed"))

    @awaited(_awaits)
    def _wait_for(self, step: Promise[None]) -> None:
        if not step.wait(max(0.0, self._options.timeout_s - self.elapsed_s)):
            problem = f"not ready after {seconds_text(self._options.timeout_s)}"
            raise LaunchTimeout(self._name, problem, self._describe_missing())
        if self._error is not None:
            raise read_error(self._error)

    def awaits(self) -> Wait:
        """Return what a wait for it is for; in any thread."""
        missing = [each for each in self._reached() if each[1] != protocol.READY]
        peers = tuple(f"{self._name}:{rank}" for rank, _ in missing)
        detail = "; ".join(
            f"{self._name}:{rank}: {_WAITS.get(state, 'failed')}" for rank, state in missing[:_MAX_TOLD]
        )
        timeout_s = self._options.timeout_s
        return Wait(LAUNCH, f"launch of '{self._name}'", self.elapsed_s, timeout_s, peers, detail=detail)

    def undo(self) -> None:
        # Where all went well each has ended its own.
        self._session.messenger.submit(self._end_turns)
        for rank in self._ranks:
            rank.process.kill()
        self._processes.forget([rank.process for rank in self._ranks if rank.endpoint is None])

    def declare_dead(self) -> None:
        for rank in self._ranks:
            if rank.endpoint is not None:
                death = Death(rank.endpoint.process_id, str(rank.address), "it did not become ready")
                self._session.deaths.declare(death)

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_report(self, request: Request) -> None:
        match request.head:
            case protocol.HostStarted() as started:
                self._on_started(started, request)
            case protocol.Progress() as progress:
                self._on_progress(progress, request.frames)
                request.reply(None)

    def _on_started(self, started: protocol.HostStarted, request: Request) -> None:
        rank = self._by_number[started.rank]
        rank.endpoint = started.endpoint
        rank.pid, rank.born = started.pid, started.born
        is_here = started.endpoint.machine_id == self._session.messenger.endpoint.machine_id
        if is_here and not rank.exited.done():
            rank.witness = self._session.service(_witnesses).watch(rank.pid, rank.born)
        self._session.service(NodeWatch).note(rank.placement.node_id, started.endpoint.process_id)
        ip = self._node_of(rank.placement).ip
        self._session.service(Fallbacks).note(ip, str(rank.address), started.endpoint)
        rank.progress = protocol.RUNNING
        rank.report = request
        if started.port:
            self._recipe.meets_at(self._recipe.members.master_address, started.port)
        self._turns.end(self._node_of(rank.placement).ip, rank)
        self._not_started -= 1
        if self._not_started == 0:
            self._all_run.set_result(None)

    def _on_progress(self, progress: protocol.Progress, frames: list[Buffer]) -> None:
        rank = self._by_number[progress.rank]
        rank.progress = progress.reached
        if progress.reached == protocol.READY:
            node_rank = rank.placement.node_rank
            self._session.bus.emit(
                WorkerStarted(
                    self._name,
                    progress.rank,
                    node_rank,
                    rank.pid,
                    progress.took_s,
                    progress.devices,
                    self._recipe.seed_of(progress.rank),
                )
            )
            self._missing_ready -= 1
            if self._missing_ready == 0:
                self._settled.set_result(None)
        elif progress.reached == protocol.FAILED:
            self._fail(_launch_error(self._name, progress, load_failure(frames[0])))

    def abort(self) -> None:
        """Nobody wants it any more."""
        self._fail(LaunchError(self._name, GIVEN_UP))

    def _fail(self, error: SchedulerError) -> None:
        self._error = self._error or error
        self._turns.wake()
        self._all_run.set_result(None)
        self._settled.set_result(None)

    def _on_exit(self, rank: LaunchedRank, explanation: Sequence[str]) -> None:
        rank.release_witness()
        self._on_end(rank, explanation)

    def _on_peer_lost(self, process_id: str) -> None:
        lost = self._session.messenger.peers.lost.get(process_id)
        if lost is None or lost.loss not in (Loss.DECLARED, Loss.UNREACHABLE):
            return  # Ray says more of a process that has ended
        for rank in self._ranks:
            if rank.endpoint is not None and rank.endpoint.process_id == process_id:
                self._on_end(rank, [lost.reason])

    def _on_node_lost(self, node_id: str, reason: str) -> None:
        for rank in self._ranks:
            if rank.placement.node_id == node_id:
                self._on_end(rank, [reason])

    def _on_end(self, rank: LaunchedRank, explanation: Sequence[str]) -> None:
        # Until all are ready, the end of a process is the end of the launch; afterwards its group sees to it.
        if not self._settled.done() and rank.progress != protocol.FAILED:
            problem = f"rank {rank.address.rank} died while {_WAITS[rank.progress]}"
            self._fail(LaunchError(self._name, problem, explanation))

    # -- the thread that launches ----------------------------------------------------------------

    def _start(self, placement: Placement) -> LaunchedRank:
        environment = self._profiled.get(placement.rank) or self._recipe.environments.of(placement)
        process = self._processes.start(placement.node_id, environment)
        return LaunchedRank(WorkerAddress(self._name, placement.rank), placement, process, self._num_restarts)

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
            ports=session.messenger.ports,
            sys_path=self._options.sys_path or tuple(sys.path),
            log_level=self._options.log_level or level_to_forward(),
            timeout_s=self._options.timeout_s,
            registers_itself=self._options.registers_itself,
            node_id=rank.placement.node_id,
            unreachable_after_s=session.unreachable_after_s,
            unresponsive_after_s=self._options.unresponsive_after_s,
            log_folder=self._log_folder,
            library_level=self._options.library_level,
            reserves_port=rank.address.rank == self._recipe.members.ranks[0],
            master_port=self._recipe.members.master_port,
            detached_job=self._detached_job,
            extension=extension_named(),
            replaces_rlinf=face_is_wanted(),
            # A rank that launches others is told so by what holds its own messages back.
            emulates_network=session.messenger.arrivals is not None or session.fact(NetEmulation) is not None,
        )

    def _watch(self, rank: LaunchedRank, process_end: concurrent.futures.Future[None]) -> None:
        watch = self._session.service(NodeWatch)

        def ended(future: concurrent.futures.Future[None]) -> None:
            error = future.exception()
            rank.came_to_its_end = error is None
            if rank.endpoint is not None and not is_the_end(error):
                # Its own connection, or its node's silence, will show whether it is; nobody will ask the witness.
                self._session.messenger.submit(rank.release_witness)
                return
            if cause := end_of_node(error):  # first: everybody is told so
                watch.lose(rank.placement.node_id, f"{cause} at {clock_text(time.time())}")
            explanation = explanation_of(error, rank.witness)
            where = (
                f"process {rank.pid} on node {rank.placement.node_rank} ({self._node_of(rank.placement).ip})"
            )
            cause = most_telling(explanation)
            reason = f"{where}: {cause}" if rank.pid else cause
            words = self._last_words(rank)  # read here: a disk may be slow, and the I/O thread waits for none
            rank.exited.set_result(reason + words)
            self._session.messenger.submit(partial(self._on_exit, rank, [*explanation, *words.splitlines()]))

        process_end.add_done_callback(ended)

    def _last_words(self, rank: LaunchedRank) -> str:
        """What a rank that is gone had written last, as far as it can be read here, as further lines."""
        return LogFolder(self._log_folder).last_words(rank.address)

    def _assign(self) -> None:
        """Every rank has a process: tell each what it is."""
        recipe = self._recipe
        if not recipe.members.master_address:
            first = self._node_of(self._ranks[0].placement).ip
            recipe.meets_at(first, recipe.members.master_port)
        members = recipe.members
        topology = packed_topology(self._bare_topology)
        told = job_settings(self._session)
        settings = pickle.dumps(told) if told != JobSettings() else b""
        for rank in self._ranks:
            assignment = Assignment(
                placement=rank.placement,
                node=self._node_of(rank.placement),
                members=members,
                environment=rank_environment(
                    rank.placement,
                    members=members,
                    node=self._node_of(rank.placement),
                    set_by_group=dict(recipe.environments.of(rank.placement).env_vars),
                    seed=recipe.seed_of(rank.address.rank),
                ),
                max_concurrency=self._options.max_concurrency,
                hardware=recipe.hardware.views_of(rank.placement),
                units=recipe.hardware.units_of(rank.placement),
                num_restarts=rank.num_restarts,
                returns=self._options.returns,
                ready_when=self._options.ready_when,
                seed=recipe.seed_of(rank.address.rank),
                seeds_generators=self._options.seed is not None,
                settings=settings,
                launched_ns=recipe.launched_ns,
            )
            if rank.report is not None:
                frames = [pickle.dumps(assignment), topology, *recipe.factory]
                rank.report.reply(None, frames, snapshot=False)

    def _node_of(self, placement: Placement) -> Node:
        return self._bare_topology.nodes[placement.node_rank]

    def _describe_missing(self) -> list[str]:
        nodes = {placement.rank: placement for placement in self._placements}
        reached = self._reached()
        return [self._describe(nodes[rank], state) for rank, state in reached if state != protocol.READY]

    def _describe(self, placement: Placement, state: str) -> str:
        node_rank = placement.node_rank
        silence = self._session.service(NodeWatch).silence(node_rank)
        text = "; ".join(filter(None, [_WAITS[state], silence]))
        return f"rank {placement.rank} on node {node_rank} ({self._node_of(placement).ip}): {text}"


def _witnesses(_session: Session) -> Witnesses:
    return Witnesses()


def _launch_error(group: str, progress: protocol.Progress, failure: Failure) -> LaunchError:
    """What a rank raised, as the launch's error; its cause is the exception itself."""
    doing = _PHASES.get(progress.failed_in, progress.failed_in)
    problem = f"rank {progress.rank} failed {doing}: {failure.text.partition(chr(10))[0]}"
    error = LaunchError(group, problem, failure.traceback.rstrip().splitlines())
    error.__cause__ = failure.error()
    return error
