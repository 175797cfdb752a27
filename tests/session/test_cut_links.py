"""A job on two machines whose cable is pulled: what is said of the other side, and what becomes of it."""

import queue
import threading
import time

import pytest

from machine_fixtures import received
from machine_peers import join
from rlinf_scheduler.errors import PeerDied
from rlinf_scheduler.events import WorkerResponsive, WorkerUnresponsive

DEADLINE_S = 60.0
UNREACHABLE_AFTER_S = 12.0


@pytest.fixture
def driver(machines, secret):
    options = {"unreachable_after_s": UNREACHABLE_AFTER_S}
    with join(secret, machines.left.address, "driver", **options) as session:
        yield session


@pytest.fixture
def there(machines, driver, start_on):
    """Our end of the pipe to a process on the other machine, and how it is reached."""
    _, pipe = start_on(machines.right, "leave_when_dead", driver.messenger.endpoint)
    return pipe, received(pipe)


def test_a_cut_link_is_said_within_ten_seconds_and_is_dead_only_after_the_grace(
    driver, machines, there, start_on, tmp_path
):
    pipe, endpoint = there
    has_begun = threading.Event()
    driver.messenger.serve("launch", lambda request: has_begun.set())  # it never hears what it is to be
    arguments = driver.messenger.endpoint, str(tmp_path / "log"), UNREACHABLE_AFTER_S
    rank, _ = start_on(machines.right, "host_a_rank", *arguments)
    assert has_begun.wait(DEADLINE_S)
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
    # As if this machine had lost its power: what it has launched ends, and leaves a word.
    rank.join(DEADLINE_S)
    assert rank.exitcode is not None
    said = (tmp_path / "log" / "rollout-1.log").read_text()
    assert "'rollout:1' ends: the job's home is gone: unreachable for 1" in said
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
