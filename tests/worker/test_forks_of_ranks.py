"""Children that user code of a rank forks: each ends where it leaves that code, and its parent goes on."""

import asyncio
import os
import select
import signal
import sys
import threading

import pytest

from rlinf.scheduler import PackedPlacementStrategy, Worker

DEADLINE_S = 60.0
# How a child leaves, and the status with which a program of its own would end.
WAYS = {"return": 0, "exit": 0, "exit 3": 3, "exit with a text": 1, "raise": 1}


def leave(way):
    if way == "raise":
        raise ValueError("of the child")
    if way.startswith("exit"):
        sys.exit({"exit": None, "exit 3": 3}.get(way, way))


def status_of(child):
    """How a child ends; None if it does not."""
    descriptor = os.pidfd_open(child)
    try:
        if not select.select([descriptor], [], [], DEADLINE_S)[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
    finally:
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


FORKING = threading.Lock()


class Forking(Worker):
    def __init__(self, way=None):
        self.status = self.method(way) if way else None

    def method(self, way):
        # One fork at a time: what others do before a fork (filelock's, say) may stand no second one.
        with FORKING:
            child = os.fork()
        if child == 0:
            return leave(way)
        return status_of(child)

    def stream(self, way):
        yield self.method(way)

    async def coroutine(self, way):
        await asyncio.sleep(0)
        return self.method(way)


@pytest.fixture
def launch(forked_job):
    return lambda *args, **options: Forking.create_group(*args).launch(
        forked_job, PackedPlacementStrategy(0, 0), name="forking", **options
    )


def test_a_child_that_leaves_a_method_ends_with_the_status_of_a_program(launch):
    group = launch()
    for way, status in WAYS.items():
        for method in (group.method, group.coroutine):
            assert method(way).wait(DEADLINE_S) == [status], way
    assert [list(values) for values in group.stream("exit 3")] == [[3]]


def test_a_child_that_leaves_a_method_on_one_of_several_threads_ends(launch):
    group = launch(max_concurrency=3)
    results = [group.method(way) for way in WAYS]
    assert [result.wait(DEADLINE_S) for result in results] == [[status] for status in WAYS.values()]


@pytest.mark.parametrize("way", ["return", "raise"])
def test_a_child_that_leaves_a_constructor_ends_and_the_rank_is_ready(launch, way):
    group = launch(way)
    assert group.get("status").wait(DEADLINE_S) == [WAYS[way]]
