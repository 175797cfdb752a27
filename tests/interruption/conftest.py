"""A job over each transport, and the seed of the moments."""

import pytest

from interruptions import SEED
from job_processes import Job


@pytest.fixture(params=["unix", "tcp"])
def job(request):
    print(f"seed {SEED}")  # noqa: T201
    with Job(request.param) as job:
        yield job
