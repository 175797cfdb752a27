"""A job on two machines whose cable is pulled: what is said of the other side, and what becomes of it."""

import multiprocessing
import queue
import time
from multiprocessing import forkserver

import pytest

from machine_peers import join, run
from rlinf.scheduler.errors import PeerDied
from rlinf.scheduler.events import WorkerResponsive, WorkerUnresponsive
from rlinf.testing.machines import MachinePair, MachinesUnavailable

DEADLINE_S = 20.0
UNREACHABLE_AFTER_S = 12.0


@pytest.fixture(scope="module")
def processes():
    """Starts processes quickly; its helper must not be started on one of the machines."""
    context = multiprocessing.get_context("forkserver")
    forkserver.ensure_running()
    return context


@pytest.fixture
def machines(processes):
    try:
        pair = MachinePair()
    except MachinesUnavailable as error:
        pytest.skip(f"tests between machines need root or CAP_SYS_ADMIN, and veth: {error}")
    with pair, pair.left.entered():
        yield pair


@pytest.fixture
def driver(machines, secret):
    options = {"unreachable_after_s": UNREACHABLE_AFTER_S}
    with join(secret, machines.left.address, "driver", **options) as session:
        yield session


@pytest.fixture
def there(machines, processes, secret, driver):
    """Our end of the pipe to a process on the other machine, and how it is reached."""
    ours, theirs = processes.Pipe()
    arguments = theirs, machines.right, "leave_when_dead", secret, driver.messenger.endpoint
    process = processes.Process(target=run, args=arguments, daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(DEADLINE_S)
    yield ours, ours.recv()
    process.kill()
    process.join(DEADLINE_S)
    ours.close()


def test_a_cut_link_is_said_within_ten_seconds_and_is_dead_only_after_the_grace(driver, machines, there):
    pipe, endpoint = there
    told = queue.SimpleQueue()
    driver.bus.subscribe(told.put)
    waiting = driver.messenger.request(endpoint, "nothing", None)
    assert waiting.exception(DEADLINE_S) is not None
    machines.unplug()
    cut = time.monotonic()
    silent = told.get(timeout=DEADLINE_S)
    assert isinstance(silent, WorkerUnresponsive)
    assert "unreachable for" in silent.reason
    assert time.monotonic() - cut < 10
    waiting = driver.messenger.request(endpoint, "nothing", None)
    assert isinstance(waiting.exception(DEADLINE_S), PeerDied)
    assert time.monotonic() - cut > UNREACHABLE_AFTER_S - 2
    machines.plug_in()
    # It was alive all the while, and is told that it is not.
    assert pipe.poll(DEADLINE_S)
    assert "the job declared this process dead: unreachable for 1" in pipe.recv()


def test_a_link_that_comes_back_in_time_has_cost_nobody_his_life(driver, machines, there):
    _, endpoint = there
    told = queue.SimpleQueue()
    driver.bus.subscribe(told.put)
    machines.unplug()
    assert isinstance(told.get(timeout=DEADLINE_S), WorkerUnresponsive)
    machines.plug_in()
    assert isinstance(told.get(timeout=DEADLINE_S), WorkerResponsive)
    assert driver.directory.lookup("env:0", DEADLINE_S).endpoint == endpoint
