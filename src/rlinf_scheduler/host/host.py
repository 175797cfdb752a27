"""The process that hosts one worker: reports, becomes the rank it is told to be, then runs calls until stopped."""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Buffer, Request, decode
from rlinf_scheduler.comm.directory import RETURNS
from rlinf_scheduler.comm.failure import dump_failure
from rlinf_scheduler.comm.forking import children_end_here
from rlinf_scheduler.comm.threads import run_beside
from rlinf_scheduler.errors import ClusterError, CodecError
from rlinf_scheduler.extension import EXTENSION_VARIABLE, load_extension
from rlinf_scheduler.face.finder import install as install_face
from rlinf_scheduler.hardware.vendors import MASKS
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.call_loop import CallLoop
from rlinf_scheduler.host.calls import without_own_frames
from rlinf_scheduler.host.info import (
    DetachedJob,
    JobSettings,
    Role,
    WorkerInfo,
    note_hosted,
    seed_generators,
    unpacked_topology,
)
from rlinf_scheduler.host.joining import offer_joining
from rlinf_scheduler.host.observed import be_observed
from rlinf_scheduler.host.output import (
    LineSender,
    LogFolder,
    RankOutput,
    capture_output,
    forward_logs,
    tell_method,
)
from rlinf_scheduler.host.ports import ReservedPort
from rlinf_scheduler.host.processes import (
    LEAVE_GRACE_S,
    STARTED_BY_VARIABLE,
    end_after,
    end_descendants,
    watch_parent,
)
from rlinf_scheduler.host.protocol import Assignment, HostSpec, WorkerFactory
from rlinf_scheduler.mailbox import open_mailbox_when_needed
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.own_stats import OwnStats, PastStates
from rlinf_scheduler.observe.stacks import Threads
from rlinf_scheduler.observe.time_sheets import TimeSheets
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.proc import birth_of
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import Session, set_current
from rlinf_scheduler.session.membership import Death, Draining, GroupMembers, GroupMembership
from rlinf_scheduler.wording import clock_text

# Ray sets the vendor's mask from the GPUs that a process asks of it; ours are decided by the placement. For processes
# of ours only: a user's own Ray tasks keep what Ray gives them.
_MASKS_STAY = {f"RAY_EXPERIMENTAL_NOSET_{name}": "1" for name in MASKS}
_log = logging.getLogger(__name__)


class WorkerHost:
    """What the process of every worker runs. Its one method returns when the worker is stopped.

    That the call is still pending is what tells the launching process that the worker lives: Ray ends
    it with an error as soon as the process is gone.
    """

    def run(self, spec: HostSpec) -> None:
        """Host one rank until it is stopped or its launcher is gone."""
        os.environ.update(_MASKS_STAY)
        address = WorkerAddress(spec.group, spec.rank)
        note_hosted(address)
        output = capture_output(LogFolder(spec.log_folder), address)
        Hosting(spec, output, tell_method(address, output)).run()


