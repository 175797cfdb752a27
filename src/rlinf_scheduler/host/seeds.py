"""Random numbers that a job can have again: each rank's seed, derived from one of the job's."""

from __future__ import annotations

import os
import random
import secrets
import sys
from hashlib import blake2b

import numpy as np

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.session import Session

# What a rank finds its seed under; a group that it launches without a seed has its own derived from that.
SEED_VARIABLE = "RLINF_SEED"
# Every generator takes a seed below this: numpy's no larger one.
SEEDS = 1 << 32
# A job's may be larger: it is only derived from.
JOB_SEEDS = 1 << 63


def rank_seed(job_seed: int, group: str, rank: int) -> int:
    """The seed of one rank, from 0 to 2**32 - 1: the same whenever a rank of that name is started under that seed.

    >>> rank_seed(7, "actor", 0) == rank_seed(7, "actor", 0) != rank_seed(7, "actor", 1)
    True
    """
    digest = blake2b(f"{job_seed}/{group}/{rank}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def checked_seed(seed: object) -> int:
    """A seed that a user gave.

    Raises:
        ConfigError: it is no whole number from 0 to 2**63 - 1.
    """
    if type(seed) is not int or not 0 <= seed < JOB_SEEDS:
        raise ConfigError(f"seed={seed!r}: it is a whole number from 0 to 2**63 - 1")
    return seed


class DrawnSeed:
    """The seed of those groups of a process that were given none; a service of its session.

    It is RLINF_SEED where that is set, as it is in every rank; else it is drawn.

    Attributes:
        value: the seed.
    """

    def __init__(self, _session: Session) -> None:
        given = os.environ.get(SEED_VARIABLE, "")
        if given and not given.isdecimal():
            raise ConfigError(f"{SEED_VARIABLE}={given!r}: it is a whole number from 0 to 2**63 - 1")
        self.value = checked_seed(int(given)) if given else secrets.randbelow(JOB_SEEDS)


def seed_generators(seed: int) -> None:
    """Seed `random`, `numpy.random`, and torch if it is loaded."""
    random.seed(seed)
    np.random.seed(seed)  # what programs use that have no generator of their own
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
