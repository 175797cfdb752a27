"""Processes of ranks that are started by another one, as Ray's raylet starts them, and that nobody else can end."""

import os
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

from ray_workers import Probe

from forked_job import ForkedJob, ForkedProcess, ForkedProcesses, host
from rlinf.scheduler import PackedPlacementStrategy
from waits import DEADLINE_S, wait_until


def call_itself(name):
    Path("/proc/self/comm").write_text(name)


def start_host(pipe, env_vars):
    """Start a process that hosts a rank; end after it."""
    child = os.fork()
    if child == 0:
        call_itself("python")
        host(pipe, env_vars)
        os._exit(0)
    pipe.close()
    os.waitpid(child, 0)


def raylet(pipe, env_vars):
    """What Ray has on every node."""
    call_itself("raylet")
    start_host(pipe, env_vars)


def script(pipe, env_vars):
    """A program of the user's that runs the interpreter, and does not become it."""
    call_itself("wrap.sh")
    start_host(pipe, env_vars)


def raylet_with_script(pipe, env_vars):
    """A raylet that starts such a script."""
    call_itself("raylet")
    child = os.fork()
    if child == 0:
        script(pipe, env_vars)
        os._exit(0)
    pipe.close()
    os.waitpid(child, 0)
    # Its script ended, the raylet did not.
    os.read(os.pipe()[0], 1)


def lasting(pipe, env_vars):
    """As an actor of Ray's: what it hosted has ended, and it has not."""
    host(pipe, env_vars)
    os.read(os.pipe()[0], 1)


class BehindARaylet(ForkedProcess):
    target = raylet


class BehindAScript(ForkedProcess):
    target = script


class BehindARayletAndAScript(ForkedProcess):
    target = raylet_with_script


class Lasting(ForkedProcess):
    target = lasting


class LastingProcesses(ForkedProcesses):
    process_class = Lasting


class BehindRaylets(ForkedProcesses):
    """Each rank has one for itself."""

    process_class = BehindARaylet


class BehindScripts(ForkedProcesses):
    """Each rank has one for itself, and no raylet above it."""

    process_class = BehindAScript


class BehindRayletsAndScripts(ForkedProcesses):
    """Each rank has a script, and above that a raylet, for itself."""

    process_class = BehindARayletAndAScript


class OutOfReach(ForkedProcess):
    def kill(self):
        """It does not come through."""


class ProcessesOutOfReach(ForkedProcesses):
    """Ranks on nodes that nothing reaches any more."""

    process_class = OutOfReach


def launch_and_wait(pipe, state):
    """A driver whose two ranks have a child each: they idle, are in a call, or that without a thread to spare."""
    # Its own server of forks: each rank would import all that by itself.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    forkserver.set_forkserver_preload(["ray_workers", "forked_job"])
    group = Probe.create_group().launch(ForkedJob(), PackedPlacementStrategy(0, 1), name="parents")
    pids = group.start_a_child().wait(DEADLINE_S) + [who["pid"] for who in group.who().wait(DEADLINE_S)]
    if "threadless" in state:
        group.run_out_of_threads().wait(DEADLINE_S)
    if "busy" in state:
        group.hold_the_process()
        wait_until(lambda: all(group.is_held().wait(DEADLINE_S)))
    pipe.send(pids)
    signal.pause()
