"""A driver that iterates over a stream, or ends a group, waits for ranks: so it is shown, told and counted."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hanging_workers import Hanging

from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.observe.report import ask_report
from rlinf_scheduler.observe.status_service import begin_status, received
from rlinf_scheduler.observe.why import why
from waits import seen

DEADLINE_S = 60.0
OVER = "iteration over actor.make_values()"


@pytest.fixture
def gate(tmp_path):
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


@contextmanager
def looked_at(look, is_there, gate):
    """Look, in a thread beside the block, until that is seen; then open the gate. What was seen is in the list."""
    found = []

    def run():
        try:
            found.append(seen(look, is_there))
        finally:
            gate.open("wb").close()

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(run)
        yield found
        looking.result(DEADLINE_S)


def status_of(job):
    return received(begin_status(job.session, 0.0))


def driver_in(status):
    return next(rank for rank in status.ranks if rank.address == "driver")


STEPS = {
    "for": lambda stream: next(stream),
    "as_ready": lambda stream: next(stream.as_ready()),
    "rank": lambda stream: next(stream.rank(0)),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_in_a_for_loop_over_a_stream_is_shown_as_waiting(job, groups, gate, step):
    stream = groups[0].execute_on(0).make_values(1, gate)
    with stream, looked_at(lambda: status_of(job), lambda status: driver_in(status).wait, gate) as found:
        next(stream)
        STEPS[step](stream)
    driver = driver_in(found[0])
    assert (driver.state, driver.wait) == ("waiting", OVER)


def test_a_driver_in_an_async_for_loop_is_shown_as_waiting(job, groups, gate):
    async def run(stream):
        return [values async for values in stream]

    stream = groups[0].execute_on(0).make_values(1, gate)
    with stream, looked_at(lambda: status_of(job), lambda status: driver_in(status).wait, gate) as found:
        assert asyncio.run(run(stream)) == [[0], [1]]
    driver = driver_in(found[0])
    assert (driver.state, driver.wait) == ("waiting", OVER)


def test_the_culprit_is_the_rank_that_owes_a_value_and_not_the_driver_that_waits_for_it(job, groups, gate):
    def has_rank(found):
        return found.culprit is not None and found.culprit.address == "actor:0"

    stream = groups[0].execute_on(0).make_values(1, gate)
    with stream, looked_at(lambda: why(job.session), has_rank, gate) as found:
        next(stream)
        next(stream)
    assert found[0].culprit.waiters == ("driver",)
    assert f"driver waits in {OVER}: actor:0 has not answered" in str(found[0])


def test_a_rank_that_waits_for_its_turn_waits_for_the_driver(job, groups, gate):
    stream = groups[0].execute_on(0).make_values(10, gate)
    with stream:
        found = seen(lambda: why(job.session), lambda found: "actor:0" in found.graph.blocked)
        (blocked,) = found.graph.blocked["actor:0"]
    assert blocked.ends.processes == ("driver",)


def test_a_value_is_a_step(job, groups, gate):
    gate.unlink()
    gate.write_bytes(b"..")
    stream = groups[1].make_values(12, gate, each_s=0.002)
    assert list(stream) == [[number] * 2 for number in range(13)]
    report = ask_report(job.session, "rollout.make_values")
    (made,) = (each for each in report.groups if each.name == "rollout")
    method = next(each for each in made.methods if each.method == "make_values")
    assert (method.spent.count, method.values.count) == (2, 26)
    assert (report.step.count, report.step.num_followed >= 24) == (13, True)
    assert "a step, from one value of rollout.make_values() to the next" in str(report)
    driver = next(each for each in report.groups if each.name == "driver")
    # This process may have run calls of other tests.
    waited = [wait for method in driver.methods for wait in method.waits]
    over = next(each for each in waited if each.operation == "iteration over rollout.make_values()")
    assert set(over.ended_by) <= {"rollout:0", "rollout:1"}


def test_a_driver_that_ends_a_group_in_order_waits_for_its_ranks(job, gate):
    group = Hanging.create_group().launch(job, PackedPlacementStrategy(0, 1), name="ending")
    group.execute_on(1).stand(str(gate))
    with looked_at(lambda: why(job.session), lambda found: "driver" in found.graph.blocked, gate) as found:
        group.shutdown()
    (blocked,) = found[0].graph.blocked["driver"]
    assert blocked.wait.operation == "shutdown of 'ending'"
    assert "ending:1" in blocked.ends.processes
