"""Fixtures of calls without Ray."""

import pytest

from comm_fixtures import new_messenger, secret, session
from forked_job import ForkedJob, wait_for_ends
from local_group import LocalJob

__all__ = ["new_messenger", "secret", "session"]


@pytest.fixture
def job():
    """A driver and its groups, as threads of this process."""
    job = LocalJob()
    yield job
    job.close()


@pytest.fixture
def forked_job(monkeypatch):
    """A driver; its groups are processes of their own, without Ray."""
    wait_for_ends(monkeypatch)
    job = ForkedJob()
    yield job
    job.close()
