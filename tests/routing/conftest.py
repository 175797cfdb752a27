"""Fixtures of routes between processes."""

import pytest

from forked_job import ForkedJob


@pytest.fixture
def forked_job():
    """A driver; its groups are processes of their own, without Ray."""
    job = ForkedJob()
    yield job
    job.close()
