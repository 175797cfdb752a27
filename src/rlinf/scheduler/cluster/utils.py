"""Small helpers of a cluster by RLinf's names."""

from __future__ import annotations

import logging

from rlinf.scheduler.absent import absent
from rlinf_scheduler.extension import load_extension


def load_user_extension_module(logger: logging.Logger | None = None) -> None:
    """Import the module that RLINF_EXT_MODULE names, and call its `register()`; once in a process.

    Raises:
        ConfigError: it cannot be loaded.
    """
    del logger  # what goes wrong is raised
    load_extension()


DistributedRayLogCollector = absent(
    "DistributedRayLogCollector",
    __name__,
    "nothing has to be collected: each rank writes files of its own; use `Cluster(distributed_log_dir=...)`",
)
