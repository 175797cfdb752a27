"""Fixtures of calls without Ray."""

import pytest

from comm_fixtures import new_messenger, secret, session
from local_group import LocalJob

__all__ = ["new_messenger", "secret", "session"]


@pytest.fixture
def job():
    """A driver and its groups, as threads of this process."""
    job = LocalJob()
    yield job
    job.close()
