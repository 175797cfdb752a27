"""The process that hosts one worker: reports, becomes the rank it is told to be, then runs calls until stopped."""

from __future__ import annotations

import os
import pickle
import platform
import sys
import time
import traceback
from typing import Any

from rlinf.scheduler.channel import set_runtime
from rlinf.scheduler.cluster.bus import EventBus
from rlinf.scheduler.cluster.session import Session, set_current
from rlinf.scheduler.comm import Buffer, DirectoryClient, Messenger, decode
from rlinf.scheduler.hardware.reachability import check_reachable
from rlinf.scheduler.mailbox import Mailbox
from rlinf.scheduler.planning import HardwareUnit, Topology
from rlinf.scheduler.worker import protocol
from rlinf.scheduler.worker.call_loop import CallLoop
from rlinf.scheduler.worker.context import WorkerContext, set_context
from rlinf.scheduler.worker.info import WorkerAddress, WorkerInfo
from rlinf.scheduler.worker.log_forwarding import forward_logs, sendable
from rlinf.scheduler.worker.ports import ReservedPort
from rlinf.scheduler.worker.protocol import Assignment, HostSpec, WorkerFactory
from rlinf.scheduler.worker.worker_runtime import WorkerRuntime


class WorkerHost:
    """The Ray actor of every worker. Its one method returns when the worker is stopped.

    That the call is still pending is what tells the launching process that the worker lives: Ray ends
    it with an error as soon as the process is gone.
    """

    def run(self, spec: HostSpec) -> None:
        """Host one rank until it is stopped or its launcher is gone."""
        _Hosting(spec).run()


class _Hosting:
    def __init__(self, spec: HostSpec) -> None:
        self._spec = spec
        self._address = WorkerAddress(spec.group, spec.rank)
        self._started_at = time.monotonic()
        sys.path.extend(path for path in spec.sys_path if path not in sys.path)
        self._messenger = Messenger(
            spec.secret,
            name=str(self._address),
            host=spec.node_ip,
            tcp=spec.crosses_machines,
            encryption=spec.encryption,
            on_failed=lambda _error: self._calls.stop(),  # nobody can reach this process any more
        )
        self._directory = DirectoryClient(self._messenger, spec.directory)
        self._mailbox = Mailbox(self._messenger, self._directory, str(self._address))
        self._calls = CallLoop(self._messenger)

    def run(self) -> None:
        port = ReservedPort() if self._spec.rank == 0 else None
        self._messenger.on_peer_lost(self._stop_without_launcher)
        self._messenger.serve(protocol.STOP, lambda _request: self._calls.stop(), None)
        try:
            assignment, topology, factory = self._say_hello(port.port if port else 0)
            self._become(assignment, topology)
            worker = self._construct(factory, assignment.units)
            if worker is not None:
                self._report(protocol.READY, took_s=time.monotonic() - self._started_at)
                self._calls.run(worker, assignment.max_concurrency)
        finally:
            # First the channels: what this worker took from them is confirmed while the messenger still sends.
            set_runtime(None)
            self._messenger.close()
            if port is not None:
                port.release()

    def _say_hello(self, port: int) -> tuple[Assignment, Topology, list[Buffer]]:
        """Report that this process runs; the answer comes when every rank's does."""
        hello = protocol.Hello(self._spec.launch_id, self._spec.rank, os.getpid(), port)
        frames = [pickle.dumps(self._messenger.endpoint)]
        request = self._messenger.request(self._spec.launcher, protocol.HELLO, hello, frames, reply_type=None)
        reply = request.result(timeout=self._spec.timeout_s)
        assignment: Assignment = pickle.loads(reply.frames[0])
        topology: Topology = pickle.loads(reply.frames[1])
        return assignment, topology, reply.frames[2:]

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
        session = Session(
            own_name=str(self._address),
            topology=topology,
            messenger=self._messenger,
            directory=self._directory,
            directory_endpoint=self._spec.directory,
            secret=self._spec.secret,
            crosses_machines=self._spec.crosses_machines,
            bus=EventBus(),
            log_bus=EventBus(),
        )
        set_current(session)
        set_runtime(WorkerRuntime(session, self._address))
        context = WorkerContext(info, session, self._mailbox, assignment.hardware, self._calls.stop)
        set_context(context)
        forward_logs(self._messenger, self._spec.directory, self._address, self._spec.log_level)
        if not self._spec.registers_itself:
            # Now and not later: peers may look for this worker while it is still in __init__.
            about = {"placement": pickle.dumps(assignment.placement)}
            self._directory.register(str(self._address), self._messenger.endpoint, about)

    def _construct(self, encoded: list[Buffer], units: tuple[HardwareUnit, ...]) -> Any:
        """The user's worker, or None when it could not be made and the launching process was told why."""
        phase = protocol.CHECKING
        try:
            if units:
                self._report(phase)
                check_reachable(units)
            phase = protocol.IMPORTING
            self._report(phase)
            factory: WorkerFactory = decode(encoded[0], encoded[1:])
            phase = protocol.CONSTRUCTING
            self._report(phase)
            return factory.worker_class(*factory.args, **factory.kwargs)
        except (Exception, SystemExit):  # noqa: BLE001 - the process boundary: all of it goes to the launcher
            self._report(protocol.FAILED, failed_in=phase, text=sendable(traceback.format_exc()))
            return None

    def _report(self, reached: str, **details: Any) -> None:
        # A request and not a notice: once it is answered the launcher has it, whatever happens to this process.
        progress = protocol.Progress(self._spec.launch_id, self._spec.rank, reached, **details)
        told = self._messenger.request(self._spec.launcher, protocol.PROGRESS, progress, reply_type=None)
        told.result(timeout=self._spec.timeout_s)

    def _stop_without_launcher(self, process_id: str) -> None:
        if process_id == self._spec.launcher.process_id:
            self._calls.stop()
