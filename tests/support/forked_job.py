"""A job whose ranks are real processes, launched, watched and killed as on Ray, but forked by the tests' own server."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing import connection, popen_forkserver
from multiprocessing.context import ForkServerProcess
from typing import NamedTuple

from rlinf_scheduler.channel import Starter
from rlinf_scheduler.comm import ClusterSecret
from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.host.host import WorkerHost
from rlinf_scheduler.host.log_lines import receive_log_lines
from rlinf_scheduler.observe.status_service import StatusService
from rlinf_scheduler.observe.time_service import TimeService
from rlinf_scheduler.observe.why import WhyService
from rlinf_scheduler.planning import Node, Topology
from rlinf_scheduler.session import Session, SideBySide, set_current
from rlinf_scheduler.weights.index_service import open_index_when_needed
from rlinf_scheduler.worker import supervision
from rlinf_scheduler.worker.channel_starter import ChannelStarter
from rlinf_scheduler.worker.device_lock import DeviceLockServer
from rlinf_scheduler.worker.group_calls import GroupCalls
from rlinf_scheduler.worker.processes import Processes
from rlinf_scheduler.worker.supervision import groups_in

TOLD_WITHIN_S = 60.0


def wait_for_ends(monkeypatch):
    """Have it be waited for what is told of the ends of processes, as long as that takes on a busy machine."""
    reason_of_death = GroupCalls.reason_of_death

    def reason_in_time(group, call, address, wait_s, otherwise):
        return reason_of_death(group, call, address, wait_s and TOLD_WITHIN_S, otherwise)

    monkeypatch.setattr(supervision, "UNSAID_GRACE_S", TOLD_WITHIN_S)
    monkeypatch.setattr(GroupCalls, "reason_of_death", reason_in_time)


def host(pipe, env_vars):
    """What such a process runs."""
    # The worker's, as in a process of Ray's.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.current_process()._config.pop("daemon", None)  # it may have children
    os.environ.update(env_vars)
    spec = pipe.recv()
    pipe.close()
    WorkerHost().run(spec)


class ProcessOfManyThreads(ForkServerProcess):
    """Whoever waits for it, looks whether it runs, or starts another one, may find that it has ended."""

    @staticmethod
    def _Popen(process):
        return _Popen(process)


class _Popen(popen_forkserver.Popen):
    """How it has ended is read from a pipe, which says it once: by one thread at a time."""

    def __init__(self, process):
        self._reading = threading.Lock()
        super().__init__(process)

    def poll(self, flag=os.WNOHANG):
        if flag != os.WNOHANG:
            connection.wait([self.sentinel])
        with self._reading:
            return super().poll()


class ForkedProcess:
    """A process that hosts one rank."""

    target = host

    def __init__(self, environment, watches):
        self._watches = watches
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = ProcessOfManyThreads(
            target=type(self).target, args=(theirs, dict(environment.env_vars)), daemon=True
        )
        self._watching = None
        self._process.start()
        theirs.close()

    def run(self, spec):
        self._pipe.send(spec)
        ended = Future()
        if self._watches:
            self._watching = threading.Thread(target=self._watch, args=(ended,), daemon=True)
            self._watching.start()
        return ended

    def _watch(self, ended):
        self._process.join()
        self._pipe.close()
        status = self._process.exitcode
        if status == 0:
            ended.set_result(None)
        else:
            # As little as Ray mostly says.
            ended.set_exception(RuntimeError("connection error code 2"))

    def kill(self):
        self._process.kill()

    def join(self):
        """Wait until it has ended, and that was told."""
        self._process.join(20)
        if self._watching is not None:
            self._watching.join(20)


class ForkedProcesses(Processes):
    """Starts them; `started` has them all. If it `watches`, their ends are told, as Ray mostly does.

    `on_start` is called with each.
    """

    process_class = ForkedProcess

    def __init__(self):
        self.started = []
        self.watches = True
        self.on_start = lambda: None

    def reserve(self, group, devices, wait_s, given_up=None):
        """No other job is there."""
        return lambda *_: None

    def held_elsewhere(self):
        """Nor has it anything."""
        return set()

    def start(self, node_id, environment):
        del node_id
        self.started.append(self.process_class(environment, self.watches))
        self.on_start()
        return self.started[-1]


class ForkedJob:
    """A driver with two nodes of four accelerators: what a launch needs of a `Cluster`, and some more of it.

    The second node was started with a mask.
    """

    def __init__(self, processes=None):
        self.session = Session(ClusterSecret.generate(), "driver")
        node = Node(node_id="first", ip="127.0.0.1", num_accelerators=4, accelerator_type="simulated")
        masked = replace(node, node_id="second", visible=("4", "5", "6", "7"))
        self.topology = Topology(nodes=(node, masked))
        self.processes = processes or ForkedProcesses()
        self.session.provide(Topology, self.topology)
        self.session.provide(Processes, self.processes)
        self.session.service(DeviceLockServer)
        receive_log_lines(self.session)
        self.session.service(WhyService)
        self.session.service(StatusService)
        self.session.service(TimeService)
        open_index_when_needed(self.session)
        self.session.provide(Starter, self.session.service(ChannelStarter))
        set_current(self.session)

    def view(self, config):
        """The same, with the node groups of a config."""
        section = read_cluster_config(config)
        return View(self.session, self.topology.with_node_groups(section.node_groups))

    def starting(self):
        return self.session.service(SideBySide).together()

    @property
    def groups(self):
        return groups_in(self.session)

    @property
    def living(self):
        """How many of its processes run."""
        return sum(process._process.is_alive() for process in self.processes.started)

    def close(self):
        for process in self.processes.started:
            process.kill()
        self.session.close()
        for process in self.processes.started:
            process.join()


class View(NamedTuple):
    """What a launch needs of a `Cluster`."""

    session: Session
    topology: Topology
