"""Fixtures of engines: a job whose ranks are processes, without Ray."""

import pytest

from forked_job import ForkedJob


@pytest.fixture
def job():
    job = ForkedJob()
    yield job
    job.close()
