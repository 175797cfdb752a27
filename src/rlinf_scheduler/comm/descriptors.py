"""How many descriptors a process may have: a connection takes one, and a job's home has one to every process."""

from __future__ import annotations

import resource

# Enough for eight thousand ranks and all that they open besides.
ENOUGH = 1 << 16


def allow_descriptors() -> None:
    """Raise this process's limit as far as it may itself, up to `ENOUGH`; most systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
