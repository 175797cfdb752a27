"""What needs processes, not Ray: turns on devices over groups, ports, streams, and calls that are given up."""

import asyncio
import os
import signal

import pytest
from ray_workers import Companion

from rlinf.scheduler import FlexiblePlacementStrategy
from rlinf_scheduler.errors import CallCancelled, WorkerDied, WorkerError
from waits import wait_until


@pytest.fixture
def groups(forked_job):
    """Two groups of two ranks on the same two devices."""
    strategy = FlexiblePlacementStrategy([[0], [4]])
    return [
        Companion.create_group().launch(forked_job, strategy, name=name, on_failure="ignore")
        for name in ("train", "generate")
    ]


def test_an_async_method_answers_while_a_plain_one_blocks_and_a_lock_is_held(groups):
    train, generate = groups
    held = train.hold()
    wait_until(lambda: all(train.is_inside().wait(60)))
    with pytest.raises(WorkerError, match=r"'train:[01]' has them for"):
        generate.try_for(0.1).wait(60)
    train.let_go().wait(60)
    held.wait(60)
    assert generate.try_for(60).wait(60) == [True, True]


def test_no_port_is_given_twice_on_a_machine(groups):
    ports = [port for group in groups for each in group.ports(5).wait(60) for port in each]
    assert len(set(ports)) == 20


def test_values_of_a_generator_come_from_every_process(groups):
    assert list(groups[0].count(3)) == [[(value, 0), (value, 1)] for value in range(3)]

    async def run():
        return [values async for values in groups[1].count(2)]

    assert asyncio.run(run()) == [[(value, 0), (value, 1)] for value in range(2)]


def test_a_call_that_waits_in_recv_can_be_given_up(groups):
    waiting = groups[0].wait_for("generate", 0)
    waiting.cancel()
    ends = waiting.results(return_exceptions=True, timeout_s=60)
    assert [type(end) for end in ends] == [CallCancelled, CallCancelled]
    assert groups[0].get("rank").wait(60) == [0, 1]


def test_the_devices_of_a_process_that_is_killed_are_free(groups):
    train, generate = groups
    held = train.hold()
    wait_until(lambda: all(train.is_inside().wait(60)))
    os.kill(train[0].process_id().wait(60)[0], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        held.wait(60)
    assert generate[0].try_for(60).wait(60) == [True]
