"""A job over each transport, and both ways to interrupt."""

import pytest

from interruptions import NUM_ROUNDS, NUM_STEPS, SEED, Alarms, Steps
from job_processes import Job
from rlinf.testing.local import hold_items


@pytest.fixture(params=["unix", "tcp"])
def job(request):
    print(f"seed {SEED}")  # noqa: T201
    with Job(request.param) as job:
        if request.param == "tcp":  # channels are elsewhere: their large items stay here
            hold_items(job.driver)
        yield job


@pytest.fixture(params=[Alarms, Steps])
def interrupt(request):
    return request.param


@pytest.fixture
def rounds(interrupt):
    """How many calls are interrupted."""
    return NUM_ROUNDS if interrupt is Alarms else NUM_STEPS
