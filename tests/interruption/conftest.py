"""A job over each transport, and both ways to interrupt."""

import pytest

from interruptions import NUM_ROUNDS, NUM_STEPS, SEED, USUAL_ROUNDS, Alarms, Steps
from job_processes import Job
from rlinf.testing.local import hold_items

WAYS = [("unix", Steps), ("tcp", Steps), ("tcp", Alarms)]
# Only what waits shows more to alarms than to steps, and it waits in one way on both.
if NUM_ROUNDS > USUAL_ROUNDS:
    WAYS.append(("unix", Alarms))


def pytest_generate_tests(metafunc):
    """Interrupt what is done over a transport in the ways of `WAYS`, and all else in both."""
    if {"job", "interrupt"} <= set(metafunc.fixturenames):
        metafunc.parametrize(("job", "interrupt"), WAYS, indirect=True)
    elif "interrupt" in metafunc.fixturenames:
        metafunc.parametrize("interrupt", [Alarms, Steps], indirect=True)


@pytest.fixture
def job(request):
    print(f"seed {SEED}")  # noqa: T201
    with Job(request.param) as job:
        if request.param == "tcp":  # channels are elsewhere: their large items stay here
            hold_items(job.driver)
        yield job


@pytest.fixture
def interrupt(request):
    return request.param


@pytest.fixture
def rounds(interrupt):
    """How many calls are interrupted."""
    return NUM_ROUNDS if interrupt is Alarms else NUM_STEPS
