"""Fixtures of jobs without Ray."""

import pytest

from detached_forked_job import DetachedForkedJob
from forked_job import ForkedJob


@pytest.fixture
def forked_job():
    """A driver, and its job, which ends with it."""
    job = ForkedJob()
    yield job
    job.close()


@pytest.fixture
def kept():
    """A job server; `attach` gives drivers."""
    job = DetachedForkedJob()
    yield job
    job.close()
