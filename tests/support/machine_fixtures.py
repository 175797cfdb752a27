"""Machines with addresses of their own for tests: this process is on one of them, its children are on the others."""

import contextlib
import multiprocessing
from multiprocessing import forkserver

import pytest

from machine_peers import run
from rlinf.testing.machines import MachineStar, MachinesUnavailable

DEADLINE_S = 60.0


class MachinePair(MachineStar):
    """Two machines, `left` and `right`."""

    def __init__(self):
        super().__init__(2)
        self.left, self.right = self.machines

    def unplug(self):
        """Nothing gets through between them, and nobody is told."""
        super().unplug(self.right)

    def plug_in(self):
        """Put the cable back."""
        super().plug_in(self.right)


@contextlib.contextmanager
def made_or_skipped(make):
    """What `make` makes of network namespaces; the test is skipped where that cannot be done."""
    try:
        made = make()
    except MachinesUnavailable as error:
        pytest.skip(f"tests between machines need root or CAP_SYS_ADMIN, veth and bridge: {error}")
    with made:
        yield made


@pytest.fixture(scope="module")
def processes():
    """Starts processes quickly; its helper must not be started on one of the machines."""
    context = multiprocessing.get_context("forkserver")
    forkserver.ensure_running()
    return context


@pytest.fixture
def machines(processes):
    """Two machines, `left` and `right`; the test runs on the left one."""
    with made_or_skipped(MachinePair) as pair, pair.left.entered():
        yield pair


@pytest.fixture
def star(processes):
    """Three machines and the switch between them; the test runs on the first one."""
    with made_or_skipped(lambda: MachineStar(3)) as star, star.machines[0].entered():
        yield star


@pytest.fixture
def start_on(processes, secret):
    """Starts a function of `machine_peers` on a machine; gives its process and its pipe."""
    with contextlib.ExitStack() as stack:

        def start(machine, function, *args):
            ours, theirs = processes.Pipe()
            arguments = (theirs, machine, function, secret, *args)
            process = processes.Process(target=run, args=arguments, daemon=True)
            process.start()
            theirs.close()
            stack.callback(ours.close)
            stack.callback(process.join, DEADLINE_S)
            stack.callback(process.kill)
            return process, ours

        yield start


def received(pipe):
    """What comes next, in time."""
    assert pipe.poll(DEADLINE_S)
    return pipe.recv()
