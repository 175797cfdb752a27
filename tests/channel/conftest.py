"""The backends that the same tests of channels run on.

A backend makes channels (`create`, `connect`) and runs functions in another process (`run`), which returns a task with
`result(timeout_s)`. Those whose other processes are real ones have tasks with a `pid` too, and `start_server` for a
channel in a process of its own that may be killed.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from channel_processes import hold_channels, run_function

from comm_fixtures import secret  # noqa: F401
from io_steps import io_steps  # noqa: F401
from machine_fixtures import processes, star, start_on  # noqa: F401
from rlinf.testing.local import LocalRuntime
from rlinf_scheduler.channel import Channel, Starter, operation
from rlinf_scheduler.errors import WorkerError
from rlinf_scheduler.session import Session, set_current

DEADLINE_S = 60.0
_numbers = itertools.count()


class Backend:
    """What every backend has."""

    def name(self):
        return f"channel-{next(_numbers)}"

    def create(self, maxsize=0, **options):
        return Channel.create(self.name(), maxsize=maxsize, **options)

    def connect(self, name):
        return Channel.connect(name, timeout_s=DEADLINE_S)


class InProcess(Backend):
    """Server and clients share this process; other 'processes' are threads of it."""

    def __init__(self):
        self.pool = ThreadPoolExecutor(8)

    def run(self, function, *args):
        return self.pool.submit(function, *args)

    def close(self):
        self.pool.shutdown()


def _is_stopped(thread):
    state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


class Task:
    """A function that runs in a child process."""

    def __init__(self, process, pipe):
        self.process = process
        self.pipe = pipe
        self.pid = process.pid

    def result(self, timeout_s):
        if not self.pipe.poll(timeout_s):
            message = f"process {self.pid} has not answered after {timeout_s} s"
            raise TimeoutError(message)
        value, error = self.pipe.recv()
        self.process.join(timeout_s)
        if error is not None:
            raise error
        return value

    def signal(self, number):
        os.kill(self.pid, number)

    def stop(self):
        """Return when the process does not run any more, but is still there."""
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + DEADLINE_S
        while not all(_is_stopped(thread) for thread in Path(f"/proc/{self.pid}/task").iterdir()):
            assert time.monotonic() < deadline
            os.sched_yield()

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.join(DEADLINE_S)


class StarterOf(Starter):
    """Lets channels be held by whoever a backend says."""

    def __init__(self, start):
        self.start = start


class Sockets(Backend):
    """Every part is a process: the test, the holder of the channels, and each task."""

    def __init__(self):
        self.context = multiprocessing.get_context("forkserver")
        self.runtime = LocalRuntime()
        self.runtime.provide(Starter, StarterOf(self.ask_host))
        self.children = []
        self.host = None

    def start(self):
        self.host = self.spawn(hold_channels)

    def spawn(self, target, *args):
        ours, theirs = self.context.Pipe()
        arguments = (self.runtime.address, theirs, *args)
        process = self.context.Process(target=target, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self.children.append(process)
        return Task(process, ours)

    def run(self, function, *args):
        return self.spawn(run_function, f"task:{next(_numbers)}", function, args)

    def ask_host(self, wanted):
        self.host.pipe.send(wanted)
        assert self.host.pipe.poll(DEADLINE_S)
        endpoint, error = self.host.pipe.recv()
        if error is not None:
            raise error
        return endpoint

    def start_server(self):
        """A channel in a process of its own: (the task that holds it, the channel)."""
        shared, self.host = self.host, self.spawn(hold_channels)
        try:
            return self.host, self.create()
        finally:
            self.host = shared

    def close(self):
        self.runtime.close()
        for process in self.children:
            process.kill()
            process.join(DEADLINE_S)
            process.close()


@pytest.fixture(scope="session")
def socket_processes():
    backend = Sockets()
    backend.start()
    yield backend
    backend.close()


@pytest.fixture
def sockets(socket_processes):
    set_current(socket_processes.runtime)
    return socket_processes


@pytest.fixture
def in_process():
    backend = InProcess()
    with LocalRuntime():
        yield backend
    backend.close()


class OnRay(Backend):
    """Every part but the test is a worker on Ray; the tasks run on two nodes in turn."""

    class _Task:
        def __init__(self, result):
            self._result = result

        def result(self, timeout_s):
            try:
                return self._result.wait(timeout_s)[0]
            except WorkerError as error:
                raise (error.cause or error) from error

    def __init__(self, cluster):
        from channel_workers import Holder, Runner

        from rlinf.scheduler import NodePlacementStrategy

        self.holder = Holder.create_group().launch(cluster, NodePlacementStrategy([0]), name="holder")
        self.runners = Runner.create_group().launch(
            cluster, NodePlacementStrategy([0, 1]), name="runners", max_concurrency=8
        )
        # Channels are held by one worker: a process each would take a second each.
        driver = cluster.session
        self.session = Session(driver.secret, "driver", home=driver.home)
        self.session.provide(Starter, StarterOf(self._hold))

    def _hold(self, wanted):
        return self._Task(self.holder.hold(wanted.spec)).result(DEADLINE_S)

    def run(self, function, *args):
        runner = self.runners.execute_on(next(_numbers) % 2)
        return self._Task(runner.run(function, *args))

    def close(self):
        self.session.close()
        self.runners.terminate()
        self.holder.terminate()


@pytest.fixture(scope="session")
def ray_workers(ray_cluster):
    backend = OnRay(ray_cluster)
    yield backend
    backend.close()


@pytest.fixture
def on_ray(ray_workers):
    set_current(ray_workers.session)
    return ray_workers


@pytest.fixture
def patient(monkeypatch):
    """After its deadline an operation of this process hears the channel's word on it, however busy the machine is."""
    monkeypatch.setattr(operation, "ANSWER_S", DEADLINE_S)
    monkeypatch.setattr(operation, "MIN_GRACE_S", DEADLINE_S)


@pytest.fixture(params=["in_process", "sockets", pytest.param("on_ray", marks=pytest.mark.ray)])
def backend(request):
    return request.getfixturevalue(request.param)
