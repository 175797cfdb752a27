"""The process that keeps a job which outlives its drivers: its home, in a Ray actor that belongs to nobody."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import ray

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm.threads import run_beside
from rlinf_scheduler.config import ClusterConfig
from rlinf_scheduler.extension import EXTENSION_VARIABLE, load_extension
from rlinf_scheduler.host.info import DetachedJob
from rlinf_scheduler.host.output import LogFolder, capture_output
from rlinf_scheduler.host.processes import watch_parent
from rlinf_scheduler.opening import look_at_nodes, open_home, refresh_nodes, tell_nodes
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.job_file import RunningJob
from rlinf_scheduler.worker.home_server import DriverServer

JOB_SERVER_NAME = "job-server"
# Ray ends an actor within it.
_KILLED_WITHIN_S = 5.0
# A job server that nobody has had opened is gone after it: who wanted it was killed, or it could not be opened.
UNOPENED_S = 15.0


@dataclass(frozen=True, slots=True)
class JobServerSpec:
    """What a job server is to open.

    Attributes:
        name: of the job.
        program: of the driver that begins it, for people.
        num_nodes: how many nodes there must be; None: those that there are.
        timeout_s: how long they may take, in seconds.
        config: what the job is told, a `ClusterConfig`; pickled, for it may hold what the extension adds.
        log_folder: where ranks have files of what they print; "": a folder of the job's own.
        extension: the module that every process of the job imports first; "" for none.
    """

    name: str
    program: str
    num_nodes: int | None
    timeout_s: float
    config: bytes
    log_folder: str = ""
    extension: str = ""


class JobServer:
    """The actor. Its methods are called by drivers, one after the other."""

    def __init__(self) -> None:
        self._record = b""
        self._session: Session | None = None
        self._output: object = None
        self._is_opening = False
        self._end = partial(_end, ray.get_runtime_context().current_actor)
        run_beside(self._end_unopened)

    def open(self, order: bytes) -> bytes:
        """Open the job unless that is done; gives the record of how it is reached."""
        if not self._record:
            self._is_opening = True
            try:
                self._open(pickle.loads(order))
            finally:
                self._is_opening = False
        return self.record()

    def record(self) -> bytes:
        """How the job is reached; empty if it could not be opened."""
        if self._session is not None and self._session.closed:
            self.wait_for_end()
        return self._record

    def wait_for_end(self) -> None:
        """Does not return: that this process is gone is the answer."""
        threading.Event().wait()

    def _end_unopened(self) -> None:
        """What opens nothing does not keep the job's name."""
        unused = 0  # looks in a row: a driver that has failed may try again
        while not self._record:
            unused = 0 if self._is_opening else unused + 1
            if unused > 1:
                self._end()
                return
            time.sleep(UNOPENED_S)

    def _open(self, order: JobServerSpec) -> None:
        begun = time.monotonic()
        if order.extension:
            os.environ[EXTENSION_VARIABLE] = order.extension
        load_extension()
        config: ClusterConfig = pickle.loads(order.config)
        reports = look_at_nodes(order.num_nodes, order.timeout_s, begun, config.nodes)
        end = partial(run_beside, self._end)
        program = f"job '{order.name}', begun by {order.program}"
        self._session = session = open_home(
            JOB_SERVER_NAME,
            reports,
            config,
            at_last=(end,),
            detached=DetachedJob(order.name),
            program=program,
            log_folder=order.log_folder,
        )
        try:
            session.service(partial(DriverServer, refresh=refresh_nodes))
            node = "the raylet of its job server's node ended"
            watch_parent(session, partial(session.leave, node), lambda _: session.leave(node))
        except BaseException:
            session.close()
            raise
        folder = session.fact(LogFolder)
        if folder is not None:
            self._output = capture_output(folder, WorkerAddress(JOB_SERVER_NAME, 0))
        _set_title(f"job server of job '{order.name}'")
        tell_nodes(session, reports)
        job = session.fact(RunningJob)
        self._record = msgspec.msgpack.encode(job)


def _end(actor: Any) -> None:
    """End this process: by Ray, which frees the job's name at once; else by force."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):
            stream.flush()
    with suppress(Exception):
        ray.kill(actor, no_restart=True)
    time.sleep(_KILLED_WITHIN_S)
    os._exit(0)


def _set_title(title: str) -> None:
    # Ray's own: it has written over what another copy of that library would have to find.
    getattr(sys.modules.get("ray._raylet"), "setproctitle", lambda _: None)(title)
