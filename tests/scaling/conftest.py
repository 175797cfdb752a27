"""Fixtures of jobs without Ray."""

import pytest

from detached_forked_job import DetachedForkedJob
from forked_job import ForkedJob, wait_for_ends


@pytest.fixture
def forked_job(monkeypatch):
    """A driver, and its job, which ends with it."""
    wait_for_ends(monkeypatch)
    job = ForkedJob()
    yield job
    job.close()


@pytest.fixture
def kept(monkeypatch):
    """A job server; `attach` gives drivers."""
    wait_for_ends(monkeypatch)
    job = DetachedForkedJob()
    yield job
    job.close()
