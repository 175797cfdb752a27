"""Jobs of real processes, without Ray: one for all tests of a file."""

import pytest
from hanging_workers import Hanging

from forked_job import ForkedJob
from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.session import set_current


@pytest.fixture(scope="module")
def launched():
    """A job and its groups; a file may launch others. What hangs in it is freed again."""
    job = ForkedJob()
    with job.starting():
        actor = Hanging.create_group().launch(job, PackedPlacementStrategy(0, 1), name="actor")
        rollout = Hanging.create_group().launch(job, PackedPlacementStrategy(0, 1), name="rollout")
    yield job, (actor, rollout)
    job.close()


@pytest.fixture
def job(launched):
    set_current(launched[0].session)
    return launched[0]


@pytest.fixture
def groups(launched):
    return launched[1]