class Hosting:
    """One rank, from its process's first message to its last call."""

    def __init__(
        self,
        spec: HostSpec,
        output: RankOutput | None = None,
        tell_method: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spec = spec
        self._address = WorkerAddress(spec.group, spec.rank)
        self._output = output
        self._started_at = time.monotonic()
        self._phase = protocol.RUNNING
        self._devices: tuple[str, ...] = ()
        self._leaving = False
        self._release_port: Callable[[], None] = lambda: None
        sys.path.extend(path for path in spec.sys_path if path not in sys.path)
        if spec.replaces_rlinf:
            install_face(driver=0)  # before any module of the user's
        if spec.extension:  # what the process is told it is may be of types that the module adds
            os.environ[EXTENSION_VARIABLE] = spec.extension
        self.session = Session(
            spec.secret,
            str(self._address),
            home=spec.home,
            host=spec.node_ip,
            tcp=spec.crosses_machines,
            encryption=spec.encryption,
            ports=spec.ports,
            unreachable_after_s=spec.unreachable_after_s,
            unresponsive_after_s=spec.unresponsive_after_s,
        )
        where = LogFolder(spec.log_folder).file_of(self._address) if output is not None else ""
        self._line_sender = LineSender(self.session, self._address, where)
        if output is not None:
            output.follow(self.session, self._line_sender)
        # Now: who finds this worker by its name may send to it.
        open_mailbox_when_needed(self.session)
        self.calls = CallLoop(self.session.messenger, tell_method, self.session.service(Threads))
        self.session.service(PastStates).state = self.calls.state  # before it notes any
        self.session.service(OwnActivity).add(self.calls.add_to)
        self.session.service(TimeSheets).running = self.calls.running
        self.session.service(OwnStats).add(self.calls.add_stats)
        be_observed(self.session)
        self.session.on_close(lambda: self._release_port())
        # Also when nobody can reach this process any more.
        self.session.on_close(self.calls.close)

    def run(self) -> None:
        """Report, become the rank, run its calls; returns when it is stopped."""
        messenger = self.session.messenger
        messenger.on_peer_lost(self._leave_without)
        messenger.peers.on_fenced.append(lambda reason: self._leave(f"it was declared dead: {reason}"))
        messenger.connect(self._spec.home)  # to be told of its end
        messenger.serve(protocol.STOP, lambda _request: self.calls.stop(), None)
        messenger.serve(protocol.FINISH, lambda _request: self.calls.finish(), None)
        messenger.serve(protocol.DRAIN, self._on_drain, protocol.Drain)
        messenger.serve(protocol.PREPARE, self._on_prepare, protocol.Prepare)
        self.calls.before[protocol.ON_RESIZE] = self._take_members
        self.session.members.on_change.append(self._on_members)
        watch_parent(self.session, self._leave_with_node, self._leave_with_parent)
        try:
            assignment, frames = self._report_start(self._reserved_port())
            worker = self._construct(assignment, frames)
            if worker is not None:
                # Before anybody can call it.
                self.calls.take(worker)
                took_s = time.monotonic() - self._started_at
                self._report(protocol.READY, took_s=took_s, devices=self._devices)
                self.calls.run(assignment.max_concurrency)
        finally:
            # First: what is below this rank is not to see it leave.
            end_descendants()
            self.session.close()
            end_descendants()

    def _reserved_port(self) -> int:
        """The group's port for rendezvous; 0 on other ranks than the first."""
        if not self._spec.reserves_port:
            return 0
        try:
            return self._reserve_port(self._spec.master_port)
        except ClusterError as error:
            if not self._spec.master_port:
                raise
            _log.warning("'%s' comes back without it: %s", self._address, error)
            return 0

    def _reserve_port(self, wanted: int = 0) -> int:
        """A port for rendezvous; the one before is free again."""
        port = ReservedPort(wanted=wanted, ports=self._spec.ports)
        self._release_port()
        self._release_port = port.release
        return port.port

    def _report_start(self, port: int) -> tuple[Assignment, list[Buffer]]:
        """Report that this process runs; the answer comes when every rank's does."""
        messenger = self.session.messenger
        pid = os.getpid()
        started = protocol.HostStarted(self._spec.rank, messenger.endpoint, pid, port, birth_of(pid))
        request = messenger.request(self._spec.launcher, self._spec.launch, started, reply_type=None)
        reply = request.result(timeout=self._spec.timeout_s)
        assignment: Assignment = pickle.loads(reply.frames[0])
        return assignment, reply.frames[1:]

    def _construct(self, assignment: Assignment, frames: list[Buffer]) -> Any:
        """The user's worker, or None when it could not be made and the launching process was told why."""
        try:
            self._become(assignment, frames[0])
            if self._spec.extension:
                self._enter(protocol.IMPORTING)
                with children_end_here():
                    load_extension()
            if assignment.units:
                self._enter(protocol.CHECKING)
                self._take_hardware(assignment)
            self._enter(protocol.IMPORTING)
            with children_end_here():
                factory: WorkerFactory = decode(frames[1], frames[2:])
            # Now: what the class's module imports may have changed what is seen.
            self._devices = self._look(assignment)
            self._enter(protocol.CONSTRUCTING)
            if assignment.seeds_generators:
                seed_generators(assignment.seed)
            with children_end_here():
                worker = factory.worker_class(*factory.args, **factory.kwargs)
            return self._made_ready(worker, assignment)
        except BaseException as error:  # noqa: BLE001 - the process boundary: all of it goes to the launcher
            if self._leaving:
                return None
            # That a class is read from bytes is no concern of its author: why it cannot be imported is.
            hides_cause = self._phase == protocol.IMPORTING and isinstance(error, CodecError)
            cause = error.__cause__ if hides_cause else None
            self._report(
                protocol.FAILED, [dump_failure(without_own_frames(cause or error))], failed_in=self._phase
            )
            return None

    def _made_ready(self, worker: Any, assignment: Assignment) -> Any:
        """The worker; one that comes back or joins has got what it needs.

        Raises:
            ClusterError: it says that it is not ready.
        """
        method = assignment.ready_when
        if (assignment.num_restarts or assignment.members.epoch) and method:
            self._enter(protocol.CATCHING_UP)
            with children_end_here():
                is_ready = self.calls.completed(getattr(worker, method)())
            if is_ready is False:
                name = f"{type(worker).__name__}.{method}()"
                raise ClusterError(
                    f"{name} returned False; it is to wait until the rank is ready, and return then"
                )
        return worker

    def _take_hardware(self, assignment: Assignment) -> None:
        """Let the worker find its hardware with what only this node can say of it, once that can be reached."""
        # Few ranks have any.
        from rlinf_scheduler.hardware.reachability import check_reachable  # noqa: PLC0415
        from rlinf_scheduler.hardware.registry import hardware_type  # noqa: PLC0415

        check_reachable(assignment.units)
        role = self.session.fact(Role)
        views = list(assignment.hardware)
        for index, unit in enumerate(assignment.units):
            kind = hardware_type(unit.type)
            settings = kind.at_node(unit.config)
            if settings is not unit.config:
                views[index] = kind.view(settings)
        if role is not None and tuple(views) != assignment.hardware:
            self.session.provide(Role, dataclasses.replace(role, hardware=tuple(views)))

    def _become(self, assignment: Assignment, topology: Buffer) -> None:
        members = assignment.members
        os.environ.update(assignment.environment)
        info = WorkerInfo(
            address=self._address,
            world_size=members.world_size,
            placement=assignment.placement,
            node_ip=self._spec.node_ip,
            hostname=platform.node(),
            pid=os.getpid(),
            master_address=members.master_address,
            master_port=members.master_port,
            num_restarts=assignment.num_restarts,
            seed=assignment.seed,
        )
        os.environ[STARTED_BY_VARIABLE] = self.session.messenger.endpoint.process_id
        self.session.provide(Topology, unpacked_topology(topology))
        if assignment.settings:
            self.session.provide(JobSettings, pickle.loads(assignment.settings))
        self.session.provide(Role, Role(info, assignment.hardware, self.calls.stop))
        place = GroupMembership(members, assignment.launched_ns, self._address.rank)
        self.session.provide(GroupMembership, place)
        if members.group in self.session.members.known:  # it was told of them before it had a place
            self._on_members(self.session.members.known[members.group])
        if self._spec.emulates_network:
            of_room("emulation.arrivals:emulate_network")(self.session, assignment.placement.node_rank)
        set_current(self.session)
        self.session.provide(LogFolder, LogFolder(self._spec.log_folder))
        if self._spec.detached_job:
            self.session.provide(DetachedJob, DetachedJob(self._spec.detached_job))
        forward_logs(
            self.session, self._line_sender, self._spec.log_level, self._spec.library_level, self._output
        )
        if not self._spec.registers_itself:
            # Now and not later: peers may look for this worker while it is still in __init__.
            about: dict[str, Any] = {"placement": pickle.dumps(assignment.placement)}
            if assignment.returns:
                about[RETURNS] = self._spec.launcher.process_id
            self.session.directory.register(str(self._address), self.session.messenger.endpoint, about)
            returns = self._spec.launcher.process_id if assignment.returns else ""
            offer_joining(self.session, self._spec, topology, returns)

    def _look(self, assignment: Assignment) -> tuple[str, ...]:
        """The accelerators that this process sees, which are those of its placement."""
        if not assignment.node.num_accelerators:
            return ()
        # Without accelerators there is nothing to look for.
        from rlinf_scheduler.hardware.seen import check_seen  # noqa: PLC0415

        self._enter(protocol.LOOKING)
        return check_seen(assignment.placement, assignment.node, os.environ)

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._report(phase)

    def _report(self, reached: str, frames: Sequence[Buffer] = (), **details: Any) -> None:
        # A request and not a notice: once it is answered the launcher has it, whatever happens to this process.
        progress = protocol.Progress(self._spec.rank, reached, **details)
        messenger = self.session.messenger
        told = messenger.request(self._spec.launcher, self._spec.launch, progress, frames, reply_type=None)
        told.result(timeout=self._spec.timeout_s)

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_drain(self, notice: Request) -> None:
        self.session.service(Draining).begin(notice.head.why, notice.head.left_s)
        members = self.session.members
        place = self.session.fact(GroupMembership)
        if place is None:
            self.calls.finish()
            return
        # A call of who had not heard yet may be on its way still.
        caught_up = members.catch_up(members.newest(place.members))
        caught_up.add_done_callback(lambda _: self.calls.finish())

    def _on_prepare(self, request: Request) -> None:
        distributed = sys.modules.get("torch.distributed")  # who has not imported it has met nobody
        meets = distributed is not None and distributed.is_available() and distributed.is_initialized()
        port = self._reserve_port() if request.head.reserves_port else 0
        request.reply(protocol.Prepared(meets, self.calls.has(protocol.ON_RESIZE), port))

    def _on_members(self, members: GroupMembers) -> None:
        """A group was resized; a worker that follows is told of it in the order of its calls."""
        if not self.calls.has(protocol.ON_RESIZE):
            self._take_members(members)

    def _take_members(self, *resized: GroupMembers) -> None:
        """The group has these members now, the last ones, as far as this process is concerned."""
        place, members = self.session.fact(GroupMembership), resized[-1] if resized else None
        if place is None or not isinstance(members, GroupMembers):
            return
        if not members.replaces(place.members):
            return
        if place.rank not in members:
            self.session.service(Draining).leaves = True
        else:
            self.session.provide(GroupMembership, place._replace(members=members))
            os.environ.update(members.environment_of(place.rank))

    def _leave_without(self, process_id: str) -> None:
        why = self.session.messenger.peers.why_lost(process_id)
        if process_id == self._spec.home.process_id:
            self._leave(f"the job's home is gone: {why}")
        elif process_id == self._spec.launcher.process_id:
            self._leave(f"the process that launched it is gone: {why}")
        else:
            self.calls.give_up_calls(process_id)

    def _leave_with_node(self) -> None:
        cause = "its raylet ended"
        gone = protocol.NodeGone(self._spec.node_id, cause, time.time())
        self.session.messenger.notify(self._spec.home, protocol.NODE_GONE, gone)
        self._leave(cause)

    def _leave_with_parent(self, parent: str) -> None:
        cause = f"the process that started it ({parent}) ended"
        own_id = self.session.messenger.endpoint.process_id
        death = Death(own_id, str(self._address), f"{cause} at {clock_text(time.time())}")
        self.session.deaths.declare(death)
        self._leave(cause)

    def _leave(self, why: str) -> None:
        """End this process: in order if that takes a moment, by force if a call goes on, or Ray's part does."""
        if not self._leaving:
            self._leaving = True
            _log.info("'%s' ends: %s", self._address, why)
            if self._output is not None:  # nobody may be left to be told
                self._output.note(f"'{self._address}' ends: {why}")
            self.calls.stop()
            try:
                run_beside(end_after, LEAVE_GRACE_S)
            except RuntimeError:  # there is no thread to be had: this one sees to it
                self.session.messenger.call_later(LEAVE_GRACE_S, partial(end_after, 0.0))
