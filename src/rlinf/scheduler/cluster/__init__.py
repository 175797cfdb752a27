"""The cluster of a job."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import mirror

if TYPE_CHECKING:
    from rlinf_scheduler.cluster import *  # noqa: F403

__getattr__ = mirror(globals(), "rlinf_scheduler.cluster")
