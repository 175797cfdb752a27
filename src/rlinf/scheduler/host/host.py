"""The process that hosts one worker: reports, becomes the rank it is told to be, then runs calls until stopped."""

from __future__ import annotations

import os
import pickle
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any

from rlinf.scheduler.comm import Buffer, decode
from rlinf.scheduler.comm.failure import dump_failure
from rlinf.scheduler.errors import CodecError
from rlinf.scheduler.hardware.reachability import check_reachable
from rlinf.scheduler.host import protocol
from rlinf.scheduler.host.call_loop import CallLoop
from rlinf.scheduler.host.info import Role, WorkerAddress, WorkerInfo
from rlinf.scheduler.host.log_lines import forward_logs
from rlinf.scheduler.host.ports import ReservedPort
from rlinf.scheduler.host.protocol import Assignment, HostSpec, WorkerFactory
from rlinf.scheduler.mailbox import open_mailbox
from rlinf.scheduler.planning import Topology
from rlinf.scheduler.session import Session, set_current


class WorkerHost:
    """The Ray actor of every worker. Its one method returns when the worker is stopped.

    That the call is still pending is what tells the launching process that the worker lives: Ray ends
    it with an error as soon as the process is gone.
    """

    def run(self, spec: HostSpec) -> None:
        """Host one rank until it is stopped or its launcher is gone."""
        Hosting(spec).run()


class Hosting:
    """One rank, from its process's first message to its last call.

    Attributes:
        session: its membership in the job.
        calls: its calls.
    """

    def __init__(self, spec: HostSpec) -> None:
        self._spec = spec
        self._address = WorkerAddress(spec.group, spec.rank)
        self._started_at = time.monotonic()
        self._phase = protocol.GREETED
        sys.path.extend(path for path in spec.sys_path if path not in sys.path)
        self.session = Session(
            spec.secret,
            str(self._address),
            home=spec.home,
            host=spec.node_ip,
            tcp=spec.crosses_machines,
            encryption=spec.encryption,
        )
        # Now: who finds this worker by its name may send to it.
        self.session.service(open_mailbox)
        self.calls = CallLoop(self.session.messenger)
        # Also when nobody can reach this process any more.
        self.session.on_close(self.calls.stop)

    def run(self) -> None:
        """Report, become the rank, run its calls; returns when it is stopped."""
        self.session.messenger.on_peer_lost(self._stop_without_launcher)
        self.session.messenger.serve(protocol.STOP, lambda _request: self.calls.stop(), None)
        try:
            assignment, frames = self._say_hello(self._reserved_port())
            worker = self._construct(assignment, frames)
            if worker is not None:
                # Before anybody can call it.
                self.calls.take(worker)
                self._report(protocol.READY, took_s=time.monotonic() - self._started_at)
                self.calls.run(assignment.max_concurrency)
        finally:
            self.session.close()

    def _reserved_port(self) -> int:
        """The group's port for rendezvous; 0 on other ranks than the first."""
        if self._spec.rank != 0:
            return 0
        port = ReservedPort()
        self.session.on_close(port.release)
        return port.port

    def _say_hello(self, port: int) -> tuple[Assignment, list[Buffer]]:
        """Report that this process runs; the answer comes when every rank's does."""
        messenger = self.session.messenger
        hello = protocol.Hello(self._spec.rank, messenger.endpoint, os.getpid(), port)
        request = messenger.request(self._spec.launcher, self._spec.launch, hello, reply_type=None)
        reply = request.result(timeout=self._spec.timeout_s)
        assignment: Assignment = pickle.loads(reply.frames[0])
        return assignment, reply.frames[1:]

    def _construct(self, assignment: Assignment, frames: list[Buffer]) -> Any:
        """The user's worker, or None when it could not be made and the launching process was told why."""
        try:
            self._become(assignment, pickle.loads(frames[0]))
            if assignment.units:
                self._enter(protocol.CHECKING)
                check_reachable(assignment.units)
            self._enter(protocol.IMPORTING)
            factory: WorkerFactory = decode(frames[1], frames[2:])
            self._enter(protocol.CONSTRUCTING)
            return factory.worker_class(*factory.args, **factory.kwargs)
        except BaseException as error:  # noqa: BLE001 - the process boundary: all of it goes to the launcher
            # That a class is read from bytes is no concern of whoever wrote it: why it cannot be imported is.
            hides_cause = self._phase == protocol.IMPORTING and isinstance(error, CodecError)
            cause = error.__cause__ if hides_cause else None
            self._report(protocol.FAILED, [dump_failure(cause or error)], failed_in=self._phase)
            return None

    def _become(self, assignment: Assignment, topology: Topology) -> None:
        os.environ.update(assignment.environment)
        info = WorkerInfo(
            address=self._address,
            world_size=assignment.world_size,
            placement=assignment.placement,
            node_ip=self._spec.node_ip,
            hostname=platform.node(),
            pid=os.getpid(),
            master_address=assignment.master_address,
            master_port=assignment.master_port,
        )
        self.session.provide(Topology, topology)
        self.session.provide(Role, Role(info, assignment.hardware, self.calls.stop))
        set_current(self.session)
        forward_logs(self.session, self._address, self._spec.log_level)
        if not self._spec.registers_itself:
            # Now and not later: peers may look for this worker while it is still in __init__.
            about = {"placement": pickle.dumps(assignment.placement)}
            self.session.directory.register(str(self._address), self.session.messenger.endpoint, about)

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._report(phase)

    def _report(self, reached: str, frames: Sequence[Buffer] = (), **details: Any) -> None:
        # A request and not a notice: once it is answered the launcher has it, whatever happens to this process.
        progress = protocol.Progress(self._spec.rank, reached, **details)
        messenger = self.session.messenger
        told = messenger.request(self._spec.launcher, self._spec.launch, progress, frames, reply_type=None)
        told.result(timeout=self._spec.timeout_s)

    def _stop_without_launcher(self, process_id: str) -> None:
        if process_id == self._spec.launcher.process_id:
            self.calls.stop()
